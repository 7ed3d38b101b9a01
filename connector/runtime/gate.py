"""How many readers may do at a time what nobody waits for, so that what somebody waits for comes first."""

from __future__ import annotations

from typing import Protocol


class Waiter(Protocol):
    """Who wants to pass; ``wake`` makes it try again."""

    def wake(self) -> None:
        """It is its turn."""


class Gate:
    """Lets ``limit`` of them pass at a time, the others in the order in which they came."""

    __slots__ = ("_free", "_granted", "_waiting")

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: dict[Waiter, None] = {}
        self._granted: set[Waiter] = set()

    def enter(self, waiter: Waiter) -> bool:
        """True when it may pass now, and has to ``leave``; else it is woken when it is its turn."""
        if waiter in self._granted:
            self._granted.remove(waiter)
            return True
        if self._free:
            self._free -= 1
            return True
        self._waiting[waiter] = None
        return False

    def leave(self) -> None:
        """One has passed: the next may."""
        if self._waiting:
            waiter = next(iter(self._waiting))
            del self._waiting[waiter]
            self._granted.add(waiter)
            waiter.wake()
        else:
            self._free += 1

    def withdraw(self, waiter: Waiter) -> None:
        """It wants to pass no more."""
        self._waiting.pop(waiter, None)
        if waiter in self._granted:
            self._granted.remove(waiter)
            self.leave()

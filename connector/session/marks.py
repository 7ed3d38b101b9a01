"""Marks: when a connection's socket is not read, and when it is again.

Owns the high and low mark of a buffer, and the set of reasons why reading pauses.  The reasons are independent: the
socket is read only when none is left (PU-09, PC-16, PC-17, PC-19).  Must not know what is buffered.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntFlag


class Pause(IntFlag):
    """Why a socket is not read."""

    IN_FLIGHT = 1  # published and not stored yet
    QUEUED = 2  # methods that wait behind a slow one of their channel
    BLOCKED = 4  # KubeMQ cannot take more (connection.blocked)
    UNREAD = 8  # replies the client does not read
    ENDING = 16  # the connector stops; what came before gets its confirms
    KEPT = 64  # what was read of it waits until there is room in the outbox
    PARTIAL = 32  # it is the turn of another client to make its message whole


class Reading:
    """The switch between the reasons and the transport."""

    __slots__ = ("_pause", "_resume", "reasons")

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause = pause
        self._resume = resume
        self.reasons = Pause(0)

    def pause(self, reason: Pause) -> None:
        """Stop reading for this reason too."""
        before, self.reasons = self.reasons, self.reasons | reason
        if not before:
            self._pause()

    def resume(self, reason: Pause) -> None:
        """This reason is gone; reading goes on with the last of them."""
        before, self.reasons = self.reasons, self.reasons & ~reason
        if before and not self.reasons:
            self._resume()

    def release(self) -> None:
        """Read from now on whatever happens: only close-ok is waited for."""
        if self.reasons:
            self._resume()
        self.detach()

    def detach(self) -> None:
        """There is no socket any more; results that still come move the marks only."""
        self._pause = self._resume = _nothing


def _nothing() -> None:
    """Do nothing."""


class Mark:
    """A count of bytes; above ``high`` it pauses reading, at half of it reading goes on."""

    __slots__ = ("_high", "_low", "_reading", "_reason", "is_over", "size")

    def __init__(self, high: int, reading: Reading, reason: Pause) -> None:
        self._high = high
        self._low = high // 2
        self._reading = reading
        self._reason = reason
        self.size = 0
        self.is_over = False

    def add(self, size: int) -> None:
        """Something came in."""
        self.size += size
        if self.size > self._high and not self.is_over:
            self.is_over = True
            self._reading.pause(self._reason)

    def remove(self, size: int) -> None:
        """Something went out."""
        self.size -= size
        if self.is_over and self.size <= self._low:
            self.is_over = False
            self._reading.resume(self._reason)

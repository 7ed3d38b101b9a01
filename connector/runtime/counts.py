"""QueuesInfo for everybody: one call for all queues, shared by all who asked before it began.

Owns the call in flight and the poll that sees native producers while consumers wait (design.md section 3, point 2).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from connector.broker.ports import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.broker import Broker
    from connector.broker.ports import ChannelInfo, QueueStore

#: A get or a declare waits at most this long for fresh numbers.
DEADLINE_S = 0.03
POLL_S = 1.0
#: After a count that has found a native producer's messages the next one comes so soon, and each further one later.
QUICK_S = 0.05
SLOWER = 1.5
#: A poll takes at most one part in so many of the time, ours and KubeMQ's.
SHARE = 20

log = structlog.get_logger(__name__)


class SharedSnapshot:
    """QueuesInfo for all who ask before a call begins: one call at most is under way (design.md section 3, point 2).

    KubeMQ takes 6 to 60 ms for hundreds of channels; one call each would be all it does.
    """

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._next: asyncio.Future[list[ChannelInfo]] | None = None
        self._asked = asyncio.Event()

    async def rows(self) -> list[ChannelInfo]:
        """The rows of a call that begins from now on; raises StoreError."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._asked.set()
        return await asyncio.shield(self._next)

    async def run(self) -> None:
        """Call while somebody asks, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            future, self._next = self._next, None
            if future is None:
                continue
            try:
                rows = await self._store.snapshot()
            except StoreError as error:
                future.set_exception(error)
                future.exception()  # whoever asked may be gone
            except asyncio.CancelledError:
                future.cancel()
                raise
            except Exception as error:  # a bug: nobody may wait for ever, nor be taken for cancelled
                future.set_exception(error)
                future.exception()
                raise
            else:
                future.set_result(rows)


class Asked:
    """One who waits for fresh counts; answered once, by the call or by the deadline."""

    __slots__ = ("_done", "timer")

    def __init__(self, done: Callable[[], None]) -> None:
        self._done: Callable[[], None] | None = done
        self.timer: asyncio.TimerHandle | None = None

    def answer(self) -> None:
        """Go on, with what is known now."""
        done, self._done = self._done, None
        if self.timer is not None:
            self.timer.cancel()
        if done is not None:
            done()


class Counts:
    """The shared QueuesInfo call."""

    def __init__(self, snapshot: SharedSnapshot, broker: Broker, settle: Callable[[], None]) -> None:
        self._snapshot = snapshot
        self._broker = broker
        self._settle = settle
        self._asked: list[Asked] = []
        self._wake = asyncio.Event()
        self._pause_s = POLL_S

    def refresh(self, done: Callable[[], None]) -> None:
        """Call ``done`` after a call that begins from now on, or after 30 ms."""
        asked = Asked(done)
        asked.timer = asyncio.get_running_loop().call_later(DEADLINE_S, self._expire, asked)
        self._asked.append(asked)
        self._wake.set()

    def _expire(self, asked: Asked) -> None:
        if asked in self._asked:
            self._asked.remove(asked)
        asked.answer()
        self._settle()

    async def run(self) -> None:
        """Answer who asks; look by itself while somebody could wait for a native message, sooner when some came."""
        loop = asyncio.get_running_loop()
        while True:
            timer = loop.call_later(self._pause_s, self._wake.set)
            await self._wake.wait()
            timer.cancel()
            self._wake.clear()
            if self._asked or self._broker.needs_poll():
                began_at = loop.time()
                try:
                    await self.count()
                    self.pause(loop.time() - began_at)
                except StoreError as error:
                    log.debug("no counts", error=str(error))
                    await asyncio.sleep(DEADLINE_S)

    def pause(self, took_s: float) -> float:
        """Seconds until the next poll, after a call that took so long."""
        pause_s = QUICK_S if self._broker.found_more else self._pause_s * SLOWER
        self._pause_s = min(POLL_S, max(pause_s, SHARE * took_s))
        return self._pause_s

    async def count(self) -> None:
        """One call; raises StoreError."""
        asked, self._asked = self._asked, []
        began = self._broker.begin_snapshot()
        try:
            rows = await self._snapshot.rows()
            self._broker.on_snapshot(began, rows)
        finally:
            for waiter in asked:
                waiter.answer()
            self._settle()

"""Delayed messages: kept apart until they are due, then published as if sent at that moment.

Owns the heap of what is due when.  Publishing and ending the delay are one transaction, so a message neither gets lost
nor comes twice.  KubeMQ looks twice a second; this is exact.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time

from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded.publishing import Publisher
from connector.embedded.store import Store

log = logging.getLogger("kubemq.embedded")

_NS_PER_S = 1_000_000_000
_RETRY_NS = _NS_PER_S
# The wall clock may be set: never sleep longer than this.
_LOOK_AGAIN_S = 60.0


class Delays:
    """The delayed messages of the last run and of this one, as (due, id)."""

    def __init__(self, publisher: Publisher, store: Store, delays: list[tuple[int, int]]) -> None:
        self._publisher = publisher
        self._store = store
        self._heap = delays
        heapq.heapify(self._heap)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        publisher.on_delayed = self.add

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to publish what is due."""
        self._task = loop.create_task(self._run(), name="delayed messages")

    def stop(self) -> None:
        """Publish no more."""
        if self._task is not None:
            self._task.cancel()

    def add(self, due_ns: int, delay_id: int) -> None:
        """A delayed message is stored."""
        heapq.heappush(self._heap, (due_ns, delay_id))
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            wait_s = (self._heap[0][0] - time.time_ns()) / _NS_PER_S if self._heap else _LOOK_AGAIN_S
            if wait_s > 0:
                await self._sleep(min(wait_s, _LOOK_AGAIN_S))
                continue
            _, delay_id = heapq.heappop(self._heap)
            try:
                stored = await self._publish(delay_id)
            except Exception:  # one bad row must not stop the others; it stays in the database
                log.exception("delayed message %d", delay_id)
                continue
            if not stored:
                self.add(time.time_ns() + _RETRY_NS, delay_id)

    async def _sleep(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _publish(self, delay_id: int) -> bool:
        data = await asyncio.to_thread(self._store.read_delayed, delay_id)
        intake = self._publisher.intake()
        intake.add(pb.QueueMessage.FromString(data))
        intake.end_delay_with_it(delay_id)
        return await intake.save()

"""A broker with real tasks on the fake KubeMQ: readers, lanes and counts in an event loop, without sessions.

Owns what ``runtime/hub.py`` does for them: wakes, batches, the end of tasks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from connector.broker.broker import Broker
from connector.broker.counters import Counters
from connector.broker.message import Message
from connector.broker.queue import StoredQueue
from connector.broker.topology import QueueRecord
from connector.runtime.counts import Counts, SharedSnapshot
from connector.runtime.queue_reader import QueueReader
from connector.runtime.queue_writer import QueueWriter
from tests.support.broker_model import Publisher, Settings
from tests.support.fake_kubemq import FakeKubeMQ

T = TypeVar("T")


def in_background(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that the test itself brings to its end."""
    return asyncio.create_task(coroutine)


class RuntimeModel:
    """One queue ``q`` with its reader, the lanes and the counts; tasks run while ``running`` is entered."""

    def __init__(self, store: FakeKubeMQ | None = None, *, deadline_s: float = 30.0) -> None:
        self.store = store or FakeKubeMQ()
        self.counters = Counters()
        self.broker = Broker(Settings(), time.monotonic, self, self.counters)
        self.broker.on_loaded()
        self.queue = self.broker.stored_queue(QueueRecord("default", "q", durable=True))
        self.snapshot = SharedSnapshot(self.store)
        self.counts = Counts(self.snapshot, self.broker, self.settle)
        self.links: list[bool] = []
        self.writers = [
            QueueWriter(outbox, self.store, self.counters, self.settle, self._on_link, deadline_s)
            for outbox in self.broker.outboxes
        ]
        self.readers: dict[StoredQueue, QueueReader] = {}
        self.reader_count = 0
        self.settle_count = 0
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ broker.Hooks

    def wake_lane(self, lane: int) -> None:
        """See ``Hooks``."""
        self.writers[lane].wake()

    def wake_reader(self, queue: StoredQueue) -> None:
        """See ``Hooks``."""
        reader = self.readers.get(queue)
        if reader is not None:
            reader.wake()
            return
        self.reader_count += 1
        reader = self.readers[queue] = QueueReader(
            queue.current, self.store, self.snapshot.rows, self.broker, self.settle
        )
        self._start(reader.run(), lambda: self._on_reader_end(queue))

    def _on_reader_end(self, queue: StoredQueue) -> None:
        del self.readers[queue]

    def refresh_counts(self, done: Callable[[], None]) -> None:
        """See ``Hooks``."""
        self.counts.refresh(done)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """See ``Hooks``."""
        asyncio.get_running_loop().call_later(delay_s, self._run_batch, action)

    def stop_readers(self, queue: StoredQueue) -> None:
        """See ``Hooks``; nobody else reads."""

    def append_event(self, event_id: str, data: bytes) -> None:
        """See ``Hooks``; nothing is declared here."""

    def report(self, what: str, **facts: object) -> None:
        """See ``Hooks``."""

    def _run_batch(self, action: Callable[[], None]) -> None:
        action()
        self.settle()

    def _on_link(self) -> None:
        self.links.append(any(writer.is_failing for writer in self.writers))

    def settle(self) -> None:
        """The end of a batch."""
        self.settle_count += 1
        self.broker.dispatch()

    # ------------------------------------------------------------------ tasks

    @asynccontextmanager
    async def running(self, *, counts: bool = True, lanes: bool = True) -> AsyncIterator[RuntimeModel]:
        """Run the tasks; they are cancelled at the end."""
        async with self._group:
            self._start(self.snapshot.run())
            if counts:
                self._start(self.counts.run())
            if lanes:
                for writer in self.writers:
                    self._start(writer.run())
            try:
                yield self
            finally:
                for task in list(self._tasks):
                    task.cancel()

    def _start(self, coroutine: Coroutine[Any, Any, None], done: Callable[[], None] | None = None) -> None:
        task = self._group.create_task(coroutine)
        self._tasks.add(task)

        def end(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            if done is not None:
                done()

        task.add_done_callback(end)

    # ------------------------------------------------------------------ what clients do

    def publish(self, *bodies: bytes, receipt: Publisher | None = None) -> Publisher:
        """Hand messages to the queue; returns who is told."""
        receipt = receipt or Publisher()
        for token, body in enumerate(bodies, 1):
            self.queue.publish(Message("", "q", b"\0\0", body), receipt, token)
        self.settle()
        return receipt

    def stored(self) -> list[bytes]:
        """The bodies in the queue's KubeMQ channel."""
        channel = self.store.channel(self.queue.kubemq_channel)
        return [channel.stored[sequence].message.body for sequence in sorted(channel.stored)]

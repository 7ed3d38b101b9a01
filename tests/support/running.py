"""A connector's whole runtime on the fake KubeMQ, with one queue: for tests of what a crash of KubeMQ does to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from connector.broker.counters import Counters
from connector.broker.message import Message
from connector.broker.queue import StoredQueue
from connector.broker.requests import QueueDeclare
from connector.runtime.hub import Hub
from connector.runtime.tasks import Tasks
from connector.session.arriving import Arriving
from tests.support.fake_kubemq import FakeKubeMQ, FakeTopologyLog
from tests.support.waiting import until

BASE = "amqp.default.q"
#: Where a first move takes the copies, and what is published from then on.
FIRST, SECOND = "amqp.default.~g1.q", "amqp.default.~g2.q"


class Settings:
    """What the broker needs."""

    lanes = 1
    get_batch = 4
    memory_limit_bytes = 1_000_000
    vhosts: list[str] = []  # noqa: RUF012 - as the protocol has it
    requeues_in_place = False
    delivers_early = False


class Consumer:
    """Remembers everything; acknowledges when told."""

    exclusive = no_ack = False
    priority = 0

    def __init__(self, prefetch: int) -> None:
        self.prefetch = prefetch
        self.held: list[Message] = []
        self.seen: list[tuple[bytes, bool]] = []

    @property
    def held_count(self) -> int:
        """See ``Consumer``."""
        return len(self.held)

    def free_credit(self) -> int:
        """See ``Consumer``."""
        return self.prefetch - len(self.held)

    def deliver(self, message: Message) -> None:
        """See ``Consumer``."""
        self.held.append(message)
        self.seen.append((message.body, message.redelivered))

    def on_queue_gone(self) -> None:
        """See ``Consumer``."""


class Publisher:
    """A receipt without confirms: what is unknown is sent again."""

    retry = True

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.refused: list[int] = []

    def on_stored(self, token: int) -> None:
        """See ``Receipt``."""
        self.stored.append(token)

    def on_refused(self, token: int, reason: str) -> None:
        """See ``Receipt``."""
        self.refused.append(token)

    def on_doubt(self, token: int) -> None:
        """See ``Receipt``."""

    def on_unrouted(self, token: int, message: Message) -> None:
        """See ``Receipt``."""

    def flush(self) -> None:
        """See ``Receipt``."""


class Running:
    """A connector's runtime with one queue."""

    def __init__(self, hub: Hub, store: FakeKubeMQ, log: FakeTopologyLog) -> None:
        self.hub = hub
        self.store = store
        self.log = log
        self.publisher = Publisher()
        self._last = 0

    @property
    def queue(self) -> StoredQueue:
        """The queue ``q``."""
        found = self.hub.broker.virtual_host("/").queues["q"]
        assert isinstance(found, StoredQueue)
        return found

    async def declare(self, name: str = "q") -> None:
        """``queue.declare``."""
        results: list[object] = []
        self.hub.broker.virtual_host("/").declare_queue(
            QueueDeclare(name, passive=False, durable=True, exclusive=False, auto_delete=False, arguments={}),
            None,
            results.append,
        )
        await until(lambda: bool(results))
        await self.ping()

    async def ping(self) -> None:
        """KubeMQ answers a Ping."""
        self.hub.on_ping(await self.store.ping())
        self.hub.settle()

    async def publish(self, count: int) -> None:
        """So many more messages, each with its number; until they are stored."""
        wanted = len(self.publisher.stored) + count
        for _ in range(count):
            self._last += 1
            self.queue.publish(Message("", "q", b"\0\0", b"%d" % self._last), self.publisher, self._last)
        self.hub.settle()
        await until(lambda: len(self.publisher.stored) == wanted)

    def consume(self, prefetch: int) -> Consumer:
        """``basic.consume``."""
        consumer = Consumer(prefetch)
        self.queue.add_consumer(consumer)
        self.hub.settle()
        return consumer

    def ack(self, consumer: Consumer, count: int) -> None:
        """The first of what it holds."""
        for message in consumer.held[:count]:
            self.queue.settle(message)
        del consumer.held[:count]
        self.hub.settle()

    async def ack_all(self, consumer: Consumer, total: int) -> None:
        """Until so many were seen and everything is acknowledged."""

        def work() -> bool:
            self.ack(consumer, len(consumer.held))
            return len(consumer.seen) >= total and not consumer.held

        await until(work)

    def stored(self, channel: str) -> list[bytes]:
        """The bodies in a KubeMQ channel."""
        return [stored.message.body for stored in self.store.channel(channel).stored.values()]


@asynccontextmanager
async def running(store: FakeKubeMQ, log: FakeTopologyLog) -> AsyncIterator[Running]:
    """From its start to its end; what it finds is another one's."""
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, Counters())
        hub = Hub(
            Settings(), store, log, tasks, Counters(), publish_deadline_s=5.0, declare_deadline_s=5.0,
            outbox_high_bytes=1_000_000, outbox_high_count=10_000, memory_high_bytes=1_000_000,
            arriving=Arriving(1_000_000, 0), held_high_bytes=1_000_000,
        )  # fmt: skip
        started: list[asyncio.Task[Any]] = []

        async def serve() -> None:
            hub.on_server(await store.ping())
            hub.start()
            await asyncio.Event().wait()

        started.append(group.create_task(serve()))
        await hub.sync.loaded.wait() if hub.sync.loaded.is_set() else await until(hub.sync.loaded.is_set)
        yield Running(hub, store, log)
        hub.stop()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()

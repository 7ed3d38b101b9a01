"""The runtime's centre on a fake KubeMQ: readers come when they are needed, and none once the end has begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connector.broker.counters import Counters
from connector.broker.message import Message
from connector.broker.queue import StoredQueue
from connector.broker.requests import QueueDeclare
from connector.runtime.hub import Hub
from connector.runtime.queue_writer import NOT_AVAILABLE
from connector.runtime.tasks import Tasks
from connector.session.arriving import Arriving
from connector.session.connection import Connection
from tests.support.broker_model import Publisher
from tests.support.fake_kubemq import FakeKubeMQ
from tests.support.waiting import until


class Log:
    """A topology log that gives back what it is given."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[bytes] = asyncio.Queue()

    async def append(self, event: bytes, start: int = 0) -> None:
        self._events.put_nowait(event)

    async def follow(self) -> AsyncIterator[tuple[int, bytes]]:
        yield 0, b""
        sequence = 0
        while True:
            sequence += 1
            yield sequence, await self._events.get()


class Ended(Exception):
    """Ends the group."""


async def declared(hub: Hub, name: str) -> StoredQueue:
    answers: list[object] = []
    hub.broker.virtual_host("/").declare_queue(QueueDeclare(name, durable=True), None, answers.append)
    await until(lambda: answers)
    queue = hub.broker.virtual_host("/").queues[name]
    assert isinstance(queue, StoredQueue)
    return queue


async def run(part: Callable[[Hub], Awaitable[list[Any]]]) -> list[Any]:
    """What the part returns, done with a hub at work."""
    settings: Any = SimpleNamespace(
        lanes=1, get_batch=32, requeues_in_place=False, delivers_early=False, memory_limit_bytes=1000, vhosts=[]
    )

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = Tasks(group, Counters())
            hub = Hub(
                settings, FakeKubeMQ(), Log(), tasks, Counters(), publish_deadline_s=1, declare_deadline_s=1,
                outbox_high_bytes=1000, outbox_high_count=10, memory_high_bytes=1000, held_high_bytes=1000,
                arriving=Arriving(1000, 0),
            )  # fmt: skip
            hub.start()
            await hub.sync.loaded.wait()
            raise Ended(await part(hub))

    with pytest.raises(ExceptionGroup) as ended:
        await serve()
    (end,) = ended.value.exceptions
    assert isinstance(end, Ended), end
    (found,) = end.args
    assert isinstance(found, list)
    return found


async def with_a_late_queue(hub: Hub) -> list[str]:
    """Names of the readers after one was asked for before the end has begun and one after."""
    hub.wake_reader(await declared(hub, "q"))
    await until(readers)
    late = await declared(hub, "late")
    hub.stop()
    hub.wake_reader(late)
    return readers()


class KeptReader:
    """A connection of which something was read and is kept: a message of 1,200 bytes, more than the mark."""

    def __init__(self, name: str, hub: Hub, queue: StoredQueue, turns: list[str]) -> None:
        self._name = name
        self._hub = hub
        self._queue = queue
        self._turns = turns

    def block(self, reason: str, *, is_strict: bool = False) -> None:
        if is_strict:
            self._hub.wants_read(cast("Connection", self))

    def unblock(self, reason: str) -> None: ...

    def on_tick(self, now: float) -> None: ...

    def lost(self) -> None: ...

    def read_on(self) -> None:
        self._turns.append(self._name)
        self._queue.publish(Message("", "q", b"\0\0", bytes(1200)), Publisher(), 1)


async def with_kept_readers(hub: Hub) -> list[list[str]]:
    """Who had a turn after each time that there was room."""
    queue = await declared(hub, "q")
    queue.hold()
    turns: list[str] = []
    clients = [cast("Connection", KeptReader(name, hub, queue, turns)) for name in ("one", "two", "gone", "three")]
    queue.publish(Message("", "q", b"\0\0", bytes(1200)), Publisher(), 1)
    hub.settle()
    for client in clients:
        hub.add_connection(client)
    hub.remove_connection(clients[2])
    found = []
    for _ in range(4):
        await until(lambda: hub.broker.outboxes[0].aside_count)
        hub.broker.outboxes[0].take_held(queue)
        hub.settle()
        had = len(turns)
        await until(lambda: len(turns) > had)  # noqa: B023 # within the turn
        found.append(list(turns))
    for client in clients:
        hub.remove_connection(client)
    return found


class BrokenReader(KeptReader):
    """A bug in what is kept of this one."""

    info = SimpleNamespace(context=dict)
    is_lost = False

    def lost(self) -> None:
        self.is_lost = True

    def read_on(self) -> None:
        raise RuntimeError


async def with_a_broken_reader(hub: Hub) -> list[Any]:
    """Who had a turn beside one that fails, what became of that one, and how often that was counted."""
    queue = await declared(hub, "q")
    turns: list[str] = []
    broken = BrokenReader("broken", hub, queue, turns)
    for reader in (broken, KeptReader("one", hub, queue, turns), KeptReader("two", hub, queue, turns)):
        hub.wants_read(cast("Connection", reader))
    await until(lambda: len(turns) == 2)
    return [*turns, broken.is_lost, hub.broker.counters.internal_errors]


async def with_a_held_queue(hub: Hub) -> list[tuple[int, str]]:
    """What is told of a publish to a queue that is held and stays so."""
    queue = await declared(hub, "q")
    queue.hold()
    publisher = Publisher()
    queue.publish(Message("", "q", b"\0\0", b""), publisher, 7)
    await until(lambda: publisher.refused)
    return publisher.refused


def readers() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("queue_reader")]


async def test_no_reader_is_started_once_the_end_has_begun() -> None:
    assert await run(with_a_late_queue) == ["queue_reader amqp.default.q"]


async def test_those_that_were_stopped_at_a_mark_go_on_in_their_order_and_stop_at_the_next() -> None:
    turns = ["one", "two", "three", "one"]
    assert await run(with_kept_readers) == [turns[:count] for count in range(1, 5)]


async def test_what_is_published_to_a_held_queue_is_refused_after_the_deadline() -> None:
    assert await run(with_a_held_queue) == [(7, NOT_AVAILABLE)]


async def test_one_whose_turn_fails_ends_alone() -> None:
    assert await run(with_a_broken_reader) == ["one", "two", True, 1]

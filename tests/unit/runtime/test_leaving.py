"""A deletion that fails while channels of the queue are examined or copied: what is published meanwhile is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from connector.broker.ports import Unavailable
from tests.support.fake_kubemq import FakeKubeMQ, FakeTopologyLog
from tests.support.running import BASE, SECOND, Running, running
from tests.support.waiting import until


class SlowLog:
    """Keeps events of some kinds on their way until told what becomes of them."""

    def __init__(self, world: Running, *kinds: bytes) -> None:
        self._hub = world.hub
        self._append: Callable[[str, bytes], None] = world.hub.append_event
        self._kinds = kinds
        self._kept: dict[bytes, tuple[str, bytes]] = {}

    def append(self, event_id: str, data: bytes) -> None:
        """See ``Hooks.append_event``."""
        kind = next((kind for kind in self._kinds if b'"%s"' % kind in data), b"")
        if kind:
            self._kept[kind] = (event_id, data)
        else:
            self._append(event_id, data)

    def has(self, kind: bytes) -> bool:
        """Whether one of this kind is on its way."""
        return kind in self._kept

    def take(self, kind: bytes) -> None:
        """It arrives."""
        self._append(*self._kept.pop(kind))
        self._hub.settle()

    def refuse(self, kind: bytes) -> None:
        """It does not."""
        event_id, _ = self._kept.pop(kind)
        self._hub.broker.on_append_failed(event_id, Unavailable("KubeMQ does not answer"))
        self._hub.settle()


@pytest.fixture
async def world() -> AsyncIterator[Running]:
    async with running(FakeKubeMQ(), FakeTopologyLog()) as world:
        await world.declare()
        yield world


def _slow_log(world: Running, monkeypatch: pytest.MonkeyPatch, *kinds: bytes) -> SlowLog:
    log = SlowLog(world, *kinds)
    monkeypatch.setattr(world.hub, "append_event", log.append)
    return log


async def _begin_deletion(world: Running, log: SlowLog) -> list[object]:
    done: list[object] = []
    world.hub.broker.virtual_host("/").delete_queue("q", None, if_unused=False, if_empty=False, done=done.append)
    world.hub.settle()
    await until(lambda: log.has(b"queue.deleted"))
    return done


async def test_a_deletion_that_fails_while_the_queue_is_copied(world: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.publish(20)
    consumer = world.consume(3)
    await until(lambda: len(consumer.held) == 3)
    log = _slow_log(world, monkeypatch, b"queue.deleted", b"queue.moved")
    world.store.crash(withholds=True)
    await world.ping()
    await until(lambda: log.has(b"queue.moved"))
    done = await _begin_deletion(world, log)
    log.refuse(b"queue.deleted")
    log.take(b"queue.moved")
    assert [type(result) for result in done] == [Unavailable]
    await world.publish(1)
    assert b"21" in world.stored(SECOND)
    await world.ack_all(consumer, 21)


async def test_a_deletion_that_fails_while_an_older_channel_is_in_doubt(
    world: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.publish(10)
    consumer = world.consume(2)
    await until(lambda: len(consumer.held) == 2)
    dead = world.store.channel(BASE).open[0]
    dead.capacity = 6
    dead.channel.fill()
    world.store.crash(withholds=True)
    await world.ping()
    await until(lambda: not world.queue.is_moving and world.queue.kubemq_channel == SECOND)
    await world.ack_all(consumer, 6)
    log = _slow_log(world, monkeypatch, b"queue.deleted")
    await _begin_deletion(world, log)
    world.store.crash(withholds=True)
    await world.ping()
    assert world.queue.older[0].lease.is_doubtful
    assert not world.queue.current.lease.is_doubtful
    log.refuse(b"queue.deleted")
    await world.publish(1)
    assert b"11" in world.stored(SECOND)

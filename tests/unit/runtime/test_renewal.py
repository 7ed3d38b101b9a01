"""Renewal: a queue moves before the server's retention takes its oldest message."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from connector.runtime.renewal import DUE, Renewal
from tests.support.fake_kubemq import FakeKubeMQ, FakeTopologyLog
from tests.support.running import BASE, SECOND, Running, running
from tests.support.waiting import until

RETENTION_S = 1000.0


@pytest.fixture
async def world() -> AsyncIterator[Running]:
    async with running(FakeKubeMQ(), FakeTopologyLog()) as world:
        await world.declare()
        yield world


def renewal(world: Running) -> Renewal:
    return Renewal(world.hub.broker, world.hub.settle, RETENTION_S)


async def test_a_queue_with_an_old_message_moves_with_all_it_has(world: Running) -> None:
    await world.publish(8)
    consumer = world.consume(2)
    await until(lambda: len(consumer.held) == 2)
    world.queue.lease.note_oldest(world.hub.broker.clock() - DUE * RETENTION_S)
    renewal(world).look()
    world.hub.settle()
    await world.publish(2)
    assert world.queue.kubemq_channel == SECOND
    await until(lambda: not world.stored(BASE))
    await world.ack_all(consumer, 10)
    assert [body for body, _ in consumer.seen] == [b"%d" % n for n in range(1, 11)]
    assert world.queue.older[0].lease.counts.withheld == 0


async def test_a_young_queue_stays(world: Running) -> None:
    await world.publish(2)
    world.queue.lease.note_oldest(world.hub.broker.clock() - DUE * RETENTION_S + 60)
    renewal(world).look()
    assert not world.queue.is_held
    assert 600 < renewal(world).oldest_age_s() < RETENTION_S


async def test_an_unknown_age_is_learned_by_reading_one_message_ahead(world: Running) -> None:
    await world.publish(3)
    assert world.queue.lease.oldest_since is None
    renewal(world).look()
    world.hub.settle()
    await until(lambda: world.store.channel(BASE).get_count > 0)
    await until(lambda: not world.store.channel(BASE).open)
    assert len(world.stored(BASE)) == 3

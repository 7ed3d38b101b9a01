"""Queues as the API shows them on each of several connectors: the figures are the reader's, whoever is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connector.broker.ports import Unavailable
from connector.broker.requests import QueueDeclare
from connector.broker.topology import queue_deleted
from connector.runtime.queue_view import BrokerQueues
from tests.support.broker_model import Consumer, Publisher
from tests.support.replica_model import Pair, Replica


class Trio(Pair):
    """Of three one may go without leaving all queues to one other."""

    def __init__(self) -> None:
        super().__init__()
        self.c = Replica(self.a)
        self.run()

    @property
    def all(self) -> list[Replica]:
        return [*super().all, *([self.c] if hasattr(self, "c") else [])]


async def look(pair: Pair, replica: Replica, name: str = "", *, is_counted: bool = True) -> Any:
    """What the page on this connector shows, of all queues by name or of one; it may ask KubeMQ, or in vain."""

    async def count() -> None:
        if not is_counted:
            raise Unavailable("away")
        replica.refresh_counts(lambda: None)
        replica._count()

    view = BrokerQueues(replica.broker, count)
    async with asyncio.TaskGroup() as group:
        page: asyncio.Task[Any] = group.create_task(view.row("/", name) if name else view.rows(None))
        await asyncio.sleep(0)
        pair.run(1.5)
    shown = page.result()
    return shown if name else {row["name"]: row for row in shown}


def counts(row: dict[str, Any]) -> tuple[int, int, int]:
    """Messages, ready ones, and what clients hold."""
    return row["messages"], row["messages_ready"], row["messages_unacknowledged"]


def declare(pair: Pair, *names: str, **flags: Any) -> None:
    """On ``a``, which is their owner."""
    for name in names:
        pair.a.start(pair.a.vhost.declare_queue, QueueDeclare(name, **(flags or {"durable": True})), None)
    pair.run()


def publish(pair: Pair, replica: Replica, name: str, count: int) -> None:
    """From this connector."""
    for number in range(count):
        replica.vhost.publish("", name, b"\0\0", b"%d" % number, Publisher(), number + 1)
    pair.run(0.5)


async def test_what_was_published_elsewhere_and_consumed_is_shown_nowhere() -> None:
    pair, consumer = Pair(), Consumer(no_ack=True)
    declare(pair, "q")
    pair.a.vhost.queues["q"].add_consumer(consumer)
    pair.run()
    publish(pair, pair.b, "q", 50)
    assert len(consumer.got) == 50
    for replica in pair.all:
        assert counts(await look(pair, replica, "q")) == (0, 0, 0)


async def test_every_connector_shows_the_readers_figures() -> None:
    pair, consumer = Pair(), Consumer(3)
    declare(pair, "q", "other", "empty")
    pair.a.vhost.queues["q"].add_consumer(consumer)
    pair.b.vhost.queues["q"].add_consumer(Consumer())
    pair.run()
    publish(pair, pair.b, "q", 10)
    publish(pair, pair.a, "other", 2)
    rows = [await look(pair, replica) for replica in pair.all]
    assert [counts(rows[0][name]) for name in ("q", "other", "empty")] == [(10, 7, 3), (2, 2, 0), (0, 0, 0)]
    assert (rows[0]["q"]["consumers"], rows[0]["q"]["consumers_waiting"]) == (2, 1)
    assert rows[0]["q"]["kubemq"]["channels"][0]["messages_unacknowledged"] == 3
    for replica in pair.all:
        for name in ("q", "other", "empty"):
            row = _timeless(await look(pair, replica, name))
            assert row == _timeless(rows[0][name]) == _timeless(rows[1][name])


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    channels = [
        {**channel, "oldest_message_seconds": isinstance(channel["oldest_message_seconds"], float)}
        for channel in row["kubemq"]["channels"]
    ]
    return {**row, "kubemq": {**row["kubemq"], "channels": channels}}


async def test_queues_in_another_ones_memory_are_counted_there() -> None:
    pair, borrower = Pair(), Consumer(2)
    declare(pair, "q", auto_delete=True)
    declare(pair, "x", exclusive=True)
    publish(pair, pair.a, "x", 993)
    pair.b.vhost.queues["q"].add_consumer(borrower)
    pair.run()
    publish(pair, pair.b, "q", 5)
    for replica in pair.all:
        rows = await look(pair, replica)
        assert (counts(rows["q"]), counts(rows["x"])) == ((5, 3, 2), (993, 993, 0))
        assert (rows["q"]["consumers_waiting"], rows["q"]["kubemq"]) == (0, None)
    rows = await look(pair, pair.b)
    assert {row["node"] for row in rows.values()} == {pair.a.group.me}


async def test_whoever_does_not_answer_is_shown_as_it_was_last() -> None:
    pair = Pair()
    declare(pair, "q", "new")
    publish(pair, pair.a, "q", 4)
    assert counts(await look(pair, pair.b, "q")) == (4, 4, 0)
    pair.a.is_hung = True
    publish(pair, pair.b, "new", 3)
    assert counts(await look(pair, pair.b, "q")) == (4, 4, 0)
    rows = await look(pair, pair.b)
    assert (counts(rows["q"]), counts(rows["new"])) == ((4, 4, 0), (3, 3, 0))  # of this one KubeMQ's count
    pair.a.is_hung = False
    publish(pair, pair.a, "q", 1)
    assert counts((await look(pair, pair.b))["q"]) == (5, 5, 0)


async def test_an_answer_replaces_what_was_known_of_the_queues_asked_for() -> None:
    pair = Pair()
    declare(pair, "q", "other")
    for name in ("q", "other"):
        publish(pair, pair.a, name, 4)
    await look(pair, pair.b)
    for name in ("q", "other"):
        pair.a.start(pair.a.vhost.purge_queue, name, None)
        pair.run(0.5)
    assert counts(await look(pair, pair.b, "q")) == (0, 0, 0)
    pair.a.is_hung = True
    assert [counts(row) for row in (await look(pair, pair.b)).values()] == [(0, 0, 0), (4, 4, 0)]


async def test_what_nobody_reads_any_more_is_counted_by_kubemq() -> None:
    trio = Trio()
    declare(trio, "q")
    publish(trio, trio.b, "q", 6)
    trio.a.is_hung = True
    trio.run(9)
    oldest, other = trio.b, trio.c
    assert oldest.broker.topology.members.owner_of(oldest.vhost.queues["q"].record) == ""
    for replica in (oldest, other):
        assert counts(await look(trio, replica, "q")) == (6, 6, 0)
        assert counts((await look(trio, replica))["q"]) == (6, 6, 0)
    assert (oldest.broker.needs_poll(), other.broker.needs_poll()) == (True, False)
    assert (oldest.broker.unread_count(), other.broker.unread_count()) == (6, 0)  # one of them tells Prometheus
    trio.b.apply_foreign(queue_deleted(oldest.vhost.queues["q"].record))
    trio.run(0.5)
    assert (oldest.broker.needs_poll(), oldest.broker.unread_count()) == (False, 0)


async def test_who_is_left_counts_what_it_has_taken_over() -> None:
    pair = Pair()
    declare(pair, "q")
    publish(pair, pair.b, "q", 6)
    pair.a.is_hung = pair.b.count_is_late = True
    pair.run(9)
    assert pair.b.vhost.queues["q"].is_owned
    assert pair.b.broker.needs_poll()
    pair.b.count_is_late = False
    assert counts(await look(pair, pair.b, "q")) == (6, 6, 0)
    assert not pair.b.broker.needs_poll()


@pytest.mark.parametrize("is_asked", [True, False])
async def test_without_kubemq_the_page_shows_what_it_can(is_asked: bool) -> None:
    pair = Pair()
    declare(pair, "q")
    pair.a.is_hung = True
    shown = await look(pair, pair.b, "q" if is_asked else "", is_counted=False)
    assert counts(shown if is_asked else shown["q"]) == (0, 0, 0)

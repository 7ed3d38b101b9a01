"""A second reader on the channel: noticed, and nothing that is held is given back to it."""

from __future__ import annotations

from connector.broker.lease import State
from connector.broker.sharing import FORGET_S, Sharing
from tests.support.fake_kubemq import FakeTransaction
from tests.support.lease_model import Consumer, LeaseModel


def read(model: LeaseModel, seconds: float = 0.0, steps: int = 30) -> None:
    """Let the reader, the lane and time go on."""
    for _ in range(steps):
        model.send()
        model.read()
        model.tick(seconds / steps)


def count(model: LeaseModel) -> None:
    """One shared QueuesInfo call."""
    model.begin_count()
    model.end_count()


class Foreigner:
    """Somebody else with an open transaction on the channel."""

    def __init__(self, model: LeaseModel, wanted: int) -> None:
        self.transaction = FakeTransaction("foreign", model.channel, wanted)
        self.bodies = [message.body for message in model.channel.get(self.transaction)]

    @property
    def has(self) -> list[int]:
        """Sequences that were given to it, seen or not."""
        return sorted([*self.transaction.unacked, *self.transaction.parked])

    def leave(self) -> None:
        """Everything goes back."""
        self.transaction.close()


def shared(prefetch: int = 3, wanted: int = 4) -> tuple[LeaseModel, Consumer, Foreigner]:
    """A consumer holds what it may, and a foreigner has joined and was counted."""
    model = LeaseModel()
    model.publish(10, retry=False)
    count(model)
    consumer = model.add_consumer(prefetch)
    read(model)
    assert len(consumer.unacked) == prefetch
    foreigner = Foreigner(model, wanted)
    count(model)
    return model, consumer, foreigner


def test_a_foreign_reader_is_noticed_with_the_first_count() -> None:
    model, _, _ = shared()
    assert model.lease.sharing.is_certain
    assert [what for what, _ in model.reported] == ["channel is read by others"]


def test_nothing_held_is_given_back_while_somebody_else_reads() -> None:
    model, consumer, foreigner = shared()
    before = foreigner.has
    model.ack(consumer, consumer.unacked[0])
    read(model, 3.0)
    assert foreigner.has == before
    transaction = model.transaction()
    assert transaction is not None
    assert {message.sequence for message in consumer.unacked} <= set(transaction.unacked)
    for message in list(consumer.unacked):
        model.ack(consumer, message)
    read(model, 3.0)
    assert consumer.unacked  # nothing was held, so the queue was read
    assert model.lease.sharing.is_on


def test_service_is_as_before_when_the_other_has_left() -> None:
    model, consumer, foreigner = shared()
    foreigner.leave()
    count(model)
    assert len(model.reported) == 1  # it may only be between two polls
    model.tick(FORGET_S)
    count(model)
    assert [what for what, _ in model.reported][1:] == ["channel is read by us alone"]
    model.ack(consumer, consumer.unacked[0])
    read(model, 3.0)
    assert len(consumer.unacked) == 3
    model.finish()


def test_a_short_answer_is_not_closed_over_what_is_held_when_somebody_else_reads() -> None:
    model, consumer, foreigner = shared(prefetch=2, wanted=7)
    model.lease.sharing.is_on = model.lease.sharing.is_certain = False  # as if not counted yet
    for message in list(consumer.unacked):
        model.ack(consumer, message)
    model.lease.counts.on_given_back(3)  # the known backlog is what the other has
    consumer.prefetch = 4
    read(model, 0.2)
    assert model.lease.state is State.RECOVERING
    assert model.lease.must_keep
    held = {message.sequence for message in consumer.unacked}
    assert held
    read(model, 5.0)
    assert held.isdisjoint(foreigner.has)


def test_a_get_on_a_shared_queue_is_answered_though_the_backlog_cannot_be_read() -> None:
    model, consumer, _ = shared()
    results: list[object] = []
    model.queue.get(results.append)
    model.settle()
    read(model)
    count(model)
    assert results == [None]
    assert len(consumer.unacked) == 3


def test_two_transactions_seen_while_ours_was_renewed_are_only_suspected() -> None:
    sharing = Sharing()
    assert sharing.on_count(2, "t1", "t2", 0.0)
    assert (sharing.is_on, sharing.is_certain) == (True, False)
    assert sharing.on_count(1, "t2", "t2", 0.1)
    assert not sharing.is_on
    assert sharing.on_count(2, "t2", "t2", 0.2)
    assert sharing.is_certain


def test_one_subscriber_proves_nothing_while_ours_is_closed_but_not_for_ever() -> None:
    sharing = Sharing()
    sharing.on_count(2, "t", "t", 0.0)
    assert not sharing.on_count(1, "", "", 1.0)
    assert sharing.is_certain
    assert sharing.on_count(1, "", "", FORGET_S)
    assert not sharing.is_on

"""Two brokers on one log and one store, in one process: who reads, who takes over, and who waits."""

from __future__ import annotations

from typing import Any

import pytest

from connector.broker.members import Member
from connector.broker.peers import beat
from connector.broker.requests import QueueDeclare
from tests.support.broker_model import BrokerModel, Consumer


class Identity:
    """A process on a host that nobody knows."""

    host = "somewhere"
    process = ""

    def has_ended(self, member: Member) -> bool:
        del member
        return False


class Replica(BrokerModel):
    """One of several; ``is_hung`` for one that neither hears nor says anything."""

    def __init__(self, *others: Replica) -> None:
        self.others = others
        self.is_hung = False
        super().__init__()
        if others:
            self.store, self.log = others[0].store, others[0].log
        self.group = self.broker.enter(Identity(), 6.0, lambda: None, is_alone=False)
        self.seen = 0
        self.group.join()


class Pair:
    """Carries the log, the beats and the frames between two."""

    def __init__(self) -> None:
        self.a = Replica()
        self.run()
        self.b = Replica(self.a)
        self.run()

    @property
    def all(self) -> list[Replica]:
        return [replica for replica in (self.a, getattr(self, "b", None)) if replica is not None]

    def run(self, seconds: float = 1.0) -> None:
        steps = round(seconds / 0.05)
        for _ in range(steps):
            for replica in self.all:
                replica.now += 0.05
                if not replica.is_hung:
                    self._turn(replica)

    def _turn(self, replica: Replica) -> None:
        while replica.waiting_log:
            replica.log.append(replica.waiting_log.pop(0)[1])
        while replica.seen < len(replica.log):
            replica.seen += 1
            replica._apply(replica.seen, replica.log[replica.seen - 1])
        group = replica.group
        number = group.tenure.beat(replica.now)
        data: Any = beat(group.me, number, replica.broker.topology.version)
        assert data
        group.tenure.on_own(number, replica.now)
        for other in self.all:
            if other is not replica and not other.is_hung:
                other.group.on_heard(group.me)
                other.group.peers.on_applied(group.me, replica.broker.topology.version)
        for member, frame in group.peers.next_frames():
            for other in self.all:
                if other.group.me == member and not other.is_hung:
                    other.group.peers.on_frame(frame)
        group.tick()
        replica.settle(0.0)


def test_who_declares_reads_and_gives_what_it_does_not_use() -> None:
    pair = Pair()
    answer = pair.a.start(pair.a.vhost.declare_queue, _declare("q"), None)
    pair.run()
    assert answer.value.name == "q"
    here, there = pair.a.vhost.queues["q"], pair.b.vhost.queues["q"]
    assert (here.is_owned, there.is_owned) == (True, False)
    consumer = Consumer()
    there.add_consumer(consumer)
    pair.run()
    assert (here.is_owned, there.is_owned) == (False, True)
    second = Consumer()
    here.add_consumer(second)
    pair.run()
    assert (here.is_owned, there.is_owned) == (False, True)
    assert pair.a.group.waiting_consumer_count() == 1
    there.remove_consumer(consumer)
    pair.run(2)
    assert (here.is_owned, there.is_owned) == (True, False)


def test_a_hung_one_is_buried_and_comes_back_as_another() -> None:
    pair = Pair()
    pair.a.start(pair.a.vhost.declare_queue, _declare("q"), None)
    pair.run()
    there = pair.b.vhost.queues["q"]
    there.add_consumer(Consumer())
    pair.a.vhost.queues["q"].add_consumer(Consumer())
    pair.run()
    first = pair.a.group.me if pair.a.vhost.queues["q"].is_owned else pair.b.group.me
    hung, other = (pair.a, pair.b) if first == pair.a.group.me else (pair.b, pair.a)
    hung.is_hung = True
    pair.run(8)
    assert other.vhost.queues["q"].is_owned
    assert first not in other.broker.topology.members.living
    assert not hung.group.may_read()
    hung.is_hung = False
    pair.run(3)
    assert not hung.vhost.queues["q"].is_owned
    assert hung.group.me != first
    assert set(other.broker.topology.members.living) == {hung.group.me, other.group.me}
    assert hung.group.may_read()


def _auto_delete(pair: Pair, *, durable: bool) -> tuple[Any, Any]:
    """An auto-delete queue of ``a``'s, as both see it."""
    pair.a.start(pair.a.vhost.declare_queue, QueueDeclare("q", durable=durable, auto_delete=True), None)
    pair.run()
    return pair.a.vhost.queues["q"], pair.b.vhost.queues["q"]


def _is_gone(pair: Pair) -> bool:
    return not any("q" in replica.vhost.queues for replica in pair.all)


@pytest.mark.parametrize("durable", [True, False])
def test_an_auto_delete_queue_goes_when_its_last_consumers_go_at_once(durable: bool) -> None:
    pair = Pair()
    here, there = _auto_delete(pair, durable=durable)
    first, second = Consumer(), Consumer()
    here.add_consumer(first)
    there.add_consumer(second)
    pair.run()
    here.remove_consumer(first)
    there.remove_consumer(second)
    pair.run()
    assert _is_gone(pair)


@pytest.mark.parametrize("durable", [True, False])
def test_an_auto_delete_queue_goes_when_the_last_consumer_was_not_where_it_is(durable: bool) -> None:
    pair = Pair()
    here, there = _auto_delete(pair, durable=durable)
    first, second = Consumer(), Consumer()
    here.add_consumer(first)
    pair.run()
    there.add_consumer(second)
    pair.run()
    here.remove_consumer(first)
    pair.run(0.5)
    assert not _is_gone(pair)
    there.remove_consumer(second)
    pair.run()
    assert _is_gone(pair)


def test_an_auto_delete_queue_that_had_no_consumer_stays() -> None:
    pair = Pair()
    _auto_delete(pair, durable=False)
    pair.run(3)
    assert not _is_gone(pair)


def _declare(name: str) -> Any:
    return QueueDeclare(name, durable=True)

"""Deleted queues of several connectors: who empties their channels, when, and what is left of them elsewhere."""

from __future__ import annotations

import pytest

from connector.broker.generations import queue_drained
from connector.broker.message import Message
from connector.broker.outbox import Submission, on_results
from connector.broker.queue import StoredQueue
from connector.broker.requests import QueueDeclare
from connector.broker.topology import VERSION, Observer, QueueRecord, Topology, encode_event, name_event, queue_declared
from tests.support.broker_model import Answer, Consumer, Publisher
from tests.support.replica_model import Pair, Replica

CHANNEL = "amqp.default.q"


@pytest.fixture
def pair() -> Pair:
    """``a`` has declared a queue, and reads it."""
    pair = Pair()
    _declare(pair, pair.a)
    return pair


def _declare(pair: Pair, replica: Replica) -> None:
    answer = replica.start(replica.vhost.declare_queue, QueueDeclare("q", durable=True), None)
    pair.run()
    assert answer.value.name == "q"


def _delete(replica: Replica) -> Answer:
    return replica.start(replica.vhost.delete_queue, "q", None, False, False)


def _publish(replica: Replica, receipt: Publisher, *bodies: bytes) -> None:
    for token, body in enumerate(bodies):
        replica.vhost.queues["q"].publish(Message("", "q", b"\0\0", body), receipt, token)


def _bodies(pair: Pair) -> list[bytes]:
    return [stored.message.body for stored in pair.a.store.channel(CHANNEL).stored.values()]


def test_nothing_of_a_deleted_queue_stays_where_it_was_not_read(pair: Pair) -> None:
    for _ in range(3):
        assert not pair.b.vhost.queues["q"].is_owned
        answer = _delete(pair.a)
        pair.run()
        assert answer.value == 0
        assert [list(replica.broker.sources()) for replica in pair.all] == [[], []]
        assert [replica.broker._by_reported_name for replica in pair.all] == [{}, {}]
        _declare(pair, pair.a)


def test_what_natives_publish_to_the_next_queue_of_a_name_is_seen_by_whoever_reads_it(pair: Pair) -> None:
    _delete(pair.a)
    pair.run()
    _declare(pair, pair.b)
    consumer = Consumer()
    pair.b.vhost.queues["q"].add_consumer(consumer)
    pair.run()
    pair.b.store.channel(CHANNEL).append(Message("", "q", b"\0\0", b"native", "native-1"))
    pair.run(2)
    assert consumer.bodies == [b"native"]


def test_what_another_connector_has_on_its_way_is_not_in_the_next_queue(pair: Pair) -> None:
    receipt = Publisher()
    pair.b.hold_lanes = True
    _publish(pair.b, receipt, b"1", b"2")
    batch: list[Submission] = [entry for outbox in pair.b.broker.outboxes for entry in outbox.take()]
    answer = _delete(pair.a)
    pair.run(2)
    assert list(pair.b.broker.topology.undrained) == [("default", "q")]
    for submission in batch:
        pair.a.store.channel(submission.kubemq_channel).append(submission.message)
    on_results(batch, ["", ""])
    pair.run(2)
    assert receipt.stored == [0, 1]
    assert answer.is_there
    assert _bodies(pair) == []
    assert not pair.b.broker.topology.undrained


def test_whoever_goes_on_with_a_deletion_waits_for_its_own(pair: Pair) -> None:
    receipt = Publisher()
    pair.b.hold_lanes = True
    _publish(pair.b, receipt, b"1", b"2")
    batch: list[Submission] = [entry for outbox in pair.b.broker.outboxes for entry in outbox.take()]
    _delete(pair.a)
    pair.run()
    pair.a.is_hung = True  # it dies while it waits
    answer = pair.b.start(pair.b.vhost.declare_queue, QueueDeclare("q", durable=True), None)
    pair.run(20)
    assert list(pair.b.broker.topology.undrained) == [("default", "q")]
    for submission in batch:
        pair.b.store.channel(submission.kubemq_channel).append(submission.message)
    on_results(batch, ["", ""])
    pair.b.hold_lanes = False
    pair.run(5)
    assert receipt.stored == [0, 1]
    assert answer.value.message_count == 0
    assert _bodies(pair) == []


def test_a_declare_never_says_that_there_is_no_such_queue(pair: Pair) -> None:
    """It is deleted after the declare was compared with it, and before the one who reads it has counted it."""
    answer = pair.b.start(pair.b.vhost.declare_queue, QueueDeclare("q", durable=True), None)
    event = name_event("queue.deleted", "default", "q")
    pair.a.log.append(encode_event({"v": VERSION, "id": "other.1", "member": "other", **event}))
    pair.run(3)
    assert answer.value.name == "q"
    assert "q" in pair.a.vhost.queues


def test_a_deletion_is_of_the_queue_that_was_there_when_it_was_asked_for(pair: Pair) -> None:
    """Its reader deletes it and is gone before it has answered; the one who asked asks again, and there is another."""
    answer = _delete(pair.b)
    pair.a.is_hung = True
    record = QueueRecord("default", "q", durable=True)
    for event in (name_event("queue.deleted", "default", "q"), queue_declared(record)):
        pair.b.log.append(encode_event({"v": VERSION, "id": f"other.{len(pair.b.log)}", "member": "other", **event}))
    pair.run(0.2)
    assert not answer.is_there
    there = pair.b.vhost.queues["q"]
    pair.run(20)
    assert answer.value == 0
    assert pair.b.vhost.queues["q"] is there


def test_what_waits_on_another_connector_does_not_keep_a_deletion(pair: Pair) -> None:
    """It is never sent; who published it is told at the next turn of the lane."""
    receipt = Publisher()
    pair.b.hold_lanes = True
    _publish(pair.b, receipt, b"1")
    answer = _delete(pair.a)
    pair.run()
    pair.b.hold_lanes = False
    pair.run()
    assert answer.is_there
    assert (receipt.stored, _bodies(pair)) == ([0], [])


def test_who_comes_back_does_not_go_on_emptying_what_another_connector_has_emptied(pair: Pair) -> None:
    _publish(pair.a, Publisher(), *[b"old"] * 10)
    pair.run()
    pair.a.count_is_late = True  # it does not come to an end
    answer = _delete(pair.a)
    pair.run()
    assert not answer.is_there
    assert list(pair.b.broker.topology.undrained) == [("default", "q")]
    pair.a.is_hung = True
    pair.run(12)
    assert not pair.b.broker.topology.undrained
    _declare(pair, pair.b)
    receipt = Publisher()
    _publish(pair.b, receipt, b"1", b"2", b"3")
    pair.run()
    assert receipt.stored == [0, 1, 2]
    pair.a.is_hung = pair.a.count_is_late = False
    pair.run(12)
    consumer = Consumer()
    pair.b.vhost.queues["q"].add_consumer(consumer)
    pair.run()
    assert consumer.bodies == [b"1", b"2", b"3"]
    assert len(list(pair.a.broker.sources())) == 1


def test_who_is_taken_for_dead_leaves_what_it_empties_to_the_others(pair: Pair) -> None:
    _publish(pair.a, Publisher(), b"old")
    pair.run()
    pair.a.count_is_late = pair.b.count_is_late = True
    _delete(pair.a)
    pair.run()
    pair.a.is_hung = True
    pair.run(12)
    pair.a.is_hung = False
    pair.run(3)
    assert list(pair.a.broker.sources()) == []
    pair.b.count_is_late = False
    pair.run(3)
    assert not pair.a.broker.topology.undrained
    assert list(pair.b.broker.sources()) == []


def test_a_deletion_ends_though_what_is_left_cannot_be_noted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredQueue, "remainder", lambda _queue: {"0": [-1, 7]})
    answer = _delete(pair.a)
    pair.run(3)
    assert answer.is_there
    assert [replica.broker.topology.left for replica in pair.all] == [{}, {}]


def test_a_drain_ends_when_the_log_says_that_nothing_is_left(pair: Pair) -> None:
    _publish(pair.a, Publisher(), b"old")
    pair.run()
    pair.a.count_is_late = True
    answer = _delete(pair.a)
    pair.run()
    pair.a.apply_foreign(queue_drained("default", "q", pair.a.broker.topology.deletions["default", "q"]))
    assert list(pair.a.broker.sources()) == []
    pair.a.count_is_late = False
    pair.run(3)
    assert answer.is_there
    assert not pair.a.told


def test_a_drain_ends_when_the_next_queue_is_there(pair: Pair) -> None:
    """Its declaration was on its way when the link broke, and arrives when nobody expects it any more."""
    pair.a.count_is_late = True
    _delete(pair.a)
    pair.run()
    waiting = pair.b.start(pair.b.vhost.declare_queue, QueueDeclare("q", durable=True), None)
    event = {
        "v": VERSION,
        "id": "late.1",
        "member": "late",
        **queue_declared(QueueRecord("default", "q", durable=True)),
    }
    pair.a.log.append(encode_event(event))
    pair.run()
    receipt = Publisher()
    _publish(pair.b, receipt, b"1", b"2", b"3")
    pair.run()
    pair.a.count_is_late = False
    pair.run(3)
    assert waiting.value.name == "q"
    assert (receipt.stored, _bodies(pair)) == ([0, 1, 2], [b"1", b"2", b"3"])


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_that_a_queue_is_empty_ends_its_own_deletion_alone(has_snapshot: bool) -> None:
    topology, key = Topology(Observer()), ("default", "q")
    declared = queue_declared(QueueRecord(*key, durable=True))
    deleted = name_event("queue.deleted", *key)
    for sequence, event in enumerate((declared, deleted, queue_drained(*key, 2), declared, deleted), 1):
        assert topology.apply(sequence, event)
    if has_snapshot:
        snapshot = topology.snapshot_event()
        topology = Topology(Observer())
        topology.load_snapshot(snapshot)
    assert not topology.apply(6, queue_drained(*key, 2, {"0": [3, 7]}))
    assert (list(topology.undrained), topology.left) == ([key], {})
    assert topology.apply(7, queue_drained(*key, 5))
    assert not topology.undrained


def test_an_earlier_version_need_not_say_which_deletion_it_means() -> None:
    topology, key = Topology(Observer()), ("default", "q")
    topology.apply(1, queue_declared(QueueRecord(*key, durable=True)))
    topology.apply(2, name_event("queue.deleted", *key))
    assert topology.apply(3, queue_drained(*key))
    assert not topology.undrained

"""The broker around its queues: virtual hosts, the log's answers, QueuesInfo under mangled names, drains."""

from __future__ import annotations

import json
from functools import partial

import pytest

from connector.amqp.wire import MAX_DEPTH, Table
from connector.broker import broker as broker_module
from connector.broker.errors import NotFound
from connector.broker.message import Message
from connector.broker.ports import ChannelInfo, TimedOut
from connector.broker.requests import QueueDeclare
from connector.broker.snapshots import split
from connector.broker.topology import decode_event
from tests.support.broker_model import BrokerModel, Consumer, Publisher


@pytest.fixture
def model() -> BrokerModel:
    return BrokerModel()


# --------------------------------------------------------------------------------------------- virtual hosts
def test_the_default_vhost_has_three_names(model: BrokerModel) -> None:
    assert model.broker.virtual_host("/") is model.broker.virtual_host("") is model.broker.virtual_host("default")
    with pytest.raises(NotFound, match=r"^vhost nope not found$"):
        model.broker.virtual_host("nope")
    with pytest.raises(NotFound):
        model.broker.virtual_host("sur\ud800")


def test_a_vhost_that_the_settings_name_no_longer_keeps_its_queues() -> None:
    first = BrokerModel(vhosts=("other",))
    vhost = first.broker.virtual_host("other")
    first.call(vhost.declare_queue, QueueDeclare("q", durable=True), None)
    second = BrokerModel(first)
    third = BrokerModel(second, vhosts=("other",))
    assert "q" in third.broker.virtual_host("other").queues


# ------------------------------------------------------------------------------------------------- the log
def test_what_waits_for_the_log_too_long_is_answered(model: BrokerModel) -> None:
    model.hold_log = True
    early = model.declare("q", durable=True)
    model.now += 5.0
    late = model.declare("r", durable=True)
    model.broker.expire_appends(model.now - 2.0)
    assert early.error == ("TimedOut", "the topology log did not answer in time")
    assert not late.is_there
    model.answer_log()  # it was written all the same
    model.settle()
    assert "q" in model.vhost.queues
    assert late.value.name == "r"


def test_a_late_failure_of_what_was_answered_changes_nothing(model: BrokerModel) -> None:
    model.hold_log = True
    answer = model.declare("q", durable=True)
    event_id = model.waiting_log[0][0]
    model.answer_log()
    model.settle()
    model.broker.on_append_failed(event_id, TimedOut("late"))
    assert answer.value.name == "q"


def test_the_log_is_followed_again_from_its_start(model: BrokerModel) -> None:
    """After a lost link everything comes once more; what is known is skipped."""
    model.declare("q", durable=True)
    model.declare("q2", durable=True)
    queue = model.vhost.find_queue("q", None)
    for sequence, data in enumerate(model.log, 1):
        model._apply(sequence, data)
    model.broker.on_loaded()
    assert model.vhost.find_queue("q", None) is queue


def test_a_snapshot_is_written_after_many_events(model: BrokerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "SNAPSHOT_EVENTS", 4)
    for number in range(6):
        model.declare(f"q{number}", durable=True)
    events = [decode_event(data) for data in model.log]
    at = next(number for number, event in enumerate(events) if event and event["type"] == "snapshot")
    snapshot = events[at]
    assert snapshot is not None
    assert [declared["name"] for declared in snapshot["queues"]] == ["q0", "q1", "q2", "q3"]
    assert not model.broker.appending  # nobody waits for it, nothing is kept
    del model.log[:at]  # the server has forgotten the beginning
    model.log[:0] = [b'{"v":1,"type":"from.the.past"}'] * at
    second = BrokerModel(model)
    assert set(second.vhost.queues) == {f"q{number}" for number in range(6)}


def test_the_log_from_its_start_on_is_enough(model: BrokerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large snapshots come in parts, and the more there is to write the rarer they are."""
    monkeypatch.setattr(broker_module, "SNAPSHOT_EVENTS", 4)
    monkeypatch.setattr(broker_module, "split", partial(split, part_objects=2))
    assert model.broker.log_start == 1
    for number in range(40):
        model.declare(f"q{number}", durable=True)
    types = [json.loads(data)["type"] for data in model.log]
    assert 2 <= types.count("snapshot") <= 5
    assert types.count("snapshot.part") <= 40
    start = model.broker.log_start
    assert 1 < start <= len(model.log)
    model.log[: start - 1] = [b'{"v":1,"type":"from.the.past"}'] * (start - 1)
    second = BrokerModel(model)
    assert list(second.vhost.queues) == [f"q{number}" for number in range(40)]
    assert second.broker.log_start >= start


def test_a_snapshot_by_another_replica_spares_us_our_own(model: BrokerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "SNAPSHOT_EVENTS", 4)
    for number in range(3):
        model.declare(f"q{number}", durable=True)
    model.apply_foreign(BrokerModel(model).broker.topology.snapshot_event())
    assert model.broker.log_start == 4
    for number in range(3, 6):
        model.declare(f"q{number}", durable=True)
    assert [json.loads(data)["member"] for data in model.log if b'"snapshot"' in data] == ["other"]


def test_many_events_without_a_snapshot_are_followed_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first = BrokerModel()
    for number in range(5):
        first.declare(f"q{number}", durable=True)
    monkeypatch.setattr(broker_module, "SNAPSHOT_EVENTS", 3)
    second = BrokerModel(first)
    last = decode_event(second.log[-1])
    assert last is not None
    assert last["type"] == "snapshot"
    assert last["upto"] == 5


# ------------------------------------------------------------------------------------- QueuesInfo, shared names
def test_two_queues_reported_under_one_name_go_by_their_counters() -> None:
    """QueuesInfo trims ``_QUES.``: ``tasks`` and ``tasks_`` are both reported as ``tasks``."""
    first = BrokerModel()
    for name, count in (("tasks", 3), ("tasks_", 5)):
        first.declare(name, durable=True)
        first.publish("", name, *[b"%d" % n for n in range(count)])
    second = BrokerModel(first)
    assert second.consume("tasks").bodies == [b"0", b"1", b"2"]
    assert second.consume("tasks_").bodies == [b"0", b"1", b"2", b"3", b"4"]
    second.publish("", "tasks", b"new")
    second.publish("", "tasks_", b"new")
    second.settle()
    for name in ("tasks", "tasks_"):
        queue = second.stored_queue(name)
        assert queue.unacked_count == len(second.stored(name))
        assert queue.ready_count == 0


def test_a_purge_works_where_names_are_shared() -> None:
    first = BrokerModel()
    for name, count in (("tasks", 30), ("tasks_", 5)):
        first.declare(name, durable=True)
        first.publish("", name, *[b"%d" % n for n in range(count)])
    second = BrokerModel(first)
    assert second.call(second.vhost.purge_queue, "tasks_", None).is_there
    assert second.stored("tasks_") == []
    assert len(second.stored("tasks")) == 30
    assert second.delete("tasks").is_there
    assert second.stored("tasks") == []


def test_a_foreign_channel_of_the_same_reported_name(model: BrokerModel) -> None:
    model.declare("tasks", durable=True)
    model.store.publish_native("amqp.default.tasks_", b"other")
    model.publish("", "tasks", b"1")
    consumer = model.consume("tasks")
    assert consumer.bodies == [b"1"]
    assert model.stored_queue("tasks").ready_count == 0


def test_a_native_message_wakes_a_waiting_consumer(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    consumer = model.consume("q")
    model.store.publish_native("amqp.default.q", b"native")
    model.settle()
    assert consumer.bodies == [b"native"]


def test_who_needs_a_poll(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.publish("", "q", b"1")
    assert not model.broker.needs_poll()
    consumer = model.consume("q", Consumer(1))
    assert model.broker.needs_poll()
    queue = model.stored_queue("q")
    queue.remove_consumer(consumer)
    assert model.broker.needs_poll()  # something is held
    queue.settle(consumer.got[0])
    model.settle()
    assert not model.broker.needs_poll()


def test_a_channel_that_kubemq_does_not_list_is_empty(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    queue = model.stored_queue("q")
    assert model.broker.count(queue.current, queue.lease.begin_snapshot(), []) == 0
    row = ChannelInfo("amqp.default.q", 7, 1, 7, 0, 1)
    assert model.broker.count(queue.current, queue.lease.begin_snapshot(), [row]) == 7
    assert model.broker.count(queue.current, queue.lease.begin_snapshot(), [row, row]) is None


def test_a_second_subscriber_at_the_first_sight_makes_everything_redelivered() -> None:
    """Somebody may hold what was counted as never handed out (design.md section 3, point 10)."""
    first = BrokerModel()
    first.declare("q", durable=True)
    first.publish("", "q", b"1", b"2")
    first.store.open_stream()
    second = BrokerModel(first, count_is_late=True)
    queue = second.stored_queue("q")
    second.broker.count(queue.current, queue.lease.begin_snapshot(), [ChannelInfo("amqp.default.q", 2, 1, 2, 0, 2)])
    second.count_is_late = False
    assert [message.redelivered for message in second.consume("q").got] == [True, True]


def test_lanes_are_chosen_by_name(model: BrokerModel) -> None:
    """A channel always uses the same lane, and all are used."""
    names = [f"q{number}" for number in range(20)]
    for name in names:
        model.declare(name, durable=True)
    first = {name: model.stored_queue(name)._outbox for name in names}
    assert len(set(map(id, first.values()))) == 2
    for name in names:
        model.delete(name)
        model.declare(name, durable=True)
        assert model.stored_queue(name)._outbox is first[name]


def test_a_drained_queue_is_forgotten(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.delete("q")
    assert list(model.broker.stored_queues()) == []
    assert model.broker.topology.undrained == {}


class BrokenConsumer(Consumer):
    """A bug in somebody's connection."""

    def deliver(self, message: Message) -> None:
        raise ZeroDivisionError


def test_one_broken_consumer_does_not_keep_the_other_queues_waiting(model: BrokerModel) -> None:
    consumers = []
    for name in ("a", "b", "c"):
        model.declare(name, auto_delete=True)
        consumers.append(model.consume(name, BrokenConsumer() if name == "a" else Consumer()))
    for name in ("a", "b", "c"):
        model.vhost.publish("", name, b"\0\0", b"1", Publisher(), 1)
    with pytest.raises(ZeroDivisionError):
        model.broker.dispatch()
    model.broker.dispatch()
    assert [consumer.bodies for consumer in consumers] == [[], [b"1"], [b"1"]]


def test_what_no_replica_could_apply_is_never_written(model: BrokerModel) -> None:
    deep: Table = {}
    for _ in range(MAX_DEPTH):
        deep = {"a": ("F", deep)}
    model.declare("q", durable=True)
    logged = len(model.log)
    bind = model.vhost.bind_queue
    for answer in (
        model.declare("deep", durable=True, arguments=deep),
        model.declare("sur\ud800", durable=True),
        model.declare_exchange("deep", arguments=deep),
        model.declare_exchange("sur\ud800"),
        model.call(bind, "q", "amq.topic", "k", deep, None),
        model.call(bind, "q", "amq.topic", "\ud800", {}, None),
    ):
        kind, text = answer.error
        assert (kind, text.split(":")[0]) == ("Inequivalent", "cannot be declared")
    assert len(model.log) == logged
    (inner,) = deep.values()
    assert isinstance(inner[1], dict)
    assert model.declare("deep", durable=True, arguments=inner[1]).value.name == "deep"
    assert set(BrokerModel(model).vhost.queues) == {"q", "deep"}

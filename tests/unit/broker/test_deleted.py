"""Queues on their way out, and what others hold of them.

Nothing confirmed is lost, nobody waits for ever, and what a deleted queue leaves behind never shows up in the next one
of its name.
"""

from __future__ import annotations

import pytest

from connector.broker.backlog import AWAY_S, PURGE_PATIENCE_S
from connector.broker.drains import RETRY_S
from connector.broker.generations import Generations, Left, Moving, queue_rescued, unpack_generations
from connector.broker.message import Message
from connector.broker.ports import TimedOut, Unavailable
from connector.broker.requests import QueueDeclare
from connector.broker.topology import Observer, Topology
from connector.broker.vhost import UNUSED_RETRY_S
from tests.support.broker_model import Answer, BrokerModel, Consumer, Publisher
from tests.support.fake_kubemq import FakeTransaction

#: A Get in vain and its pauses, and the patience of a purge.
LONG_S = 4 * PURGE_PATIENCE_S


@pytest.fixture
def model() -> BrokerModel:
    return BrokerModel()


def _held_by_another(model: BrokerModel, count: int, held_count: int) -> FakeTransaction:
    """A queue with messages, the first of which somebody else holds."""
    model.declare("q", durable=True)
    model.publish("", "q", *[b"old-%d" % number for number in range(count)])
    channel = model.store.channel("amqp.default.q")
    other = FakeTransaction("another's", channel, held_count)
    channel.open.append(other)
    channel.fill()
    return other


def _deleted_with_withheld(model: BrokerModel) -> FakeTransaction:
    """A queue is deleted after a crash of the server, which withholds its five messages."""
    other = _held_by_another(model, 5, 5)
    model.stored_queue("q").lease.may_withhold = True  # the server was restarted
    model.delete("q")
    model.settle(LONG_S)
    return other


def _bodies_of_the_next(model: BrokerModel, other: FakeTransaction) -> list[bytes]:
    """What a consumer of the next queue of this name gets, when what was held comes back meanwhile."""
    assert model.declare("q", durable=True).is_there
    model.publish("", "q", b"new-1")
    consumer = model.consume("q")
    model.settle(LONG_S)
    other.close()
    model.publish("", "q", b"new-2")
    model.settle(LONG_S)
    return consumer.bodies


# --------------------------------------------------------------------------------------------- while it is deleted
@pytest.mark.parametrize("is_auto", [False, True])
def test_what_is_published_while_a_deletion_fails_is_there(model: BrokerModel, is_auto: bool) -> None:
    model.declare("q", durable=True, auto_delete=is_auto)
    model.hold_log = True
    receipt = Publisher()
    if is_auto:
        consumer = model.consume("q")
        model.stored_queue("q").remove_consumer(consumer)
    else:
        model.delete("q")
    assert model.publish("", "q", b"1", b"2", receipt=receipt) == 1
    assert receipt.stored == []
    model.refuse_log(Unavailable("no link"))
    model.settle(0.2)
    assert receipt.stored == [1, 2]
    assert model.stored("q") == [b"1", b"2"]
    assert model.consume("q").bodies == [b"1", b"2"]


def test_what_is_published_while_a_deletion_is_on_its_way_has_no_route(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.hold_log = True
    before, late = Publisher(), Publisher()
    model.hold_lanes = True
    model.publish("", "q", b"1", receipt=before)
    model.start(model.vhost.delete_queue, "q", None, False, False)
    model.hold_lanes = False
    model.settle()
    model.publish("", "q", b"2", b"3", receipt=late)
    model.answer_log()
    model.hold_log = False
    model.settle()
    assert (before.stored, late.stored, late.unrouted) == ([1], [], [(1, b"2"), (2, b"3")])
    assert model.stored("q") == []


def test_a_second_deletion_waits_for_the_first(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.publish("", "q", b"1")
    model.hold_log = True
    first, second = model.delete("q"), model.delete("q")
    assert not second.is_there
    model.refuse_log(Unavailable("no link"))
    model.settle()
    assert first.error == ("Unavailable", "no link")
    model.hold_log = False
    model.settle()
    assert second.value == 1


def test_a_queue_on_its_way_out_is_not_found(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.hold_log = True
    model.delete("q")
    assert model.declare("q", passive=True).error == ("NotFound", "no queue 'q' in vhost '/'")


def test_an_auto_delete_queue_whose_last_consumer_goes_while_its_deletion_fails_goes_later(model: BrokerModel) -> None:
    model.declare("q", durable=True, auto_delete=True)
    queue, consumer = model.stored_queue("q"), model.consume("q")
    model.hold_log = True
    answer = model.delete("q")
    queue.remove_consumer(consumer)
    for _ in range(3):
        assert len(model.waiting_log) == 1
        model.broker.on_unused(queue)  # the last one elsewhere has gone as well: no second chain begins
        model.refuse_log(Unavailable("no link"))
        model.settle(UNUSED_RETRY_S + 0.1)
    assert answer.error == ("Unavailable", "no link")
    model.hold_log = False
    model.settle()
    assert "q" not in model.vhost.queues


def test_an_auto_delete_queue_that_has_a_consumer_stays_when_its_deletion_fails(model: BrokerModel) -> None:
    model.declare("q", durable=True, auto_delete=True)
    queue, consumer = model.stored_queue("q"), model.consume("q")
    model.hold_log = True
    model.delete("q")
    queue.remove_consumer(consumer)
    queue.add_consumer(Consumer())
    model.refuse_log(Unavailable("no link"))
    model.settle(2 * UNUSED_RETRY_S)
    assert not model.waiting_log
    assert model.vhost.queues["q"] is queue


# --------------------------------------------------------------------------------------------- what others hold
def test_a_purge_ends_though_somebody_else_holds_messages(model: BrokerModel) -> None:
    other = _held_by_another(model, 5, 2)
    answer = model.call(model.vhost.purge_queue, "q", None)
    assert not answer.is_there  # they may come back at once
    model.settle(LONG_S)
    assert answer.value == 5
    model.publish("", "q", b"new")
    other.close()
    model.settle(LONG_S)
    assert model.consume("q").bodies == [b"old-0", b"old-1", b"new"]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_count_that_began_before_a_purge_does_not_count_for_it(model: BrokerModel, is_deleted: bool) -> None:
    """Its answer may come after: what was stored between the two would stay."""
    model.declare("q", durable=True)
    model.broker.mark_dirty(model.stored_queue("q"))  # it is counted
    began, rows = model.broker.begin_snapshot(), model.store.rows()
    channel = model.store.channel("amqp.default.q")
    for number in range(2):
        channel.append(Message("", "q", b"\0\0", b"native", f"native-{number}"))
    model.count_is_late = True
    answer = model.start(model.vhost.purge_queue, "q", None)
    if is_deleted:
        model.start(model.vhost.delete_queue, "q", None, False, False)
    model.settle(0.01)
    model.broker.on_snapshot(began, rows)
    model.settle(0.01)
    model.count_is_late = False
    model.settle()
    assert answer.value == 2
    assert model.stored("q") == []


def test_a_purge_waits_while_it_makes_progress(model: BrokerModel) -> None:
    other = _held_by_another(model, 6, 6)
    answer = model.call(model.vhost.purge_queue, "q", None)
    for _ in range(6):
        model.settle(PURGE_PATIENCE_S / 2)
        assert not answer.is_there
        other.parked.popitem()
        other.capacity -= 1
    model.settle(LONG_S)
    assert answer.value == 6
    assert model.stored("q") == []


def _seconds_until(model: BrokerModel, answer: Answer, limit_s: float = LONG_S) -> float:
    """How long it takes to be answered."""
    began = model.now
    while not answer.is_there and model.now - began < limit_s:
        model.settle(0.1)
    return model.now - began


def test_a_purge_does_not_count_the_time_without_kubemq(model: BrokerModel) -> None:
    _held_by_another(model, 5, 5)
    answer = model.call(model.vhost.purge_queue, "q", None)
    model.settle(PURGE_PATIENCE_S - 1)
    assert not answer.is_there
    model.now += AWAY_S + 1
    assert PURGE_PATIENCE_S <= _seconds_until(model, answer) < PURGE_PATIENCE_S + 2


def _start_emptying(model: BrokerModel, is_deletion: bool) -> Answer:
    if is_deletion:
        return model.start(model.vhost.delete_queue, "q", None, False, False)
    return model.start(model.vhost.purge_queue, "q", None)


@pytest.mark.parametrize("is_deletion", [False, True])
def test_what_others_take_meanwhile_does_not_make_a_purge_wait_longer(model: BrokerModel, is_deletion: bool) -> None:
    other = _held_by_another(model, 20, 20)
    answer = _start_emptying(model, is_deletion)
    began = model.now
    while not answer.is_there and other.parked:
        sequence, _ = other.parked.popitem()
        other.channel.acknowledge(sequence)
        other.capacity -= 1
        model.settle(PURGE_PATIENCE_S / 6)
        model.settle(PURGE_PATIENCE_S / 6)
    assert model.now - began < 2 * PURGE_PATIENCE_S
    assert answer.is_there


@pytest.mark.parametrize("is_deletion", [False, True])
def test_a_native_producer_that_goes_on_does_not_make_a_purge_wait(model: BrokerModel, is_deletion: bool) -> None:
    other = _held_by_another(model, 5, 2)
    answer = _start_emptying(model, is_deletion)
    began = model.now
    while not answer.is_there and model.now - began < LONG_S:
        other.channel.append(Message("", "q", b"", b"native", ""))
        model.settle(0.1)
    assert model.now - began < 2 * PURGE_PATIENCE_S


def test_a_purge_ends_though_a_client_of_ours_and_somebody_else_hold_messages(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.publish("", "q", *[b"%d" % number for number in range(3)])
    consumer = model.consume("q", Consumer(1))
    channel = model.store.channel("amqp.default.q")
    channel.open.append(FakeTransaction("another's", channel, 2))
    channel.fill()
    model.settle(LONG_S)
    answer = model.call(model.vhost.purge_queue, "q", None)
    for _ in range(8):
        model.settle(PURGE_PATIENCE_S)
    assert answer.is_there
    assert consumer.bodies == [b"0"]


def test_a_deletion_ends_and_the_next_queue_of_the_name_is_another_one(model: BrokerModel) -> None:
    other = _held_by_another(model, 5, 2)
    answer = model.delete("q")
    assert not answer.is_there
    model.settle(LONG_S)
    assert answer.value == 5
    assert _bodies_of_the_next(model, other) == [b"new-1", b"new-2"]
    assert model.stored_queue("q").kubemq_channel == "amqp.default.q"  # natives go on there
    assert model.stored("q") == [b"new-1", b"new-2"]


def test_where_the_server_withholds_the_next_queue_is_not_written_there(model: BrokerModel) -> None:
    other = _held_by_another(model, 5, 5)
    model.stored_queue("q").lease.may_withhold = True  # the server was restarted
    answer = model.delete("q")
    model.settle(LONG_S)
    assert answer.is_there
    assert model.declare("q", durable=True).value.message_count == 0
    queue = model.stored_queue("q")
    assert queue.kubemq_channel == "amqp.default.~g1.q"
    assert queue.unreadable_count == 0  # nobody misses them
    model.publish("", "q", b"new-1")
    consumer = model.consume("q")
    assert consumer.bodies == [b"new-1"]
    model.apply_foreign(queue_rescued("default", "q"))
    other.close()
    model.settle(LONG_S)
    assert consumer.bodies == [b"new-1"]
    assert model.stored("q") == []


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_restart_knows_what_a_deleted_queue_has_left(model: BrokerModel, has_snapshot: bool) -> None:
    other = _deleted_with_withheld(model)
    if has_snapshot:
        model.broker.write_snapshot()
        model.settle()
    second = BrokerModel(model)
    assert second.declare("q", durable=True).value.message_count == 0
    third = BrokerModel(second)
    third.publish("", "q", b"new-1")
    other.close()
    consumer = third.consume("q")
    third.settle(LONG_S)
    assert consumer.bodies == [b"new-1"]


def test_a_queue_is_not_empty_while_something_of_it_is_withheld(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.publish("", "q", b"taken unseen")
    model.settle()
    model.stored_queue("q").lease.counts.withheld = 1
    assert model.delete("q", if_empty=True).error == ("Inequivalent", "queue 'q' in vhost '/' not empty")


def test_whether_a_queue_is_empty_is_never_said_by_an_old_count(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.settle()
    channel = model.store.channel("amqp.default.q")
    channel.append(Message("", "q", b"", b"native", ""))
    assert model.delete("q", if_empty=True).error == ("Inequivalent", "queue 'q' in vhost '/' not empty")


def test_a_channel_that_was_made_anew_has_nothing_of_a_deleted_queue(model: BrokerModel) -> None:
    other = _held_by_another(model, 5, 2)
    model.delete("q")
    model.settle(LONG_S)
    other.close()
    channel = model.store.channel("amqp.default.q")
    channel.stored.clear()
    channel.last_sequence = channel.last_handed = 0
    model.declare("q", durable=True)
    model.publish("", "q", b"new")
    assert model.consume("q").bodies == [b"new"]


@pytest.mark.parametrize("has_restarted", [False, True])
def test_what_is_stored_in_a_channel_made_anew_is_there(model: BrokerModel, has_restarted: bool) -> None:
    """KubeMQ deletes an idle channel; what is stored then gets the Sequences of a deleted queue's messages again."""
    store = model.store
    store.now = 1_000_000
    model = BrokerModel(model)
    other = _held_by_another(model, 5, 2)
    model.delete("q")
    model.settle(LONG_S)
    other.close()
    assert model.declare("q", durable=True).is_there
    model.settle(LONG_S)
    store.channel("amqp.default.q").start_over()
    store.now += 86_400
    model.count_is_late = True  # all of it is stored before the next count
    receipt = Publisher()
    model.publish("", "q", *[b"%d" % number for number in range(8)], receipt=receipt)
    assert len(receipt.stored) == 8
    model.count_is_late = False
    if has_restarted:
        model = BrokerModel(model)
    assert model.consume("q").bodies == [b"%d" % number for number in range(8)]


def test_generations_of_an_earlier_version_can_be_read() -> None:
    packed = {**Generations().pack(), "left": {"0": [3, [1, 2]], "1": [5, [], 9, 4]}}
    del packed["ends"]
    left = unpack_generations(packed).left
    assert left == {0: Left(3, [1, 2]), 1: Left(5, [], 9, 4)}
    assert [each.unreadable for each in left.values()] == [1, 1]


def test_generations_can_be_read_by_an_earlier_version() -> None:
    generations = Generations(left={0: Left(3, [1, 2], 7, 1, 1_000), 1: Left(3, [1, 2], gone=1)})
    packed = generations.pack()
    assert packed["left"] == {"0": [3, [1, 2]], "1": [3, [1, 2]]}
    assert generations.left[1].unreadable == 2
    assert unpack_generations(packed) == generations


def test_what_a_move_leaves_takes_the_place_of_what_was_left_before() -> None:
    generations = Generations(left={0: Left(3, [1, 2], 7, 3, 1_000)}, moving={0: Moving(1, "why")})
    assert generations.finish(0, 1, Left(2, [4], 0, known_at=9_000))  # the channel was made anew meanwhile
    assert generations.left == {0: Left(2, [4], 0, 0, 9_000)}
    generations.moving[0] = Moving(1, "why")
    assert generations.finish(0, 1, Left(5, [6]))  # told by an earlier version
    assert generations.left == {0: Left(5, [4, 6])}


@pytest.mark.parametrize("is_left_in", [False, True])
def test_what_is_rescued_before_a_queue_is_declared_again_is_known(model: BrokerModel, is_left_in: bool) -> None:
    other = _deleted_with_withheld(model)
    other.close()
    model.apply_foreign(queue_rescued("default", "q"))
    if is_left_in:
        model = BrokerModel(model)
    model.declare("q", durable=True)
    consumer = model.consume("q")
    model.settle(LONG_S)
    channel = model.store.channel("amqp.default.q")
    for number in range(3):
        channel.append(Message("", "q", b"\0\0", b"native", f"native-{number}"))
    model.settle(LONG_S)
    assert consumer.bodies == [b"native"] * 3
    assert model.stored_queue("q").unreadable_count == 0


def test_moves_of_a_deleted_queue_in_a_snapshot_of_an_earlier_version_are_over() -> None:
    topology, generations = Topology(Observer()), Generations()
    generations.begin(0, 1, "why")
    snapshot = {**topology.snapshot_event(), "left": [["default", "q", generations.pack()]]}
    topology.load_snapshot(snapshot)
    assert topology.left["default", "q"] == Generations([0, 1, 2], 2)


# --------------------------------------------------------------------------------------------- told twice
def _drained_unheard(model: BrokerModel) -> bytes:
    """A deleted queue is empty, and nobody knows whether the log has taken that; the event."""
    model.declare("q", durable=True)
    model.hold_log = True
    model.start(model.vhost.delete_queue, "q", None, False, False)
    model.answer_log()
    model.settle()
    assert model.told == ["queue.drained"]
    ((_, event),) = model.waiting_log
    model.refuse_log(TimedOut("no answer"))
    return event


def test_that_a_deleted_queue_is_empty_is_told_again(model: BrokerModel) -> None:
    _drained_unheard(model)
    model.settle(2 * RETRY_S)
    assert model.told == ["queue.drained"]
    model.hold_log = False
    assert model.declare("q", durable=True).value.name == "q"


def test_that_a_deleted_queue_was_empty_does_not_end_the_next_deletion(model: BrokerModel) -> None:
    """It came back after all: what is told again would be taken for the next one of this name."""
    model.log.append(_drained_unheard(model))
    model._apply(len(model.log), model.log[-1])
    model.start(model.vhost.declare_queue, QueueDeclare("q", durable=True), None)
    model.answer_log()
    model.publish("", "q", b"1")
    model.start(model.vhost.delete_queue, "q", None, False, False)
    model.answer_log(1)
    model.tick(2 * RETRY_S)
    assert model.told == [], "it is not empty yet"
    assert list(model.broker.topology.undrained) == [("default", "q")]
    model.settle()
    assert (model.told, model.stored("q")) == (["queue.drained"], [])

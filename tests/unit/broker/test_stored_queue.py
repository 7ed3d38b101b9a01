"""A queue in KubeMQ: consumers in turn, gets, settling, requeue to the tail, and what a deletion leaves."""

from __future__ import annotations

import pytest

from connector.broker.errors import AccessRefused
from connector.broker.message import Message
from connector.broker.outbox import on_results
from connector.broker.queue import RETRY_S, StoredQueue
from tests.support.broker_model import Answer, BrokerModel, Consumer, Publisher


@pytest.fixture
def model() -> BrokerModel:
    model = BrokerModel()
    model.declare("q", durable=True)
    return model


@pytest.fixture
def queue(model: BrokerModel) -> StoredQueue:
    return model.stored_queue("q")


def take(consumer: Consumer) -> list[Message]:
    got, consumer.got = consumer.got, []
    return got


# ------------------------------------------------------------------------------------------------- consumers
def test_round_robin(model: BrokerModel, queue: StoredQueue) -> None:
    consumers = [model.consume("q") for _ in range(3)]
    model.publish("", "q", *[b"%d" % n for n in range(7)])
    assert [consumer.bodies for consumer in consumers] == [[b"0", b"3", b"6"], [b"1", b"4"], [b"2", b"5"]]


def test_full_ones_are_skipped_never_waited_for(model: BrokerModel, queue: StoredQueue) -> None:
    consumers = [model.consume("q", Consumer(limit)) for limit in (1, 100, 2)]
    model.publish("", "q", *[b"%d" % n for n in range(9)])
    assert [len(consumer.got) for consumer in consumers] == [1, 6, 2]


def test_the_turn_survives_those_who_leave(model: BrokerModel, queue: StoredQueue) -> None:
    one, two, three = (model.consume("q") for _ in range(3))
    model.publish("", "q", b"1", b"2")
    queue.remove_consumer(one)
    model.publish("", "q", b"3", b"4")
    assert (one.bodies, two.bodies, three.bodies) == ([b"1"], [b"2", b"4"], [b"3"])


def test_exclusive_use(model: BrokerModel, queue: StoredQueue) -> None:
    text = r"^queue 'q' in vhost '/' in exclusive use$"
    common = model.consume("q")
    with pytest.raises(AccessRefused, match=text):
        queue.add_consumer(Consumer(exclusive=True))
    queue.remove_consumer(common)
    alone = model.consume("q", Consumer(exclusive=True))
    for other in (Consumer(), Consumer(exclusive=True)):
        with pytest.raises(AccessRefused, match=text):
            queue.add_consumer(other)
    queue.remove_consumer(alone)
    model.consume("q")


def test_nothing_is_delivered_after_a_consumer_left(model: BrokerModel, queue: StoredQueue) -> None:
    consumer = model.consume("q")
    queue.remove_consumer(consumer)
    model.publish("", "q", b"1")
    assert consumer.got == []
    assert queue.ready_count == 1


def test_no_ack_is_settled_at_once(model: BrokerModel, queue: StoredQueue) -> None:
    consumer = model.consume("q", Consumer(no_ack=True))
    model.publish("", "q", b"1", b"2")
    assert consumer.bodies == [b"1", b"2"]
    assert queue.unacked_count == 0
    assert model.stored("q") == []


def test_settled_messages_leave_kubemq_while_others_are_held(model: BrokerModel, queue: StoredQueue) -> None:
    consumer = model.consume("q")
    model.publish("", "q", b"1", b"2", b"3")
    queue.settle(consumer.got[1])
    queue.settle(consumer.got[1])
    model.settle()
    assert model.stored("q") == [b"1", b"3"]
    assert queue.unacked_count == 2


# ------------------------------------------------------------------------------------------------------ gets
def test_get(model: BrokerModel, queue: StoredQueue) -> None:
    assert model.call(queue.get).value is None
    model.publish("", "q", b"1", b"2", b"3")
    message, left = model.call(queue.get).value
    assert (message.body, left) == (b"1", 2)
    queue.settle(message)
    model.settle()
    assert model.stored("q") == [b"2", b"3"]


def test_gets_come_before_consumers_and_in_order(model: BrokerModel, queue: StoredQueue) -> None:
    model.publish("", "q", b"1", b"2", b"3")
    answers = [Answer(), Answer()]
    for answer in answers:
        queue.get(answer)
    consumer = Consumer()
    queue.add_consumer(consumer)
    model.settle()
    assert [answer.value[0].body for answer in answers] == [b"1", b"2"]
    assert consumer.bodies == [b"3"]


def test_more_gets_than_messages(model: BrokerModel, queue: StoredQueue) -> None:
    model.publish("", "q", b"1")
    answers = [Answer() for _ in range(3)]
    for answer in answers:
        queue.get(answer)
    model.settle()
    assert answers[0].value[0].body == b"1"
    assert answers[1].value is answers[2].value is None


def test_a_get_sees_what_was_published_before_it(model: BrokerModel, queue: StoredQueue) -> None:
    model.hold_lanes = True
    model.publish("", "q", b"1")
    answer = model.start(queue.get)
    model.settle()
    assert not answer.is_there
    model.hold_lanes = False
    model.settle()
    assert answer.value[0].body == b"1"


def test_the_first_get_after_a_start_waits_for_a_count(model: BrokerModel) -> None:
    model.publish("", "q", b"1")
    second = BrokerModel(model, count_is_late=True)
    answer = second.call(second.vhost.find_queue("q", None).get)
    assert not answer.is_there
    second.count_is_late = False
    second.settle()
    assert answer.value[0].body == b"1"


def test_a_get_by_an_old_count_waits_only_for_the_deadline(model: BrokerModel, queue: StoredQueue) -> None:
    model.now += 5.0
    model.count_is_late = True
    assert model.call(queue.get).value is None


def test_a_native_message_is_found_by_get(model: BrokerModel, queue: StoredQueue) -> None:
    model.store.publish_native(queue.kubemq_channel, b"native")
    model.now += 5.0
    assert model.call(queue.get).value[0].body == b"native"


def test_a_get_of_what_is_not_there_any_more(model: BrokerModel, queue: StoredQueue) -> None:
    """A foreign reader was faster: the count is wrong, the Get short, the answer empty."""
    model.publish("", "q", b"1")
    model.store.channel(queue.kubemq_channel).remove(1)
    assert model.call(queue.get).value is None


def test_what_a_get_read_ahead_goes_back(model: BrokerModel, queue: StoredQueue) -> None:
    model.publish("", "q", b"1", b"2", b"3", b"4", b"5")
    message, left = model.call(queue.get).value
    assert left == 4
    queue.settle(message)
    model.settle()
    assert queue.lease.mine_count == 0
    assert (queue.ready_count, model.stored("q")) == (4, [b"2", b"3", b"4", b"5"])
    assert [m.redelivered for m in model.consume("q").got] == [False] * 4


def test_a_get_that_nobody_waits_for_gives_back(model: BrokerModel, queue: StoredQueue) -> None:
    model.publish("", "q", b"1", b"2")
    message, _ = model.call(queue.get).value
    queue.give_back(message)
    model.settle()
    assert [(m.body, m.redelivered) for m in model.consume("q").got] == [(b"1", False), (b"2", False)]


def test_given_back_to_kubemq_it_is_still_new(model: BrokerModel, queue: StoredQueue) -> None:
    model.publish("", "q", b"1", b"2")
    message, _ = model.call(queue.get).value
    queue.give_back(message)
    model.settle(seconds=2.0)  # read ahead, nobody came: back to KubeMQ
    assert queue.lease.mine_count == 0
    assert [(m.body, m.redelivered) for m in model.consume("q").got] == [(b"1", False), (b"2", False)]


def test_a_deleted_queue_answers_its_gets(model: BrokerModel, queue: StoredQueue) -> None:
    model.publish("", "q", b"1")
    answer = model.start(queue.get)
    queue.close(lambda: None)
    assert answer.value is None
    assert model.call(queue.get).value is None


# --------------------------------------------------------------------------------------------------- requeue
def test_requeue_goes_to_the_tail_redelivered(model: BrokerModel, queue: StoredQueue) -> None:
    consumer = model.consume("q", Consumer(2))
    model.publish("", "q", b"1", b"2", b"3")
    first_ids = [message.message_id for message in consumer.got]
    queue.requeue(take(consumer))
    consumer.limit = 5
    model.settle()
    assert [(m.body, m.redelivered, m.delivery_count) for m in consumer.got] == [
        (b"3", False, 0),
        (b"1", True, 1),
        (b"2", True, 1),
    ]
    assert not set(first_ids) & {message.message_id for message in consumer.got}
    assert model.stored("q") == [b"3", b"1", b"2"]
    queue.requeue(take(consumer)[1:2])
    model.settle()
    assert [(m.body, m.delivery_count) for m in consumer.got] == [(b"1", 2)]


def test_the_copy_is_stored_before_the_original_is_acknowledged(model: BrokerModel, queue: StoredQueue) -> None:
    consumer = model.consume("q", Consumer(2))
    model.publish("", "q", b"1", b"2")
    model.hold_lanes = True
    consumer.limit = 0
    queue.requeue(take(consumer))
    model.settle()
    assert model.stored("q") == [b"1", b"2"]
    assert queue.unacked_count == 0
    model.hold_lanes = False
    model.settle()
    assert model.stored("q") == [b"1", b"2"]
    channel = model.store.channel(queue.kubemq_channel)
    assert sorted(channel.stored) == [3, 4]


def test_a_refused_copy_is_stored_again_under_the_same_id(model: BrokerModel, queue: StoredQueue) -> None:
    consumer = model.consume("q", Consumer(1))
    model.publish("", "q", b"1")
    model.hold_lanes = True
    consumer.limit = 0
    queue.requeue(take(consumer))
    [refused] = queue._outbox.take()
    on_results([refused], ["no room"])
    assert len(queue._outbox) == 0
    model.tick(RETRY_S / 2)
    assert len(queue._outbox) == 0
    model.tick(RETRY_S)
    [again] = queue._outbox.take()
    assert again.message is refused.message
    on_results([again], [""])
    assert queue.lease.moving == {}
    assert list(queue.lease.settled) == [1]


def test_requeue_of_what_is_settled_already(model: BrokerModel, queue: StoredQueue) -> None:
    consumer = model.consume("q")
    model.publish("", "q", b"1")
    [message] = take(consumer)
    queue.settle(message)
    queue.requeue([message])
    model.settle()
    assert consumer.got == []
    assert model.stored("q") == []


def test_a_deleted_queue_requeues_nothing(model: BrokerModel, queue: StoredQueue) -> None:
    consumer = model.consume("q", Consumer(2))
    model.publish("", "q", b"1", b"2", b"3")
    model.hold_lanes = True
    queue.requeue(consumer.got[:1])
    [refused] = queue._outbox.take()
    on_results([refused], ["no room"])
    queue.close(lambda: None)
    queue.requeue(consumer.got[1:])
    model.tick(1.0)
    assert len(queue._outbox) == 0
    model.hold_lanes = False
    model.settle()
    assert model.stored("q") == []


# ------------------------------------------------------------------------------------------------ accounting
def test_who_waits_for_stores_waits_for_earlier_ones_only(model: BrokerModel, queue: StoredQueue) -> None:
    model.hold_lanes = True
    told: list[str] = []
    queue.when_stored(lambda: told.append("none"))
    receipt = Publisher()
    model.publish("", "q", b"1", b"2", receipt=receipt)
    queue.when_stored(lambda: told.append("two"))
    model.publish("", "q", b"3", receipt=receipt)
    queue.when_stored(lambda: told.append("three"))
    batch = queue._outbox.take()
    on_results(batch[:1], [""])
    assert told == ["none"]
    on_results(batch[1:2], ["refused"])
    assert told == ["none", "two"]
    on_results(batch[2:], [""])
    assert told == ["none", "two", "three"]


def test_drain_empties_what_natives_add_meanwhile(model: BrokerModel, queue: StoredQueue) -> None:
    model.publish("", "q", *[b"%d" % n for n in range(10)])
    model.hold_log = True
    answer = model.start(model.vhost.delete_queue, "q", None, False, False)
    model.settle()
    model.store.publish_native(queue.kubemq_channel, b"native")
    model.hold_log = False
    model.settle()
    assert answer.value == 10
    assert model.stored("q") == []


@pytest.mark.parametrize("operation", ["purge", "delete"])
def test_an_idle_queue_without_a_channel_is_counted_too(model: BrokerModel, queue: StoredQueue, operation: str) -> None:
    """QueuesInfo lists no channel before its first message, and idle queues are left out of the comparison."""
    model.settle(seconds=5.0)
    assert queue.is_idle
    if operation == "purge":
        assert model.call(model.vhost.purge_queue, "q", None).value == 0
    else:
        assert model.delete("q").value == 0


# ------------------------------------------------------------------------------------------------- memory
def test_under_pressure_a_queue_is_read_one_message_at_a_time(model: BrokerModel, queue: StoredQueue) -> None:
    """CO-23: no refusal, no stall, and nobody is starved by what others hold."""
    model.broker.is_full = True
    consumer = model.consume("q")
    model.publish("", "q", *[b"%d" % number for number in range(5)])
    model.settle()
    assert consumer.bodies == [b"0"]
    for number in range(1, 5):
        for message in take(consumer):
            queue.settle(message)
        model.settle()
        assert consumer.bodies == [b"%d" % number]
    model.publish("", "q", b"5", b"6")
    model.settle()
    assert consumer.bodies == [b"4"]
    assert queue.lease.mine_count == 1, "nothing is read ahead"
    model.broker.is_full = False
    model.broker.mark_dirty(queue)
    model.settle()
    assert consumer.bodies == [b"4", b"5", b"6"]


def test_a_get_is_answered_under_pressure(model: BrokerModel, queue: StoredQueue) -> None:
    consumer = model.consume("q", Consumer(1))
    model.publish("", "q", b"0", b"1", b"2")
    model.settle()
    model.broker.is_full = True
    assert consumer.bodies == [b"0"]
    got = [model.call(queue.get).value[0].body for _ in range(2)]
    assert got == [b"1", b"2"]


def test_a_purge_is_done_under_pressure(model: BrokerModel, queue: StoredQueue) -> None:
    consumer = model.consume("q", Consumer(1))
    model.publish("", "q", b"0", b"1", b"2")
    model.settle()
    model.broker.is_full = True
    done: list[object] = []
    queue.purge(done.append)
    model.settle(3)
    assert (done, consumer.bodies, queue.ready_count) == ([2], [b"0"], 0)

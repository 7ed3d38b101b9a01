"""What a restart of the connector keeps: queues, messages, and nothing that was deleted."""

from __future__ import annotations

from connector.broker.queue import StoredQueue
from tests.support.broker_model import BrokerModel, Consumer


def test_a_queue_and_its_messages_survive() -> None:
    first = BrokerModel()
    first.declare("q", durable=True)
    first.publish("", "q", b"1", b"2")
    second = BrokerModel(first)
    assert second.declare("q", passive=True).value.message_count == 2
    assert second.consume("q").bodies == [b"1", b"2"]


def test_a_redeclared_queue_keeps_its_messages_when_the_log_is_read_again() -> None:
    """The log says: declared, deleted, drained, declared.  Only the end of the story counts."""
    first = BrokerModel()
    first.declare("q", durable=True)
    first.publish("", "q", b"old")
    assert first.delete("q").value == 1
    first.declare("q", durable=True)
    first.publish("", "q", b"1", b"2", b"3")
    second = BrokerModel(first)
    assert second.stored("q") == [b"1", b"2", b"3"]
    assert second.declare("q", passive=True).value.message_count == 3


def test_a_queue_whose_drain_was_never_noted_is_not_emptied_after_it_was_redeclared() -> None:
    first = BrokerModel()
    first.declare("q", durable=True)
    first.delete("q")
    first.log[:] = [event for event in first.log if b"queue.drained" not in event]
    second = BrokerModel(first)
    second.declare("q", durable=True)
    second.publish("", "q", b"1", b"2", b"3")
    second.log[:] = [event for event in second.log if b"queue.drained" not in event]
    third = BrokerModel(second)
    assert third.stored("q") == [b"1", b"2", b"3"]


def test_a_deleted_queue_that_was_not_empty_yet_is_emptied_by_the_next_start() -> None:
    first = BrokerModel()
    first.declare("q", durable=True)
    first.publish("", "q", b"1", b"2", b"3")
    first.hold_log = True
    first.call(first.vhost.delete_queue, "q", None, False, False)
    first.answer_log(1)  # deleted, and the connector dies
    second = BrokerModel(first)
    assert second.stored("q") == []
    assert second.declare("q", durable=True).value.message_count == 0


def test_a_deleted_queue_is_not_taken_for_empty_while_nobody_has_counted() -> None:
    """QueuesInfo may be slower than the deadline of those who wait for it."""
    first = BrokerModel()
    first.declare("q", durable=True)
    first.publish("", "q", b"1", b"2", b"3")
    first.hold_log = True
    first.call(first.vhost.delete_queue, "q", None, False, False)
    first.answer_log(1)
    second = BrokerModel(first, count_is_late=True)
    declared = second.declare("q", durable=True)
    assert not declared.is_there
    assert second.stored("q") == [b"1", b"2", b"3"]
    second.count_is_late = False
    second.settle()
    assert second.stored("q") == []
    assert declared.value.message_count == 0


def test_what_was_held_comes_first_and_redelivered() -> None:
    first = BrokerModel()
    first.declare("q", durable=True)
    first.publish("", "q", b"1", b"2", b"3", b"4")
    assert first.consume("q", Consumer(2)).bodies == [b"1", b"2"]
    second = BrokerModel(first)
    second.publish("", "q", b"5")
    got = second.consume("q").got
    assert [(message.body, message.redelivered) for message in got] == [
        (b"1", True),
        (b"2", True),
        (b"3", False),
        (b"4", False),
        (b"5", False),
    ]


def test_nothing_is_read_before_the_first_count() -> None:
    """Else what an earlier life delivered would come as new (design.md section 3, point 10)."""
    first = BrokerModel()
    first.declare("q", durable=True)
    first.publish("", "q", b"1")
    first.consume("q")
    second = BrokerModel(first)
    queue = second.vhost.find_queue("q", None)
    assert isinstance(queue, StoredQueue)
    consumer = Consumer()
    queue.add_consumer(consumer)
    second.publish("", "q", b"2")
    assert [(message.body, message.redelivered) for message in consumer.got] == [(b"1", True), (b"2", False)]


def test_a_queue_that_is_not_durable_does_not_survive() -> None:
    first = BrokerModel()
    first.declare("q")
    first.publish("", "q", b"1")
    second = BrokerModel(first)
    assert second.declare("q", passive=True).error == ("NotFound", "no queue 'q' in vhost '/'")
    assert second.stored("q") == []


def test_an_exchange_that_is_not_durable_does_not_survive() -> None:
    first = BrokerModel()
    first.declare_exchange("kept", durable=True)
    first.declare_exchange("gone")
    second = BrokerModel(first)
    assert second.declare_exchange("kept", passive=True).value is None
    assert second.declare_exchange("gone", passive=True).error == ("NotFound", "no exchange 'gone' in vhost '/'")


def test_bindings_survive() -> None:
    first = BrokerModel()
    first.declare("q", durable=True)
    first.declare_exchange("x", durable=True)
    first.bind("q", "x")
    second = BrokerModel(first)
    assert second.publish("x", "k", b"1") == 1
    assert second.stored("q") == [b"1"]

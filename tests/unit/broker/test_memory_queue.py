"""Throw-away queues: their messages live in memory, within a mark."""

from __future__ import annotations

import gc
import weakref

import pytest

from connector.broker.memory_queue import MemoryQueue
from connector.broker.outbox import OVERHEAD_BYTES
from tests.support.broker_model import Answer, BrokerModel, Consumer, Publisher

#: A body of one byte, and a header without properties.
COST = 1 + 2 + OVERHEAD_BYTES


@pytest.fixture
def model() -> BrokerModel:
    return BrokerModel(memory_limit_bytes=10 * COST)


@pytest.fixture
def queue(model: BrokerModel) -> MemoryQueue:
    model.declare("q", auto_delete=True)
    found = model.vhost.find_queue("q", None)
    assert isinstance(found, MemoryQueue)
    return found


def test_accepted_is_stored(model: BrokerModel, queue: MemoryQueue) -> None:
    receipt = Publisher()
    assert model.vhost.publish("", "q", b"\0\0", b"1", receipt, 7) == 1
    assert receipt.stored == [7]
    assert queue.ready_count == 1
    assert model.broker.memory_bytes == COST
    assert model.store.channels == {}


def test_the_mark(model: BrokerModel, queue: MemoryQueue) -> None:
    receipt = Publisher()
    model.publish("", "q", *[b"x"] * 12, receipt=receipt)
    assert len(receipt.stored) == 10
    assert receipt.refused == [(token, "memory mark of throw-away queues reached") for token in (11, 12)]
    model.consume("q", Consumer(no_ack=True))
    assert model.broker.memory_bytes == 0
    model.publish("", "q", b"x", receipt=receipt)
    assert len(receipt.stored) == 11


def test_headers_count(model: BrokerModel, queue: MemoryQueue) -> None:
    receipt = Publisher()
    for token in (1, 2):
        model.vhost.publish("", "q", bytes(6 * COST), b"", receipt, token)
    assert (receipt.stored, [token for token, _ in receipt.refused]) == ([1], [2])
    assert model.broker.memory_bytes == 6 * COST + OVERHEAD_BYTES
    assert model.call(queue.purge).value == 1
    assert model.broker.memory_bytes == 0


def test_all_queues_share_the_mark(model: BrokerModel, queue: MemoryQueue) -> None:
    model.declare("other", auto_delete=True)
    receipt = Publisher()
    model.publish("", "q", *[b"x"] * 6, receipt=receipt)
    model.publish("", "other", *[b"x"] * 6, receipt=receipt)
    assert len(receipt.refused) == 2
    model.delete("q")
    assert model.broker.memory_bytes == 4 * COST


def test_settled_frees_memory_once(model: BrokerModel, queue: MemoryQueue) -> None:
    model.publish("", "q", b"1", b"2")
    consumer = model.consume("q")
    assert queue.unacked_count == 2
    queue.settle(consumer.got[0])
    queue.settle(consumer.got[0])
    assert (queue.unacked_count, queue.ready_count) == (1, 0)
    assert model.broker.memory_bytes == COST


def test_requeue_goes_to_the_tail(model: BrokerModel, queue: MemoryQueue) -> None:
    model.publish("", "q", b"1", b"2", b"3")
    consumer = model.consume("q", Consumer(2))
    held, consumer.got, consumer.limit = consumer.got, [], 3
    queue.requeue(held)
    queue.requeue(held)
    model.settle()
    assert [(m.body, m.redelivered, m.delivery_count) for m in consumer.got] == [
        (b"3", False, 0),
        (b"1", True, 1),
        (b"2", True, 1),
    ]


def test_given_back_in_its_place(model: BrokerModel, queue: MemoryQueue) -> None:
    model.publish("", "q", b"1", b"2", b"3", b"4")
    answers = [Answer(), Answer(), Answer()]
    for answer in answers:
        queue.get(answer)
    model.settle()
    messages = [answer.value[0] for answer in answers]
    assert [message.body for message in messages] == [b"1", b"2", b"3"]
    queue.settle(messages[1])
    queue.give_back(messages[1])
    queue.give_back(messages[2])
    queue.give_back(messages[0])
    assert [(m.body, m.redelivered) for m in queue.ready] == [(b"1", False), (b"3", False), (b"4", False)]
    assert [answer.value[1] for answer in answers] == [3, 2, 1]


def test_get_from_an_empty_queue(model: BrokerModel, queue: MemoryQueue) -> None:
    assert model.call(queue.get).value is None


def test_deleting_frees_everything(model: BrokerModel, queue: MemoryQueue) -> None:
    model.publish("", "q", b"1", b"2", b"3")
    consumer = model.consume("q", Consumer(1))
    assert model.delete("q").value == 2
    assert consumer.is_cancelled
    assert model.broker.memory_bytes == 0
    queue.settle(consumer.got[0])
    queue.requeue(consumer.got)
    queue.give_back(consumer.got[0])
    assert model.broker.memory_bytes == 0
    assert model.call(queue.get).value is None


def test_purge(model: BrokerModel, queue: MemoryQueue) -> None:
    model.publish("", "q", b"1", b"2", b"3")
    model.consume("q", Consumer(1))
    assert model.call(queue.purge).value == 2
    assert model.broker.memory_bytes == COST
    assert model.call(queue.purge).value == 0


def test_nothing_is_left_of_queues_that_were_used_once(model: BrokerModel) -> None:
    """No KubeMQ channel, no event in the log, and nothing here, whether they are deleted or go with their owner."""
    model.declare_exchange("fan", "fanout", durable=True)
    log = list(model.log)
    left = []
    for number in range(20):
        owner = object()
        name = model.declare("", owner=owner, exclusive=True).value.name
        model.bind(name, "fan", owner=owner)
        left.append(weakref.ref(model.vhost.find_queue(name, owner)))
        assert model.publish("fan", f"k{number}", b"x") == 1
        assert model.publish("", name, b"y") == 1
        if number % 2:
            assert model.delete(name, owner=owner).value == 2
        model.vhost.on_owner_gone(owner)
    gc.collect()
    assert [queue() for queue in left if queue() is not None] == []
    assert model.vhost.queues == {}
    assert not model.vhost.exchanges["fan"].is_used
    assert model.broker.memory_bytes == 0
    assert model.store.channels == {}
    assert model.log == log

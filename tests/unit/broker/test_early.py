"""A message goes out when it is stored: when it may, when it may not, and what a later life makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from connector.amqp import header as content_header
from connector.broker.early import MOST_UNREAD_BYTES, MOST_UNREAD_S
from connector.broker.outbox import Submission, on_results
from connector.broker.queue import StoredQueue
from connector.broker.steps import StepKind
from connector.runtime.hub import Hub
from mapping.message_ids import is_early
from tests.support.broker_model import BrokerModel, Consumer, Publisher


@pytest.fixture
def model() -> BrokerModel:
    """A queue whose counts are known, and a consumer with room for three."""
    model = BrokerModel()
    model.declare("q", durable=True)
    model.publish("", "q", b"first")
    model.consume("q", Consumer(3))
    return model


@pytest.fixture
def queue(model: BrokerModel) -> StoredQueue:
    return model.stored_queue("q")


def consumer_of(queue: StoredQueue) -> Consumer:
    [consumer] = queue.consumers
    assert isinstance(consumer, Consumer)
    return consumer


def publish(model: BrokerModel, *bodies: bytes, header: bytes = b"\0\0") -> list[Submission]:
    """What is on its way to KubeMQ then."""
    for token, body in enumerate(bodies, 1):
        model.vhost.publish("", "q", header, body, Publisher(), token)
    return [submission for outbox in model.broker.outboxes for submission in outbox.take()]


def store(model: BrokerModel, *bodies: bytes, header: bytes = b"\0\0") -> None:
    """KubeMQ stores these, and no reader takes part."""
    batch = publish(model, *bodies, header=header)
    for submission in batch:
        model.store.channel(submission.kubemq_channel).append(submission.message)
    on_results(batch, [""] * len(batch))
    model.broker.dispatch()


def test_it_is_delivered_before_it_is_read(model: BrokerModel, queue: StoredQueue) -> None:
    store(model, b"1", b"2")
    assert consumer_of(queue).bodies == [b"first", b"1", b"2"]
    assert queue.unacked_count == 3
    assert queue.ready_count == 0
    assert queue.lease.backlog == 2


def test_prefetch_holds(model: BrokerModel, queue: StoredQueue) -> None:
    store(model, b"1", b"2", b"3")
    assert consumer_of(queue).bodies == [b"first", b"1", b"2"]
    assert queue.ready_count == 1


def test_nothing_overtakes_what_waits(model: BrokerModel, queue: StoredQueue) -> None:
    consumer = consumer_of(queue)
    store(model, b"1", b"2", b"3")
    queue.settle(consumer.got.pop(0))
    store(model, b"4")
    assert consumer.bodies == [b"1", b"2"]


def test_nothing_goes_out_after_a_store_whose_result_is_unknown(model: BrokerModel, queue: StoredQueue) -> None:
    batch = publish(model, b"1")
    on_results(batch, ["the link is gone"])
    store(model, b"2")
    assert consumer_of(queue).bodies == [b"first"]


def test_nothing_goes_out_while_much_is_unread(model: BrokerModel, queue: StoredQueue) -> None:
    store(model, b"x" * (MOST_UNREAD_BYTES - 3))  # and a header of two bytes
    store(model, b"22")
    assert len(consumer_of(queue).got) == 2
    assert queue.lease.mine_bytes >= MOST_UNREAD_BYTES - 1


def test_headers_count(model: BrokerModel, queue: StoredQueue) -> None:
    header = content_header.build({}, {"note": ("S", bytes(MOST_UNREAD_BYTES))})
    store(model, b"x", header=header)
    assert consumer_of(queue).bodies == [b"first"]


def test_nothing_goes_out_while_something_is_unread_for_long(model: BrokerModel, queue: StoredQueue) -> None:
    store(model, b"1")
    model.now += MOST_UNREAD_S + 0.1
    store(model, b"2")
    assert consumer_of(queue).bodies == [b"first", b"1"]


def test_nothing_goes_out_while_the_others_may_think_us_dead(
    model: BrokerModel, queue: StoredQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.broker, "may_read", lambda: False)
    store(model, b"1")
    assert consumer_of(queue).bodies == [b"first"]


def test_an_acknowledgement_counts_as_sent_when_its_message_was_read(model: BrokerModel, queue: StoredQueue) -> None:
    store(model, b"1")
    for message in list(consumer_of(queue).got):
        queue.settle(message)
    arrived: list[bool] = []
    queue.when_acknowledged(lambda: arrived.append(True))
    assert not arrived
    model.settle()
    assert arrived


def test_what_was_delivered_is_delivered_once(model: BrokerModel, queue: StoredQueue) -> None:
    store(model, b"1", b"2")
    model.settle()
    assert consumer_of(queue).bodies == [b"first", b"1", b"2"]
    assert queue.lease.backlog == 0


def test_a_later_life_says_redelivered(model: BrokerModel, queue: StoredQueue) -> None:
    store(model, b"1", b"2", b"3")  # 3 had no room
    got = BrokerModel(model).consume("q").got
    assert [(message.body, message.redelivered) for message in got if message.body != b"first"] == [
        (b"1", True),
        (b"2", True),
        (b"3", False),
    ]


def test_only_what_a_consumer_has_room_for_is_marked(model: BrokerModel, queue: StoredQueue) -> None:
    batch = publish(model, b"1", b"2", b"3", b"4")
    assert [is_early(submission.message.message_id) for submission in batch] == [True, True, False, False]


def test_what_was_read_before_it_was_reported_is_not_handed_out_again(model: BrokerModel, queue: StoredQueue) -> None:
    batch = publish(model, b"1")
    for submission in batch:
        model.store.channel(submission.kubemq_channel).append(submission.message)
    queue.on_grown(1)  # another one is thought to be there: the Get for it brings this one
    model.settle()
    assert consumer_of(queue).bodies == [b"first", b"1"]
    on_results(batch, [""])
    model.broker.dispatch()
    assert consumer_of(queue).bodies == [b"first", b"1"]


def test_not_without_the_setting(model: BrokerModel, queue: StoredQueue) -> None:
    model.broker.delivers_early = False
    [submission] = publish(model, b"1")
    assert not is_early(submission.message.message_id)
    store(model, b"2")
    assert consumer_of(queue).bodies == [b"first"]


def test_a_stop_asks_for_proof_once(model: BrokerModel, queue: StoredQueue) -> None:
    queue.settle(consumer_of(queue).got.pop())
    model.count_is_late = True  # one that has what is acknowledged in it asks for proof, too
    woken: list[object] = []
    hub: Any = SimpleNamespace(broker=model.broker, wake_reader=woken.append)
    for _ in range(50):
        if queue.lease.sent:
            break
        model.settle(0.001)
    assert queue.lease.next_step().kind is StepKind.WAIT
    for _ in range(3):
        Hub.ask_for_proof(hub)
    assert woken == [queue]
    assert queue.lease.next_step().kind is StepKind.BARRIER

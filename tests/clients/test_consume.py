"""Consuming through client libraries: prefetch, settlement, requeue, get, cancel, recover."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

from tests.clients.conftest import Target
from tests.clients.driver import Channel, ChannelClosed, Connection, Delivery

Connect = Callable[..., Connection]
NewName = Callable[..., str]

#: Long enough to see that nothing more comes.
QUIET_S = 0.3


@pytest.fixture
def connection(connect: Connect) -> Connection:
    return connect()


@pytest.fixture
def channel(connection: Connection) -> Channel:
    return connection.channel()


def fill(channel: Channel, queue: str, count: int) -> None:
    for number in range(count):
        channel.publish("", queue, b"%d" % number, delivery_mode=2)


def bodies(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def take(channel: Channel, queue: str) -> Delivery:
    got = channel.get(queue)
    assert got is not None, "empty"
    return got


def take_rest(channel: Channel, queue: str) -> list[tuple[bytes, bool]]:
    """Empty the queue by get; list of (body, redelivered)."""
    rest = []
    while (got := channel.get(queue, no_ack=True)) is not None:
        rest.append((got.body, got.redelivered))
    return rest


def test_prefetch_is_never_exceeded(connection: Connection, channel: Channel, queue: str) -> None:
    fill(channel, queue, 10)
    channel.qos(3)
    consumer = channel.consume(queue)
    connection.pump(lambda: len(consumer.deliveries) == 3)
    connection.pump_for(QUIET_S)
    assert consumer.bodies == bodies(0, 1, 2)
    channel.ack(consumer.deliveries[0].tag)
    connection.pump(lambda: len(consumer.deliveries) == 4)
    channel.ack(consumer.deliveries[2].tag, multiple=True)  # 1 and 2
    connection.pump(lambda: len(consumer.deliveries) == 6)
    connection.pump_for(QUIET_S)
    assert consumer.bodies == bodies(0, 1, 2, 3, 4, 5)
    assert [delivery.tag for delivery in consumer.deliveries] == [1, 2, 3, 4, 5, 6]
    channel.ack(0, multiple=True)
    connection.pump(lambda: len(consumer.deliveries) == 9)
    assert not any(delivery.redelivered for delivery in consumer.deliveries)


def test_prefetch_is_per_consumer(connection: Connection, channel: Channel, queue: str) -> None:
    fill(channel, queue, 10)
    channel.qos(2)
    first = channel.consume(queue)
    connection.pump(lambda: len(first.deliveries) == 2)
    channel.qos(3)
    second = channel.consume(queue)
    connection.pump(lambda: len(second.deliveries) == 3)
    connection.pump_for(QUIET_S)
    assert (len(first.deliveries), len(second.deliveries)) == (2, 3)


def test_a_full_consumer_holds_nobody_up(connect: Connect, queue: str) -> None:
    slow, fast = connect(), connect()
    publisher = fast.channel()
    fill(publisher, queue, 4)
    holder = slow.channel()
    holder.qos(1)
    held = holder.consume(queue)
    slow.pump(lambda: held.deliveries)
    worker = fast.channel()
    worker.qos(2)
    consumer = worker.consume(queue)
    fast.pump(lambda: len(consumer.deliveries) == 2)
    for delivery in list(consumer.deliveries):
        worker.ack(delivery.tag)
    fast.pump(lambda: len(consumer.deliveries) == 3)
    assert held.bodies + consumer.bodies == bodies(0, 1, 2, 3)


def test_messages_come_in_order_and_once(connection: Connection, channel: Channel, queue: str) -> None:
    publisher = connection.channel(confirms=False)
    consumer = channel.consume(queue)
    fill(publisher, queue, 300)
    connection.pump(lambda: len(consumer.deliveries) >= 300)
    channel.ack(0, multiple=True)
    connection.pump_for(QUIET_S)
    assert consumer.bodies == bodies(*range(300))
    channel.cancel(consumer)
    assert channel.get(queue) is None


def test_consumers_share(connection: Connection, channel: Channel, queue: str) -> None:
    channel.qos(10)
    consumers = [channel.consume(queue) for _ in range(2)]
    fill(channel, queue, 10)
    connection.pump(lambda: sum(len(consumer.deliveries) for consumer in consumers) == 10)
    assert [len(consumer.deliveries) for consumer in consumers] == [5, 5]
    assert sorted(consumers[0].bodies + consumers[1].bodies) == bodies(*range(10))


@pytest.mark.parametrize("how", ["nack", "reject"])
def test_a_requeued_message_goes_to_the_tail_flagged(
    connection: Connection, channel: Channel, queue: str, how: str, target: Target
) -> None:
    channel.publish("", queue, b"0", delivery_mode=2, message_id="m-0", headers={"n": 1})
    for number in range(1, 4):
        channel.publish("", queue, b"%d" % number, delivery_mode=2)
    first = take(channel, queue)
    if how == "nack":
        channel.nack(first.tag, requeue=True)
    else:
        channel.reject(first.tag, requeue=True)
    channel.qos(1)
    consumer = channel.consume(queue)
    for count in range(1, 5):
        connection.pump(lambda count=count: len(consumer.deliveries) == count)  # type: ignore[misc]
        channel.ack(consumer.deliveries[-1].tag)
    expected = [(b"1", False), (b"2", False), (b"3", False), (b"0", True)]
    if target.requeue == "original":
        expected.insert(0, expected.pop())
    assert [(got.body, got.redelivered) for got in consumer.deliveries] == expected
    again = next(got for got in consumer.deliveries if got.redelivered)
    assert (again.exchange, again.routing_key) == ("", queue)
    if target.connector is not None:
        assert again.properties["headers"].pop("x-delivery-count") == 1  # CO-37
    assert again.properties == first.properties


def test_requeue_of_several_keeps_their_order(channel: Channel, queue: str, target: Target) -> None:
    fill(channel, queue, 5)
    tags = [take(channel, queue).tag for _ in range(3)]
    channel.nack(tags[-1], multiple=True, requeue=True)
    expected = [(b"3", False), (b"4", False), (b"0", True), (b"1", True), (b"2", True)]
    if target.requeue == "original":
        expected = expected[2:] + expected[:2]
    channel.qos(1)  # a round trip
    assert take_rest(channel, queue) == expected


def test_a_message_can_be_requeued_over_and_over(connection: Connection, channel: Channel, queue: str) -> None:
    fill(channel, queue, 1)
    channel.qos(1)
    consumer = channel.consume(queue)
    for count in range(1, 31):
        connection.pump(lambda count=count: len(consumer.deliveries) == count)  # type: ignore[misc]
        channel.nack(consumer.deliveries[-1].tag, requeue=True)
    connection.pump(lambda: len(consumer.deliveries) == 31)
    channel.ack(consumer.deliveries[-1].tag)
    assert [got.redelivered for got in consumer.deliveries] == [False] + [True] * 30
    channel.cancel(consumer)
    assert channel.get(queue) is None


def test_nack_and_reject_without_requeue_drop(channel: Channel, queue: str) -> None:
    fill(channel, queue, 3)
    channel.nack(take(channel, queue).tag, requeue=False)
    channel.reject(take(channel, queue).tag, requeue=False)
    assert take_rest(channel, queue) == [(b"2", False)]


def test_get_tells_what_is_left(connection: Connection, channel: Channel, queue: str) -> None:
    assert channel.get(queue) is None
    fill(channel, queue, 3)
    got = [take(channel, queue) for _ in range(3)]
    assert [one.message_count for one in got] == [2, 1, 0]
    assert [one.tag for one in got] == [1, 2, 3]
    assert [one.routing_key for one in got] == [queue] * 3
    assert channel.get(queue) is None, "what is unacknowledged is not given twice"
    for one in got:
        channel.ack(one.tag)
    assert connection.channel().declare_queue(queue, passive=True).message_count == 0


def test_get_of_an_empty_queue_answers_at_once(channel: Channel, queue: str) -> None:
    assert channel.get(queue) is None
    times = []
    for _ in range(30):
        start = time.monotonic()
        assert channel.get(queue) is None
        times.append(time.monotonic() - start)
    assert statistics.median(times) < 0.05, times


def test_a_message_for_a_waiting_consumer_arrives_at_once(connection: Connection, channel: Channel, queue: str) -> None:
    consumer = channel.consume(queue, no_ack=True)
    times = []
    for count in range(1, 31):
        start = time.monotonic()
        channel.publish("", queue, b"x", delivery_mode=2)
        connection.pump(lambda count=count: len(consumer.deliveries) == count)  # type: ignore[misc]
        times.append(time.monotonic() - start)
    assert statistics.median(times) < 0.05, times  # the limit for an idle machine is in bench/latency.py


def test_get_and_consume_share_one_queue(connection: Connection, channel: Channel, queue: str) -> None:
    fill(channel, queue, 6)
    first = take(channel, queue)
    channel.qos(2)
    consumer = channel.consume(queue)
    connection.pump(lambda: len(consumer.deliveries) == 2)
    last = take(channel, queue)
    assert (first.body, consumer.bodies, last.body) == (b"0", bodies(1, 2), b"3")
    assert last.tag == 4, "one row of tags per channel"
    for tag in range(1, 5):
        channel.ack(tag)
    connection.pump(lambda: len(consumer.deliveries) == 4)
    assert consumer.bodies == bodies(1, 2, 4, 5)


def test_after_cancel_nothing_comes_and_what_is_held_stays_held(
    connection: Connection, channel: Channel, queue: str
) -> None:
    fill(channel, queue, 5)
    channel.qos(2)
    consumer = channel.consume(queue)
    connection.pump(lambda: len(consumer.deliveries) == 2)
    channel.cancel(consumer)
    channel.ack(consumer.deliveries[0].tag)
    channel.publish("", queue, b"5", delivery_mode=2)
    connection.pump_for(QUIET_S)
    assert consumer.bodies == bodies(0, 1)
    assert take_rest(channel, queue) == [(b"2", False), (b"3", False), (b"4", False), (b"5", False)]
    channel.nack(consumer.deliveries[1].tag, requeue=True)
    channel.qos(1)
    assert take_rest(channel, queue) == [(b"1", True)]


def test_recover_gives_all_back_flagged(connection: Connection, channel: Channel, queue: str) -> None:
    fill(channel, queue, 3)
    consumer = channel.consume(queue)
    connection.pump(lambda: len(consumer.deliveries) == 3)
    channel.recover()
    connection.pump(lambda: len(consumer.deliveries) == 6)
    again = consumer.deliveries[3:]
    assert [(got.body, got.redelivered) for got in again] == [(b"0", True), (b"1", True), (b"2", True)]
    channel.ack(again[-1].tag, multiple=True)
    channel.cancel(consumer)
    assert channel.get(queue) is None


@pytest.mark.parametrize("what", ["connection", "channel"])
def test_what_a_lost_consumer_held_comes_back_flagged(
    connect: Connect, channel: Channel, queue: str, what: str, target: Target
) -> None:
    fill(channel, queue, 5)
    lost = connect()
    lost_channel = lost.channel()
    lost_channel.qos(3)
    consumer = lost_channel.consume(queue)
    lost.pump(lambda: len(consumer.deliveries) == 3)
    lost_channel.ack(consumer.deliveries[1].tag)
    lost.pump(lambda: len(consumer.deliveries) == 4)
    if what == "channel":
        lost_channel.close()
    else:
        lost.close()
    expected = [(b"4", False), (b"0", True), (b"2", True), (b"3", True)]
    if target.requeue == "original":
        expected = expected[1:] + expected[:1]
    connection = connect()
    reader = connection.channel()
    again = reader.consume(queue)
    connection.pump(lambda: len(again.deliveries) == 4)
    assert [(got.body, got.redelivered) for got in again.deliveries] == expected
    reader.ack(0, multiple=True)
    reader.cancel(again)
    assert reader.get(queue) is None


def test_an_unknown_tag_closes_only_its_channel(connection: Connection, channel: Channel, queue: str) -> None:
    fill(channel, queue, 1)
    careless = connection.channel()
    tag = take(careless, queue).tag
    careless.ack(tag + 7)
    closed = careless.wait_closed()
    assert closed.code == 406
    assert closed.text == f"PRECONDITION_FAILED - unknown delivery tag {tag + 7}"
    assert connection.is_open
    consumer = channel.consume(queue, no_ack=True)
    connection.pump(lambda: consumer.deliveries)
    assert [(got.body, got.redelivered) for got in consumer.deliveries] == [(b"0", True)]


def test_without_acknowledgement_nothing_is_left(connection: Connection, channel: Channel, queue: str) -> None:
    fill(channel, queue, 50)
    channel.qos(1)  # does not limit a consumer without acknowledgement
    consumer = channel.consume(queue, no_ack=True)
    connection.pump(lambda: len(consumer.deliveries) == 50)
    channel.cancel(consumer)
    connection.close()


def test_an_exclusive_consumer_is_the_only_one(connection: Connection, channel: Channel, queue: str) -> None:
    consumer = channel.consume(queue, exclusive=True)
    for exclusive in (False, True):
        with pytest.raises(ChannelClosed, match="ACCESS_REFUSED") as refused:
            connection.channel().consume(queue, exclusive=exclusive)
        assert refused.value.code == 403
    channel.cancel(consumer)
    channel.consume(queue)


def test_consume_and_get_of_a_missing_queue_are_404(connection: Connection, new_name: NewName) -> None:
    with pytest.raises(ChannelClosed, match="NOT_FOUND"):
        connection.channel().consume(new_name())
    with pytest.raises(ChannelClosed, match="NOT_FOUND"):
        connection.channel().get(new_name())
    assert connection.is_open

"""Settling: ack, nack, reject, recover, what comes again, and what is never settled (CO-10 to 18, CO-35 to 37)."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from connector.amqp import header as content_header
from connector.amqp.frames import header_frame_bytes
from connector.amqp.wire import table_from_python
from tests.support.consuming import bodies, fill, number_of, rest, tags_of
from tests.support.dialogue import Dialogue, connect, spec
from tests.support.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Dialogue:
    return connect(world, channels=(1, 2))


# --------------------------------------------------------------------------------------------- settling
@spec("1.8.3.13", "The delivery tag is valid only within the channel, and only once; 406 otherwise (RabbitMQ).")
@pytest.mark.parametrize(
    ("kind", "fields", "ids"),
    [
        (commands.Basic.Ack, {"delivery_tag": 77}, (60, 80)),
        (commands.Basic.Ack, {"delivery_tag": 0}, (60, 80)),
        (commands.Basic.Ack, {"delivery_tag": 77, "multiple": True}, (60, 80)),
        (commands.Basic.Nack, {"delivery_tag": 77, "requeue": True}, (60, 120)),
        (commands.Basic.Nack, {"delivery_tag": 77, "requeue": True, "multiple": True}, (60, 120)),
        (commands.Basic.Nack, {"delivery_tag": 0}, (60, 120)),
        (commands.Basic.Reject, {"delivery_tag": 77}, (60, 90)),
    ],
)
def test_unknown_tags_are_406(client: Dialogue, kind: type, fields: dict[str, object], ids: tuple[int, int]) -> None:
    queue = client.declare()
    fill(client, queue, 2)
    client.get(queue)
    client.send(1, kind, **fields)
    text = f"PRECONDITION_FAILED - unknown delivery tag {fields['delivery_tag']}"
    client.expect_close(406, text, ids)
    assert rest(client, queue) == [b"1", b"0"]


def test_a_tag_is_settled_once_and_by_its_own_channel(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 2)
    client.get(queue)
    client.send(1, commands.Basic.Ack, delivery_tag=1).send(1, commands.Basic.Ack, delivery_tag=1)
    client.expect_close(406, "PRECONDITION_FAILED - unknown delivery tag 1", (60, 80))
    client.call(1, commands.Channel.Open)
    client.get(queue)
    client.send(2, commands.Basic.Ack, delivery_tag=1)
    assert client.expect(2, commands.Channel.Close).reply_code == 406


def test_all_of_nothing_is_fine(client: Dialogue) -> None:
    client.send(1, commands.Basic.Ack, delivery_tag=0, multiple=True)
    client.send(1, commands.Basic.Nack, delivery_tag=0, multiple=True, requeue=True)
    client.expect_nothing()


def test_multiple_settles_all_up_to_the_tag(world: World, client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 5)
    client.consume(queue)
    assert bodies(client.deliveries()) == [b"0", b"1", b"2", b"3", b"4"]
    client.send(1, commands.Basic.Ack, delivery_tag=3, multiple=True)
    client.send(1, commands.Basic.Nack, delivery_tag=4, requeue=False)
    client.call(1, commands.Channel.Close)
    assert rest(client, queue) == [b"4"]
    counters = world.counters
    assert (counters.delivered, counters.acknowledged, counters.rejected, counters.requeued) == (5, 3, 1, 1)
    assert (counters.got_no_ack, counters.get_empty, counters.redelivered) == (1, 1, 1)


@spec("RabbitMQ, negative acknowledgements", "requeue=true makes a message available again, redelivered.")
def test_requeued_messages_go_to_the_tail_in_ascending_order(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 5)
    tags = [client.get(queue).method.delivery_tag for _ in range(4)]
    client.send(1, commands.Basic.Reject, delivery_tag=tags[3], requeue=True)
    client.send(1, commands.Basic.Nack, delivery_tag=tags[1], multiple=True, requeue=True)
    client.send(1, commands.Basic.Reject, delivery_tag=tags[2], requeue=False)
    contents = [client.get(queue) for _ in range(4)]
    assert [(content.body, content.method.redelivered) for content in contents] == [
        (b"4", False),
        (b"3", True),
        (b"0", True),
        (b"1", True),
    ]
    assert client.get(queue) is None


@spec("RabbitMQ, negative acknowledgements", "When a message is requeued, it will be placed to its original position.")
@pytest.mark.parametrize("fields", [{}, {"exclusive": False, "durable": True}])
def test_requeued_messages_go_to_their_old_place_where_that_is_set(fields: dict[str, Any]) -> None:
    world = World(requeues_in_place=True)
    client = connect(world, channels=(1, 2))
    queue = client.declare("q", **fields)
    fill(client, queue, 6)
    client.get(queue, no_ack=True)
    for body in (b"1", b"2", b"3"):
        assert client.get(queue).body == body
        world.advance(0.25)
    for tag in (4, 2, 3):
        client.send(1, commands.Basic.Nack, delivery_tag=tag, requeue=True)
    contents = []
    for _ in range(5):
        contents.append(client.get(queue))
        world.advance(0.25)
    assert bodies(contents) == [b"1", b"2", b"3", b"4", b"5"]
    assert [item.method.redelivered for item in contents] == [True, True, True, False, False]
    client.call(1, commands.Channel.Close)
    assert world.kubemq.channels.get("amqp.default.q", {}).keys() in (set(), {2, 3, 4, 5, 6})
    client.call(1, commands.Channel.Open)
    client.consume(queue)
    contents = client.deliveries()
    assert bodies(contents) == [b"1", b"2", b"3", b"4", b"5"]
    assert [number_of(item) for item in contents] == [2, 2, 2, 1, 1]


def test_the_count_of_deliveries_outlives_a_rest() -> None:
    """What nobody takes goes back to KubeMQ after a while; it comes again as what it was."""
    world = World(requeues_in_place=True)
    client = connect(world, channels=(1, 2))
    queue = client.declare("q", exclusive=False, durable=True)
    fill(client, queue, 3)
    for _ in range(2):
        client.get(queue)
        client.get(queue)
        client.send(1, commands.Basic.Nack, delivery_tag=0, multiple=True, requeue=True)
        world.advance(1.0)
    (stored,) = world.broker.stored_queues()
    lease = stored.lease
    assert (len(lease.ready), lease.mine_count, lease.backlog) == (0, 0, 3)
    client.consume(queue)
    contents = client.deliveries()
    assert bodies(contents) == [b"0", b"1", b"2"]
    assert [(item.method.redelivered, number_of(item)) for item in contents] == [(True, 2), (True, 2), (False, 0)]
    client.send(1, commands.Basic.Ack, delivery_tag=0, multiple=True)
    world.advance(1.0)
    assert not lease._failed


def test_messages_of_several_queues_go_back_each_to_its_own(client: Dialogue) -> None:
    first, second = client.declare("first"), client.declare("second")
    fill(client, first, 2)
    fill(client, second, 2, first=10)
    for queue in (first, second, first, second):
        client.get(queue)
    client.send(1, commands.Basic.Nack, delivery_tag=0, multiple=True, requeue=True)
    assert rest(client, first) == [b"0", b"1"]
    assert rest(client, second) == [b"10", b"11"]


@spec("1.8.3.16", "recover requeues all unacknowledged messages of the channel.")
def test_recover(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 3)
    client.consume(queue)
    assert len(client.deliveries()) == 3
    client.send(1, commands.Basic.Recover, requeue=True)
    client.expect(1, commands.Basic.RecoverOk)
    again = client.deliveries()
    assert [(item.method.delivery_tag, item.body, item.method.redelivered) for item in again] == [
        (4, b"0", True),
        (5, b"1", True),
        (6, b"2", True),
    ]
    client.send(1, commands.Basic.RecoverAsync, requeue=True)
    assert [item.method.delivery_tag for item in client.deliveries()] == [7, 8, 9]
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    client.expect_close(406, "PRECONDITION_FAILED - unknown delivery tag 1", (60, 80))


@pytest.mark.parametrize(
    ("kind", "ids"), [(commands.Basic.Recover, (60, 110)), (commands.Basic.RecoverAsync, (60, 100))]
)
def test_recover_without_requeue_is_540(client: Dialogue, kind: type, ids: tuple[int, int]) -> None:
    client.send(1, kind, requeue=False)
    client.expect_connection_close(540, "NOT_IMPLEMENTED - requeue=false", ids)


@spec("RabbitMQ, quorum queues", "x-delivery-count says how often a message was delivered before.")
@pytest.mark.parametrize("fields", [{}, {"exclusive": False, "durable": True}])
@pytest.mark.parametrize("headers", [None, {}, {"a": 1, "x-delivery-count": "theirs"}])
def test_redeliveries_are_counted(client: Dialogue, fields: dict[str, Any], headers: dict[str, object] | None) -> None:
    queue = client.declare("q", **fields)
    client.publish(2, queue, headers=headers, message_id="m")
    first = client.get(queue)
    table = None if headers is None else table_from_python(headers)
    assert first.header == content_header.build({"message_id": "m"}, table)
    client.send(1, commands.Basic.Nack, delivery_tag=1, requeue=True)
    client.world.advance(0.25)
    client.consume(queue)
    counts = []
    for tag in (2, 3, 4):
        (content,) = client.deliveries()
        parsed = content_header.parse(content.header)
        counts.append(parsed.headers().pop("x-delivery-count"))
        assert (parsed.message_id, parsed.headers().get("a")) == (b"m", ("I", 1) if headers else None)
        client.send(1, commands.Basic.Reject, delivery_tag=tag, requeue=True)
        client.world.advance(0.25)
    assert counts == [("l", 1), ("l", 2), ("l", 3)]
    assert len(client.deliveries()) == 1
    client.call(1, commands.Channel.Close)
    client.world.advance(0.25)
    content = client.get(queue, 2)
    assert content_header.parse(content.header).headers()["x-delivery-count"] == ("l", 5)


@spec("4.2.3", "A peer MUST NOT send frames larger than the agreed-upon size.")
@pytest.mark.parametrize(("room", "is_counted"), [(26, True), (25, False), (0, False), (-1, False)])
def test_the_count_is_left_out_where_its_frame_would_be_too_large(
    client: Dialogue, room: int, is_counted: bool
) -> None:
    queue = client.declare()
    bare = content_header.build({}, table_from_python({"a": ""}))
    client.publish(2, queue, headers={"a": "x" * (client.frame_max - 20 - len(bare) - room)})
    header = client.get(queue).header
    assert header_frame_bytes(header) == client.frame_max - room
    client.send(1, commands.Basic.Nack, delivery_tag=1, requeue=True)
    client.world.advance(0.25)
    client.consume(queue)
    (content,) = client.deliveries()
    client.call(1, commands.Basic.Cancel, consumer_tag="t")
    client.send(1, commands.Basic.Reject, delivery_tag=2, requeue=True)
    client.world.advance(0.25)
    for again in (content, client.get(queue)):
        assert again.method.redelivered
        assert ("x-delivery-count" in content_header.parse(again.header).headers()) is is_counted
        assert header_frame_bytes(again.header) <= max(client.frame_max, header_frame_bytes(header))


# --------------------------------------------------------------------------------------------- acknowledgement timeout
def overdue(timeout_ms: int, channel_no: int = 1) -> str:
    return (
        f"PRECONDITION_FAILED - delivery acknowledgement on channel {channel_no} timed out. Timeout value used: "
        f"{timeout_ms} ms. This timeout value can be configured, see consumers doc guide to learn more"
    )


@spec(
    "RabbitMQ, delivery acknowledgement timeout", "A delivery not acknowledged in 30 minutes closes its channel, 406."
)
def test_a_delivery_that_nobody_acknowledges_closes_its_channel(world: World, client: Dialogue) -> None:
    queue = client.declare("q")
    fill(client, queue, 3)
    client.consume(queue)
    assert len(client.deliveries()) == 3
    world.advance(1700.0, client.connection)
    client.send(1, commands.Basic.Ack, delivery_tag=2).expect_nothing()
    world.advance(150.0, client.connection)
    client.expect_close(406, overdue(1_800_000), (0, 0))
    assert rest(client, queue) == [b"0", b"2"]
    client.call(1, commands.Channel.Open)
    client.expect_nothing()


@pytest.mark.parametrize("as_get", [False, True])
def test_the_oldest_counts_and_not_before_its_time(world: World, as_get: bool) -> None:
    client = Dialogue(world, consumer_timeout_s=10.0).shake_hands(channels=(1, 2))
    queue = client.declare("q")
    fill(client, queue, 8)
    client.call(1, commands.Basic.Qos, prefetch_count=1)
    if not as_get:
        client.consume(queue)
    for tag in range(1, 7):
        if as_get:
            client.get(queue)
        else:
            client.deliveries()
        world.advance(4.0, client.connection)
        client.send(1, commands.Basic.Ack, delivery_tag=tag)
        client.deliveries()
    if as_get:
        client.get(queue)
    world.advance(9.9, client.connection)
    client.expect_nothing()
    world.advance(0.8, client.connection)
    client.expect(1, commands.Channel.Close, reply_code=406, reply_text=overdue(10_000))


def test_no_limit(world: World) -> None:
    client = Dialogue(world, consumer_timeout_s=0.0).shake_hands(channels=(1, 2))
    queue = client.declare("q")
    fill(client, queue, 1)
    client.consume(queue)
    assert len(client.deliveries()) == 1
    world.advance(100_000.0, client.connection)
    client.expect_nothing()


@spec("RabbitMQ, delivery acknowledgement timeout", "x-consumer-timeout, in ms: the consumer's, else the queue's.")
def test_queues_and_consumers_have_their_own_time(world: World, client: Dialogue) -> None:
    queue = client.declare("q", arguments={"x-consumer-timeout": 5000})
    free = client.declare("free", arguments={"x-consumer-timeout": 0})
    for number in (1, 2, 3):
        client.call(2, commands.Queue.Declare, queue=queue, passive=True)
        client.publish(2, queue, b"%d" % number)
    client.publish(2, free)
    client.call(1, commands.Basic.Qos, prefetch_count=1)
    for tag, name, arguments in (
        ("mine", queue, {}),
        ("long", queue, {"x-consumer-timeout": 20_000}),
        ("none", queue, {"x-consumer-timeout": 0}),
        ("free", free, {}),
    ):
        client.send(1, commands.Basic.Consume, queue=name, consumer_tag=tag, nowait=True, arguments=arguments)
    assert tags_of(client) == ["mine", "long", "none", "free"]
    world.advance(3.0, client.connection)
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    world.advance(16.0, client.connection)
    client.expect_nothing()
    world.advance(2.0, client.connection)
    client.expect_close(406, overdue(20_000), (0, 0))


def test_what_is_not_read_may_be_an_acknowledgement(world: World) -> None:
    client = Dialogue(world, consumer_timeout_s=10.0, in_flight_high_bytes=1000).shake_hands(channels=(1, 2))
    queue = client.declare("q")
    fill(client, queue, 1)
    client.consume(queue)
    assert len(client.deliveries()) == 1
    client.declare("stored", 2, exclusive=False, durable=True)
    world.hold_stores = True
    client.publish(2, "stored", bytes(2000))
    assert not client.socket.is_reading()
    world.advance(20.0, client.connection)
    client.expect_nothing()
    world.answer_stores()
    world.advance(0.25, client.connection)
    client.expect_close(406, overdue(10_000), (0, 0))


@pytest.mark.parametrize(
    ("value", "text"),
    [("5", '"expected integer, got longstr"'), (-1, "{value_negative,-1}"), (True, '"expected integer, got bool"')],
)
def test_a_timeout_is_a_number_of_milliseconds(client: Dialogue, value: object, text: str) -> None:
    client.declare("q")
    arguments = {"x-consumer-timeout": value}
    reason = f"PRECONDITION_FAILED - invalid arg 'x-consumer-timeout' for queue 'q' in vhost '/': {text}"
    client.send(1, commands.Basic.Consume, queue="q", arguments=arguments)
    client.expect_close(406, reason, (60, 20))
    client.call(1, commands.Channel.Open)
    client.call(1, commands.Queue.Delete, queue="q")
    client.send(1, commands.Queue.Declare, queue="q", arguments=arguments)
    client.expect_close(406, reason, (50, 10))

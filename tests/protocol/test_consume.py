"""Consuming and settling (CO-02 to CO-36), on queues in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pamqp import commands

from connector.amqp import header as content_header
from connector.amqp.wire import table_from_python
from tests.support.dialogue import Dialogue, connect, spec
from tests.support.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Dialogue:
    return connect(world, channels=(1, 2))


def fill(client: Dialogue, queue: str, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        client.publish(2, queue, b"%d" % number)


def bodies(contents: Sequence[Any]) -> list[bytes]:
    return [content.body for content in contents]


def tags_of(client: Dialogue) -> list[str]:
    """Who has got what came on channel 1."""
    return [item.method.consumer_tag for item in client.deliveries()]


def rest(client: Dialogue, queue: str) -> list[bytes]:
    """What is ready, in its order."""
    found = []
    while (content := client.get(queue, 2, no_ack=True)) is not None:
        found.append(content.body)
    return found


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


def number_of(content: Any) -> object:
    """Its x-delivery-count, 0 when it has none."""
    return content_header.parse(content.header).headers().get("x-delivery-count", ("l", 0))[1]


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


# --------------------------------------------------------------------------------------------- basic.get
@spec("1.8.3.10", "get-ok carries the number of messages left; an empty queue is get-empty.")
def test_get(client: Dialogue) -> None:
    queue = client.declare()
    assert client.get(queue) is None
    fill(client, queue, 3)
    contents = [client.get("") for _ in range(3)]
    assert [
        (item.method.delivery_tag, item.method.message_count, item.method.routing_key, item.body) for item in contents
    ] == [(1, 2, queue, b"0"), (2, 1, queue, b"1"), (3, 0, queue, b"2")]
    assert client.get(queue) is None


def test_gets_may_be_pipelined(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 3)
    client.feed(client.encode(1, commands.Basic.Get, queue=queue) * 5)
    items = [item for _, item in client.received()]
    assert bodies(items[:3]) == [b"0", b"1", b"2"]
    assert [type(item) for item in items[3:]] == [commands.Basic.GetEmpty] * 2


def test_get_and_consume_share_one_ledger(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 4)
    client.send(1, commands.Basic.Qos, prefetch_count=1).expect(1, commands.Basic.QosOk)
    first = client.get(queue)
    client.consume(queue)
    (second,) = client.deliveries()
    client.send(1, commands.Basic.Ack, delivery_tag=1).expect_nothing()
    third = client.get(queue)
    assert bodies([first, second, third]) == [b"0", b"1", b"2"]
    assert [item.method.delivery_tag for item in (first, second, third)] == [1, 2, 3]


def test_a_get_that_answers_too_late_gives_the_message_back(world: World, client: Dialogue) -> None:
    queue = client.declare("q", exclusive=False, durable=False, auto_delete=True)
    fill(client, queue, 1)
    client.connection.feed(client.encode(1, commands.Basic.Get, queue=queue))
    client.lose()
    other = connect(world, channels=(1, 2))
    content = other.get(queue)
    assert (content.body, content.method.redelivered) == (b"0", False)


# --------------------------------------------------------------------------------------------- prefetch
@spec("RabbitMQ, consumer prefetch", "global=false: the limit of each consumer made from now on; 0 is no limit.")
def test_qos_is_for_new_consumers(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 20)
    client.call(1, commands.Basic.Qos, prefetch_count=2)
    client.consume(queue, "a")
    first = client.deliveries()
    client.call(1, commands.Basic.Qos, prefetch_count=3)
    client.consume(queue, "b")
    second = client.deliveries()
    assert [item.method.consumer_tag for item in first + second] == ["a"] * 2 + ["b"] * 3
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    assert [item.method.consumer_tag for item in client.deliveries()] == ["a"]
    client.send(1, commands.Basic.Ack, delivery_tag=0, multiple=True)
    assert len(client.deliveries()) == 5
    client.call(1, commands.Basic.Qos, prefetch_count=0)
    client.consume(queue, "c")
    assert [item.method.consumer_tag for item in client.deliveries()] == ["c"] * 9


@spec("RabbitMQ, consumer prefetch", "global=true: a limit shared by all consumers of the channel; both limits hold.")
def test_the_channels_limit_is_shared_by_its_consumers(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 10)
    client.call(1, commands.Basic.Qos, prefetch_count=2)
    client.call(1, commands.Basic.Qos, prefetch_count=3, global_=True)
    client.send(1, commands.Basic.Consume, queue=queue, consumer_tag="a", nowait=True)
    client.send(1, commands.Basic.Consume, queue=queue, consumer_tag="b", nowait=True)
    assert tags_of(client) == ["a", "a", "b"]
    client.send(1, commands.Basic.Ack, delivery_tag=3)
    assert tags_of(client) == ["b"]
    client.send(1, commands.Basic.Ack, delivery_tag=2, multiple=True)
    assert sorted(tags_of(client)) == ["a", "b"]
    client.send(1, commands.Basic.Ack, delivery_tag=0, multiple=True)
    assert sorted(tags_of(client)) in (["a", "a", "b"], ["a", "b", "b"])


def test_the_channels_limit_may_change_while_it_is_used(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 12)
    client.call(1, commands.Basic.Qos, prefetch_count=2, global_=True)
    client.consume(queue)
    assert len(client.deliveries()) == 2
    client.call(1, commands.Basic.Qos, prefetch_count=5, global_=True)
    assert len(client.deliveries()) == 3
    client.call(1, commands.Basic.Qos, prefetch_count=3, global_=True)
    client.send(1, commands.Basic.Ack, delivery_tag=2, multiple=True).expect_nothing()
    client.send(1, commands.Basic.Ack, delivery_tag=3)
    assert len(client.deliveries()) == 1
    client.call(1, commands.Basic.Qos, prefetch_count=0, global_=True)
    assert len(client.deliveries()) == 6


def test_the_channels_limit_is_for_what_consumers_hold(client: Dialogue) -> None:
    """Neither what a get took, nor what nobody acknowledges, nor another channel's consumers."""
    queue = client.declare()
    fill(client, queue, 10)
    client.get(queue)
    client.call(1, commands.Basic.Qos, prefetch_count=2, global_=True)
    client.get(queue)
    client.consume(queue, "a")
    assert tags_of(client) == ["a", "a"]
    client.consume(queue, "b", 2)
    assert len(client.deliveries(2)) == 6
    client.call(2, commands.Basic.Cancel, consumer_tag="b")
    client.consume(queue, "c", no_ack=True)
    fill(client, queue, 3)
    assert tags_of(client) == ["c", "c", "c"]
    client.send(1, commands.Basic.Ack, delivery_tag=1).expect_nothing()


def test_what_goes_back_gives_its_room_back(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 4)
    client.call(1, commands.Basic.Qos, prefetch_count=2, global_=True)
    client.consume(queue)
    assert bodies(client.deliveries()) == [b"0", b"1"]
    client.send(1, commands.Basic.Nack, delivery_tag=1, requeue=True)
    assert bodies(client.deliveries()) == [b"2"]
    client.send(1, commands.Basic.Recover, requeue=True).expect(1, commands.Basic.RecoverOk)
    assert bodies(client.deliveries()) == [b"3", b"0"]
    client.call(1, commands.Basic.Cancel, consumer_tag="t")
    client.consume(queue, "u")
    client.expect_nothing()
    client.send(1, commands.Basic.Reject, delivery_tag=4, requeue=False)
    assert tags_of(client) == ["u"]


def test_a_shared_limit_starves_no_queue(client: Dialogue) -> None:
    for name in ("q1", "q2", "q3"):
        client.declare(name)
        fill(client, name, 6)
    client.call(1, commands.Basic.Qos, prefetch_count=1, global_=True)
    for name in ("q1", "q2", "q3"):
        client.send(1, commands.Basic.Consume, queue=name, consumer_tag=name, nowait=True)
    served = []
    for tag in range(1, 13):
        served += tags_of(client)
        client.send(1, commands.Basic.Ack, delivery_tag=tag)
    assert len(served) == 12
    assert min(served.count(name) for name in ("q1", "q2", "q3")) >= 2


def test_a_limit_in_octets_is_540(client: Dialogue) -> None:
    client.send(1, commands.Basic.Qos, prefetch_size=1000)
    client.expect_connection_close(540, "NOT_IMPLEMENTED - prefetch_size!=0 (1000)", (60, 10))


# --------------------------------------------------------------------------------------------- consumers
@spec("1.8.3.3", "An empty consumer tag is made by the server; a tag in use on the channel is 530.")
def test_consumer_tags(client: Dialogue) -> None:
    queue = client.declare()
    made = {client.consume(queue, ""), client.consume(queue, "")}
    assert len(made) == 2
    assert all(tag.startswith("amq.ctag-") and len(tag) == 31 for tag in made)
    client.consume(queue, "same", 1)
    client.consume(queue, "same", 2)
    client.send(1, commands.Basic.Consume, queue=queue, consumer_tag="same")
    text = "NOT_ALLOWED - attempt to reuse consumer tag 'same'"
    client.expect_connection_close(530, text, (60, 20))


def test_the_missing_queue_is_noticed_before_the_tag_in_use(client: Dialogue) -> None:
    queue = client.declare("", 2)
    client.consume(queue, "same")
    client.send(1, commands.Basic.Consume, queue="", consumer_tag="same")
    client.expect_close(404, "NOT_FOUND - no previously declared queue", (60, 20))


def test_consumers_take_turns(client: Dialogue) -> None:
    queue = client.declare()
    for tag in ("a", "b", "c"):
        client.consume(queue, tag)
    fill(client, queue, 6)
    assert [item.method.consumer_tag for item in client.deliveries()] == ["a", "b", "c", "a", "b", "c"]


@spec("1.8.3.5", "After cancel-ok nothing is delivered; what was delivered may still be settled.")
def test_cancel(client: Dialogue) -> None:
    queue = client.declare(auto_delete=False)
    fill(client, queue, 4)
    client.call(1, commands.Basic.Qos, prefetch_count=2)
    client.consume(queue)
    assert len(client.deliveries()) == 2
    client.send(1, commands.Basic.Cancel, consumer_tag="t").expect(1, commands.Basic.CancelOk, consumer_tag="t")
    client.send(1, commands.Basic.Ack, delivery_tag=1).expect_nothing()
    declared = client.call(1, commands.Queue.Declare, queue=queue, passive=True)
    assert (declared.message_count, declared.consumer_count) == (2, 0)
    client.send(1, commands.Basic.Nack, delivery_tag=2, requeue=True).expect_nothing()
    assert rest(client, queue) == [b"2", b"3", b"1"]
    client.send(1, commands.Basic.Cancel, consumer_tag="t", nowait=True).expect_nothing()
    client.send(1, commands.Basic.Cancel, consumer_tag="never").expect(1, commands.Basic.CancelOk, consumer_tag="never")


@spec("RabbitMQ, consumer cancellation notification", "The server sends basic.cancel when the queue is deleted.")
def test_a_client_that_can_is_told_that_its_queue_is_gone(world: World, client: Dialogue) -> None:
    other = connect(world, capabilities=())
    queue = client.declare("q", exclusive=False, auto_delete=True)
    client.consume(queue, "mine")
    other.consume(queue, "other")
    client.call(2, commands.Queue.Delete, queue=queue)
    client.expect(1, commands.Basic.Cancel, consumer_tag="mine", nowait=True)
    other.expect_nothing()
    client.send(1, commands.Basic.Consume, queue=queue, consumer_tag="mine")
    client.expect_close(404, "NOT_FOUND - no queue 'q' in vhost '/'", (60, 20))


def test_what_is_held_of_a_deleted_queue_may_be_settled(client: Dialogue) -> None:
    queue = client.declare("q")
    fill(client, queue, 3)
    client.consume(queue)
    assert len(client.deliveries()) == 3
    client.call(2, commands.Queue.Delete, queue=queue)
    client.expect(1, commands.Basic.Cancel)
    client.send(1, commands.Basic.Ack, delivery_tag=1).send(1, commands.Basic.Reject, delivery_tag=2, requeue=True)
    client.call(1, commands.Channel.Close)


@spec("1.8.3.3", "no-ack: a delivery is settled when it is written; its tag is not acknowledged.")
def test_no_ack(client: Dialogue) -> None:
    queue = client.declare()
    client.call(1, commands.Basic.Qos, prefetch_count=1)
    fill(client, queue, 5)
    client.consume(queue, no_ack=True, no_local=True)
    assert [item.method.delivery_tag for item in client.deliveries()] == [1, 2, 3, 4, 5]
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    client.expect_close(406, "PRECONDITION_FAILED - unknown delivery tag 1", (60, 80))
    assert rest(client, queue) == []


def test_exclusive_consumers(client: Dialogue) -> None:
    queue = client.declare("q")
    client.consume(queue, "only", exclusive=True)
    client.send(2, commands.Basic.Consume, queue=queue, consumer_tag="second")
    text = "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    client.expect_close(403, text, (60, 20), channel_no=2)
    client.call(1, commands.Basic.Cancel, consumer_tag="only")
    client.call(2, commands.Channel.Open)
    client.consume(queue, "second", 2)
    client.send(1, commands.Basic.Consume, queue=queue, exclusive=True)
    client.expect_close(403, text, (60, 20))


@spec(
    "RabbitMQ, consumer priorities", "Consumers with a higher x-priority are served while they have room; 0 is usual."
)
def test_higher_priorities_come_first(client: Dialogue) -> None:
    queue = client.declare()
    client.call(1, commands.Basic.Qos, prefetch_count=2)
    for tag, priority in (("a", None), ("b", -1), ("c", 0), ("d", 5), ("e", 5)):
        client.consume(queue, tag, arguments={} if priority is None else {"x-priority": priority})
    fill(client, queue, 12)
    assert tags_of(client) == ["d", "e", "d", "e", "a", "c", "a", "c", "b", "b"]
    client.send(1, commands.Basic.Ack, delivery_tag=10)
    client.send(1, commands.Basic.Ack, delivery_tag=2)
    assert tags_of(client) == ["b", "e"]
    client.call(1, commands.Basic.Cancel, consumer_tag="d")
    client.call(1, commands.Basic.Cancel, consumer_tag="e")
    client.send(1, commands.Basic.Ack, delivery_tag=0, multiple=True)
    fill(client, queue, 3)
    assert sorted(tags_of(client)) == ["a", "a", "c"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-priority": "x"}, "x-priority' for queue 'q' in vhost '/': \"expected integer, got longstr\""),
        ({"x-priority": 1.5}, "x-priority' for queue 'q' in vhost '/': \"expected integer, got double\""),
        ({"x-priority": True}, "x-priority' for queue 'q' in vhost '/': \"expected integer, got bool\""),
        ({"x-priority": None}, "x-priority' for queue 'q' in vhost '/': \"expected integer, got void\""),
        (
            {"x-cancel-on-ha-failover": 1},
            "x-cancel-on-ha-failover' for queue 'q' in vhost '/': {unacceptable_type,signedint}",
        ),
    ],
)
def test_invalid_arguments_of_a_consumer_are_406(client: Dialogue, arguments: dict[str, object], text: str) -> None:
    client.declare("q")
    client.send(1, commands.Basic.Consume, queue="q", consumer_tag="t", arguments=arguments)
    client.expect_close(406, f"PRECONDITION_FAILED - invalid arg '{text}", (60, 20))


# --------------------------------------------------------------------------------------------- single active consumer
SINGLE = {"x-single-active-consumer": True}


@spec("RabbitMQ, single active consumer", "One consumer at a time; when it goes another one takes over.")
@pytest.mark.parametrize("fields", [{}, {"exclusive": False, "durable": True}])
def test_one_consumer_is_active_at_a_time(client: Dialogue, fields: dict[str, Any]) -> None:
    queue = client.declare("q", arguments=SINGLE, **fields)
    client.call(1, commands.Basic.Qos, prefetch_count=2)
    for tag, priority in (("a", 0), ("b", 0), ("c", 9), ("d", 9)):
        client.consume(queue, tag, arguments={"x-priority": priority})
    fill(client, queue, 6)
    assert tags_of(client) == ["a", "a"]
    client.call(1, commands.Basic.Cancel, consumer_tag="b")
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    client.world.advance(0.25)
    assert tags_of(client) == ["a"]
    client.call(1, commands.Basic.Cancel, consumer_tag="a")
    client.send(1, commands.Basic.Ack, delivery_tag=2).expect_nothing()
    client.send(1, commands.Basic.Ack, delivery_tag=3)
    client.world.advance(0.25)
    assert bodies(contents := client.deliveries()) == [b"3", b"4"]
    assert [item.method.consumer_tag for item in contents] == ["c", "c"]
    client.call(1, commands.Basic.Cancel, consumer_tag="c")
    client.send(1, commands.Basic.Nack, delivery_tag=0, multiple=True, requeue=True)
    client.world.advance(0.25)
    assert bodies(contents := client.deliveries()) == [b"5", b"3"]
    assert [item.method.consumer_tag for item in contents] == ["d", "d"]


def test_the_next_takes_over_when_the_active_ones_channel_is_gone(world: World, client: Dialogue) -> None:
    other = connect(world)
    queue = client.declare("q", exclusive=False, durable=True, arguments=SINGLE)
    fill(client, queue, 3)
    client.consume(queue, "a")
    assert len(client.deliveries()) == 3
    other.consume(queue, "b")
    other.expect_nothing()
    client.lose()
    assert [(item.body, item.method.redelivered) for item in other.deliveries()] == [
        (b"0", True), (b"1", True), (b"2", True)
    ]  # fmt: skip


def test_the_first_of_all_may_come_after_the_last_has_gone(client: Dialogue) -> None:
    queue = client.declare("q", arguments=SINGLE)
    client.consume(queue, "a", no_ack=True)
    client.call(1, commands.Basic.Cancel, consumer_tag="a")
    fill(client, queue, 1)
    client.consume(queue, "b", 2)
    assert len(client.deliveries(2)) == 1


def test_a_single_active_consumer_excludes_gets_and_exclusive_consumers(client: Dialogue) -> None:
    queue = client.declare("q", arguments=SINGLE)
    client.send(1, commands.Basic.Get, queue=queue)
    text = "RESOURCE_LOCKED - cannot obtain access to locked queue 'q' in vhost '/'. basic.get operations are not "
    client.expect_close(405, text + "supported by queues with single active consumer", (60, 70))
    client.call(1, commands.Channel.Open)
    client.send(1, commands.Basic.Consume, queue=queue, exclusive=True)
    client.expect_close(403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use", (60, 20))


def test_arguments_without_an_effect_are_taken(client: Dialogue) -> None:
    queue = client.declare()
    client.consume(queue, arguments={"x-priority": 0, "x-cancel-on-ha-failover": True, "whatever": {"a": 1}})


def test_the_first_delivery_follows_consume_ok(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 1)
    client.send(1, commands.Basic.Consume, queue=queue, consumer_tag="t")
    client.expect(1, commands.Basic.ConsumeOk, consumer_tag="t")
    client.expect(1, commands.Basic.Deliver, consumer_tag="t", delivery_tag=1)
    client.send(2, commands.Basic.Consume, queue=queue, consumer_tag="u", nowait=True).expect_nothing()


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


# --------------------------------------------------------------------------------------------- a slow reader
def test_deliveries_stop_while_the_socket_is_full(world: World) -> None:
    slow, fast = Dialogue(world, output_high_bytes=20_000).shake_hands(), connect(world, channels=(1, 2))
    queue = fast.declare("q", exclusive=False, auto_delete=True)
    slow.consume(queue)
    slow.socket.blocks_at = 20_000
    for _ in range(100):
        fast.publish(2, queue, bytes(1000))
    assert 20_000 <= len(slow.socket.sent) < 22_000
    held = len(slow.deliveries())
    assert queue_count(world) == 100 - held
    fast.consume(queue)
    assert len(fast.deliveries()) == 100 - held
    slow.connection.on_write_resumed()
    world.settle()
    for _ in range(4):
        fast.publish(2, queue)
    assert len(slow.deliveries()) == 2


def test_one_turn_does_not_gather_more_than_the_mark(world: World) -> None:
    client = Dialogue(world, output_high_bytes=10_000).shake_hands(channels=(1, 2))
    queue = client.declare("q")
    for _ in range(100):
        client.publish(2, queue, bytes(1000))
    client.socket.writes.clear()
    client.consume(queue, no_ack=True)
    assert len(client.deliveries()) == 100
    assert max(client.socket.writes) < 12_000
    assert len(client.socket.writes) >= 10


def test_a_client_that_reads_no_replies_is_read_no_more(world: World) -> None:
    client = Dialogue(world, output_high_bytes=4096, unread_high_bytes=10_000).shake_hands()
    client.socket.blocks_at = 1
    sent = 0
    while client.socket.is_reading():
        client.connection.feed(client.encode(1, commands.Basic.Qos) * 100)
        world.settle()
        sent += 100
        assert sent < 5000
    assert len(client.socket.sent) < 12_000
    client.socket.blocks_at = None
    client.connection.on_write_resumed()
    assert client.socket.is_reading()
    assert len(client.received()) == sent


def test_a_draining_connection_settles_but_gets_nothing_more(client: Dialogue) -> None:
    queue = client.declare("q")
    fill(client, queue, 1)
    client.call(1, commands.Basic.Qos, prefetch_count=1)
    client.consume(queue)
    assert len(client.deliveries()) == 1
    client.connection.stop_deliveries()
    fill(client, queue, 1)
    client.send(1, commands.Basic.Ack, delivery_tag=1).expect_nothing()
    client.connection.on_write_blocked()
    client.connection.on_write_resumed()
    client.connection.close("shutting down")
    client.world.settle()
    client.expect_connection_close(320, "CONNECTION_FORCED - shutting down", (0, 0))


def queue_count(world: World) -> int:
    return world.broker.virtual_host("/").queues["q"].ready_count

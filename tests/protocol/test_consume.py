"""Getting and consuming: tags, turns, priorities, one active consumer, slow clients (CO-07 to 09, CO-24 to 34)."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests.support.consuming import bodies, fill, rest, tags_of
from tests.support.dialogue import Dialogue, connect, spec
from tests.support.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Dialogue:
    return connect(world, channels=(1, 2))


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
    queue = client.declare("q", durable=True, exclusive=False)
    fill(client, queue, 1)
    client.call(1, commands.Basic.Qos, prefetch_count=1)
    tag = client.consume(queue)
    assert len(client.deliveries()) == 1
    client.connection.drain()
    client.world.settle()
    client.expect(1, commands.Basic.Cancel, consumer_tag=tag, nowait=True)
    fill(client, queue, 1)
    client.send(1, commands.Basic.Ack, delivery_tag=1).expect_nothing()
    assert client.connection.unfinished_count == 0
    client.consume(queue)  # as clients do whose consumer was cancelled
    client.expect_nothing()
    client.connection.on_write_blocked()
    client.connection.on_write_resumed()
    client.connection.close("shutting down")
    client.world.settle()
    client.expect_connection_close(320, "CONNECTION_FORCED - shutting down", (0, 0))


def test_replies_reach_a_draining_client(client: Dialogue) -> None:
    queue = client.call(1, commands.Queue.Declare, queue="", exclusive=True).queue
    client.consume(queue)
    client.connection.drain()
    client.world.settle()
    fill(client, queue, 1)
    assert len(client.deliveries()) == 1


def test_a_held_connection_gets_its_confirms_before_the_close(client: Dialogue) -> None:
    queue = client.declare("q", durable=True, exclusive=False)
    client.call(1, commands.Confirm.Select)
    client.world.hold_stores = True
    client.publish(1, queue)
    client.connection.hold()
    assert not client.socket.is_reading()
    assert client.connection.publishing_count == 1
    client.world.answer_stores()
    client.expect(1, commands.Basic.Ack, delivery_tag=1, multiple=False)
    client.connection.close("shutting down")
    client.world.settle()
    client.expect_connection_close(320, "CONNECTION_FORCED - shutting down", (0, 0))
    assert client.socket.is_reading(), "close-ok is read"


def queue_count(world: World) -> int:
    return world.broker.virtual_host("/").queues["q"].ready_count

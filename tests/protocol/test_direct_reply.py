"""Direct reply-to (EX-14), seen from the wire; codes and texts are those of RabbitMQ 3.10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from connector.amqp import header as content_header
from connector.broker.message import Message
from connector.broker.ports import Receipt
from connector.broker.remote_queue import RemoteReply
from connector.broker.topology import QueueRecord
from tests.support.dialogue import Content, Dialogue, connect, spec
from tests.support.world import World

ASK = "amq.rabbitmq.reply-to"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Dialogue:
    return connect(world, channels=(1, 2))


@pytest.fixture
def server(world: World) -> Dialogue:
    server = connect(world)
    server.declare("rpc", exclusive=False, auto_delete=True)
    server.consume("rpc", no_ack=True)
    return server


def ask(client: Dialogue, server: Dialogue, body: bytes = b"?", channel_no: int = 1, **fields: Any) -> str:
    """Send a request; returns the address that the server is to reply to."""
    client.publish(channel_no, "rpc", body, reply_to=ASK, **fields)
    (request,) = server.deliveries()
    assert request.body == body
    address = content_header.parse(request.header).reply_to
    assert address is not None
    return address.decode()


@spec("RabbitMQ, direct reply-to", "Requests carry a generated address; replies to it go to the reply consumer.")
def test_a_call(client: Dialogue, server: Dialogue) -> None:
    client.consume(ASK, "r", no_ack=True)
    addresses = set()
    for number in (1, 2, 3):
        address = ask(client, server, b"request", correlation_id=str(number), headers={"a": 1})
        addresses.add(address)
        server.publish(1, address, b"reply %d" % number, correlation_id=str(number), mandatory=True)
        (reply,) = client.deliveries()
        assert (reply.body, content_header.parse(reply.header).correlation_id) == (b"reply %d" % number, b"%d" % number)
        method = reply.method
        assert (method.consumer_tag, method.delivery_tag, method.redelivered) == ("r", number, False)
        assert (method.exchange, method.routing_key) == ("", address)
    server.expect_nothing()
    (address,) = addresses
    assert address.startswith(ASK + ".")
    assert len(address) == len(ASK) + 23


def test_only_the_reply_address_of_the_header_changes(client: Dialogue, server: Dialogue) -> None:
    client.consume(ASK, "r", no_ack=True)
    properties: dict[str, Any] = {
        "content_type": "a/b", "delivery_mode": 2, "priority": 0, "correlation_id": "c", "message_id": "m",
        "timestamp": 5, "app_id": "app",
    }  # fmt: skip
    client.publish(1, "rpc", reply_to=ASK, headers={"x": [1, None, {"y": b"z"}]}, **properties)
    (request,) = server.deliveries()
    parsed = content_header.parse(request.header)
    sent = content_header.parse(content_header.build(properties | {"reply_to": ASK}, parsed.headers()))
    assert parsed.properties() | {"reply_to": ASK.encode()} == sent.properties()
    assert parsed.headers()["x"][0] == "A"


def test_each_channel_and_each_consumer_has_an_address_of_its_own(client: Dialogue, server: Dialogue) -> None:
    client.consume(ASK, "r", 1, no_ack=True)
    client.consume(ASK, "r", 2, no_ack=True)
    first, second = ask(client, server), ask(client, server, channel_no=2)
    server.publish(1, second, b"for 2").publish(1, first, b"for 1")
    items = {channel_no: item.body for channel_no, item in client.received()}
    assert items == {1: b"for 1", 2: b"for 2"}
    client.call(1, commands.Basic.Cancel, consumer_tag="r")
    client.consume(ASK, "", 1, no_ack=True)
    third = ask(client, server)
    assert len({first, second, third}) == 3
    server.publish(1, first, mandatory=True).expect(1, commands.Basic.Return, reply_code=312)
    client.expect_nothing()


def test_the_address_goes_with_any_publish_of_the_channel(client: Dialogue, server: Dialogue) -> None:
    client.send(1, commands.Basic.Consume, queue=ASK, no_ack=True, nowait=True, exclusive=True).expect_nothing()
    server.call(1, commands.Queue.Bind, queue="rpc", exchange="amq.fanout")
    client.publish(1, "any", b"fanned out", exchange="amq.fanout", reply_to=ASK)
    (request,) = server.deliveries()
    address = content_header.parse(request.header).reply_to
    client.publish(1, "nobody", mandatory=True, reply_to=ASK)
    returned = client.expect(1, commands.Basic.Return)
    assert content_header.parse(returned.header).reply_to == address
    client.publish(1, "rpc", reply_to="amq.gen-mine")
    (request,) = server.deliveries()
    assert content_header.parse(request.header).reply_to == b"amq.gen-mine"


def test_in_a_transaction_both_sides_wait_for_the_commit(client: Dialogue, server: Dialogue) -> None:
    client.call(1, commands.Tx.Select)
    client.consume(ASK, "r", no_ack=True)
    client.publish(1, "rpc", reply_to=ASK)
    server.expect_nothing()
    client.call(1, commands.Tx.Commit)
    (request,) = server.deliveries()
    server.call(1, commands.Tx.Select)
    server.publish(1, content_header.parse(request.header).reply_to.decode(), b"reply")  # type: ignore[union-attr]
    client.expect_nothing()
    server.call(1, commands.Tx.Commit)
    assert [item.body for item in client.deliveries()] == [b"reply"]


def test_replies_may_be_copies(client: Dialogue, server: Dialogue) -> None:
    client.consume(ASK, "r", no_ack=True)
    address = ask(client, server)
    server.publish(1, "nobody", b"by CC", headers={"CC": [address]}, mandatory=True)
    server.expect_nothing()
    assert [item.body for item in client.deliveries()] == [b"by CC"]


# --------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"consumer_tag": "r2", "no_ack": True}, "reply consumer already set"),
        ({"consumer_tag": "r", "no_ack": True}, "reply consumer already set"),
        ({"consumer_tag": "r2", "no_ack": False}, "reply consumer cannot acknowledge"),
        ({"consumer_tag": "r", "no_ack": False}, "reply consumer cannot acknowledge"),
    ],
)
def test_one_reply_consumer_per_channel_without_acknowledgements(
    client: Dialogue, server: Dialogue, fields: dict[str, Any], text: str
) -> None:
    client.consume(ASK, "r", no_ack=True)
    address = ask(client, server)
    client.send(1, commands.Basic.Consume, queue=ASK, **fields)
    client.expect_close(406, f"PRECONDITION_FAILED - {text}", (60, 20))
    server.publish(1, address, mandatory=True).expect(1, commands.Basic.Return, reply_code=312)


def test_a_tag_in_use_is_530(client: Dialogue) -> None:
    client.consume(client.declare(), "t")
    client.send(1, commands.Basic.Consume, queue=ASK, consumer_tag="t", no_ack=True)
    client.expect_connection_close(530, "NOT_ALLOWED - attempt to reuse consumer tag 't'", (60, 20))


@spec("RabbitMQ, direct reply-to", "The reply consumer's tag is free for another consumer, and is cancelled first.")
def test_its_tag_may_be_used_again(client: Dialogue, server: Dialogue) -> None:
    client.consume(ASK, "t", no_ack=True)
    address = ask(client, server)
    queue = client.declare()
    client.consume(queue, "t", no_ack=True)
    server.publish(1, address, b"reply").publish(1, queue, b"message")
    assert [delivery.body for delivery in client.deliveries()] == [b"reply", b"message"]
    client.call(1, commands.Basic.Cancel, consumer_tag="t")
    server.publish(1, address, b"too late").publish(1, queue, b"still")
    assert [delivery.body for delivery in client.deliveries()] == [b"still"]
    client.call(1, commands.Basic.Cancel, consumer_tag="t")
    server.publish(1, queue, b"nobody")
    client.expect_nothing()


def test_a_request_needs_a_reply_consumer(client: Dialogue, server: Dialogue) -> None:
    text = "PRECONDITION_FAILED - fast reply consumer does not exist"
    client.consume(ASK, "r", no_ack=True)
    client.publish(2, "rpc", reply_to=ASK)
    client.expect_close(406, text, (60, 40), channel_no=2)
    ask(client, server)
    client.call(1, commands.Basic.Cancel, consumer_tag="r")
    client.publish(1, "rpc", reply_to=ASK)
    client.expect_close(406, text, (60, 40))
    server.expect_nothing()


# --------------------------------------------------------------------------------------------- as a queue
@spec("RabbitMQ, direct reply-to", "A server may declare the address to see whether anybody still waits.")
@pytest.mark.parametrize("passive", [True, False])
def test_a_declaration_asks_whether_anybody_waits(client: Dialogue, server: Dialogue, passive: bool) -> None:
    declare = {"passive": passive, "durable": True}
    answer = server.call(1, commands.Queue.Declare, queue=ASK, **declare)
    assert (answer.queue, answer.message_count, answer.consumer_count) == (ASK, 0, 1)
    client.consume(ASK, "r", no_ack=True)
    address = ask(client, server)
    answer = server.call(1, commands.Queue.Declare, queue=address, **declare)
    assert (answer.queue, answer.message_count, answer.consumer_count) == (address, 0, 1)
    client.lose()
    server.send(1, commands.Queue.Declare, queue=address, **declare)
    server.expect_close(404, f"NOT_FOUND - no queue '{address}' in vhost '/'", (50, 10))


@pytest.mark.parametrize("name", [ASK + ".x", ASK + "foo"])
def test_other_names_of_the_kind_are_not_there(client: Dialogue, name: str) -> None:
    client.send(1, commands.Queue.Declare, queue=name)
    client.expect_close(404, f"NOT_FOUND - no queue '{name}' in vhost '/'", (50, 10))


def test_an_address_is_no_queue(client: Dialogue, server: Dialogue) -> None:
    client.consume(ASK, "r", no_ack=True)
    address = ask(client, server)
    assert server.call(1, commands.Queue.Delete, queue=address).message_count == 0
    for kind, fields, ids in (
        (commands.Queue.Bind, {"exchange": "amq.direct", "routing_key": "k"}, (50, 20)),
        (commands.Queue.Purge, {}, (50, 30)),
        (commands.Basic.Get, {}, (60, 70)),
        (commands.Basic.Consume, {"no_ack": True}, (60, 20)),
    ):
        server.send(1, kind, queue=address, **fields)
        server.expect_close(404, f"NOT_FOUND - no queue '{address}' in vhost '/'", ids)
        server.call(1, commands.Channel.Open)
    server.publish(1, address, b"still there")
    assert [item.body for item in client.deliveries()] == [b"still there"]


def test_an_address_is_of_one_virtual_host_and_of_the_default_exchange(world: World, client: Dialogue) -> None:
    server = connect(world)
    server.declare("rpc", exclusive=False, auto_delete=True)
    server.consume("rpc", no_ack=True)
    client.consume(ASK, "r", no_ack=True)
    address = ask(client, server)
    other = connect(world, vhost="other")
    other.publish(1, address, mandatory=True).expect(1, commands.Basic.Return, reply_code=312)
    server.publish(1, address, exchange="amq.direct", mandatory=True)
    server.expect(1, commands.Basic.Return, reply_code=312)
    client.expect_nothing()


# --------------------------------------------------------------------------------------------- ends
def test_replies_to_nobody_are_dropped_and_confirmed(world: World, client: Dialogue, server: Dialogue) -> None:
    client.consume(ASK, "r", no_ack=True)
    address = ask(client, server)
    server.call(1, commands.Confirm.Select)
    server.publish(1, address).expect(1, commands.Basic.Ack, delivery_tag=1)
    assert len(client.deliveries()) == 1
    client.call(1, commands.Channel.Close)
    server.publish(1, address).expect(1, commands.Basic.Ack, delivery_tag=2)
    server.publish(1, address, mandatory=True).expect(1, commands.Basic.Return)
    server.expect(1, commands.Basic.Ack, delivery_tag=3)
    vhost = world.broker.virtual_host("/")
    assert (len(vhost.replies), world.broker.memory_bytes) == (0, 0)
    assert not [key for key in vhost._routes if key[1].startswith(ASK)]


def test_replies_wait_for_a_client_that_does_not_read(world: World, server: Dialogue) -> None:
    client = Dialogue(world, output_high_bytes=5000).shake_hands()
    client.consume(ASK, "r", no_ack=True)
    address = ask(client, server)
    client.socket.blocks_at = 5000
    for _ in range(20):
        server.publish(1, address, bytes(1000))
    assert len(client.socket.sent) < 7000
    assert world.broker.memory_bytes > 0
    client.socket.blocks_at = None
    client.connection.on_write_resumed()
    world.settle()
    items = [item for _, item in client.received()]
    assert len(items) == 20
    assert all(isinstance(item, Content) for item in items)
    assert world.broker.memory_bytes == 0


# --------------------------------------------------------------------------------------------- elsewhere
class Elsewhere:
    """The way to another connector, which answers when the test says so; ``is_there``: somebody reads there."""

    def __init__(self, world: World, *, is_there: bool) -> None:
        self.is_there = is_there
        self._waiting: list[tuple[Any, Any, int]] = []
        self._world = world
        world.broker.virtual_host("/").replies.elsewhere = self._find

    def _find(self, vhost: str, name: str) -> RemoteReply:
        way: Any = self
        return RemoteReply(QueueRecord(vhost, name, auto_delete=True), self._world.broker, way, "other-1", 0)

    def publish(self, queue: RemoteReply, message: Message, receipt: Receipt, token: int) -> None:
        del queue
        self._waiting.append((receipt, message, token))

    def look_for(self, queue: RemoteReply, done: Callable[[bool], None]) -> None:
        del queue
        done(self.is_there)

    def answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for receipt, message, token in waiting:
            if self.is_there:
                receipt.on_stored(token)
            else:
                receipt.on_unrouted(token, message)
        self._world.settle()


def _counts(world: World) -> tuple[int, int, int]:
    counters = world.counters
    return counters.routed, counters.unroutable_returned, counters.unroutable_dropped


@pytest.mark.parametrize("is_there", [True, False])
def test_whether_a_reply_has_a_route_elsewhere_is_known_before_its_confirm(world: World, is_there: bool) -> None:
    other, server = Elsewhere(world, is_there=is_there), connect(world)
    server.call(1, commands.Confirm.Select)
    server.publish(1, ASK + ".a", b"1", mandatory=True).publish(1, ASK + ".a", b"2").expect_nothing()
    other.answer()
    if not is_there:
        returned = server.expect(
            1, commands.Basic.Return, reply_code=312, reply_text="NO_ROUTE", routing_key=ASK + ".a"
        )
        assert returned.body == b"1"
    server.expect(1, commands.Basic.Ack, delivery_tag=2, multiple=True)
    server.expect_nothing()
    assert _counts(world) == ((2, 0, 0) if is_there else (0, 1, 1))


def test_without_confirms_it_is_returned_all_the_same(world: World) -> None:
    other, server = Elsewhere(world, is_there=False), connect(world)
    server.publish(1, ASK + ".a", mandatory=True).expect_nothing()
    other.answer()
    server.expect(1, commands.Basic.Return, reply_code=312)
    server.expect_nothing()


def test_a_close_comes_after_what_is_returned(world: World) -> None:
    other, server = Elsewhere(world, is_there=False), connect(world)
    server.publish(1, ASK + ".a", mandatory=True).send(1, commands.Channel.Close, reply_code=200).expect_nothing()
    other.answer()
    server.expect(1, commands.Basic.Return, reply_code=312)
    server.expect(1, commands.Channel.CloseOk)


def test_a_channel_that_is_closed_is_told_nothing_more(world: World) -> None:
    other, server = Elsewhere(world, is_there=False), connect(world)
    server.publish(1, ASK + ".a", mandatory=True).send(1, commands.Basic.Ack, delivery_tag=9)
    server.expect_close(406, "PRECONDITION_FAILED - unknown delivery tag 9", (60, 80))
    server.call(1, commands.Channel.Open)
    other.answer()
    server.expect_nothing()
    assert _counts(world) == (0, 0, 1)


def test_a_commit_is_answered_after_what_it_returns(world: World) -> None:
    other, server = Elsewhere(world, is_there=False), connect(world)
    server.call(1, commands.Tx.Select)
    server.publish(1, ASK + ".a", mandatory=True).send(1, commands.Tx.Commit).expect_nothing()
    other.answer()
    server.expect(1, commands.Basic.Return, reply_code=312)
    server.expect(1, commands.Tx.CommitOk)


def test_a_copy_for_a_queue_is_a_route(world: World, server: Dialogue) -> None:
    other = Elsewhere(world, is_there=False)
    server.publish(1, "rpc", b"both", headers={"CC": [ASK + ".a"]}, mandatory=True)
    assert [item.body for item in server.deliveries()] == [b"both"]
    other.answer()
    server.expect_nothing()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_declaration_asks_elsewhere_too(world: World, is_there: bool) -> None:
    Elsewhere(world, is_there=is_there)
    server = connect(world)
    if is_there:
        assert server.call(1, commands.Queue.Declare, queue=ASK + ".a", passive=True).consumer_count == 1
    else:
        server.send(1, commands.Queue.Declare, queue=ASK + ".a", passive=True)
        server.expect_close(404, f"NOT_FOUND - no queue '{ASK}.a' in vhost '/'", (50, 10))

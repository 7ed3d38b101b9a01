"""How little a client may add while KubeMQ cannot take more: a publish that begins is the end of reading (PC-19)."""

from __future__ import annotations

import pytest
from pamqp import commands

from connector.broker.errors import NotFound
from tests.support.dialogue import Dialogue, connect, spec
from tests.support.world import World

AWAY = "KubeMQ does not answer"
FULL = "messages wait"
SIZE = 1000


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Dialogue:
    client = connect(world, channels=(1, 2))
    client.declare("q", durable=True, exclusive=False)
    return client


def begin(client: Dialogue, channel_no: int = 1) -> bytes:
    return client.encode(channel_no, commands.Basic.Publish, routing_key="q")


def header(client: Dialogue, channel_no: int = 1) -> bytes:
    return client.frames(channel_no).header(SIZE)


def body(client: Dialogue, channel_no: int = 1) -> bytes:
    return client.frames(channel_no).body(bytes(SIZE))


@pytest.mark.parametrize("is_strict", [False, True])
@spec("RabbitMQ, memory alarms", "Connections that publish are blocked.")
def test_a_publish_that_begins_is_not_read_on(world: World, client: Dialogue, is_strict: bool) -> None:
    client.connection.block(AWAY, is_strict=is_strict)
    client.feed(begin(client)).expect(0, commands.Connection.Blocked, reason=AWAY)
    assert not client.socket.is_reading()
    client.connection.unblock(AWAY)
    assert client.socket.is_reading() is not is_strict, "what is kept of it comes first"
    world.read_on()
    assert client.socket.is_reading()
    client.feed(header(client) + body(client)).expect(0, commands.Connection.Unblocked)
    assert world.counters.messages_received == 1


@pytest.mark.parametrize("parts", [1, 2])
def test_who_is_in_the_middle_of_a_message_is_blocked_at_once(world: World, client: Dialogue, parts: int) -> None:
    client.feed(b"".join((begin(client), header(client))[:parts]))
    client.connection.block(AWAY)
    world.settle()
    client.expect(0, commands.Connection.Blocked)
    assert not client.socket.is_reading()
    client.connection.unblock(AWAY)
    client.feed(b"".join((header(client), body(client))[parts - 1 :]))
    assert world.counters.messages_received == 1


def test_at_a_mark_nothing_is_taken_of_what_was_read(world: World, client: Dialogue) -> None:
    """It comes in its order when there is room, with all that followed it."""
    client.call(1, commands.Confirm.Select)
    client.connection.block(FULL, is_strict=True)
    qos = client.encode(2, commands.Basic.Qos)
    whole = begin(client) + header(client) + body(client)
    client.feed(qos + whole + qos + whole[:-10])
    client.expect(2, commands.Basic.QosOk)
    client.expect(0, commands.Connection.Blocked)
    client.feed(whole[-10:]).expect_nothing()
    assert world.counters.messages_received == 0
    assert world.arriving.size > SIZE
    client.connection.unblock(FULL)
    client.connection.block(FULL, is_strict=True)
    world.read_on()
    assert world.counters.messages_received == 0, "there was no room again before its turn"
    assert not client.socket.is_reading()
    client.connection.block(AWAY)
    client.connection.unblock(FULL)
    world.read_on()
    assert world.counters.messages_received == 2
    assert not client.socket.is_reading(), "one reason is left"
    client.connection.unblock(AWAY)
    world.settle()
    kinds = [type(item) for _, item in client.received() if not isinstance(item, commands.Connection.Blocked)]
    assert sorted(kind.name for kind in kinds) == [
        "Basic.Ack", "Basic.QosOk", "Connection.Unblocked", "Connection.Unblocked",
    ]  # fmt: skip
    assert client.socket.is_reading()
    assert world.arriving.size == 0


def test_clients_that_come_and_go_leave_nothing(world: World) -> None:
    world.hold_stores = True
    for _ in range(3):
        client = connect(world)
        client.declare("q", durable=True, exclusive=False)
        client.connection.block(FULL, is_strict=True)
        client.feed((begin(client) + header(client) + body(client)) * 3)
        assert world.arriving.size > 2 * SIZE
        client.lose()
        assert world.arriving.size == 0
        client.connection.unblock(FULL)
        world.read_on()
    assert sum(len(outbox) for outbox in world.broker.outboxes) == 0


def test_consumers_are_served_while_publishers_are_not(world: World, client: Dialogue) -> None:
    client.publish(1, "q")
    client.consume("q")
    (delivery,) = client.deliveries()
    client.connection.block(FULL, is_strict=True)
    client.send(1, commands.Basic.Ack, delivery_tag=delivery.method.delivery_tag).expect_nothing()
    assert client.connection.unfinished_count == 0
    assert client.socket.is_reading()


def test_what_was_kept_is_not_taken_once_the_connector_stops(world: World, client: Dialogue) -> None:
    client.connection.block(FULL, is_strict=True)
    client.publish(1, "q")
    client.connection.hold()
    client.connection.unblock(FULL)
    world.read_on()
    assert world.counters.messages_received == 0


def test_a_channel_that_ends_meanwhile_leaves_the_others(world: World, client: Dialogue) -> None:
    """Its own publish is dropped, what follows on other channels is handled."""
    client.connection.block(FULL, is_strict=True)
    client.feed(begin(client) + header(client) + body(client) + client.encode(2, commands.Basic.Qos))
    client.expect(0, commands.Connection.Blocked)
    client.connection.on_failure(NotFound("gone"), client.connection._channels[1])
    client.connection.unblock(FULL)
    world.read_on()
    client.expect(2, commands.Basic.QosOk)
    assert world.counters.messages_received == 0

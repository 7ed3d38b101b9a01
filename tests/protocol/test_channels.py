"""Channels: life cycle, errors, order, and what a close waits for (PC-09 to PC-11, PC-16, PC-18, PU-02, PU-07)."""

from __future__ import annotations

import pytest
from pamqp import commands

from connector.amqp import access
from connector.broker.errors import NotFound
from connector.broker.ports import Done, TimedOut
from connector.broker.requests import DeclaredQueue
from connector.session.connection import Phase
from tests.support.dialogue import Dialogue, connect, spec
from tests.support.world import World

MISSING = "NOT_FOUND - no exchange 'missing' in vhost '/'"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Dialogue:
    return connect(world)


# --------------------------------------------------------------------------------------------- life
@spec("1.5.2.1", "The client opens a channel once; a second time is 504.")
def test_a_channel_opens_once(client: Dialogue) -> None:
    client.send(1, commands.Channel.Open)
    client.expect_connection_close(504, "CHANNEL_ERROR - second 'channel.open' seen", (20, 10))


@spec("1.5.2", "A method on a channel that is not open is a channel error, 504.")
def test_a_method_on_a_channel_that_never_was_is_504(client: Dialogue) -> None:
    client.send(2, commands.Basic.Qos)
    client.expect_connection_close(504, "CHANNEL_ERROR - expected 'channel.open'", (60, 10))


@pytest.mark.parametrize(
    ("kind", "fields", "ids"),
    [
        (commands.Basic.Ack, {"delivery_tag": 1}, (60, 80)),
        (commands.Basic.Nack, {"delivery_tag": 1}, (60, 120)),
        (commands.Basic.Reject, {"delivery_tag": 1}, (60, 90)),
    ],
)
def test_late_settlements_are_dropped_on_a_channel_that_was_open(
    world: World, kind: type, fields: dict[str, object], ids: tuple[int, int]
) -> None:
    client = connect(world)
    client.call(1, commands.Channel.Close, reply_code=200)
    client.send(1, kind, **fields).expect_nothing()
    client.call(1, commands.Channel.Open)
    other = connect(world)
    other.send(9, kind, **fields)
    other.expect_connection_close(504, "CHANNEL_ERROR - expected 'channel.open'", ids)


@pytest.mark.parametrize("late", ["publish", "get"])
def test_other_methods_on_a_closed_channel_are_504(client: Dialogue, late: str) -> None:
    client.call(1, commands.Channel.Close, reply_code=200)
    if late == "publish":
        client.publish(1, "q")
        ids = (60, 40)
    else:
        client.send(1, commands.Basic.Get, queue="q")
        ids = (60, 70)
    client.expect_connection_close(504, "CHANNEL_ERROR - expected 'channel.open'", ids)


@spec("1.4.2.6", "The client may open at most channel_max channels; high numbers are fine.")
def test_more_channels_than_negotiated_are_530(world: World) -> None:
    client = connect(world, channel_max=2, channels=(1, 900))
    client.call(900, commands.Channel.Close, reply_code=200)
    client.call(65535, commands.Channel.Open)
    client.send(2, commands.Channel.Open)
    text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    client.expect_connection_close(530, text, (20, 10))


def test_a_number_is_usable_right_after_close_ok(world: World, client: Dialogue) -> None:
    for _ in range(20):
        client.call(1, commands.Channel.Close, reply_code=200)
        client.call(1, commands.Channel.Open)
    assert client.connection.channel_count == 1
    assert (world.counters.channels_opened, world.counters.channels_closed) == (21, 20)


@spec("RabbitMQ, channel.flow", "active=true is answered, active=false is not implemented.")
def test_flow(client: Dialogue) -> None:
    client.send(1, commands.Channel.Flow, active=True).expect(1, commands.Channel.FlowOk, active=True)
    client.send(1, commands.Channel.Flow, active=False)
    client.expect_connection_close(540, "NOT_IMPLEMENTED - active=false", (20, 20))


@spec("AMQP 0-9, 1.3", "access.request asks for a ticket; RabbitMQ gives everybody ticket 1.")
def test_access_request(client: Dialogue) -> None:
    client.send(1, access.Request, realm="/data", active=True, write=True, read=True)
    client.expect(1, access.RequestOk, ticket=1)
    client.send(1, access.RequestOk, ticket=1)
    client.expect_connection_close(503, "COMMAND_INVALID - unimplemented method", (30, 11))


# --------------------------------------------------------------------------------------------- errors
@spec("2.2.8", "A channel exception closes the channel; the rest of the connection goes on.")
def test_a_soft_error_closes_its_channel_only(world: World) -> None:
    client = connect(world, channels=(1, 2))
    queue = client.declare("q", 2)
    frames = client.frames()
    client.feed(
        frames.publish(queue, b"one")
        + frames.publish("k", b"lost", exchange="missing")
        + frames.publish(queue, b"ignored")
        + client.encode(1, commands.Queue.Declare, queue="never")
        + client.encode(2, commands.Basic.Qos)
    )
    client.expect(2, commands.Basic.QosOk)
    client.expect_close(404, MISSING, (60, 40))
    client.expect_nothing()
    assert [number for number, _, _ in world.errors] == [1]
    client.call(1, commands.Channel.Open)
    client.call(1, commands.Confirm.Select)
    client.publish(1, queue, b"two").expect(1, commands.Basic.Ack, delivery_tag=1)
    assert [client.get(queue, 2).body for _ in range(2)] == [b"one", b"two"]
    assert client.get(queue, 2) is None
    assert "never" not in world.broker.virtual_host("/").queues


@spec("1.5.2.5", "After sending channel.close, anything but close and close-ok is discarded.")
def test_what_comes_on_a_failed_channel_is_discarded_however_broken(client: Dialogue) -> None:
    client.publish(1, "k", exchange="missing").expect(1, commands.Channel.Close, reply_code=404)
    frames = client.frames()
    client.feed(frames.header(10) + frames.body(b"x" * 50) + frames.raw_method(61, 999) + frames.raw(1, b""))
    client.publish(1, "q").send(1, commands.Basic.Ack, delivery_tag=99).send(1, commands.Channel.Open)
    client.expect_nothing()
    client.send(1, commands.Channel.CloseOk)
    client.call(1, commands.Channel.Open)


@spec("1.5.2.5", "Both sides may close at the same time: each answers the other.")
def test_crossing_closes(client: Dialogue) -> None:
    client.feed(
        client.frames().publish("k", exchange="missing") + client.encode(1, commands.Channel.Close, reply_code=200)
    )
    client.expect(1, commands.Channel.Close, reply_code=404)
    client.expect(1, commands.Channel.CloseOk)
    client.send(1, commands.Channel.CloseOk).expect_nothing()
    client.call(1, commands.Channel.Open)


def test_no_delivery_follows_a_channels_close(client: Dialogue) -> None:
    client.call(2, commands.Channel.Open)
    queue = client.declare("q", 2)
    for _ in range(200):
        client.publish(2, queue, b"z" * 2000)
    client.feed(
        client.encode(1, commands.Basic.Consume, queue=queue, consumer_tag="t", no_ack=True)
        + client.frames().publish("k", exchange="missing")
    )
    client.expect(1, commands.Basic.ConsumeOk)
    client.expect_close(404, MISSING, (60, 40))
    client.expect_nothing()


def test_a_failing_channel_gives_back_what_it_has(client: Dialogue) -> None:
    client.call(2, commands.Channel.Open)
    queue = client.declare("q", 2)
    for body in (b"0", b"1"):
        client.publish(2, queue, body)
    client.consume(queue)
    assert len(client.deliveries()) == 2
    client.send(1, commands.Basic.Ack, delivery_tag=7)
    client.expect_close(406, "PRECONDITION_FAILED - unknown delivery tag 7", (60, 80))
    assert [client.get(queue, 2).method.redelivered for _ in range(2)] == [True, True]


@spec("1.1", "A method that the server does not know is 503, one it does not implement 540.")
@pytest.mark.parametrize(
    ("kind", "fields", "code", "text"),
    [
        (commands.Channel.FlowOk, {"active": True}, 503, "COMMAND_INVALID - unimplemented method"),
        (commands.Queue.DeclareOk, {}, 503, "COMMAND_INVALID - unimplemented method"),
    ],
)
def test_methods_that_are_not_there(
    client: Dialogue, kind: type, fields: dict[str, object], code: int, text: str
) -> None:
    index: int = kind.index  # type: ignore[attr-defined]
    client.send(1, kind, **fields)
    client.expect_connection_close(code, text, (index >> 16, index & 0xFFFF))


# --------------------------------------------------------------------------------------------- order
@spec("4.7", "Methods of one channel are processed in order; channels do not wait for one another.")
def test_a_waiting_channel_keeps_its_order_and_stops_nobody_else(world: World) -> None:
    client = connect(world, channels=(1, 2))
    client.call(1, commands.Confirm.Select)
    world.hold_events = True
    client.feed(
        client.encode(1, commands.Queue.Declare, queue="q", durable=True)
        + client.frames().publish("q", b"first")
        + client.encode(1, commands.Basic.Qos, prefetch_count=3)
        + client.encode(1, commands.Queue.Declare, queue="r", durable=True)
        + client.frames().publish("r", b"second")
        + client.encode(2, commands.Basic.Qos)
    )
    client.expect(2, commands.Basic.QosOk)
    client.expect_nothing()
    world.answer_events()
    world.settle()
    client.expect(1, commands.Queue.DeclareOk, queue="q")
    client.expect(1, commands.Basic.QosOk)
    client.expect(1, commands.Basic.Ack, delivery_tag=1)
    client.expect_nothing()
    world.answer_events()
    world.settle()
    client.expect(1, commands.Queue.DeclareOk, queue="r")
    client.expect(1, commands.Basic.Ack, delivery_tag=2)


def test_many_methods_in_line_are_no_deep_recursion(world: World, client: Dialogue) -> None:
    world.hold_events = True
    client.send(1, commands.Queue.Declare, queue="q", durable=True)
    for _ in range(3000):
        client.connection.feed(client.encode(1, commands.Queue.Declare, queue="", exclusive=True))
    client.connection.feed(client.encode(1, commands.Basic.Qos))
    client.expect_nothing()
    world.hold_events = False
    world.answer_events()
    world.settle()
    items = client.received()
    assert len(items) == 3002
    assert isinstance(items[-1][1], commands.Basic.QosOk)


def test_a_failed_operation_drops_what_was_in_line(world: World, client: Dialogue) -> None:
    other = connect(world)
    world.hold_events = True
    client.send(1, commands.Queue.Declare, queue="q", durable=True)
    client.publish(1, "other").send(1, commands.Basic.Qos)
    world.answer_events(TimedOut("no answer within 10 s"))
    world.settle()
    client.expect_connection_close(541, "INTERNAL_ERROR - KubeMQ: no answer within 10 s", (50, 10))
    assert world.counters.internal_errors == 0
    other.call(1, commands.Basic.Qos)


def test_an_error_in_line_has_its_own_method(world: World, client: Dialogue) -> None:
    world.hold_events = True
    client.send(1, commands.Queue.Declare, queue="q", durable=True)
    client.send(1, commands.Basic.Ack, delivery_tag=5).send(1, commands.Basic.Qos)
    world.answer_events()
    world.settle()
    client.expect(1, commands.Queue.DeclareOk)
    client.expect_close(406, "PRECONDITION_FAILED - unknown delivery tag 5", (60, 80))
    client.expect_nothing()
    assert client.connection.queued.size == 0


def test_reading_pauses_when_too_much_is_in_line(world: World) -> None:
    client = Dialogue(world, queued_high_bytes=10_000).shake_hands()
    world.hold_events = True
    client.send(1, commands.Queue.Declare, queue="q", durable=True)
    for _ in range(9):
        client.publish(1, "q", bytes(1000))
    assert not client.socket.is_reading()
    world.answer_events()
    world.settle()
    assert client.socket.is_reading()
    assert client.connection.queued.size == 0


# --------------------------------------------------------------------------------------------- what a close waits for
@pytest.mark.parametrize("confirming", [True, False])
def test_channel_close_waits_for_the_publishes_before_it(world: World, client: Dialogue, confirming: bool) -> None:
    client.declare("q", exclusive=False, durable=True)
    client.publish(1, "q", b"0")
    if confirming:
        client.call(1, commands.Confirm.Select)
    world.hold_stores = True
    client.publish(1, "q", b"1").publish(1, "q", b"2")
    assert client.connection.publishing_count == 2
    client.send(1, commands.Channel.Close, reply_code=200).expect_nothing()
    client.call(2, commands.Channel.Open)
    assert world.answer_stores() == 2
    if confirming:
        client.expect(1, commands.Basic.Ack, delivery_tag=2, multiple=True)
    client.expect(1, commands.Channel.CloseOk)
    client.call(1, commands.Channel.Open)


def test_channel_close_waits_for_publishes_from_before_confirm_select_too(world: World, client: Dialogue) -> None:
    client.declare("q", exclusive=False, durable=True)
    world.hold_stores = True
    client.publish(1, "q")
    client.call(1, commands.Confirm.Select)
    client.call(1, commands.Confirm.Select)
    client.publish(1, "q")
    assert client.connection.publishing_count == 2
    client.send(1, commands.Channel.Close, reply_code=200).expect_nothing()
    world.answer_stores()
    client.expect(1, commands.Basic.Ack, delivery_tag=1)
    client.expect(1, commands.Channel.CloseOk)


def test_a_nack_comes_before_close_ok(world: World, client: Dialogue) -> None:
    client.declare("q", exclusive=False, durable=True)
    client.call(1, commands.Confirm.Select)
    world.hold_stores = True
    client.publish(1, "q").send(1, commands.Channel.Close, reply_code=200)
    world.answer_stores("KubeMQ says no")
    client.expect(1, commands.Basic.Nack, delivery_tag=1)
    client.expect(1, commands.Channel.CloseOk)


def test_connection_close_waits_for_all_channels(world: World) -> None:
    client = connect(world, channels=(1, 2, 3))
    client.declare("q", exclusive=False, durable=True)
    client.call(2, commands.Confirm.Select)
    world.hold_stores = True
    client.publish(1, "q").publish(2, "q").send(0, commands.Connection.Close, reply_code=200).expect_nothing()
    assert client.connection.phase is Phase.CLIENT_CLOSING
    assert world.answer_stores() == 2
    client.expect(2, commands.Basic.Ack, delivery_tag=1)
    client.expect(0, commands.Connection.CloseOk)
    client.expect_nothing()
    assert client.socket.is_closed()


def test_closes_wait_for_what_is_in_line_behind_a_slow_method(world: World) -> None:
    client = connect(world, channels=(1, 2, 3))
    world.hold_events = True
    client.send(1, commands.Queue.Declare, queue="q", durable=True)
    client.send(2, commands.Queue.Declare, queue="r", durable=True).publish(2, "q", b"b")
    client.send(3, commands.Queue.Declare, queue="s", durable=True)
    client.publish(1, "q", b"a").send(2, commands.Channel.Close, reply_code=200)
    client.send(0, commands.Connection.Close, reply_code=200).expect_nothing()
    world.hold_stores = True
    world.answer_events()
    world.settle()
    client.expect(1, commands.Queue.DeclareOk)
    client.expect(2, commands.Queue.DeclareOk)
    client.expect(3, commands.Queue.DeclareOk)
    client.expect_nothing()
    assert world.answer_stores() == 2
    client.expect(2, commands.Channel.CloseOk)
    client.expect(0, commands.Connection.CloseOk)
    assert client.socket.is_closed()


def test_an_error_in_line_does_not_hold_up_the_connections_close(world: World, client: Dialogue) -> None:
    world.hold_events = True
    client.send(1, commands.Queue.Declare, queue="q", durable=True).send(1, commands.Basic.Ack, delivery_tag=5)
    client.send(0, commands.Connection.Close, reply_code=200)
    world.answer_events()
    world.settle()
    client.expect(1, commands.Queue.DeclareOk)
    client.expect(1, commands.Channel.Close, reply_code=406)
    client.expect(0, commands.Connection.CloseOk)
    assert client.socket.is_closed()


def test_a_failed_channel_does_not_hold_up_the_connections_close(client: Dialogue) -> None:
    client.publish(1, "k", exchange="missing").expect(1, commands.Channel.Close)
    client.send(0, commands.Connection.Close, reply_code=200).expect(0, commands.Connection.CloseOk)


def test_a_publish_that_could_not_be_stored_turns_close_ok_into_541(world: World, client: Dialogue) -> None:
    client.declare("q", exclusive=False, durable=True)
    world.hold_stores = True
    client.publish(1, "q").send(1, commands.Channel.Close, reply_code=200)
    client.send(0, commands.Connection.Close, reply_code=200)
    world.answer_stores("KubeMQ says no")
    text = "INTERNAL_ERROR - a message could not be stored: KubeMQ says no"
    client.expect_connection_close(541, text, (60, 40))


def test_confirms_of_earlier_publishes_come_before_a_channels_error(world: World, client: Dialogue) -> None:
    client.declare("q", exclusive=False, durable=True)
    client.call(1, commands.Confirm.Select)
    world.hold_stores = True
    client.publish(1, "q").publish(1, "q").publish(1, "k", exchange="missing").publish(1, "q")
    client.send(1, commands.Channel.CloseOk)
    client.send(1, commands.Channel.Close, reply_code=200).expect_nothing()
    assert world.answer_stores() == 2
    client.expect(1, commands.Basic.Ack, delivery_tag=2, multiple=True)
    client.expect(1, commands.Channel.Close, reply_code=404)
    client.expect(1, commands.Channel.CloseOk)
    client.send(1, commands.Channel.CloseOk).expect_nothing()
    client.call(1, commands.Channel.Open)


def test_a_lost_socket_ends_a_close_that_waits(world: World) -> None:
    client = connect(world, channels=(1, 2, 3))
    client.declare("q", exclusive=False, durable=True)
    client.call(3, commands.Confirm.Select)
    world.hold_stores = True
    client.publish(1, "q").send(1, commands.Channel.Close, reply_code=200)
    client.publish(3, "q").publish(3, "k", exchange="missing")
    client.publish(2, "q").send(0, commands.Connection.Close, reply_code=200).lose()
    assert world.answer_stores() == 3
    client.expect_nothing()


# --------------------------------------------------------------------------------------------- TCP loss
def test_publishes_that_arrived_whole_are_stored_after_a_loss(world: World) -> None:
    client = connect(world)
    world.hold_events = True
    client.send(1, commands.Queue.Declare, queue="q", durable=True).publish(1, "q", b"1")
    client.send(1, commands.Queue.Declare, queue="mine", exclusive=True)
    client.publish(1, "q", b"2").feed(client.frames().publish("q", b"half")[:-3])
    client.lose()
    assert client.connection.publishing_count == 0
    world.hold_stores = True
    world.answer_events()
    world.settle()
    assert world.answer_stores() == 2
    assert "mine" not in world.broker.virtual_host("/").queues
    assert client.connection.queued.size == 0
    assert client.connection.in_flight.size == 0


@pytest.mark.parametrize("ending", ["lost", "failed"])
def test_an_exclusive_queue_that_is_made_too_late_does_not_stay(world: World, ending: str) -> None:
    client, other = connect(world), connect(world)
    queues = world.broker.virtual_host("/").queues
    other.declare("q", exclusive=False, durable=True)
    world.hold_events = True
    other.send(1, commands.Queue.Delete, queue="q")
    world.answer_events()  # deleted; that its channel is empty now is the next event
    client.send(1, commands.Queue.Declare, queue="q", exclusive=True).expect_nothing()
    if ending == "lost":
        client.lose()
    else:
        client.send(9, commands.Basic.Qos).expect(0, commands.Connection.Close, reply_code=504)
    world.answer_events()
    world.settle()
    assert "q" not in queues


def test_a_hard_error_does_not_lose_what_was_in_line(world: World, client: Dialogue) -> None:
    world.hold_events = world.hold_stores = True
    client.send(1, commands.Queue.Declare, queue="q", durable=True).publish(1, "q", b"1")
    client.send(2, commands.Basic.Qos).expect(0, commands.Connection.Close, reply_code=504)
    world.answer_events()
    world.settle()
    assert world.answer_stores() == 1
    client.expect_nothing()


# --------------------------------------------------------------------------------------------- a broker with a bug
def test_a_result_counts_once(world: World, client: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(_request: object, _owner: object, done: Done) -> None:
        done(DeclaredQueue("q", 0, 0))
        done(DeclaredQueue("other", 0, 0))
        done(ValueError())

    monkeypatch.setattr(world.broker.virtual_host("/"), "declare_queue", twice)
    client.call(1, commands.Queue.Declare, queue="q")
    client.expect_nothing()
    assert world.counters.internal_errors == 0


def test_an_operation_may_raise_after_it_began(world: World, client: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Done] = []

    def get(_name: str, _owner: object, done: Done) -> None:
        begun.append(done)
        raise NotFound("no queue")

    monkeypatch.setattr(world.broker.virtual_host("/"), "purge_queue", get)
    client.send(1, commands.Queue.Purge, queue="q")
    client.expect_close(404, "NOT_FOUND - no queue", (50, 30))
    begun[0](5)
    client.expect_nothing()


def test_a_bug_in_a_slow_operation_is_541(world: World, client: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.broker.virtual_host("/"), "purge_queue", lambda _name, _owner, done: done("not a number"))
    client.send(1, commands.Queue.Purge, queue="q")
    client.expect_connection_close(541, "INTERNAL_ERROR", (50, 30))
    assert world.counters.internal_errors == 1

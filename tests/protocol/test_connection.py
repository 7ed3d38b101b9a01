"""An open connection: closing, heartbeats, blocked, broken frames (PC-06 to PC-12, PC-19, CO-17)."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from pamqp import commands

from connector.amqp import header as content_header
from connector.session.connection import Phase
from tests.support.dialogue import Dialogue, connect, raw_frame, spec
from tests.support.world import World


@pytest.fixture
def world() -> World:
    return World()


# --------------------------------------------------------------------------------------------- closing
@spec("1.4.2.9", "connection.close is answered with close-ok; then the socket is closed.")
def test_close_is_answered_and_nothing_follows(world: World) -> None:
    client = connect(world)
    queue = client.declare()
    client.consume(queue)
    batch = b"".join(client.frames().publish(queue, b"z" * 5000) for _ in range(20))
    client.feed(batch + client.encode(0, commands.Connection.Close, reply_code=200, reply_text="bye"))
    client.expect(0, commands.Connection.CloseOk)
    client.expect_nothing()
    assert client.socket.is_closed()
    assert not client.socket.is_aborted()
    assert not world.errors


@spec("1.4.2.9", "After sending close, a peer ignores everything but close and close-ok.")
def test_after_our_close_only_close_and_close_ok_count(world: World) -> None:
    client = connect(world, channels=(1, 2))
    client.connection.close("drain")
    world.settle()
    client.expect(0, commands.Connection.Close, reply_code=320, reply_text="CONNECTION_FORCED - drain")
    client.publish(1, "q").send(2, commands.Queue.Declare, queue="q").send(7, commands.Channel.Open)
    client.feed(raw_frame(1, 1, b"\xff\xff\xff\xff")).expect_nothing()
    client.send(0, commands.Connection.Close, reply_code=200)
    client.expect(0, commands.Connection.CloseOk)
    assert not client.socket.is_closed()
    client.send(0, commands.Connection.CloseOk)
    assert client.socket.is_closed()
    assert client.connection.phase is Phase.CLOSED
    assert "q" not in world.broker.virtual_host("/").queues


def test_a_client_that_never_answers_our_close_is_cut_off(world: World) -> None:
    client = connect(world)
    client.connection.close("drain")
    world.advance(4.5, client.connection)
    assert not client.socket.is_closed()
    world.advance(0.75, client.connection)
    assert client.socket.is_aborted()


def test_a_client_that_does_not_take_the_last_words_is_cut_off(world: World) -> None:
    client = connect(world)
    client.send(0, commands.Connection.Close, reply_code=200)
    assert client.socket.is_closed()
    assert not client.socket.is_aborted()
    world.advance(5.5, client.connection)
    assert client.socket.is_aborted()


def test_everything_is_let_go_of_once_when_the_socket_is_lost(world: World) -> None:
    client, other = connect(world, channels=(1, 2)), connect(world)
    shared = other.declare("shared", exclusive=False, auto_delete=True)
    other.consume(shared, "keeps", no_ack=False)
    other.send(1, commands.Basic.Cancel, consumer_tag="never")
    other.expect(1, commands.Basic.CancelOk)
    exclusive = client.declare("mine")
    client.consume(shared, channel_no=1)
    client.consume(shared, channel_no=2)
    for body in (b"0", b"1", b"2"):
        other.publish(1, shared, body)
    held = client.deliveries(1) + client.deliveries(2)
    assert len(held) == 2
    other.deliveries()
    client.lose()
    again = other.deliveries()
    assert sorted(content.body for content in again) == sorted(content.body for content in held)
    assert all(content.method.redelivered for content in again)
    assert exclusive not in world.broker.virtual_host("/").queues
    assert world.counters.requeued == 2
    client.lose()
    assert other.deliveries() == []
    assert (world.counters.connections_closed, world.counters.channels_closed) == (1, 2)


def test_bytes_after_the_end_are_ignored(world: World) -> None:
    client = connect(world).lose()
    client.connection.feed(b"anything")
    client.connection.on_tick(5000.0)
    client.connection.close("again")
    world.settle()
    client.expect_nothing()


def test_results_that_come_after_the_end_touch_nothing(world: World) -> None:
    client = connect(world, channels=(1, 2))
    client.declare("q", exclusive=False, durable=True)
    client.call(2, commands.Confirm.Select)
    world.hold_stores = True
    client.publish(1, "q").publish(2, "q").lose()
    assert world.answer_stores("KubeMQ says no") == 2
    assert not client.socket.sent
    assert not world.errors


# --------------------------------------------------------------------------------------------- heartbeats
@spec("4.2.7", "Heartbeats are sent in the negotiated interval; any traffic is as good.")
def test_an_idle_server_sends_heartbeats_at_half_the_interval(world: World) -> None:
    client = connect(world, heartbeat_s=4)
    for _ in range(10):
        client.feed(raw_frame(8, 0, b""))
        world.advance(1, client.connection)
    assert client.heartbeat_count() == 5
    assert not client.socket.is_closed()


def test_replies_take_the_place_of_heartbeats(world: World) -> None:
    client = connect(world, heartbeat_s=4)
    for _ in range(10):
        client.call(1, commands.Basic.Qos)
        world.advance(1, client.connection)
    client.expect_nothing()


@spec("4.2.7", "A peer that is silent for two intervals is dead.")
def test_a_silent_client_is_cut_off_after_two_intervals(world: World) -> None:
    client = connect(world, heartbeat_s=4)
    world.advance(8, client.connection)
    assert not client.socket.is_closed()
    world.advance(0.75, client.connection)
    assert client.socket.is_aborted()


def test_zero_switches_heartbeats_off(world: World) -> None:
    client = connect(world, heartbeat_s=0)
    world.advance(200, client.connection)
    client.expect_nothing()
    assert not client.socket.is_closed()


def test_what_we_do_not_read_is_no_silence(world: World) -> None:
    client = connect(world, heartbeat_s=4)
    client.connection.block("KubeMQ is away")
    client.publish(1, "q")
    assert not client.socket.is_reading()
    world.advance(60, client.connection)
    assert not client.socket.is_closed()
    client.connection.unblock("KubeMQ is away")
    world.advance(8.75, client.connection)
    assert client.socket.is_aborted()


# --------------------------------------------------------------------------------------------- blocked
@spec("RabbitMQ, blocked connection notifications", "Sent when the connection first publishes while resources are low.")
def test_a_publisher_is_blocked_and_no_longer_read(world: World) -> None:
    client, consumer = connect(world), connect(world)
    client.connection.block("KubeMQ is away")
    consumer.connection.block("KubeMQ is away")
    client.expect_nothing()
    client.publish(1, "q").expect(0, commands.Connection.Blocked, reason="KubeMQ is away")
    client.publish(1, "q").expect_nothing()
    assert not client.socket.is_reading()
    consumer.call(1, commands.Basic.Qos)
    assert consumer.socket.is_reading()
    client.connection.block("memory")
    client.connection.unblock("KubeMQ is away")
    client.expect_nothing()
    client.connection.unblock("memory")
    consumer.connection.unblock("KubeMQ is away")
    world.settle()
    client.expect(0, commands.Connection.Unblocked)
    consumer.expect_nothing()
    assert client.socket.is_reading()


def test_a_client_without_the_capability_is_blocked_silently(world: World) -> None:
    client = connect(world, capabilities=())
    client.connection.block("KubeMQ is away")
    client.publish(1, "q").expect_nothing()
    assert not client.socket.is_reading()
    client.connection.unblock("KubeMQ is away")
    world.settle()
    client.expect_nothing()
    assert client.socket.is_reading()


def test_a_blocked_connection_that_is_closed_reads_the_answer(world: World) -> None:
    client = connect(world)
    client.connection.block("KubeMQ is away")
    client.publish(1, "q").expect(0, commands.Connection.Blocked)
    client.connection.close("drain")
    world.settle()
    assert client.socket.is_reading()
    client.connection.unblock("KubeMQ is away")
    client.expect_connection_close(320, "CONNECTION_FORCED - drain", (0, 0))


# --------------------------------------------------------------------------------------------- broken frames
def _too_large(client: Dialogue) -> bytes:
    return client.frames().method(commands.Basic.Publish) + client.frames().header(9000) + raw_frame(3, 1, bytes(9000))


def _bad_end(client: Dialogue) -> bytes:
    return raw_frame(1, 1, bytes(8), end=0)


def _unknown_type(client: Dialogue) -> bytes:
    return raw_frame(4, 1, b"")


def _heartbeat_elsewhere(client: Dialogue) -> bytes:
    return raw_frame(8, 1, b"")


def _header_alone(client: Dialogue) -> bytes:
    return client.frames().header(0)


def _body_alone(client: Dialogue) -> bytes:
    return client.frames().body(b"x")


def _body_without_header(client: Dialogue) -> bytes:
    return client.frames().method(commands.Basic.Publish) + client.frames().body(b"x")


def _method_in_content(client: Dialogue) -> bytes:
    return client.frames().method(commands.Basic.Publish) + client.encode(1, commands.Basic.Qos)


def _wrong_class(client: Dialogue) -> bytes:
    return client.frames().method(commands.Basic.Publish) + client.frames().header(0, class_id=61)


def _body_too_long(client: Dialogue) -> bytes:
    frames = client.frames()
    return frames.method(commands.Basic.Publish) + frames.header(3) + frames.body(b"abcdef")


def _channel_zero(client: Dialogue) -> bytes:
    return client.encode(0, commands.Basic.Qos)


def _unknown_method(client: Dialogue) -> bytes:
    return client.frames().raw_method(61, 999)


def _cancel_ok(client: Dialogue) -> bytes:
    return client.encode(1, commands.Basic.CancelOk, consumer_tag="t")


def _broken_table(client: Dialogue) -> bytes:
    return client.encode(1, commands.Queue.Declare, arguments={"a": "bcd"}).replace(
        struct.pack(">I", 3) + b"bcd", struct.pack(">I", 255) + b"bcd"
    )


def _broken_properties(client: Dialogue) -> bytes:
    return client.frames().publish(header=b"\x20\x00\x00\x00\x00\x05\x01aZ\x00\x00")


@spec("4.2.3", "A peer that receives a malformed frame closes the connection with the code of the error.")
@pytest.mark.parametrize(
    ("make", "code"),
    [
        (_too_large, 501),
        (_bad_end, 501),
        (_unknown_type, 501),
        (_body_too_long, 505),
        (_broken_table, 502),
        (_broken_properties, 502),
        (_unknown_method, 503),
        (_cancel_ok, 503),
        (_channel_zero, 504),
        (_heartbeat_elsewhere, 505),
        (_header_alone, 505),
        (_body_alone, 505),
        (_body_without_header, 505),
        (_method_in_content, 505),
        (_wrong_class, 505),
    ],
)
def test_a_broken_frame_ends_its_connection_only(world: World, make: Callable[[Dialogue], bytes], code: int) -> None:
    client, other = connect(world, frame_max=4096), connect(world)
    queue = other.declare("q", exclusive=False, auto_delete=True)
    client.feed(client.frames().publish(queue, b"whole") + make(client) + client.frames().publish(queue, b"after"))
    close = client.expect(0, commands.Connection.Close)
    assert close.reply_code == code
    assert world.errors[0][:2] == (0, world.errors[0][1])
    client.expect_nothing()
    content = other.get(queue)
    assert content.body == b"whole"
    assert other.get(queue) is None
    world.advance(6, client.connection)
    assert client.socket.is_closed()


def test_an_exception_nobody_expected_is_541_without_details(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = connect(world), connect(world)
    vhost = world.broker.virtual_host("/")
    bug = RuntimeError("secret details")

    def broken(*_arguments: object) -> int:
        raise bug

    monkeypatch.setattr(vhost, "publish", broken)
    client.publish(1, "q").expect_connection_close(541, "INTERNAL_ERROR", (60, 40))
    assert world.errors == [(0, world.errors[0][1], bug)]
    assert world.counters.internal_errors == 1
    other.call(1, commands.Basic.Qos)


def test_a_bug_while_closing_is_reported_all_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect(world)
    world.hold_events = True
    client.send(1, commands.Queue.Declare, queue="q", durable=True)
    client.publish(1, "q")

    def broken(*_arguments: object) -> int:
        raise RuntimeError

    monkeypatch.setattr(world.broker.virtual_host("/"), "publish", broken)
    client.lose()
    world.answer_events()
    assert world.counters.internal_errors == 1
    assert len(world.errors) == 1
    client.expect_nothing()


# --------------------------------------------------------------------------------------------- output
@spec("4.2.6", "Content bodies are split at the client's frame_max; an empty one has no body frame.")
@pytest.mark.parametrize(("size", "frames"), [(0, 0), (1, 1), (4088, 1), (4089, 2), (20_000, 5)])
def test_bodies_are_split_for_the_client(world: World, size: int, frames: int) -> None:
    client = connect(world, frame_max=4096)
    queue = client.declare()
    client.publish(1, queue, bytes(size))
    client.consume(queue)
    assert [(len(content.body), content.frame_count) for content in client.deliveries()] == [(size, frames)]
    client.publish(1, "nobody", bytes(size), mandatory=True)
    assert client.expect(1, commands.Basic.Return).frame_count == frames
    client.publish(1, queue, bytes(size))
    client.expect(1, commands.Basic.Deliver)
    client.send(1, commands.Basic.Cancel, consumer_tag="t").expect(1, commands.Basic.CancelOk)
    client.publish(1, queue, bytes(size))
    assert client.get(queue).frame_count == frames


def test_a_header_larger_than_the_clients_frames_goes_out_whole(world: World) -> None:
    client, producer = connect(world, frame_max=4096), connect(world)
    queue = producer.declare("q", exclusive=False, auto_delete=True)
    trace = "at X.Y()\n" * 900
    producer.publish(1, queue, b"body", headers={"trace": trace})
    assert content_header.parse(client.get(queue).header).headers()["trace"] == ("S", trace.encode())


def test_one_turns_output_is_one_write(world: World) -> None:
    client = connect(world)
    queue = client.declare()
    client.call(1, commands.Confirm.Select)
    client.consume(queue)
    client.socket.writes.clear()
    client.feed(b"".join(client.frames().publish(queue, b"%d" % number) for number in range(50)))
    assert len(client.socket.writes) == 1
    items = client.received()
    acks = [item for _, item in items if isinstance(item, commands.Basic.Ack)]
    assert len(items) == 51
    assert [(ack.delivery_tag, ack.multiple) for ack in acks] == [(50, True)]

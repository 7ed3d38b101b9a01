"""The way into a connection, seen from the wire (PC-01 to PC-07, PC-21, SE-01, SE-08)."""

from __future__ import annotations

import pytest
from pamqp import commands

from connector.amqp.handshake import PROTOCOL_HEADER
from connector.amqp.wire import write_table
from connector.session.connection import Phase
from tests.support.dialogue import CAPABILITIES, Dialogue, connect, raw_frame, spec
from tests.support.world import World


@pytest.fixture
def world() -> World:
    return World()


@spec("2.2.4", "The client opens a TCP/IP connection to the server and sends a protocol header.")
@pytest.mark.parametrize("header", [PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"])
@pytest.mark.parametrize("step", [1, 3, 8])
def test_a_protocol_header_in_any_pieces_is_answered_with_start(world: World, header: bytes, step: int) -> None:
    client = Dialogue(world)
    for start in range(0, 8, step):
        client.expect_nothing().feed(header[start : start + step])
    start_method = client.expect(0, commands.Connection.Start, version_major=0, version_minor=9)
    assert start_method.server_properties["product"] == "test"
    assert start_method.server_properties["capabilities"]["basic.nack"] is True


@spec("2.2.4", "If the server does not support the requested protocol version, it must send its own header and close.")
@pytest.mark.parametrize("header", [b"GET / HTTP/1.1\r\n", b"AMQP\x00\x01\x00\x00", b"AMQP\x02\x01\x00\x00", b"X"])
def test_another_protocol_gets_ours_and_a_closed_socket(world: World, header: bytes) -> None:
    client = Dialogue(world)
    client.connection.feed(header)
    world.settle()
    assert bytes(client.socket.sent) == PROTOCOL_HEADER
    assert client.socket.is_closed()
    assert not world.errors


def test_a_look_at_the_port_leaves_no_trace(world: World) -> None:
    client = Dialogue(world).lose()
    assert not client.socket.sent
    assert not world.errors
    assert world.counters.connections_refused == 0


@spec("1.4.2.8", "connection.open-ok signals that the connection is ready for use.")
@pytest.mark.parametrize("vhost", ["/", "", "default", "other"])
def test_the_connection_opens_and_is_known(world: World, vhost: str) -> None:
    client = Dialogue(world).shake_hands(user="app", password="secret", vhost=vhost, channels=())
    info = client.connection.info
    assert world.opened == [client.connection]
    assert (info.user, info.vhost, info.product, info.version) == ("app", vhost, "dialogue", "0.1")
    assert info.connection_name == "the test"
    assert info.context() == {
        "connection": "127.0.0.1:40000",
        "name": "the test",
        "user": "app",
        "client": "dialogue 0.1",
    } | ({"vhost": vhost} if vhost else {})
    assert client.connection.phase is Phase.OPEN
    assert world.counters.connections_opened == 1
    client.lose()
    assert (world.counters.connections_closed, world.counters.connections_refused) == (1, 0)


@spec("1.4.2.7", "If the virtual host is not known or not allowed: connection exception 530 (RabbitMQ).")
def test_an_unknown_vhost_is_530(world: World) -> None:
    client = Dialogue(world)
    client.feed(PROTOCOL_HEADER).start_ok("guest", "guest")
    client.feed(
        client.encode(0, commands.Connection.TuneOk, channel_max=10, frame_max=4096, heartbeat=0)
        + client.encode(0, commands.Connection.Open, virtual_host="nope")
    )
    client.expect(0, commands.Connection.Start)
    client.expect(0, commands.Connection.Tune)
    client.expect_connection_close(530, "NOT_ALLOWED - vhost nope not found", (10, 40))


@spec("RabbitMQ, authentication failure notification", "The server closes with 403 to clients with the capability.")
@pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("nobody", "guest"), ("", "")])
def test_a_failed_login_is_told_without_saying_what_was_wrong(world: World, user: str, password: str) -> None:
    client = Dialogue(world)
    client.feed(PROTOCOL_HEADER).expect(0, commands.Connection.Start)
    client.start_ok(user, password)
    text = (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    )
    client.expect_connection_close(403, text, (0, 0))
    assert world.counters.auth_failures == 1
    client.lose()
    assert world.counters.connections_refused == 1


@spec("RabbitMQ, access control", "AMQPLAIN: a table with LOGIN and PASSWORD in any order, for old clients.")
@pytest.mark.parametrize("keys", [("LOGIN", "PASSWORD"), ("PASSWORD", "LOGIN")])
def test_amqplain(world: World, keys: tuple[str, str]) -> None:
    client = Dialogue(world)
    client.feed(PROTOCOL_HEADER).expect(0, commands.Connection.Start, mechanisms="PLAIN AMQPLAIN")
    response = write_table(dict.fromkeys(keys, ("S", b"guest")) | {"more": ("I", 1)})[4:]
    client.start_ok("", "", mechanism="AMQPLAIN", response=response)
    client.expect(0, commands.Connection.Tune)


@pytest.mark.parametrize(
    ("mechanism", "response", "code", "text"),
    [
        ("AMQPLAIN", write_table({"LOGIN": ("S", b"guest"), "PASSWORD": ("S", b"no")})[4:], 403, "ACCESS_REFUSED"),
        ("AMQPLAIN", write_table({"LOGIN": ("S", b"guest")})[4:], 502, "SYNTAX_ERROR"),
        ("AMQPLAIN", b"\x05LOG", 502, "SYNTAX_ERROR"),
        ("PLAIN", b"guest", 502, "SYNTAX_ERROR"),
        ("EXTERNAL", b"", 503, "COMMAND_INVALID"),
    ],
)
def test_responses_that_are_refused(world: World, mechanism: str, response: bytes, code: int, text: str) -> None:
    client = Dialogue(world)
    client.feed(PROTOCOL_HEADER).expect(0, commands.Connection.Start)
    client.start_ok("", "", mechanism=mechanism, response=response)
    close = client.expect(0, commands.Connection.Close, reply_code=code)
    assert close.reply_text.startswith(text)


@spec("RabbitMQ, authentication failure notification", "Without the capability the socket is closed after a delay.")
def test_a_failed_login_is_silent_without_the_capability(world: World) -> None:
    client = Dialogue(world)
    client.feed(PROTOCOL_HEADER).expect(0, commands.Connection.Start)
    client.start_ok("guest", "wrong", capabilities=())
    world.advance(0.5, client.connection)
    assert not client.socket.is_closed()
    client.feed(client.encode(0, commands.Connection.TuneOk, channel_max=1, frame_max=4096, heartbeat=0))
    world.advance(0.75, client.connection)
    client.expect_nothing()
    assert client.socket.is_closed()
    assert len(world.errors) == 1


def test_guest_comes_from_this_machine_only(world: World) -> None:
    client = Dialogue(world, peer_host="192.0.2.7")
    client.feed(PROTOCOL_HEADER).expect(0, commands.Connection.Start)
    client.start_ok("guest", "guest")
    assert client.expect(0, commands.Connection.Close).reply_code == 403
    Dialogue(world, peer_host="192.0.2.7").shake_hands(user="app", password="secret")


@spec("1.4.2.6", "The limits of tune-ok hold from then on.")
@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (
            {"frame_max": 131073, "channel_max": 1},
            "NOT_ALLOWED - negotiated frame_max = 131073 is higher than the maximum allowed value (131072)",
        ),
        (
            {"frame_max": 4095, "channel_max": 1},
            "NOT_ALLOWED - negotiated frame_max = 4095 is lower than the minimum allowed value (4096)",
        ),
        (
            {"frame_max": 4096, "channel_max": 4000},
            "NOT_ALLOWED - negotiated channel_max = 4000 is higher than the maximum allowed value (2047)",
        ),
    ],
)
def test_limits_that_are_not_ours_are_530(world: World, limits: dict[str, object], text: str) -> None:
    client = Dialogue(world)
    client.feed(PROTOCOL_HEADER).expect(0, commands.Connection.Start)
    client.start_ok("guest", "guest").expect(0, commands.Connection.Tune)
    client.send(0, commands.Connection.TuneOk, heartbeat=0, **limits)
    client.expect_connection_close(530, text, (10, 31))


def test_what_is_out_of_turn_is_504(world: World) -> None:
    client = Dialogue(world)
    client.feed(PROTOCOL_HEADER).expect(0, commands.Connection.Start)
    client.send(0, commands.Connection.Open, virtual_host="/")
    text = "CHANNEL_ERROR - unexpected method in connection state starting"
    client.expect_connection_close(504, text, (10, 40))


def test_a_channel_before_the_connection_is_open_is_505(world: World) -> None:
    client = Dialogue(world)
    client.feed(PROTOCOL_HEADER).expect(0, commands.Connection.Start)
    client.send(1, commands.Channel.Open)
    assert client.expect(0, commands.Connection.Close).reply_code == 505


def test_a_client_may_give_up_in_the_handshake(world: World) -> None:
    client = Dialogue(world)
    client.feed(PROTOCOL_HEADER).expect(0, commands.Connection.Start)
    client.send(0, commands.Connection.Close, reply_code=200)
    client.expect(0, commands.Connection.CloseOk)
    assert client.socket.is_closed()


@pytest.mark.parametrize("sent", [b"", b"AMQP", PROTOCOL_HEADER])
def test_a_handshake_that_stands_still_is_cut_off_after_ten_seconds(world: World, sent: bytes) -> None:
    client = Dialogue(world).feed(sent)
    world.advance(9.5, client.connection)
    assert not client.socket.is_closed()
    world.advance(0.75, client.connection)
    assert client.socket.is_aborted()
    assert not world.errors


def test_an_open_connection_has_no_such_limit(world: World) -> None:
    client = connect(world)
    world.advance(100, client.connection)
    assert not client.socket.is_closed()


def test_frames_before_the_tuning_are_small(world: World) -> None:
    client = Dialogue(world).feed(PROTOCOL_HEADER)
    client.expect(0, commands.Connection.Start)
    client.feed(raw_frame(1, 0, b"\0" * 9000)[:100])
    assert client.expect(0, commands.Connection.Close).reply_code == 501


def test_a_start_ok_of_several_kilobytes_is_fine(world: World) -> None:
    client = Dialogue(world).feed(PROTOCOL_HEADER)
    client.expect(0, commands.Connection.Start)
    client.send(
        0,
        commands.Connection.StartOk,
        client_properties={"token": "x" * 6000, "capabilities": dict.fromkeys(CAPABILITIES, True)},
        mechanism="PLAIN",
        response=b"\0guest\0guest",
        locale="en_US",
    )
    client.expect(0, commands.Connection.Tune)


def test_the_server_may_close_a_handshake(world: World) -> None:
    client = Dialogue(world).feed(PROTOCOL_HEADER)
    client.connection.close("shutting down")
    assert client.socket.is_closed()


@spec("RabbitMQ, connection.update-secret", "A new secret of the same user is checked.")
def test_a_new_secret_is_checked(world: World) -> None:
    client = connect(world)
    client.call(0, commands.Connection.UpdateSecret, new_secret=b"guest", reason="renewed")
    client.send(0, commands.Connection.UpdateSecret, new_secret=b"wrong", reason="renewed")
    text = "NOT_ALLOWED - New secret was refused by one of the backends"
    client.expect_connection_close(530, text, (10, 70))


def test_a_handshake_method_on_an_open_connection_is_504(world: World) -> None:
    client = connect(world)
    client.send(0, commands.Connection.Open, virtual_host="/")
    text = "CHANNEL_ERROR - unexpected method in connection state running"
    client.expect_connection_close(504, text, (10, 40))

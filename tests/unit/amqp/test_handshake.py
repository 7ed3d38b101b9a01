from __future__ import annotations

import pytest
from pamqp import base
from pamqp.commands import Basic, Connection

from connector.amqp import methods
from connector.amqp.errors import AmqpError
from connector.amqp.handshake import (
    CAPABILITIES,
    PROTOCOL_HEADER,
    AuthenticationRefused,
    Handshake,
    HandshakePolicy,
    HeaderVerdict,
    State,
    server_properties,
)
from connector.amqp.wire import Table, table_from_python, table_to_python, write_table

GOOD = b"\0guest\0guest"
CAN_CLOSE: dict[str, object] = {"authentication_failure_close": True}


def policy(**changes: object) -> HandshakePolicy:
    values: dict[str, object] = {
        "server_properties": server_properties("KubeMQ AMQP", "1.2.3", "Python"),
        "authenticate": lambda user, password, _: (user, password) == ("guest", b"guest"),
        "check_vhost": lambda vhost, _: "" if vhost in {"/", ""} else f"vhost {vhost} not found",
    }
    return HandshakePolicy(**{**values, **changes})  # type: ignore[arg-type]


def begun(**changes: object) -> Handshake:
    handshake = Handshake(policy(**changes))
    assert handshake.feed_protocol_header(PROTOCOL_HEADER) == (HeaderVerdict.ACCEPTED, b"")
    return handshake


def start_ok(
    response: bytes = GOOD, mechanism: str = "PLAIN", capabilities: dict[str, object] | None = None
) -> base.Frame:
    properties: Table = {} if capabilities is None else table_from_python({"capabilities": capabilities})
    return methods.build(
        Connection.StartOk, client_properties=properties, mechanism=mechanism, response=response, locale="en_US"
    )


def tune_ok(channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 60) -> base.Frame:
    return methods.build(Connection.TuneOk, channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)


def opening(vhost: str = "/") -> base.Frame:
    return methods.build(Connection.Open, virtual_host=vhost)


def tuned() -> Handshake:
    handshake = begun()
    handshake.on_method(start_ok())
    handshake.on_method(tune_ok())
    return handshake


def error_of(handshake: Handshake, method: base.Frame) -> tuple[int, str, int, int]:
    with pytest.raises(AmqpError) as caught:
        handshake.on_method(method)
    error = caught.value
    return int(error.code), error.reason, error.class_id, error.method_id


# -------------------------------------------------------------------------------------------------- protocol header
def test_the_header_may_come_in_any_pieces() -> None:
    for cut in range(1, 8):
        handshake = Handshake(policy())
        assert handshake.feed_protocol_header(PROTOCOL_HEADER[:cut]) == (HeaderVerdict.MORE, b"")
        assert handshake.feed_protocol_header(PROTOCOL_HEADER[cut:] + b"rest") == (HeaderVerdict.ACCEPTED, b"rest")
        assert handshake.state is State.STARTING


def test_the_header_of_0_9_is_taken_too() -> None:
    assert Handshake(policy()).feed_protocol_header(b"AMQP\x01\x01\x00\x09")[0] is HeaderVerdict.ACCEPTED


@pytest.mark.parametrize(
    "data",
    [
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x01\x01\x00\x0a",
        b"AMQP\x00\x00\x09\x00",
        b"GET / HTTP/1.1\r\n",
        b"G",
        b"\x16\x03\x01",
        b"AMQX",
    ],
)
def test_any_other_header_is_refused_as_soon_as_it_shows(data: bytes) -> None:
    assert Handshake(policy()).feed_protocol_header(data) == (HeaderVerdict.REFUSED, b"")


def test_no_bytes_are_no_verdict() -> None:
    assert Handshake(policy()).feed_protocol_header(b"") == (HeaderVerdict.MORE, b"")


# ------------------------------------------------------------------------------------------------------- good cases
def test_a_whole_handshake() -> None:
    handshake = begun()
    start = handshake.start()
    assert isinstance(start, Connection.Start)
    assert (start.version_major, start.version_minor, start.mechanisms) == (0, 9, "PLAIN AMQPLAIN")
    told = table_to_python(methods.decode(methods.encode(start))["server_properties"])  # type: ignore[arg-type]
    assert told == {
        "product": "KubeMQ AMQP",
        "version": "1.2.3",
        "platform": "Python",
        "capabilities": dict.fromkeys(CAPABILITIES, True),
    }
    [tune] = handshake.on_method(start_ok(capabilities={"basic.nack": True, "x": False, "connection.blocked": True}))
    assert dict(tune) == {"channel_max": 2047, "frame_max": 131072, "heartbeat": 60}
    assert (handshake.mechanism, handshake.user) == ("PLAIN", "guest")
    assert handshake.capabilities == {"basic.nack", "connection.blocked"}
    assert "capabilities" in handshake.client_properties
    assert handshake.on_method(tune_ok(100, 4096, 7)) == []
    assert (handshake.channel_max, handshake.frame_max, handshake.heartbeat_s) == (100, 4096, 7)
    assert (handshake.is_open, handshake.is_done) == (False, False)
    [open_ok] = handshake.on_method(opening())
    assert (open_ok.name, handshake.vhost) == ("Connection.OpenOk", "/")
    assert (handshake.is_open, handshake.is_done) == (True, True)


def test_server_properties_take_more_keys() -> None:
    assert server_properties("p", "1.0.0", "x", copyright="c")["copyright"] == ("S", b"c")


def test_amqplain() -> None:
    response = write_table({"LOGIN": ("S", b"guest"), "PASSWORD": ("S", b"guest")})[4:]
    handshake = begun()
    assert [reply.name for reply in handshake.on_method(start_ok(response, "AMQPLAIN"))] == ["Connection.Tune"]
    assert (handshake.mechanism, handshake.user) == ("AMQPLAIN", "guest")


@pytest.mark.parametrize("capabilities", [None, ("S", b"no table"), ("F", {"basic.nack": ("I", 1)})])
def test_capabilities_that_are_missing_or_odd_are_none(capabilities: tuple[str, object] | None) -> None:
    handshake = begun()
    method = start_ok()
    if capabilities is not None:
        method = methods.build(
            Connection.StartOk, client_properties={"capabilities": capabilities}, mechanism="PLAIN", response=GOOD
        )
    handshake.on_method(method)
    assert handshake.capabilities == frozenset()


def test_no_limit_of_ours_leaves_it_to_the_client() -> None:
    handshake = begun(channel_max=0, frame_max=0)
    handshake.on_method(start_ok())
    handshake.on_method(tune_ok(0, 0, 0))
    assert (handshake.channel_max, handshake.frame_max, handshake.heartbeat_s) == (0, 0, 0)


def test_a_client_that_gives_up_gets_close_ok() -> None:
    close = methods.build(Connection.Close, reply_code=200)
    for steps in ([], [start_ok()], [start_ok(), tune_ok()]):
        handshake = begun()
        for step in steps:
            handshake.on_method(step)
        assert [reply.name for reply in handshake.on_method(close)] == ["Connection.CloseOk"]
        assert handshake.is_done
        assert not handshake.is_open


# -------------------------------------------------------------------------------------------------------- bad cases
@pytest.mark.parametrize("response", [b"\0guest\0wrong", b"\0other\0guest", b"\0\0", b"\0gu\xffest\0guest"])
def test_a_bad_login_says_nothing_about_what_was_wrong(response: bytes) -> None:
    reason = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    for capabilities, is_silent in ((CAN_CLOSE, False), ({}, True), (None, True)):
        handshake = begun()
        with pytest.raises(AuthenticationRefused) as caught:
            handshake.on_method(start_ok(response, capabilities=capabilities))
        error = caught.value
        assert (error.code, error.reason, error.class_id, error.method_id) == (403, reason, 0, 0)
        assert error.is_silent is is_silent
        assert not handshake.is_done


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b""),
        ("PLAIN", b"guest\0guest"),
        ("PLAIN", b"\0guest"),
        ("PLAIN", b"admin\0guest\0guest"),
        ("PLAIN", b"\0guest\0guest\0"),
        ("AMQPLAIN", b""),
        ("AMQPLAIN", b"\x05LOGINS\x00\x00\x00\x09guest"),
        ("AMQPLAIN", write_table({"LOGIN": ("S", b"guest")})[4:]),
        ("AMQPLAIN", write_table({"PASSWORD": ("S", b"guest")})[4:]),
        ("AMQPLAIN", write_table({"LOGIN": ("S", b"guest"), "PASSWORD": ("I", 1)})[4:]),
        ("AMQPLAIN", write_table({"LOGIN": ("V", None), "PASSWORD": ("S", b"guest")})[4:]),
    ],
)
def test_a_malformed_response_is_a_syntax_error(mechanism: str, response: bytes) -> None:
    code, reason, *ids = error_of(begun(), start_ok(response, mechanism))
    assert (code, ids) == (502, [10, 11])
    assert "guest" not in reason


def test_an_unknown_mechanism() -> None:
    expected = (503, "unknown authentication mechanism 'EXTERNAL'", 10, 11)
    assert error_of(begun(), start_ok(b"", "EXTERNAL")) == expected
    expected = (503, "unknown authentication mechanism 'AMQPLAIN'", 10, 11)
    assert error_of(begun(mechanisms=("PLAIN",)), start_ok(b"", "AMQPLAIN")) == expected


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (tune_ok(frame_max=4095), "frame_max = 4095 is lower than the minimum allowed value (4096)"),
        (tune_ok(frame_max=131073), "frame_max = 131073 is higher than the maximum allowed value (131072)"),
        (tune_ok(frame_max=0), "frame_max = 0 (no limit) is higher than the maximum allowed value (131072)"),
        (tune_ok(channel_max=2048), "channel_max = 2048 is higher than the maximum allowed value (2047)"),
        (tune_ok(channel_max=0), "channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
    ],
)
def test_limits_beyond_ours_are_not_allowed(method: base.Frame, text: str) -> None:
    handshake = begun()
    handshake.on_method(start_ok())
    assert error_of(handshake, method) == (530, "negotiated " + text, 10, 31)


def test_an_unknown_vhost_is_not_allowed() -> None:
    assert error_of(tuned(), opening("nope")) == (530, "vhost nope not found", 10, 40)
    handshake = tuned()
    handshake.on_method(opening(""))
    assert handshake.vhost == ""


ALL = [start_ok(), tune_ok(), opening(), methods.build(Connection.SecureOk), methods.build(Basic.Qos)]


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_a_method_out_of_turn_is_a_channel_error(turn: int) -> None:
    for method in ALL[:turn] + ALL[turn + 1 :] if turn < 3 else [*ALL, methods.build(Connection.Close)]:
        handshake = begun()
        for step in ALL[:turn]:
            handshake.on_method(step)
        state = ("starting", "tuning", "opening", "running")[turn]
        code, reason, *ids = error_of(handshake, method)
        assert (code, reason) == (504, f"unexpected method in connection state {state}")
        assert ids == [method.index >> 16, method.index & 0xFFFF]
        assert handshake.state.value == state


def test_no_method_before_the_header() -> None:
    assert error_of(Handshake(policy()), start_ok())[0] == 504

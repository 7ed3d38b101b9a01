from __future__ import annotations

import pytest
from pamqp import base, commands, frame

from connector.amqp import access, methods
from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode
from connector.amqp.wire import Table, table_from_python


def payload_of(method: base.Frame) -> bytes:
    return frame.marshal(method, 1)[7:-1]


@pytest.mark.parametrize("kind", commands.INDEX_MAPPING.values(), ids=lambda kind: str(kind.name))
def test_every_method_is_written_as_pamqp_does_and_read_back(
    kind: type[base.Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = methods.build(kind)
    encoded = methods.encode(method)
    decoded = methods.decode(encoded)
    assert type(decoded) is kind
    assert dict(decoded) == dict(method)
    monkeypatch.setattr(kind, "validate", lambda _: None)  # it insists on values for reserved fields
    for name, value in method:
        if value == b"":
            setattr(method, name, "")  # pamqp takes long strings for text
    assert encoded == payload_of(method)


def test_recover_async_is_read_without_the_warning_its_constructor_gives() -> None:
    decoded = methods.decode(bytes.fromhex("003c006401"))
    assert isinstance(decoded, commands.Basic.RecoverAsync)
    assert decoded["requeue"] is True


def test_tables_are_wire_tables_and_long_strings_are_bytes() -> None:
    arguments: Table = {"x-max-length": ("s", 5), "x-message-ttl": ("u", 6), "t": ("t", True)}
    declare = methods.build(commands.Queue.Declare, queue="q", durable=True, nowait=True, arguments=arguments)
    decoded = methods.decode(methods.encode(declare))
    assert isinstance(decoded, commands.Queue.Declare)
    assert dict(decoded) == {
        "ticket": 0,
        "queue": "q",
        "passive": False,
        "durable": True,
        "exclusive": False,
        "auto_delete": False,
        "nowait": True,
        "arguments": arguments,
    }
    start_ok = commands.Connection.StartOk(client_properties={"product": "x"}, response="\0guest\0guest")
    read = methods.decode(payload_of(start_ok))
    assert read["response"] == b"\0guest\0guest"
    assert read["client_properties"] == table_from_python({"product": "x"})


def test_names_that_pamqp_refuses_are_read_and_written() -> None:
    with pytest.raises(ValueError):
        commands.Queue.DeclareOk("grün*", 1, 2)
    encoded = methods.encode(methods.build(commands.Queue.DeclareOk, queue="grün*", message_count=1, consumer_count=2))
    assert encoded == b"\x00\x32\x00\x0b\x06gr\xc3\xbcn*\x00\x00\x00\x01\x00\x00\x00\x02"
    assert methods.decode(encoded)["queue"] == "grün*"


def test_build_knows_the_fields() -> None:
    with pytest.raises(TypeError, match=r"Basic\.Qos has no field size"):
        methods.build(commands.Basic.Qos, size=1)
    first, second = methods.build(commands.Queue.Declare), methods.build(commands.Queue.Declare)
    assert first["arguments"] == {}
    assert first["arguments"] is not second["arguments"]


def test_fields_pamqp_leaves_at_none_are_written_as_zero_and_empty() -> None:
    assert methods.encode(commands.Queue.DeclareOk()) == b"\x00\x32\x00\x0b\x00" + bytes(8)
    assert methods.encode(commands.Connection.Secure()) == b"\x00\x0a\x00\x14" + bytes(4)


@pytest.mark.parametrize(
    "method",
    [
        methods.build(commands.Basic.Qos, prefetch_count=65536),
        methods.build(commands.Basic.Qos, prefetch_count="many"),
        methods.build(commands.Basic.ConsumeOk, consumer_tag="x" * 256),
        methods.build(commands.Queue.Declare, arguments={"k": ("b", 1000)}),
    ],
)
def test_a_value_that_does_not_fit_is_a_value_error(method: base.Frame) -> None:
    with pytest.raises(ValueError):
        methods.encode(method)


def error_of(payload: bytes) -> tuple[int, int, int]:
    with pytest.raises(AmqpError) as caught:
        methods.decode(payload)
    return int(caught.value.code), caught.value.class_id, caught.value.method_id


@pytest.mark.parametrize("kind", methods.METHODS.values(), ids=lambda kind: str(kind.name))
def test_missing_and_extra_bytes_are_a_frame_error(kind: type[base.Frame]) -> None:
    whole = methods.encode(methods.build(kind))
    ids = (kind.index >> 16, kind.index & 0xFFFF)
    for length in range(4, len(whole)):
        code, *found = error_of(whole[:length])
        assert code == 501 or (code == 502 and "table" in map(kind.amqp_type, kind.attributes()))
        assert tuple(found) == ids
    assert error_of(whole + b"\0") == (501, *ids)


def test_a_short_string_must_be_utf8_as_rabbitmq_has_it() -> None:
    assert error_of(b"\x00\x32\x00\x1e\x00\x00\x02\xc3\x28\x00") == (501, 50, 30)


def test_a_broken_table_is_a_syntax_error_of_its_method() -> None:
    whole = methods.encode(methods.build(commands.Queue.Declare, queue="q", arguments={"a": ("S", b"bcd")}))
    broken = whole[:-7] + b"\x00\x00\xff\xff" + whole[-3:]
    assert error_of(broken) == (502, 50, 10)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"\x00\x1e\x00\x0a\x05/data", (501, 30, 10)),
        (b"\x00\x1e\x00\x0c", (503, 30, 12)),
        (b"\x00\x3d\x03\xe7", (503, 61, 999)),
        (b"\x00\x3c\x03\xe7", (503, 60, 999)),
        (b"", (501, 0, 0)),
        (b"\x00\x3c\x00", (501, 0, 0)),
    ],
)
def test_unknown_methods(payload: bytes, expected: tuple[int, int, int]) -> None:
    assert error_of(payload) == expected


def test_the_class_that_pamqp_lacks() -> None:
    request = methods.decode(b"\x00\x1e\x00\x0a\x05/data\x15")
    assert dict(request) == {
        "realm": "/data", "exclusive": True, "passive": False, "active": True, "write": False, "read": True
    }  # fmt: skip
    assert methods.encode(request) == b"\x00\x1e\x00\x0a\x05/data\x15"
    assert methods.encode(methods.build(access.RequestOk, ticket=1)) == b"\x00\x1e\x00\x0b\x00\x01"


def test_more_than_eight_bits_would_take_a_second_octet() -> None:
    class Wide(base.Frame):
        __slots__ = [f"bit_{n}" for n in range(9)]

        @classmethod
        def amqp_type(cls, attr: str) -> str:
            return "bit"

    assert [len(names) for _, names in methods._layout(Wide)] == [8, 1]


def test_reply_code_of_an_unknown_method_is_hard() -> None:
    assert methods.unknown_method(0).code is ReplyCode.COMMAND_INVALID

from __future__ import annotations

import struct

import pytest

from connector.amqp import header, wire
from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode

ALL: dict[str, object] = {
    "content_type": b"text/plain",
    "content_encoding": b"",
    "delivery_mode": 2,
    "priority": 0,
    "correlation_id": b"c\xff",
    "reply_to": b"r",
    "expiration": b"60000",
    "message_id": b"m" * 255,
    "timestamp": 2**64 - 1,
    "type": b"t",
    "user_id": b"guest",
    "app_id": b"a",
    "cluster_id": b"x",
}
HEADERS: wire.Table = {"n": ("B", 1), "s": ("S", b"v")}


def test_all_fourteen_properties() -> None:
    raw = header.build(ALL, HEADERS)
    assert raw[:2] == b"\xff\xfc"
    parsed = header.parse(raw)
    assert parsed.raw is raw
    assert parsed.properties() == ALL
    assert {name: getattr(parsed, name) for name in ALL} == ALL
    assert parsed.headers() == HEADERS
    assert parsed.headers_at is not None
    assert raw[parsed.headers_at] == wire.write_table(HEADERS)


def test_an_absent_property_is_none_and_an_empty_one_is_empty() -> None:
    parsed = header.parse(header.EMPTY)
    assert parsed.properties() == {}
    assert all(getattr(parsed, name) is None for name in ALL)
    assert parsed.headers_at is None
    assert parsed.headers() == {}
    empty = header.parse(header.build({"type": b""}, {}))
    assert (empty.type, empty.app_id, empty.headers_at) == (b"", None, slice(2, 6))
    assert header.build({"type": None}, None) == header.EMPTY


@pytest.mark.parametrize("name", ALL)
def test_each_property_alone(name: str) -> None:
    parsed = header.parse(header.build({name: ALL[name]}))
    assert parsed.properties() == {name: ALL[name]}


def test_text_is_written_as_utf8() -> None:
    assert header.parse(header.build({"type": "grün"})).type == "grün".encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        b"\x80\x00",
        b"\x80\x00\x05abcd",
        b"\x10\x00",
        b"\x00\x40\x00\x00\x00",
        b"\x20\x00\x00\x00",
        b"\x20\x00\x00\x00\x00\x05\x01aZ\x00\x00",
        b"\x20\x00\x00\x00\x00\x09\x01aV",
        b"\x00\x00\x00",
        b"\x80\x00\x01ab",
        b"\x00\x01",
        b"\x80\x01\x00\x00\x01a",
        b"\x00\x01\x00\x00",
    ],
)
def test_a_broken_header_is_a_syntax_error_of_the_publish(raw: bytes) -> None:
    for _ in range(2):  # a failure is not remembered as a success
        with pytest.raises(AmqpError) as caught:
            header.parse(raw)
        error = caught.value
        assert (error.code, error.class_id, error.method_id) == (ReplyCode.SYNTAX_ERROR, 60, 40)


def test_the_unused_second_flag_is_ignored_as_rabbitmq_does() -> None:
    parsed = header.parse(b"\x80\x02\x01a")
    assert parsed.content_type == b"a"
    assert parsed.raw == b"\x80\x02\x01a"


def test_equal_headers_are_parsed_once_and_the_memory_of_it_is_bounded() -> None:
    raw = header.build({"message_id": b"same"})
    assert header.parse(raw) is header.parse(bytes(bytearray(raw)))
    long = header.build({}, {"k": ("S", b"x" * 2000)})
    assert header.parse(long) is not header.parse(long)
    for number in range(3000):
        header.parse(header.build({"timestamp": number}))
    assert len(header._cache) <= 1024
    assert sum(map(len, header._cache)) <= 1024 * 1024


@pytest.mark.parametrize(
    "properties",
    [
        {"message_id": b"x" * 256},
        {"delivery_mode": 256},
        {"priority": -1},
        {"timestamp": -1},
        {"timestamp": 2**64},
        {"headers": {}},
        {"no_such": 1},
    ],
)
def test_what_does_not_fit_is_a_value_error(properties: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        header.build(properties)


def test_flags_are_where_the_specification_puts_them() -> None:
    flags = {
        name: struct.unpack_from(">H", header.build({name: value}))[0].bit_length() - 1 for name, value in ALL.items()
    }
    assert flags == {
        "content_type": 15,
        "content_encoding": 14,
        "delivery_mode": 12,
        "priority": 11,
        "correlation_id": 10,
        "reply_to": 9,
        "expiration": 8,
        "message_id": 7,
        "timestamp": 6,
        "type": 5,
        "user_id": 4,
        "app_id": 3,
        "cluster_id": 2,
    }
    assert header.build({}, {})[:2] == b"\x20\x00"

"""The envelope: its documented text, versions, what others write, and what is not an envelope."""

from __future__ import annotations

import base64
import json
import struct

import pika
import pytest

from connector.amqp import header as content_header
from connector.amqp.wire import Table
from mapping import envelope
from mapping.envelope import Envelope, decode, encode, flagged


def decoded(metadata: str) -> Envelope:
    found = decode(metadata)
    assert found is not None
    return found


def with_headers(**fields: tuple[str, object]) -> bytes:
    return content_header.build({}, fields)


def test_a_common_message_is_readable_json() -> None:
    headers: Table = {"n": ("I", 1), "tenant": ("S", b"acme")}
    header = content_header.build({"content_type": b"application/json", "delivery_mode": 2}, headers)
    metadata = encode("orders", "new", header)
    assert metadata == (
        '{"v":1,"x":"orders","k":"new","p":{"content_type":"application/json","delivery_mode":2},'
        '"h":{"n":1,"tenant":"acme"}}'
    )
    assert decoded(metadata).header == header


def test_what_is_absent_is_left_out() -> None:
    assert encode("", "tasks", content_header.EMPTY) == '{"v":1,"x":"","k":"tasks"}'
    assert encode("", "tasks", content_header.build({"priority": 0})) == '{"v":1,"x":"","k":"tasks","p":{"priority":0}}'


def test_absent_and_empty_are_not_the_same() -> None:
    headers = [
        content_header.EMPTY,
        content_header.build({}, {}),
        content_header.build({"content_type": b""}),
        content_header.build({"content_type": b"", "timestamp": 0}, {}),
    ]
    texts = [encode("", "k", header) for header in headers]
    assert texts[1].endswith(',"h":{}}')
    assert texts[3].endswith(',"p":{"content_type":"","timestamp":0},"h":{}}')
    assert [decoded(text).header for text in texts] == headers


def test_all_fourteen_properties() -> None:
    properties: dict[str, object] = {
        "content_type": b"text/plain",
        "content_encoding": b"gzip",
        "delivery_mode": 2,
        "priority": 9,
        "correlation_id": b"c-1",
        "reply_to": b"amq.gen-1",
        "expiration": b"60000",
        "message_id": b"m-1",
        "timestamp": 2**64 - 1,
        "type": b"created",
        "user_id": b"guest",
        "app_id": b"shop",
        "cluster_id": b"one",
    }
    header = content_header.build(properties, {})
    document = json.loads(encode("x", "k", header))
    assert list(document["p"]) == list(properties)
    assert document["p"]["timestamp"] == 2**64 - 1
    assert decoded(json.dumps(document)).header == header


def test_requeued_copies_carry_their_state() -> None:
    metadata = encode("x", "k", content_header.EMPTY, True, 2, 1_700_000_000_123, 1_700_000_060_123)
    assert metadata == '{"v":1,"x":"x","k":"k","r":true,"n":2,"t":1700000000123,"e":1700000060123}'
    found = decoded(metadata)
    assert (found.redelivered, found.delivery_count) == (True, 2)
    assert (found.published_ms, found.deadline_ms) == (1_700_000_000_123, 1_700_000_060_123)
    assert encode("x", "k", content_header.EMPTY, redelivered=True) == '{"v":1,"x":"x","k":"k","r":true}'
    assert encode("x", "k", content_header.EMPTY, deadline_ms=5) == '{"v":1,"x":"x","k":"k","e":5}'
    fresh = decoded(encode("x", "k", content_header.EMPTY))
    assert (fresh.redelivered, fresh.delivery_count, fresh.published_ms, fresh.deadline_ms) == (False, 0, 0, 0)


@pytest.mark.parametrize(
    ("letter", "value", "text"),
    [
        ("S", b"text", '"text"'),
        ("S", 'größe "q"\n'.encode(), '"größe \\"q\\"\\n"'),
        ("S", b"\xff", '{"S":"/w=="}'),
        ("t", True, "true"),
        ("t", False, "false"),
        ("I", -1, "-1"),
        ("I", 2**31 - 1, "2147483647"),
        ("l", 2**31, "2147483648"),
        ("l", -(2**63), "-9223372036854775808"),
        ("l", 1, '{"l":1}'),
        ("L", 2**40, '{"L":1099511627776}'),
        ("b", -5, '{"b":-5}'),
        ("B", 200, '{"B":200}'),
        ("s", -300, '{"s":-300}'),
        ("u", 60000, '{"u":60000}'),
        ("i", 4_000_000_000, '{"i":4000000000}'),
        ("T", 1_700_000_000, '{"T":1700000000}'),
        ("d", 1.0, "1.0"),
        ("d", -0.0, "-0.0"),
        ("d", 1e300, "1e+300"),
        ("d", float("inf"), '{"d":"7ff0000000000000"}'),
        ("f", 0.5, '{"f":0.5}'),
        ("f", float("-inf"), '{"f":"ff800000"}'),
        ("D", (2, 314), '{"D":"3.14"}'),
        ("D", (0, 314), '{"D":"314"}'),
        ("D", (3, 5), '{"D":"0.005"}'),
        ("V", None, "null"),
        ("x", b"\x00\x01", '{"x":"AAE="}'),
        ("A", [("I", 1), ("S", b"a"), ("b", 2)], '[1,"a",{"b":2}]'),
        ("F", {"count": ("I", 1)}, '{"count":1}'),
        ("F", {"l": ("I", 1)}, '{"F":{"l":1}}'),
        ("F", {"Z": ("I", 1)}, '{"F":{"Z":1}}'),
        ("F", {"1": ("I", 1)}, '{"1":1}'),
        ("F", {"l": ("I", 1), "m": ("I", 2)}, '{"l":1,"m":2}'),
        ("F", {}, "{}"),
    ],
)
def test_types_are_marked_only_where_json_would_lose_them(letter: str, value: object, text: str) -> None:
    header = with_headers(h=(letter, value))
    metadata = encode("x", "k", header)
    assert metadata == '{"v":1,"x":"x","k":"k","h":{"h":' + text + "}}"
    assert decoded(metadata).header == header


def test_what_pika_sends_needs_no_marker() -> None:
    headers = {
        "retries": 3,
        "big": 2**40,
        "ok": True,
        "none": None,
        "name": "größe",
        "route": ["a", 1, {"deep": "er"}],
        "x-death": [{"count": 2, "reason": "expired", "queue": "tasks"}],
    }
    pieces = pika.BasicProperties(content_type="text/plain", delivery_mode=2, headers=headers).encode()
    header = b"".join(pieces)
    document = json.loads(encode("x", "k", header))
    assert document["h"] == headers
    assert decoded(json.dumps(document)).header == header


def test_names_and_properties_that_are_not_utf_8() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    header = content_header.build({"correlation_id": b"\x00\xff"}, {name: ("S", b"x")})
    metadata = encode(name, "größe", header)
    assert metadata == (
        '{"v":1,"x":"caf\\udce9","k":"größe","p":{"correlation_id":{"S":"AP8="}},"h":{"caf\\udce9":"x"}}'
    )
    found = decoded(metadata)
    assert (found.exchange, found.routing_key, found.header) == (name, "größe", header)


@pytest.mark.parametrize(
    ("header", "readable"),
    [
        (b"\x20\x00" + struct.pack(">I", 8) + b"\x01at\x01\x01at\x00", {"h": {"a": False}}),
        (b"\x20\x00" + struct.pack(">I", 4) + b"\x01at\x02", {"h": {"a": True}}),
        (b"\x20\x02" + bytes(4), {"h": {}}),
        (b"\x80\x02\x01a", {"p": {"content_type": "a"}}),
    ],
    ids=["duplicate keys", "a bool of 2", "the unused flag", "the unused flag without headers"],
)
def test_odd_headers_travel_raw_beside_the_readable_form(header: bytes, readable: dict[str, object]) -> None:
    metadata = encode("x", "k", header)
    raw = base64.b64encode(header).decode()
    assert json.loads(metadata) == {"v": 1, "x": "x", "k": "k", **readable, "raw": raw}
    assert decoded(metadata).header == header


@pytest.mark.parametrize("header", [b"", b"\x80", b"\x00\x01\x00\x00", b"\x80\x00\x05a", b"\x00\x00\x00"])
def test_what_is_no_header_still_makes_an_envelope(header: bytes) -> None:
    found = decoded(encode("x", "k", header))
    assert (found.exchange, found.routing_key, found.header) == ("x", "k", content_header.EMPTY)


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "x",
        "text/plain",
        "{",
        "{}",
        "[]",
        "null",
        '{"v":1}',
        '{"v":1,"x":"a"}',
        '{"v":1,"x":"a","k":null}',
        '{"v":1,"x":1,"k":"b"}',
        '{"v":0,"x":"a","k":"b"}',
        '{"v":-1,"x":"a","k":"b"}',
        '{"v":true,"x":"a","k":"b"}',
        '{"v":"1","x":"a","k":"b"}',
        '{"v":1.0,"x":"a","k":"b"}',
        '{"v":1,"x":"a","k":"b"} tail',
        '{"v":1,"x":"a","k":"b","h":NaN}',
        '{"v":1,"x":"' + "a" * 256 + '","k":"b"}',
        '{"v":1,"x":"' + "é" * 128 + '","k":"b"}',
        '{"v":1,"x":"\\ud800","k":"b"}',
        ' {"v":1,"x":"a","k":"b"}',
        '{"x":"a","k":"b","v":1,"pad":"' + "." * 70_000 + '"}',
        "[" * 100_000,
        '{"v":' * 100_000,
    ],
)
def test_other_metadata_is_native(metadata: str) -> None:
    assert decode(metadata) is None
    assert decode(metadata) is None  # and from the memo


def test_a_native_producer_may_write_an_envelope_in_any_layout() -> None:
    metadata = json.dumps({"p": {"content_type": "a/b"}, "k": "b", "x": "", "v": 1}, indent=2) + "\n"
    found = decoded(metadata)
    assert (found.exchange, found.routing_key) == ("", "b")
    assert found.header == content_header.build({"content_type": b"a/b"})


def test_a_later_version_is_read_as_far_as_it_is_understood() -> None:
    document = {
        "v": 2,
        "x": "a",
        "k": "b",
        "p": {"content_type": "a/b", "schema": "s", "priority": {"level": 3}},
        "h": {"n": 1, "z": {"Z": 1}, "bad": {"b": 1000}},
        "new": [1, 2],
        "r": True,
        "n": 4,
    }
    found = decoded(json.dumps(document))
    expected: Table = {"n": ("I", 1), "z": ("F", {"Z": ("I", 1)})}
    assert found.header == content_header.build({"content_type": b"a/b"}, expected)
    assert (found.redelivered, found.delivery_count) == (True, 4)


@pytest.mark.parametrize(
    "bad",
    [
        2**63, "\ud800", {"k": "\ud800"}, {"\ud800": 1, "a": 1}, {"k" * 256: 1},
        {"b": 128}, {"B": -1}, {"u": 1.5}, {"i": True}, {"l": 2**63}, {"T": -1}, {"t": 1}, {"V": 0}, {"A": 1},
        {"F": []},
        {"S": "*"}, {"S": "a"}, {"S": 1}, {"S": "é"}, {"x": None},
        {"f": "00"}, {"d": "zz"}, {"d": None}, {"f": 1e300}, {"d": 10**400},
        {"D": "1.2.3"}, {"D": "-1"}, {"D": "1_0"}, {"D": "1" * 12}, {"D": "0." + "0" * 256}, {"D": ""}, {"D": "."},
        {"D": 1},
    ],
)  # fmt: skip
def test_a_value_that_fits_no_type_is_dropped_alone(bad: object) -> None:
    found = decoded(json.dumps({"v": 1, "x": "a", "k": "b", "p": {"type": "t"}, "h": {"bad": bad, "good": 1}}))
    assert found.header == content_header.build({"type": b"t"}, {"good": ("I", 1)})


@pytest.mark.parametrize(
    ("marked", "field"),
    [
        ({"I": 5}, ("I", 5)),
        ({"t": True}, ("t", True)),
        ({"V": None}, ("V", None)),
        ({"A": [1]}, ("A", [("I", 1)])),
        ({"F": {"ab": 1}}, ("F", {"ab": ("I", 1)})),
        ({"S": "YQ=="}, ("S", b"a")),
        ({"d": 2}, ("d", 2.0)),
        ({"d": 2.5}, ("d", 2.5)),
        ({"f": 2}, ("f", 2.0)),
        ({"d": "3ff8000000000000"}, ("d", 1.5)),
        ({"f": "3fc00000"}, ("f", 1.5)),
        ({"D": "007.50"}, ("D", (2, 750))),
    ],
)
def test_markers_that_we_never_need_are_understood(marked: object, field: tuple[str, object]) -> None:
    found = decoded(json.dumps({"v": 1, "x": "a", "k": "b", "h": {"h": marked}}))
    assert found.header == with_headers(h=field)


@pytest.mark.parametrize(
    "bad",
    [
        {"priority": 256}, {"priority": -1}, {"priority": 10**30}, {"priority": "1"}, {"priority": 1.5},
        {"priority": [1]},
        {"timestamp": -1}, {"timestamp": 2**64}, {"timestamp": {"S": "YQ=="}},
        {"message_id": 5}, {"message_id": "m" * 256}, {"message_id": ["m"]}, {"message_id": {"S": 5}},
        {"message_id": {"x": "YQ=="}}, {"message_id": "\ud800"}, {"user_id": None},
        {"headers": {}}, {"headers": "x"}, {"colour": "red"},
    ],
)  # fmt: skip
def test_a_property_that_does_not_fit_is_dropped_alone(bad: dict[str, object]) -> None:
    found = decoded(json.dumps({"v": 1, "x": "a", "k": "b", "p": {**bad, "type": "t"}, "h": {"good": 1}}))
    assert found.header == content_header.build({"type": b"t"}, {"good": ("I", 1)})


@pytest.mark.parametrize(
    "members", [{"p": None}, {"p": []}, {"p": "x"}, {"h": []}, {"h": 1}, {"h": "x"}, {"raw": None}]
)
def test_members_of_another_kind_count_as_absent(members: dict[str, object]) -> None:
    assert decoded(json.dumps({"v": 1, "x": "a", "k": "b", **members})).header == content_header.EMPTY


@pytest.mark.parametrize("raw", [5, [], "", "*", "AAA", "AAE=", "gAAFYQ==", "é"])
def test_a_raw_header_that_is_none_leaves_the_readable_form(raw: object) -> None:
    document = {"v": 1, "x": "a", "k": "b", "p": {"type": "t"}, "raw": raw}
    assert decoded(json.dumps(document)).header == content_header.build({"type": b"t"})


@pytest.mark.parametrize(
    ("member", "value"),
    [("r", 1), ("r", "true"), ("n", -1), ("n", True), ("n", 2**63), ("n", 1.5), ("t", "1"), ("e", None)],
)
def test_state_that_is_none_counts_as_absent(member: str, value: object) -> None:
    found = decoded(json.dumps({"v": 1, "x": "a", "k": "b", member: value}))
    assert (found.redelivered, found.delivery_count, found.published_ms, found.deadline_ms) == (False, 0, 0, 0)


def test_tables_nest_as_deep_as_on_the_wire_and_no_deeper() -> None:
    def nested(levels: int, letter: str) -> tuple[str, object]:
        field: tuple[str, object] = ("I", 1)
        for _ in range(levels):
            field = ("F", {"f": field}) if letter == "F" else ("A", [field])
        return field

    for letter in "FA":
        header = with_headers(deep=nested(63, letter))
        assert decoded(encode("x", "k", header)).header == header
    for text in (
        '{"ab":' * 64 + "1" + "}" * 64,
        "[" * 64 + "1" + "]" * 64,
        '{"F":{"ab":' * 64 + "1" + "}}" * 64,
        '{"A":[' * 64 + "]}" * 64,
    ):
        found = decoded('{"v":1,"x":"a","k":"b","h":{"deep":' + text + ',"good":1}}')
        assert found.header == with_headers(good=("I", 1))


def test_repeated_messages_share_one_text_and_one_envelope() -> None:
    header = content_header.build({"type": b"repeated"})
    metadata = encode("x", "repeated", header)
    assert encode("x", "repeated", bytes(bytearray(header))) is metadata
    assert decode(metadata) is decode(json.dumps(json.loads(metadata), separators=(",", ":")))


def test_the_memo_tables_are_bounded() -> None:
    for number in range(3 * envelope._CACHE_COUNT):
        header = content_header.build({"message_id": b"%d" % number}, {"n": ("I", number)})
        assert decoded(encode("x", "bounded", header)).header == header
    for flags in range(2 * 1024):
        present = [name for bit, name in enumerate(envelope._PROPERTIES[:11]) if flags >> bit & 1]
        values: dict[str, object] = {n: 1 if n in {"delivery_mode", "priority", "timestamp"} else b"" for n in present}
        encode("x", "flags", content_header.build(values))
    big = content_header.build({}, {"big": ("S", b"x" * 5000)})
    assert decoded(encode("x", "bounded", big)).header == big
    tables: list[dict[object, object]] = [envelope._encoded, envelope._decoded, envelope._tables, envelope._plans]  # type: ignore[list-item]
    assert all(len(table) <= envelope._CACHE_COUNT for table in tables)
    assert ("x", "bounded", big) not in envelope._encoded


def test_a_second_copy_is_flagged_and_otherwise_the_same() -> None:
    once = encode("x", "k", b"\x00\x00", delivery_count=3)
    envelope = decode(flagged(once))
    assert envelope is not None
    assert (envelope.exchange, envelope.routing_key, envelope.header, envelope.delivery_count) == (
        "x",
        "k",
        b"\x00\x00",
        3,
    )
    assert envelope.redelivered
    assert flagged(flagged(once)) == flagged(once)
    assert flagged("not ours") == "not ours"

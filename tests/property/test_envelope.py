"""The envelope for any header AMQP allows: the same bytes come back; and for any Metadata at all: nothing raises."""

from __future__ import annotations

import json
import struct
from typing import NoReturn

from hypothesis import example, given
from hypothesis import strategies as st

from connector.amqp import header as content_header
from connector.amqp.wire import Table, write_table
from mapping.attributes import native_header
from mapping.envelope import Envelope, decode, encode
from mapping.typed_json import table_of, table_text

NAMES = st.binary(max_size=255).map(lambda raw: raw.decode("utf-8", "surrogateescape")) | st.text(
    st.characters(codec="utf-8"), max_size=60
)


# -------------------------------------------------------------------------------- raw headers, without our own codec
def with_length(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def shortstr(raw: bytes) -> bytes:
    return bytes((len(raw),)) + raw


KEYS = st.one_of(
    st.sampled_from([b"", b"n", b"S", b"F", b"b", b"x-death", b"v", b"raw", b"\xff", b"a\x00b"]),
    st.text(max_size=12).map(lambda text: text.encode("utf-8", "replace")),
    st.binary(max_size=20),
)
NAN_32 = [b"\x7f\xc0\x00\x00", b"\x7f\xa0\x00\x01", b"\xff\xff\xff\xff", b"\x7f\x80\x00\x00", b"\xff\x80\x00\x00"]
NAN_64 = [
    b"\x7f\xf8" + bytes(6),
    b"\x7f\xf0" + bytes(5) + b"\x01",
    b"\xff" * 8,
    b"\xff\xf0" + bytes(6),
    b"\x80" + bytes(7),
]
LONGSTR = st.one_of(st.binary(max_size=30), st.text(max_size=30).map(lambda text: text.encode("utf-8", "replace")))


def fixed(letter: bytes, size: int) -> st.SearchStrategy[bytes]:
    edges = st.sampled_from(
        [
            bytes(size),
            b"\xff" * size,
            b"\x7f" + b"\xff" * (size - 1),
            b"\x80" + bytes(size - 1),
            bytes(size - 1) + b"\x01",
        ]
    )
    return (edges | st.binary(min_size=size, max_size=size)).map(letter.__add__)


SCALARS = st.one_of(
    fixed(b"t", 1), fixed(b"b", 1), fixed(b"B", 1), fixed(b"s", 2), fixed(b"u", 2), fixed(b"I", 4), fixed(b"i", 4),
    fixed(b"l", 8), fixed(b"L", 8), fixed(b"d", 8), fixed(b"f", 4), fixed(b"D", 5), fixed(b"T", 8), st.just(b"V"),
    st.sampled_from(NAN_32).map(b"f".__add__), st.sampled_from(NAN_64).map(b"d".__add__),
    LONGSTR.map(lambda raw: b"S" + with_length(raw)), LONGSTR.map(lambda raw: b"x" + with_length(raw)),
)  # fmt: skip


def table_bytes(fields: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    pairs = st.lists(st.tuples(KEYS, fields), max_size=5)
    twice = st.tuples(pairs, st.booleans()).map(lambda drawn: drawn[0] * (2 if drawn[1] else 1))  # duplicate keys
    return twice.map(lambda found: with_length(b"".join(shortstr(key) + field for key, field in found)))


FIELDS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        table_bytes(inner).map(b"F".__add__),
        st.lists(inner, max_size=4).map(lambda items: b"A" + with_length(b"".join(items))),
    ),
    max_leaves=12,
)
TABLES = table_bytes(FIELDS)
SHORTSTRS = st.one_of(
    st.just(b""), st.binary(max_size=40), st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")[:255])
)


@st.composite
def raw_headers(draw: st.DrawFn) -> bytes:
    """Any flags, the unused bit included, and values for the properties they announce."""
    flags = draw(st.integers(0, 0x7FFF)) * 2
    parts = [struct.pack(">H", flags)]
    for bit in range(15, 1, -1):
        if flags >> bit & 1:
            match bit:
                case 13:
                    parts.append(draw(TABLES))
                case 12 | 11:
                    parts.append(draw(st.binary(min_size=1, max_size=1)))
                case 6:
                    parts.append(draw(st.binary(min_size=8, max_size=8)))
                case _:
                    parts.append(shortstr(draw(SHORTSTRS)))
    return b"".join(parts)


def no_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


def seen(envelope: Envelope | None) -> tuple[object, ...]:
    assert envelope is not None
    return tuple(
        getattr(envelope, name)
        for name in (
            "exchange",
            "routing_key",
            "header",
            "redelivered",
            "delivery_count",
            "published_ms",
            "deadline_ms",
        )
    )


COUNTS = st.just(0) | st.integers(0, 2**63 - 1)


@given(NAMES, NAMES, raw_headers(), st.booleans(), COUNTS, COUNTS, COUNTS)
def test_everything_comes_back(
    exchange: str, routing_key: str, header: bytes, redelivered: bool, count: int, published_ms: int, deadline_ms: int
) -> None:
    state = (exchange, routing_key, header, redelivered, count, published_ms, deadline_ms)
    content_header.parse(header)  # what is generated is what AMQP allows
    metadata = encode(*state)
    assert seen(decode(metadata)) == state
    document = json.loads(metadata.encode("utf-8"), parse_constant=no_constant)
    assert list(document)[:3] == ["v", "x", "k"]


@given(NAMES, raw_headers(), raw_headers())
def test_each_of_several_headers_comes_back(name: str, first: bytes, second: bytes) -> None:
    texts = [encode(name, "k", header) for header in (first, second, first)]
    assert [seen(decode(text))[2] for text in texts] == [first, second, first]


@given(TABLES)
def test_headers_are_readable_without_raw_where_rewriting_gives_the_same_bytes(raw: bytes) -> None:
    header = b"\x20\x00" + raw
    table = content_header.parse(header).headers()
    document = json.loads(encode("", "k", header))
    assert ("raw" in document) == (write_table(table) != raw)
    assert list(document["h"]) == list(json.loads(table_text(table)))
    assert write_table(table_of(json.loads(table_text(table)))) == write_table(table)


PLAIN = st.recursive(
    st.one_of(
        st.text(st.characters(codec="utf-8")).map(lambda text: ("S", text.encode())),
        st.integers(-(2**31), 2**31 - 1).map(lambda number: ("I", number)),
        st.integers(2**31, 2**63 - 1).map(lambda number: ("l", number)),
        st.floats(allow_nan=False, allow_infinity=False).map(lambda number: ("d", number)),
        st.booleans().map(lambda value: ("t", value)),
        st.just(("V", None)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: ("A", items)),
        st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=2, max_size=20), inner, max_size=4).map(
            lambda table: ("F", table)
        ),
    ),
    max_leaves=8,
)


def plain(value: object) -> object:
    match value:
        case ("S", bytes(raw)):
            return raw.decode()
        case ("A", list(items)):
            return [plain(item) for item in items]
        case ("F", dict(table)):
            return {key: plain(item) for key, item in table.items()}
        case (_, scalar):
            return scalar
    raise AssertionError(value)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=20), PLAIN, max_size=5))
def test_common_types_are_plain_json(table: Table) -> None:
    assert json.loads(table_text(table)) == plain(("F", table))


# ------------------------------------------------------------------------------------------------ whatever Metadata
def assert_deliverable(envelope: Envelope | None) -> None:
    """What is decoded may go to a client: names that fit, a header that parses, counts in range."""
    if envelope is not None:
        for name in (envelope.exchange, envelope.routing_key):
            assert len(name.encode("utf-8", "surrogateescape")) <= 255
        content_header.parse(envelope.header)
        assert isinstance(envelope.redelivered, bool)
        assert all(
            0 <= number < 2**63 for number in (envelope.delivery_count, envelope.published_ms, envelope.deadline_ms)
        )


@given(st.text(max_size=200) | st.text(max_size=50).map('{"v":1,"x":"a","k":"b",'.__add__))
@example('{"v":1,"x":"a","k":"b","h":' + "[" * 100_000)
@example('{"v":' + "9" * 5000 + ',"x":"a","k":"b"}')
@example('{"v":1,"x":"a","k":"b","h":' + '{"ab":' * 70 + "1" + "}" * 71)
def test_no_text_raises(metadata: str) -> None:
    assert_deliverable(decode(metadata))


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.just(10**400)
    | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*"tbBsuIilLfdDSATFVx", "ab", ""]) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=10,
)
PROPERTY_NAMES = ["content_type", "delivery_mode", "priority", "timestamp", "message_id", "headers", "other"]


@given(
    st.fixed_dictionaries(
        {"v": st.sampled_from([1, 2, 7]), "x": st.just("x"), "k": st.just("k")},
        optional={
            "p": ANY_JSON | st.dictionaries(st.sampled_from(PROPERTY_NAMES), ANY_JSON),
            "h": ANY_JSON | st.dictionaries(st.text(max_size=8), ANY_JSON),
            "raw": ANY_JSON | st.sampled_from(["AAA=", "AAAA", "gAD/", "", "AAE="]),
            "r": ANY_JSON,
            "n": ANY_JSON,
            "t": ANY_JSON,
            "e": ANY_JSON,
        },
    )
)
def test_envelopes_of_others_are_read_as_far_as_they_go(document: dict[str, object]) -> None:
    envelope = decode(json.dumps(document))
    assert envelope is not None or "NaN" in json.dumps(document) or "Infinity" in json.dumps(document)
    assert_deliverable(envelope)


@given(ANY_JSON, st.sampled_from("vxk"))
def test_other_peoples_json_is_not_ours(value: object, member: str) -> None:
    document = {"v": 1, "x": "x", "k": "k", member: value}
    envelope = decode(json.dumps(document))
    assert_deliverable(envelope)
    if envelope is not None:
        assert isinstance(document["v"], int)
        assert document["v"] >= 1
        assert (envelope.exchange, envelope.routing_key) == (document["x"], document["k"])


@given(raw_headers(), st.data())
def test_a_damaged_envelope_does_no_harm(header: bytes, data: st.DataObject) -> None:
    metadata = encode("exchange", "key", header, redelivered=True, delivery_count=3)
    at = data.draw(st.integers(0, len(metadata)))
    cut = data.draw(st.integers(0, 3))
    assert_deliverable(decode(metadata[:at] + data.draw(st.text(max_size=3)) + metadata[at + cut :]))


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=300), st.text(max_size=50), max_size=5),
    st.text(max_size=300),
    st.text(max_size=300),
    st.integers(-(2**63), 2**63 - 1),
)
def test_any_native_message_has_a_header(
    tags: dict[str, str], message_id: str, metadata: str, timestamp_ns: int
) -> None:
    parsed = content_header.parse(native_header(tags, message_id, metadata, timestamp_ns))
    headers = parsed.headers()
    assert len(headers) == len(tags.keys() | ({"x-kubemq-metadata"} if metadata else set()))
    assert (parsed.message_id is None) == (message_id == "")

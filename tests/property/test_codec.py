"""The frame codec: pamqp agrees, chunks do not matter, and nothing a client sends does more than a right close."""

from __future__ import annotations

import itertools
import random
import tracemalloc
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, body, commands, frame, header

from connector.amqp import frames, methods
from connector.amqp import header as content_header
from connector.amqp.frames import DeliverEncoder, FrameReader, encode_get_ok, encode_method, encode_return
from tests.support import tables
from tests.support.frame_factory import (
    HEARTBEAT_FRAME,
    Call,
    FrameFactory,
    RecordingHandler,
    feed_all,
    fields_of,
    read_frames,
    split_frames,
)
from tests.support.reference_reader import ReferenceReader

# ------------------------------------------------------------------------------------------------ pamqp as the oracle
_NAMES = st.text("abcXYZ019-_.:@#,/+ ", max_size=30)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=30)

#: fields that pamqp checks
_FIXED: dict[str, st.SearchStrategy[Any]] = {
    "ticket": st.just(0),
    "out_of_band": st.just("0"),
    "channel_id": st.just("0"),
    "known_hosts": st.just(""),
    "capabilities": st.just(""),
    "insist": st.just(False),
    "cluster_id": st.just(""),
    "queue": _NAMES,
    "exchange": _NAMES,
    "source": _NAMES,
    "destination": _NAMES,
}
_BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 2**8 - 1),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**63 - 1),
    "shortstr": _TEXT,
    "longstr": _TEXT,
    "table": tables.pamqp_tables,
}
_KINDS = [kind for kind in commands.INDEX_MAPPING.values() if kind is not commands.Basic.RecoverAsync]


@st.composite
def pamqp_methods(draw: st.DrawFn, kinds: list[type[base.Frame]] = _KINDS) -> base.Frame:
    kind = draw(st.sampled_from(kinds))
    values = {name: draw(_FIXED.get(name, _BY_TYPE[kind.amqp_type(name)])) for name in kind.attributes()}
    return methods.build(kind, **values)


def plain(method: base.Frame) -> dict[str, object]:
    """The fields as pamqp decodes them: tables of plain values, long strings as text."""
    values: dict[str, object] = {}
    for name, value in method:
        kind = method.amqp_type(name)
        if kind == "longstr" and isinstance(value, bytes):
            values[name] = value.decode()
        elif kind == "table":
            values[name] = tables.as_pamqp(value)  # type: ignore[arg-type]
        else:
            values[name] = value
    return values


@given(pamqp_methods())
def test_every_method_as_pamqp_writes_and_reads_it(method: base.Frame) -> None:
    encoded = frame.marshal(method, 7)
    decoded = methods.decode(encoded[7:-1])
    assert type(decoded) is type(method)
    assert plain(decoded) == dict(method)
    assert encode_method(7, decoded) == encoded
    [(channel_no, read)] = read_frames(encode_method(7, decoded))
    assert channel_no == 7
    assert isinstance(read, base.Frame)
    assert dict(read) == dict(method)


_CLIENT_KINDS: list[type[base.Frame]] = [
    commands.Basic.Ack,
    commands.Basic.Nack,
    commands.Basic.Reject,
    commands.Basic.Get,
    commands.Basic.Qos,
    commands.Basic.Consume,
    commands.Channel.Open,
    commands.Queue.Declare,
    commands.Confirm.Select,
]


@st.composite
def publishes(draw: st.DrawFn) -> tuple[bytes, Call]:
    """One message of pamqp's frames, and the call it must give."""
    exchange, key, content = draw(_NAMES), draw(_TEXT), draw(st.binary(max_size=200))
    mandatory, immediate = draw(st.booleans()), draw(st.booleans())
    channel_no, step = draw(st.integers(1, 3)), draw(st.integers(1, 300))
    properties = commands.Basic.Properties(headers=draw(tables.pamqp_tables) or None, message_type=draw(_TEXT))
    items: list[frame.FrameTypes] = [
        commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate),
        header.ContentHeader(body_size=len(content), properties=properties),
        *(body.ContentBody(content[start : start + step]) for start in range(0, len(content), step)),
    ]
    data = b"".join(frame.marshal(item, channel_no) for item in items)
    bits = mandatory | immediate << 1
    return data, ("publish", channel_no, exchange, key, bits, properties.marshal(), content)


@st.composite
def settled_methods(draw: st.DrawFn) -> tuple[bytes, Call]:
    """One method without content, and the call it must give."""
    method = draw(pamqp_methods(_CLIENT_KINDS))
    data = frame.marshal(method, 2)
    name, fields = fields_of(methods.decode(data[7:-1]))
    hot = {
        "Basic.Ack": ("delivery_tag", "multiple"),
        "Basic.Nack": ("delivery_tag", "multiple", "requeue"),
        "Basic.Reject": ("delivery_tag", "requeue"),
        "Basic.Get": ("queue", "no_ack"),
    }
    if name in hot:
        return data, (name[6:].lower(), 2, *(fields[key] for key in hot[name]))
    return data, ("method", 2, name, fields)


_STREAMS = st.lists(publishes() | settled_methods() | st.just((HEARTBEAT_FRAME, ("heartbeat",))), max_size=8)


@given(_STREAMS, st.lists(st.integers(0, 3000), max_size=20))
def test_a_stream_of_pamqps_frames_cut_anywhere_gives_the_same_calls(
    stream: list[tuple[bytes, Call]], cuts: list[int]
) -> None:
    data = b"".join(piece for piece, _ in stream)
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    handler = RecordingHandler()
    reader = FrameReader(handler, 131072)
    for start, end in itertools.pairwise(places):
        reader.feed(data[start:end])
    assert handler.calls == [call for _, call in stream]
    assert reader.buffered_bytes == 0
    bytewise = RecordingHandler()
    assert feed_all(FrameReader(bytewise, 131072), data, 1) == []
    assert bytewise.calls == handler.calls


@given(
    st.lists(
        st.tuples(st.integers(0, 2**63 - 1), st.booleans(), _NAMES, _TEXT, tables.headers, st.binary(max_size=300))
    ),
    st.sampled_from([0, 50, 4096]),
)
def test_pamqp_reads_what_is_delivered(
    messages: list[tuple[int, bool, str, str, bytes, bytes]], frame_max: int
) -> None:
    encoder = DeliverEncoder(3, "ctag")
    for tag, redelivered, exchange, key, raw, content in messages:
        address = {"exchange": exchange, "routing_key": key}
        for data, name, fields in (
            (
                encoder.encode(tag, redelivered, exchange, key, raw, content, frame_max),
                "Basic.Deliver",
                {"consumer_tag": "ctag", "delivery_tag": tag, "redelivered": redelivered, **address},
            ),
            (
                encode_get_ok(3, tag, redelivered, exchange, key, 5, raw, content, frame_max),
                "Basic.GetOk",
                {"delivery_tag": tag, "redelivered": redelivered, **address, "message_count": 5},
            ),
            (
                encode_return(3, 312, "NO_ROUTE", exchange, key, raw, content, frame_max),
                "Basic.Return",
                {"reply_code": 312, "reply_text": "NO_ROUTE", **address},
            ),
        ):
            (kind, channel_no, payload), head, *bodies = split_frames(data)
            assert (kind, channel_no) == (1, 3)
            [(_, method)] = read_frames(FrameFactory(3).raw(1, payload))
            assert isinstance(method, base.Frame)
            assert fields_of(method) == (name, fields)
            assert head[2] == FrameFactory(3).header(len(content), raw)[7:-1]
            assert b"".join(part for _, _, part in bodies) == content
            assert all(kind == 3 and (not frame_max or 0 < len(part) <= frame_max - 8) for kind, _, part in bodies)


# --------------------------------------------------------------------------- random streams against a plain reference
FRAME_MAX, MAX_BODY_BYTES = 4096, 1000
STREAMS = 1000
RIGHT_CODES = {501, 502, 503, 504, 505, 540}


def some_frames(rng: random.Random) -> bytes:
    """One or a few frames that a good client may send, now and then something that is wrong."""
    make, other = FrameFactory(rng.randrange(1, 4)), FrameFactory(rng.randrange(1, 4))
    dice = rng.random()
    if dice < 0.4:
        size = rng.choice((0, 1, 10, 999, 1000, 1001))
        return make.publish(rng.choice(("k", "key", "ü")), rng.randbytes(size), rng.choice(("", "ex")))
    if dice < 0.6:  # content in pieces; an accident when both are the same channel
        between = rng.choice((b"", HEARTBEAT_FRAME, other.publish(), other.method(rng.choice(_CLIENT_KINDS))))
        pieces = [
            make.method(commands.Basic.Publish, routing_key="k"),
            make.header(6, rng.choice((content_header.EMPTY, b"", b"junk"))),
            make.body(b"ab"),
            make.body(b""),
            make.body(b"cdef"),
        ]
        pieces.insert(rng.randrange(len(pieces) + 1), between)
        return b"".join(pieces)
    if dice < 0.95:
        return rng.choice((HEARTBEAT_FRAME, make.method(rng.choice(_CLIENT_KINDS))))
    return odd_frame(rng, FrameFactory(rng.randrange(4)))


def odd_frame(rng: random.Random, make: FrameFactory) -> bytes:
    """A frame that is wrong, or would have to stand elsewhere."""
    junk = rng.randbytes(rng.randrange(12))
    return rng.choice(
        (
            make.method(commands.Basic.Publish),
            make.header(rng.choice((0, 3, 1001, 2**63)), weight=rng.choice((0, 1)), class_id=rng.choice((60, 61))),
            make.body(junk),
            make.publish(),
            make.raw(8, b""),
            make.raw(8, junk),
            make.method(rng.choice(_KINDS)),
            make.raw_method(rng.choice((10, 30, 60, 61)), rng.randrange(130), junk),
            make.raw(rng.randrange(10), junk, rng.choice((0xCE, 0xCE, 0))),
        )
    )


def valid_stream(rng: random.Random) -> bytes:
    """A conversation that any server would take."""
    parts = []
    for _ in range(rng.randrange(5, 20)):
        make = FrameFactory(rng.randrange(1, 4))
        kind = rng.choice((commands.Basic.Ack, commands.Basic.Qos, commands.Queue.Declare, commands.Basic.Consume))
        parts += [
            make.publish("key", rng.randbytes(rng.randrange(300)), header=content_header.build({"priority": 1}, {})),
            make.method(kind),
            HEARTBEAT_FRAME,
        ]
    return b"".join(parts)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The bytes with one to three accidents."""
    broken = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(broken))
        match rng.randrange(4):
            case 0:
                broken[place] ^= 1 << rng.randrange(8)
            case 1:
                del broken[place : place + rng.randrange(1, 20)]
            case 2:
                broken[place:place] = rng.randbytes(rng.randrange(1, 20))
            case _:
                broken[place:place] = broken[place : place + rng.randrange(1, 100)]
        if not broken:
            break
    return bytes(broken)


def random_stream(seed: int) -> bytes:
    rng = random.Random(seed)
    if seed % 10 == 0:
        return rng.randbytes(rng.randrange(200))
    return b"".join(some_frames(rng) for _ in range(rng.randrange(1, 30)))


def mutated_stream(seed: int) -> bytes:
    rng = random.Random(seed)
    return mutated(rng, valid_stream(rng))


def run(data: bytes, chunks: random.Random) -> tuple[list[Call], int]:
    """The calls up to the first error, and its code; the rest is fed too and must be harmless."""
    handler = RecordingHandler()
    reader = FrameReader(handler, FRAME_MAX, MAX_BODY_BYTES)
    calls: list[Call] | None = None
    code = position = 0
    while position < len(data):
        step = chunks.choice((1, 5, 20, 100, 1000, 100_000))
        codes = feed_all(reader, data[position : position + step])
        position += step
        # 3 channels' contents, one frame, and what one read brought
        assert reader.buffered_bytes <= 3 * MAX_BODY_BYTES + FRAME_MAX + 8 + step
        if codes:
            assert calls is None, "a second error"
            code = codes[0]
            assert codes == [code]
            calls = [
                call for call in handler.calls if call[2:3] not in {("Connection.Close",), ("Connection.CloseOk",)}
            ]
    if calls is None:
        return handler.calls, code
    assert reader.buffered_bytes <= FRAME_MAX + 8
    return calls, code


def compare(data: bytes, seed: int) -> int:
    expected = ReferenceReader(FRAME_MAX, MAX_BODY_BYTES).read(data)
    calls, code = run(data, random.Random(seed))
    assert code == expected.code
    if code:
        passing = {("Connection.Close",), ("Connection.CloseOk",)}
        assert calls == [call for call in expected.calls if call[2:3] not in passing]
        assert code in RIGHT_CODES
    else:
        assert calls == expected.calls
    return code


@pytest.mark.parametrize("make", [random_stream, mutated_stream])
def test_random_and_mutated_streams_do_what_the_plain_reference_does(make: Any) -> None:
    codes = [compare(make(seed), seed) for seed in range(STREAMS)]
    assert set(codes) >= {0, 501, 505}


@pytest.mark.parametrize("make", [random_stream, mutated_stream])
def test_random_and_mutated_streams_leave_no_memory_behind(make: Any) -> None:
    streams = [make(seed) for seed in range(STREAMS)]

    def feed_streams() -> None:
        frames._addresses.clear()
        for data in streams:
            reader = FrameReader(RecordingHandler(), FRAME_MAX, MAX_BODY_BYTES)
            feed_all(reader, data)
        frames._addresses.clear()

    feed_streams()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        feed_streams()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 100_000


def test_recover_async_as_pamqp_writes_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        encoded = frame.marshal(commands.Basic.RecoverAsync(requeue=True), 1)
    assert encode_method(1, methods.decode(encoded[7:-1])) == encoded

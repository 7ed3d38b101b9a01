"""The reader's rules, one by one; what RabbitMQ 3.10 answers to each broken frame was tried on a real one."""

from __future__ import annotations

import struct

import pytest
from pamqp import commands

from connector.amqp import frames
from connector.amqp import header as content_header
from connector.amqp.errors import AmqpError
from connector.amqp.frames import HEARTBEAT, FrameReader, encode_ack, encode_nack
from connector.amqp.reply_codes import ReplyCode
from tests.support.frame_factory import BODY, HEADER, METHOD, Call, FrameFactory, RecordingHandler, feed_all

make = FrameFactory(1)
two = FrameFactory(2)
control = FrameFactory(0)
HEADER_BYTES = content_header.build({"delivery_mode": 2, "message_id": b"id"}, {"n": ("B", 1)})
QOS = make.method(commands.Basic.Qos, prefetch_count=7)
QOS_CALL: Call = (
    "method",
    1,
    "Basic.Qos",
    {"prefetch_size": 0, "prefetch_count": 7, "global_": False},
)
PUBLISH = make.method(commands.Basic.Publish, routing_key="key")
CLOSE_OK = control.method(commands.Connection.CloseOk)
CLOSE_OK_CALL: Call = ("method", 0, "Connection.CloseOk", {})


def published(body: bytes, channel_no: int = 1, header: bytes = content_header.EMPTY, key: str = "key") -> Call:
    return ("publish", channel_no, "", key, 0, header, body)


def read(data: bytes, chunk_bytes: int = 0, max_body_bytes: int = 1000) -> list[Call]:
    """The calls for well-formed bytes."""
    handler = RecordingHandler()
    reader = FrameReader(handler, 4096, max_body_bytes)
    assert feed_all(reader, data, chunk_bytes) == []
    return handler.calls


def error_of(data: bytes, max_body_bytes: int = 1000) -> tuple[int, int, int]:
    """Code, class and method of the one error; after it only close and close-ok of the connection pass."""
    handler = RecordingHandler()
    reader = FrameReader(handler, 4096, max_body_bytes)
    with pytest.raises(AmqpError) as caught:
        reader.feed(data)
    before = len(handler.calls)
    reader.feed(b"")
    reader.feed(QOS + make.publish() + HEARTBEAT + b"".join([control.raw(9, b"?"), CLOSE_OK]))
    assert handler.calls[before:] == ([CLOSE_OK_CALL] if reader.is_synchronized else [])
    assert reader.buffered_bytes == 0
    return int(caught.value.code), caught.value.class_id, caught.value.method_id


# -------------------------------------------------------------------------------------------------- what is read
@pytest.mark.parametrize("chunk_bytes", [0, 1, 7, 8, 20, 4096])
def test_hot_methods_in_any_chunks(chunk_bytes: int) -> None:
    data = (
        make.publish("key", b"body", "ex", HEADER_BYTES, mandatory=True)
        + two.publish("grün", b"", immediate=True)
        + make.publish("key", b"x", "ex", HEADER_BYTES, mandatory=True, immediate=True)
        + encode_ack(1, 2**64 - 1, True)
        + encode_ack(2, 1, False)
        + encode_nack(1, 3, True, True)
        + encode_nack(1, 3, False, False)
        + make.method(commands.Basic.Reject, delivery_tag=4, requeue=True)
        + make.method(commands.Basic.Reject, delivery_tag=4, requeue=False)
        + make.method(commands.Basic.Get, queue="grün", no_ack=True)
        + HEARTBEAT
        + QOS
    )
    assert read(data, chunk_bytes) == [
        ("publish", 1, "ex", "key", 1, HEADER_BYTES, b"body"),
        ("publish", 2, "", "grün", 2, content_header.EMPTY, b""),
        ("publish", 1, "ex", "key", 3, HEADER_BYTES, b"x"),
        ("ack", 1, 2**64 - 1, True),
        ("ack", 2, 1, False),
        ("nack", 1, 3, True, True),
        ("nack", 1, 3, False, False),
        ("reject", 1, 4, True),
        ("reject", 1, 4, False),
        ("get", 1, "grün", True),
        ("heartbeat",),
        QOS_CALL,
    ]


@pytest.mark.parametrize("chunk_bytes", [0, 1, 100])
def test_channels_interleave_their_contents(chunk_bytes: int) -> None:
    data = (
        PUBLISH
        + two.method(commands.Basic.Publish, routing_key="other")
        + make.header(6)
        + HEARTBEAT
        + two.header(4)
        + make.body(b"ab")
        + two.body(b"1234")
        + make.body(b"")
        + make.body(b"cd")
        + make.body(b"ef")
    )
    assert read(data, chunk_bytes) == [("heartbeat",), published(b"1234", 2, key="other"), published(b"abcdef")]


def test_a_frame_of_another_channel_between_header_and_body() -> None:
    data = PUBLISH + two.method(commands.Basic.Publish, routing_key="key") + two.header(4)
    assert read(data + make.header(4) + two.body(b"body") + make.body(b"1234")) == [
        published(b"body", 2),
        published(b"1234"),
    ]
    data = two.method(commands.Basic.Publish, routing_key="key") + two.header(4) + PUBLISH + make.header(4)
    assert read(data + two.body(b"body") + make.body(b"1234")) == [published(b"body", 2), published(b"1234")]


def test_a_body_of_many_frames() -> None:
    body = bytes(range(256)) * 100
    data = FrameFactory(1, 4096).publish("key", body) * 2
    for chunk_bytes in (0, 1000, 4096, 30_000):
        assert read(data, chunk_bytes, len(body)) == [published(body)] * 2


def test_names_that_are_not_utf8_keep_their_bytes() -> None:
    [call] = read(make.raw_method(60, 40, b"\x00\x00\x01\xff\x02\x80k\x00") + make.header(0))
    assert [name.encode("utf-8", "surrogateescape") for name in call[2:4]] == [b"\xff", b"\x80k"]


def test_unused_bits_and_the_ticket_of_a_publish_are_ignored() -> None:
    assert read(make.raw_method(60, 40, b"\x12\x34\x00\x01k\xff") + make.header(0)) == [
        ("publish", 1, "", "k", 3, content_header.EMPTY, b"")
    ]


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    calls = read(b"".join(make.publish(f"key.{n}") for n in range(5000)))
    assert [call[3] for call in calls] == [f"key.{n}" for n in range(5000)]
    assert len(frames._addresses) <= 4096


# ---------------------------------------------------------------------------------------------------- frame size
def test_a_payload_may_be_as_long_as_frame_max_and_no_longer() -> None:
    """RabbitMQ tolerates 8 bytes too many."""
    body = bytes(4096)
    data = PUBLISH + make.header(len(body)) + make.body(body)
    assert read(data, 0, 10_000) == [published(body)]
    body += b"!"
    assert error_of(PUBLISH + make.header(len(body)) + make.body(body), 10_000)[0] == 501


@pytest.mark.parametrize("kind", [METHOD, HEADER, BODY, 8, 4])
def test_too_large_is_known_before_the_frame_has_come(kind: int) -> None:
    assert error_of(struct.pack(">BHI", kind, 1, 4097)) == (501, 0, 0)


def test_frame_max_can_change_within_a_read() -> None:
    def react(call: Call) -> None:
        if call[2:3] == ("Connection.TuneOk",):
            reader.frame_max = 4096

    handler = RecordingHandler(react)
    reader = FrameReader(handler, 8192, 10_000)
    big = PUBLISH + make.header(8000) + make.body(bytes(8000))
    tune_ok = control.method(commands.Connection.TuneOk)
    with pytest.raises(AmqpError) as caught:
        reader.feed(big + tune_ok + big)
    assert caught.value.code is ReplyCode.FRAME_ERROR
    assert [call[0] for call in handler.calls] == ["publish", "method"]


def test_frame_max_is_what_was_set() -> None:
    reader = FrameReader(RecordingHandler())
    assert reader.frame_max == 8192
    reader.frame_max = 0
    assert reader.frame_max == 0


def test_bodies_smaller_than_a_method_limit_no_method() -> None:
    data = encode_ack(1, 5, True) + QOS + make.publish("key", b"x")
    assert read(data, 0, 1) == [("ack", 1, 5, True), QOS_CALL, published(b"x")]


def test_frame_max_zero_allows_what_a_body_may_have() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler, 0, 10_000)
    reader.feed(PUBLISH + make.header(10_000) + make.body(bytes(10_000)))
    assert handler.calls == [published(bytes(10_000))]
    with pytest.raises(AmqpError):
        reader.feed(struct.pack(">BHI", 3, 1, 10_001))


@pytest.mark.parametrize(
    "data",
    [
        QOS[:-1] + b"\x00",
        PUBLISH[:-1] + b"\x00" + make.header(0),
        PUBLISH + make.header(0)[:-1] + b"\x00",
        PUBLISH + make.header(1) + make.body(b"x")[:-1] + b"\x00",
        encode_ack(1, 1, False)[:-1] + b"\x00",
        HEARTBEAT[:-1] + b"\x00",
    ],
)
def test_a_wrong_end_octet_is_a_frame_error_and_the_end_of_reading(data: bytes) -> None:
    assert error_of(data) == (501, 0, 0)


def test_after_a_lost_frame_nothing_is_read_any_more() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler)
    assert feed_all(reader, QOS[:-1] + b"\x00" + CLOSE_OK) == [501]
    assert not reader.is_synchronized
    reader.feed(CLOSE_OK)
    assert handler.calls == []


# ------------------------------------------------------------------------------------------------- wrong sequence
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (make.header(0), (505, 0, 0)),
        (make.body(b"x"), (505, 0, 0)),
        (control.header(0), (505, 0, 0)),
        (control.body(b"x"), (505, 0, 0)),
        (PUBLISH + make.body(b"x"), (505, 60, 40)),
        (PUBLISH + QOS, (505, 60, 40)),
        (PUBLISH + PUBLISH, (505, 60, 40)),
        (PUBLISH + make.header(5) + QOS, (505, 60, 40)),
        (PUBLISH + make.header(5) + make.header(5), (505, 60, 40)),
        (PUBLISH + make.header(2) + make.body(b"xy") + make.body(b""), (505, 0, 0)),
        (PUBLISH + make.header(0, class_id=61), (505, 60, 40)),
        (PUBLISH + make.header(0, weight=1), (505, 60, 40)),
        (PUBLISH + make.header(3) + make.body(b"abcdef"), (505, 60, 40)),
        (PUBLISH + make.header(3) + make.body(b"ab") + make.body(b"cd"), (505, 60, 40)),
        (PUBLISH + make.raw(HEADER, bytes(11)), (501, 0, 0)),
        (make.raw(8, b""), (505, 0, 0)),
        (make.raw(8, b"x"), (501, 0, 0)),
        (control.raw(8, b"x"), (501, 0, 0)),
        (make.raw(4, b"x"), (501, 0, 0)),
        (control.raw(0, b""), (501, 0, 0)),
        (make.raw(METHOD, b"\x00\x3c\x00"), (501, 0, 0)),
        (control.raw(METHOD, b""), (501, 0, 0)),
    ],
)
def test_frames_out_of_place(data: bytes, expected: tuple[int, int, int]) -> None:
    assert error_of(data) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (control.method(commands.Basic.Qos), (504, 60, 10)),
        (control.publish(), (504, 60, 40)),
        (control.method(commands.Basic.Ack, delivery_tag=1), (504, 60, 80)),
        (control.method(commands.Channel.Open), (504, 20, 10)),
        (control.raw_method(10, 999), (503, 10, 999)),
        (control.raw_method(61, 999), (503, 61, 999)),
        (make.method(commands.Connection.StartOk), (503, 10, 11)),
        (make.method(commands.Connection.Close), (503, 10, 50)),
        (make.method(commands.Basic.Deliver), (503, 60, 60)),
        (make.method(commands.Basic.Return), (503, 60, 50)),
        (make.method(commands.Basic.GetOk), (503, 60, 71)),
        (make.raw_method(61, 999), (503, 61, 999)),
        (make.raw_method(30, 10, b"\x05/data"), (501, 30, 10)),
        (make.raw_method(60, 80, bytes(8)), (501, 60, 80)),
        (make.raw_method(60, 80, bytes(10)), (501, 60, 80)),
        (make.raw_method(60, 90, bytes(8)), (501, 60, 90)),
        (make.raw_method(60, 120, bytes(10)), (501, 60, 120)),
        (make.raw_method(60, 70, b"\x00\x00\x01q"), (501, 60, 70)),
        (make.raw_method(60, 70, b"\x00\x00\x01\xff\x00"), (501, 60, 70)),
        (make.raw_method(60, 10, bytes(6)), (501, 60, 10)),
        (make.raw_method(60, 40, bytes(2)), (501, 60, 40)),
        (make.raw_method(60, 40, bytes(4)), (501, 60, 40)),
        (make.raw_method(60, 40, b"\x00\x00\x00\x09k\x00"), (501, 60, 40)),
        (make.raw_method(60, 40, bytes(6)) + make.header(0), (501, 60, 40)),
        (make.raw_method(60, 40, bytes(4)) + make.header(0) + QOS, (501, 60, 40)),
    ],
)
def test_methods_on_the_wrong_channel_unknown_or_broken(data: bytes, expected: tuple[int, int, int]) -> None:
    assert error_of(data) == expected


def test_all_that_came_before_a_broken_frame_is_handled() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler)
    assert feed_all(reader, make.publish() + QOS + make.header(0) + QOS + CLOSE_OK) == [505]
    assert handler.calls == [published(b"body"), QOS_CALL, CLOSE_OK_CALL]


# ------------------------------------------------------------------------------------------------ content too large
@pytest.mark.parametrize("chunk_bytes", [0, 1, 3000])
def test_content_that_is_too_large_is_reported_at_its_header_and_swallowed(chunk_bytes: int) -> None:
    data = FrameFactory(1, 4096).publish("key", bytes(9000)) + QOS
    assert read(data, chunk_bytes) == [("content_too_large", 1, 9000), QOS_CALL]
    fitting, too_large = make.publish("key", bytes(1000)), make.publish("key", bytes(1001))
    assert read(fitting + too_large, chunk_bytes) == [published(bytes(1000)), ("content_too_large", 1, 1001)]


def test_swallowing_keeps_nothing() -> None:
    reader = FrameReader(RecordingHandler(), 4096, 1000)
    reader.feed(PUBLISH + make.header(2**64 - 1))
    for _ in range(100):
        reader.feed(make.body(bytes(4000)))
        assert reader.buffered_bytes == 0


def test_the_handler_may_discard_the_channel_of_a_content_that_is_too_large() -> None:
    def react(call: Call) -> None:
        if call[0] == "content_too_large":
            reader.discard_channel(call[1])

    handler = RecordingHandler(react)
    reader = FrameReader(handler, 4096, 10)
    reader.feed(PUBLISH + make.header(11) + QOS + make.body(bytes(9)) + two.publish())
    assert handler.calls == [("content_too_large", 1, 11), published(b"body", 2)]


# -------------------------------------------------------------------------------------------------------- channels
CHANNEL_CLOSE = make.method(commands.Channel.Close, reply_code=200, reply_text="bye")
CHANNEL_CLOSE_CALL: Call = (
    "method",
    1,
    "Channel.Close",
    {"reply_code": 200, "reply_text": "bye", "class_id": 0, "method_id": 0},
)
CHANNEL_CLOSE_OK = make.method(commands.Channel.CloseOk)
CHANNEL_CLOSE_OK_CALL: Call = ("method", 1, "Channel.CloseOk", {})


def test_a_discarded_channel_passes_only_close_and_close_ok_until_it_is_reset() -> None:
    def react(call: Call) -> None:
        if call == published(b"bad"):
            reader.discard_channel(1)
        elif call == CHANNEL_CLOSE_OK_CALL:
            reader.reset_channel(1)

    handler = RecordingHandler(react)
    reader = FrameReader(handler)
    broken = make.header(5) + make.raw_method(60, 10) + make.raw(77, b"") + make.raw(METHOD, b"") + make.raw(8, b"")
    reader.feed(make.publish("key", b"bad") + make.publish() + encode_ack(1, 1, False) + broken + two.publish())
    reader.feed(CHANNEL_CLOSE + QOS + CHANNEL_CLOSE_OK + make.publish("key", b"good"))
    assert handler.calls == [
        published(b"bad"),
        published(b"body", 2),
        CHANNEL_CLOSE_CALL,
        CHANNEL_CLOSE_OK_CALL,
        published(b"good"),
    ]


def test_a_discarded_channels_frames_must_still_be_frames() -> None:
    for broken in (QOS[:-1] + b"\x00", struct.pack(">BHI", 3, 1, 9000), make.raw_method(20, 40)):
        reader = FrameReader(RecordingHandler())
        reader.discard_channel(1)
        assert feed_all(reader, broken) == [501]


def test_a_channel_discarded_in_the_middle_of_content_forgets_it() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler)
    reader.feed(PUBLISH + make.header(100) + make.body(bytes(50)))
    assert reader.buffered_bytes == 50 + len(content_header.EMPTY)
    reader.discard_channel(1)
    assert reader.buffered_bytes == 0
    reader.feed(make.body(bytes(50)) + CHANNEL_CLOSE_OK)
    reader.reset_channel(1)
    reader.feed(make.publish())
    assert handler.calls == [CHANNEL_CLOSE_OK_CALL, published(b"body")]


def test_reset_forgets_half_a_content() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler)
    reader.feed(PUBLISH)
    reader.reset_channel(1)
    reader.reset_channel(5)
    reader.feed(QOS)
    assert handler.calls == [QOS_CALL]


def test_channel_zero_is_never_reset_or_discarded() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler)
    reader.reset_channel(0)
    reader.discard_channel(0)
    assert feed_all(reader, CLOSE_OK + control.publish()) == [504]
    assert handler.calls == [CLOSE_OK_CALL]


# ---------------------------------------------------------------------------------------------- opening and closing
def test_nothing_but_channel_0_is_read_before_connection_open() -> None:
    for early in (make.method(commands.Channel.Open), make.publish(), make.raw(8, b""), make.body(b"x")):
        assert feed_all(FrameReader(RecordingHandler(), opened=False), early) == [505]
    reader = FrameReader(RecordingHandler(), opened=False)
    with pytest.raises(AmqpError, match="unexpected method in connection state opening"):
        reader.feed(control.publish())


def test_an_accepted_connection_open_opens_the_channels() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler, opened=False)
    opening = control.method(commands.Connection.Open, virtual_host="/")
    reader.feed(control.method(commands.Connection.TuneOk) + HEARTBEAT + opening + make.publish() + opening)
    assert [call[:3] for call in handler.calls] == [
        ("method", 0, "Connection.TuneOk"),
        ("heartbeat",),
        ("method", 0, "Connection.Open"),
        ("publish", 1, ""),
        ("method", 0, "Connection.Open"),
    ]


def test_a_refused_connection_open_does_not() -> None:
    def react(call: Call) -> None:
        raise AmqpError(ReplyCode.NOT_ALLOWED, "vhost x not found", 10, 40)

    reader = FrameReader(RecordingHandler(react), opened=False)
    opening = control.method(commands.Connection.Open, virtual_host="x")
    assert feed_all(reader, opening + make.publish()) == [530]
    assert reader.buffered_bytes == 0


def test_discard_all_passes_only_the_end_of_the_connection() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler)
    reader.feed(PUBLISH + make.header(10))
    reader.discard_all()
    close = control.method(commands.Connection.Close, reply_code=200)
    noise = make.body(bytes(11)) + QOS + HEARTBEAT + control.raw(9, b"") + CHANNEL_CLOSE + control.publish()
    reader.feed(noise + close + encode_ack(1, 1, False) + CLOSE_OK)
    assert [call[2] for call in handler.calls] == ["Connection.Close", "Connection.CloseOk"]


def test_a_lost_frame_while_closing_is_no_error() -> None:
    for broken in (QOS[:-1] + b"\x00", struct.pack(">BHI", 3, 1, 9000)):
        handler = RecordingHandler()
        reader = FrameReader(handler)
        reader.discard_all()
        reader.feed(broken + CLOSE_OK)
        assert not reader.is_synchronized
        assert handler.calls == []


# ------------------------------------------------------------------------------------------ when the handler raises
@pytest.mark.parametrize("chunk_bytes", [0, 1, 50])
def test_after_an_exception_of_the_handler_reading_goes_on_behind_that_frame(chunk_bytes: int) -> None:
    def react(call: Call) -> None:
        if call[-1] == b"bad":
            reader.discard_channel(1)
            raise AmqpError(ReplyCode.NOT_FOUND, "no exchange 'x' in vhost '/'", 60, 40)

    handler = RecordingHandler(react)
    reader = FrameReader(handler)
    data = make.publish("key", b"bad") + make.publish() + two.publish() + encode_ack(2, 1, False)
    assert feed_all(reader, data, chunk_bytes) == [404]
    assert handler.calls == [published(b"bad"), published(b"body", 2), ("ack", 2, 1, False)]
    assert reader.buffered_bytes == 0


def test_what_follows_an_exception_may_come_with_the_next_read() -> None:
    def react(call: Call) -> None:
        if call == ("heartbeat",):
            raise ValueError("a bug")

    handler = RecordingHandler(react)
    reader = FrameReader(handler)
    data = HEARTBEAT + QOS + make.publish()
    with pytest.raises(ValueError, match="a bug"):
        reader.feed(data[:-3])
    assert reader.buffered_bytes == len(data) - 3 - len(HEARTBEAT)
    reader.feed(data[-3:])
    reader.feed(QOS)
    assert handler.calls == [("heartbeat",), QOS_CALL, published(b"body"), QOS_CALL]


def test_a_hard_error_of_the_handler_ends_all_but_the_closing() -> None:
    def react(call: Call) -> None:
        if call[0] == "ack":
            raise AmqpError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'", 60, 80)

    handler = RecordingHandler(react)
    reader = FrameReader(handler)
    assert feed_all(reader, encode_ack(1, 1, False) + QOS + CLOSE_OK) == [504]
    assert handler.calls == [("ack", 1, 1, False), CLOSE_OK_CALL]


def test_many_failures_in_one_read_cost_no_copies_of_the_rest() -> None:
    def react(call: Call) -> None:
        raise AmqpError(ReplyCode.NOT_FOUND, "gone")

    reader = FrameReader(RecordingHandler(react))
    data = make.publish() * 5000
    assert feed_all(reader, data) == [404] * 5000


# ---------------------------------------------------------------------------------------------------------- memory
def test_a_frame_that_comes_byte_by_byte_costs_its_size_once() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler, 131072, 200_000)
    data = FrameFactory(1).publish("key", bytes(131064))
    for start in range(len(data) - 1):
        reader.feed(data[start : start + 1])
    assert handler.calls == []
    assert reader.buffered_bytes == 131064 + 7 + len(content_header.EMPTY)
    reader.feed(data[-1:])
    assert handler.calls == [published(bytes(131064))]
    assert reader.buffered_bytes == 0


def test_a_body_in_tiny_frames_costs_no_more_than_its_bytes() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler, 4096, 200_000)
    reader.feed(PUBLISH + make.header(20_000))
    for _ in range(19_999):
        reader.feed(make.body(b"x") + make.body(b""))
    assert reader.buffered_bytes == 19_999 + len(content_header.EMPTY)
    reader.feed(make.body(b"x"))
    assert handler.calls == [published(b"x" * 20_000)]


def test_the_header_of_a_content_in_part_counts() -> None:
    reader = FrameReader(RecordingHandler(), 131072, 200_000)
    header = content_header.build({}, {"note": ("S", bytes(1000))})
    reader.feed(PUBLISH + make.header(10, header))
    assert reader.buffered_bytes == len(header)
    reader.feed(make.body(bytes(10)))
    assert reader.buffered_bytes == 0


def test_the_header_of_a_content_that_is_too_large_is_not_kept() -> None:
    reader = FrameReader(RecordingHandler(), 131072, 1000)
    reader.feed(PUBLISH + make.header(1001, content_header.build({}, {"note": ("S", bytes(1000))})))
    assert reader.buffered_bytes == 0


# ------------------------------------------------------------------------------------------- publishes that are held
def has_begun(reader: FrameReader) -> bool:
    return reader.has_begun


@pytest.mark.parametrize("chunk_bytes", [0, 1, 7, 4096])
def test_where_publishes_are_held_the_reader_stops_at_the_next_one(chunk_bytes: int) -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler, 4096)
    reader.holds_publishes = True
    with pytest.raises(frames.PublishHeld):
        reader.feed(QOS + make.publish("key", b"one") + QOS)
    assert handler.calls == [QOS_CALL]
    assert has_begun(reader)
    rest = make.publish("key", b"two") + QOS
    for at in range(0, len(rest), chunk_bytes or len(rest)):
        with pytest.raises(frames.PublishHeld):
            reader.feed(rest[at : at + (chunk_bytes or len(rest))])
    assert handler.calls == [QOS_CALL]
    assert reader.buffered_bytes > len(rest)
    reader.holds_publishes = False
    reader.feed(b"")
    assert handler.calls == [QOS_CALL, published(b"one"), QOS_CALL, published(b"two"), QOS_CALL]
    assert not has_begun(reader)
    assert reader.buffered_bytes == 0


def test_what_is_kept_may_end_in_the_middle_of_a_frame() -> None:
    handler = RecordingHandler()
    reader = FrameReader(handler, 4096)
    body = make.body(b"body")
    reader.feed(PUBLISH + make.header(4) + body[:-1])
    assert has_begun(reader)
    reader.holds_publishes = True
    with pytest.raises(frames.PublishHeld):
        reader.feed(body[-1:])
    assert handler.calls == []
    reader.holds_publishes = False
    reader.feed(b"")
    assert handler.calls == [published(b"body")]


def test_a_content_that_is_swallowed_has_not_begun() -> None:
    reader = FrameReader(RecordingHandler(), 4096, max_body_bytes=3)
    reader.feed(PUBLISH)
    assert has_begun(reader)
    reader.feed(make.header(4))
    assert not has_begun(reader)
    reader.discard_channel(1)
    assert not has_begun(reader)

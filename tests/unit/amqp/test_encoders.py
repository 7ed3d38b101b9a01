from __future__ import annotations

from typing import Any

import pytest
from pamqp import base, commands, header, heartbeat
from pamqp import body as content_body

from connector.amqp import header as content_header
from connector.amqp import methods
from connector.amqp.frames import (
    GET_EMPTY,
    HEARTBEAT,
    DeliverEncoder,
    encode_ack,
    encode_get_ok,
    encode_method,
    encode_nack,
    encode_return,
)
from tests.support.frame_factory import BODY, HEADER, METHOD, fields_of, read_frames, split_frames

HEADER_BYTES = content_header.build({"delivery_mode": 2}, {"n": ("I", 1)})


def method_of(data: bytes) -> tuple[int, str, dict[str, object]]:
    """The first frame, a method, as (channel, name, fields)."""
    channel_no, method = read_frames(data)[0]
    assert isinstance(method, base.Frame)
    return channel_no, *fields_of(method)


def one(data: bytes) -> tuple[int, str, dict[str, object]]:
    assert len(read_frames(data)) == 1
    return method_of(data)


def test_confirms() -> None:
    assert one(encode_ack(7, 2**62, True)) == (7, "Basic.Ack", {"delivery_tag": 2**62, "multiple": True})
    assert one(encode_ack(1, 1, False)) == (1, "Basic.Ack", {"delivery_tag": 1, "multiple": False})
    nack = {"delivery_tag": 5, "multiple": True, "requeue": False}
    assert one(encode_nack(65535, 5, True)) == (65535, "Basic.Nack", nack)
    assert one(encode_nack(1, 5, False, True)) == (1, "Basic.Nack", {**nack, "multiple": False, "requeue": True})


def test_get_empty_and_heartbeat() -> None:
    assert one(GET_EMPTY(3)) == (3, "Basic.GetEmpty", {"cluster_id": ""})
    assert heartbeat.Heartbeat.marshal() == HEARTBEAT


def test_any_method() -> None:
    assert one(encode_method(2, commands.Basic.ConsumeOk("tag"))) == (2, "Basic.ConsumeOk", {"consumer_tag": "tag"})


def deliver(encoder: DeliverEncoder, tag: int, body: bytes, frame_max: int = 131072, **changes: Any) -> bytes:
    message: dict[str, Any] = {
        "redelivered": False,
        "exchange": "ex",
        "routing_key": "key",
        "header": HEADER_BYTES,
        **changes,
    }
    return encoder.encode(tag, body=body, frame_max=frame_max, **message)


def assert_delivered(data: bytes, tag: int, body: bytes, redelivered: bool = False, **changes: Any) -> None:
    (channel_no, method), (_, head), *bodies = read_frames(data)
    assert channel_no == 9
    assert isinstance(method, commands.Basic.Deliver)
    address = {"exchange": changes.get("exchange", "ex"), "routing_key": changes.get("routing_key", "key")}
    expected = {"consumer_tag": "ctag", "delivery_tag": tag, "redelivered": redelivered, **address}
    assert dict(method) == expected
    assert isinstance(head, header.ContentHeader)
    assert head.body_size == len(body)
    assert b"".join(part.value for _, part in bodies if isinstance(part, content_body.ContentBody)) == body


def test_deliveries_that_repeat_and_that_change() -> None:
    encoder = DeliverEncoder(9, "ctag")
    changes: list[dict[str, Any]] = [
        {},
        {},
        {"redelivered": True},
        {"exchange": ""},
        {"routing_key": "other"},
        {"header": content_header.EMPTY},
        {"header": content_header.build({}, {"long": ("S", bytes(5000))})},
        {},
    ]
    for tag, change in enumerate(changes, 1):
        for body in (b"same", b"same", b"", b"longer"):
            data = deliver(encoder, tag, body, **change)
            assert_delivered(data, tag, body, **change)
            raw_header = list(split_frames(data))[1][2][12:]
            assert raw_header == change.get("header", HEADER_BYTES)


def test_what_a_consumer_keeps_is_bounded() -> None:
    encoder = DeliverEncoder(9, "ctag")
    for number in range(1000):
        data = deliver(encoder, 1, b"x", routing_key=f"key.{number}")
        assert_delivered(data, 1, b"x", routing_key=f"key.{number}")
    assert len(encoder._addresses) <= 256
    deliver(encoder, 1, b"x", header=content_header.build({}, {"long": ("S", bytes(5000))}))
    assert len(encoder._middle) < 1024


def kinds_and_sizes(data: bytes) -> list[tuple[int, int]]:
    return [(kind, len(payload)) for kind, _, payload in split_frames(data)]


@pytest.mark.parametrize(
    ("size", "frame_max", "bodies"),
    [
        (0, 4096, []),
        (1, 4096, [1]),
        (4088, 4096, [4088]),
        (4089, 4096, [4088, 1]),
        (10000, 4096, [4088, 4088, 1824]),
        (500_000, 0, [500_000]),
        (0, 0, []),
    ],
)
def test_bodies_are_split_at_frame_max_less_the_overhead(size: int, frame_max: int, bodies: list[int]) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    for data in (
        deliver(DeliverEncoder(9, "ctag"), 4, body, frame_max),
        encode_get_ok(9, 4, False, "ex", "key", 3, HEADER_BYTES, body, frame_max),
        encode_return(9, 312, "NO_ROUTE", "ex", "key", HEADER_BYTES, body, frame_max),
    ):
        (method, _), head, *rest = kinds_and_sizes(data)
        assert method == METHOD
        assert head == (HEADER, 12 + len(HEADER_BYTES))
        assert rest == [(BODY, part) for part in bodies]
        assert b"".join(payload for kind, _, payload in split_frames(data) if kind == BODY) == body


def test_a_header_longer_than_frame_max_is_one_frame() -> None:
    long = content_header.build({}, {"h": ("S", bytes(6000))})
    data = deliver(DeliverEncoder(9, "ctag"), 1, b"x" * 5000, 4096, header=long)
    assert [size for kind, size in kinds_and_sizes(data) if kind == HEADER] == [12 + len(long)]


def test_get_ok_and_return() -> None:
    assert method_of(encode_get_ok(9, 4, True, "ex", "key", 3, HEADER_BYTES, b"b", 4096)) == (
        9,
        "Basic.GetOk",
        {"delivery_tag": 4, "redelivered": True, "exchange": "ex", "routing_key": "key", "message_count": 3},
    )
    assert method_of(encode_return(9, 312, "NO_ROUTE", "ex", "key", HEADER_BYTES, b"b", 4096)) == (
        9,
        "Basic.Return",
        {"reply_code": 312, "reply_text": "NO_ROUTE", "exchange": "ex", "routing_key": "key"},
    )


def test_names_that_are_not_utf8_go_out_as_they_came_in() -> None:
    key = b"\xff\x80".decode("utf-8", "surrogateescape")
    data = deliver(DeliverEncoder(9, "ctag"), 1, b"x", routing_key=key)
    assert b"\x02\xff\x80\xce" in data


def test_the_method_codec_writes_the_same_frames() -> None:
    get_ok = methods.build(
        commands.Basic.GetOk, delivery_tag=2**64 - 1, exchange="e", routing_key="k", message_count=2**32 - 1
    )
    data = encode_get_ok(9, 2**64 - 1, False, "e", "k", 2**32 - 1, HEADER_BYTES, b"", 4096)
    assert data.startswith(encode_method(9, get_ok))

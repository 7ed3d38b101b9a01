"""Frames for tests: raw ones that may be broken, whole ones as pamqp writes them, and handlers that record.

``FrameFactory`` makes bytes as a client sends them; ``RecordingHandler`` keeps what a ``FrameReader`` reports as plain
tuples; ``split_frames`` and ``read_frames`` take a server's bytes apart again, with pamqp.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from pamqp import base, commands
from pamqp import frame as pamqp_frame

from connector.amqp import header as content_header
from connector.amqp import methods
from connector.amqp.errors import AmqpError
from connector.amqp.frames import FrameReader, encode_method

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8

#: One handler call: its name without ``on_``, then its arguments; a method as (name, fields).
Call = tuple[Any, ...]


class FrameFactory:
    """Makes frames of one channel."""

    def __init__(self, channel_no: int = 1, frame_max: int = 131072) -> None:
        self.channel_no = channel_no
        self.frame_max = frame_max

    def raw(self, kind: int, payload: bytes, end: int = 0xCE) -> bytes:
        """Any frame, also one that is not allowed."""
        return struct.pack(">BHI", kind, self.channel_no, len(payload)) + payload + bytes((end,))

    def raw_method(self, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
        """A method frame with any arguments."""
        return self.raw(METHOD, struct.pack(">HH", class_id, method_id) + arguments)

    def method(self, kind: type[base.Frame], **fields: object) -> bytes:
        """A method of any names (pamqp's constructors refuse some)."""
        return encode_method(self.channel_no, methods.build(kind, **fields))

    def header(self, size: int, header: bytes = content_header.EMPTY, class_id: int = 60, weight: int = 0) -> bytes:
        """A content header frame."""
        return self.raw(HEADER, struct.pack(">HHQ", class_id, weight, size) + header)

    def body(self, body: bytes) -> bytes:
        """One body frame."""
        return self.raw(BODY, body)

    def publish(
        self,
        routing_key: str = "key",
        body: bytes = b"body",
        exchange: str = "",
        header: bytes = content_header.EMPTY,
        mandatory: bool = False,
        immediate: bool = False,
    ) -> bytes:
        """A whole basic.publish, its body split at frame_max - 8."""
        step = self.frame_max - 8
        return (
            self.method(
                commands.Basic.Publish,
                exchange=exchange,
                routing_key=routing_key,
                mandatory=mandatory,
                immediate=immediate,
            )
            + self.header(len(body), header)
            + b"".join(self.body(body[start : start + step]) for start in range(0, len(body), step))
        )


HEARTBEAT_FRAME = FrameFactory(0).raw(HEARTBEAT, b"")


def fields_of(method: base.Frame) -> Call:
    """A method as (name, {field: value})."""
    return method.name, dict(method)


class RecordingHandler:
    """A ``FrameHandler`` that keeps every call in ``calls``; ``react`` may do something at each."""

    def __init__(self, react: Callable[[Call], None] | None = None) -> None:
        self.calls: list[Call] = []
        self.react = react

    def _record(self, *call: object) -> None:
        self.calls.append(call)
        if self.react is not None:
            self.react(call)

    def on_publish(
        self, channel_no: int, exchange: str, routing_key: str, bits: int, header: bytes, body: bytes
    ) -> None:
        assert type(header) is bytes
        assert type(body) is bytes
        self._record("publish", channel_no, exchange, routing_key, bits, header, body)

    def on_ack(self, channel_no: int, delivery_tag: int, multiple: bool) -> None:
        self._record("ack", channel_no, delivery_tag, multiple)

    def on_nack(self, channel_no: int, delivery_tag: int, multiple: bool, requeue: bool) -> None:
        self._record("nack", channel_no, delivery_tag, multiple, requeue)

    def on_reject(self, channel_no: int, delivery_tag: int, requeue: bool) -> None:
        self._record("reject", channel_no, delivery_tag, requeue)

    def on_get(self, channel_no: int, queue: str, no_ack: bool) -> None:
        self._record("get", channel_no, queue, no_ack)

    def on_method(self, channel_no: int, method: base.Frame, size: int) -> None:
        self._record("method", channel_no, *fields_of(method))

    def on_heartbeat(self) -> None:
        self._record("heartbeat")

    def on_content_too_large(self, channel_no: int, size: int) -> None:
        self._record("content_too_large", channel_no, size)


def feed_all(reader: FrameReader, data: bytes, chunk_bytes: int = 0) -> list[int]:
    """Feed everything, in chunks, going on after each AmqpError; returns the codes of the errors."""
    codes = []
    step = chunk_bytes or len(data) or 1
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        while True:
            try:
                reader.feed(piece)
                break
            except AmqpError as error:
                codes.append(int(error.code))
                piece = b""
    return codes


def split_frames(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Each frame of well-formed bytes as (type, channel, payload)."""
    position = 0
    while position < len(data):
        kind, channel_no, size = struct.unpack_from(">BHI", data, position)
        end = position + 7 + size
        assert data[end] == 0xCE
        yield kind, channel_no, data[position + 7 : end]
        position = end + 1


def read_frames(data: bytes) -> list[tuple[int, pamqp_frame.FrameTypes]]:
    """Each frame of well-formed bytes as pamqp reads it: (channel, frame); the class it lacks is read by us."""
    found: list[tuple[int, pamqp_frame.FrameTypes]] = []
    while data:
        if data[0] == METHOD and data[7:9] == b"\x00\x1e":
            channel_no, size = struct.unpack_from(">HI", data, 1)
            found.append((channel_no, methods.decode(data[7 : size + 7])))
            size += 8
        else:
            size, channel_no, item = pamqp_frame.unmarshal(data)
            assert item is not None
            found.append((channel_no, item))
        data = data[size:]
    return found

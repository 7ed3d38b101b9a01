"""Frames to the client: bytes for what is sent often, built without an object per frame.

Owns the layout of deliver, get-ok, return, ack, nack, get-empty, heartbeat, and of any other method through
``methods.encode``.  A content header always goes out as one frame, however long, as RabbitMQ does; bodies are split at
the client's frame_max - 8 (AMQP 0-9-1, sections 2.3.5 and 4.2.6); an empty body has no body frame.  Must not know
consumers, queues or when something is sent.  Imported through ``connector.amqp.frames``.
"""

from __future__ import annotations

import struct

from pamqp import base

from connector.amqp import methods
from connector.amqp.wire import write_shortstr

FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE

#: type, channel and size in front of a frame's payload, the end octet behind it
FRAME_OVERHEAD_BYTES = 8

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_END = b"\xce"
_FRAME = struct.Struct(">BHI")
_METHOD = struct.Struct(">BHII")
_ACK = struct.Struct(">BHIIQBB")
_CONTENT = struct.Struct(">BHIIQ")
_TAG = struct.Struct(">QB")
_COUNT = struct.Struct(">IB")
_CODE = struct.Struct(">H")

_BASIC_CLASS = 60 << 16
_RETURN, _DELIVER, _GET_OK, _GET_EMPTY = (_BASIC_CLASS | method for method in (50, 60, 71, 72))
_ACK_INDEX, _NACK_INDEX = (_BASIC_CLASS | method for method in (80, 120))

_ADDRESSES_MAX = 256
#: A header longer than this is not kept beyond its own delivery.
_KEPT_HEADER_MAX_BYTES = 1024


def encode_method(channel_no: int, method: base.Frame) -> bytes:
    """Encode any method without content as one frame; raises ValueError when a value does not fit its field."""
    payload = methods.encode(method)
    return _FRAME.pack(FRAME_METHOD, channel_no, len(payload)) + payload + _END


def encode_ack(channel_no: int, delivery_tag: int, multiple: bool) -> bytes:
    """Encode basic.ack, a confirm."""
    return _ACK.pack(FRAME_METHOD, channel_no, 13, _ACK_INDEX, delivery_tag, multiple, FRAME_END)


def encode_nack(channel_no: int, delivery_tag: int, multiple: bool, requeue: bool = False) -> bytes:
    """Encode basic.nack, a confirm of something not stored; ``requeue`` has no meaning from server to client."""
    bits = multiple | requeue << 1
    return _ACK.pack(FRAME_METHOD, channel_no, 13, _NACK_INDEX, delivery_tag, bits, FRAME_END)


def GET_EMPTY(channel_no: int) -> bytes:  # noqa: N802 - a constant but for its channel
    """Encode basic.get-empty."""
    return _METHOD.pack(FRAME_METHOD, channel_no, 5, _GET_EMPTY) + b"\x00\xce"


def encode_get_ok(
    channel_no: int,
    delivery_tag: int,
    redelivered: bool,
    exchange: str,
    routing_key: str,
    message_count: int,
    header: bytes,
    body: bytes,
    frame_max: int,
) -> bytes:
    """Encode basic.get-ok with its content; ``message_count`` is what is left in the queue."""
    address = write_shortstr(exchange) + write_shortstr(routing_key)
    method = (
        _METHOD.pack(FRAME_METHOD, channel_no, len(address) + 17, _GET_OK)
        + _TAG.pack(delivery_tag, redelivered)
        + address
        + _COUNT.pack(message_count, FRAME_END)
    )
    return method + _encode_content(channel_no, header, body, frame_max)


def encode_return(
    channel_no: int,
    code: int,
    text: str,
    exchange: str,
    routing_key: str,
    header: bytes,
    body: bytes,
    frame_max: int,
) -> bytes:
    """Encode basic.return with its content; ``text`` is the whole reply text (RabbitMQ says just ``NO_ROUTE``)."""
    fields = _CODE.pack(code) + write_shortstr(text) + write_shortstr(exchange) + write_shortstr(routing_key)
    method = _METHOD.pack(FRAME_METHOD, channel_no, len(fields) + 4, _RETURN) + fields + _END
    return method + _encode_content(channel_no, header, body, frame_max)


def header_frame_bytes(header: bytes) -> int:
    """Size of the frame that a content header goes out in."""
    return len(header) + _CONTENT.size + 1


def _encode_content(channel_no: int, header: bytes, body: bytes, frame_max: int) -> bytes:
    """Encode the header frame and the body frames."""
    size = len(body)
    parts: list[bytes | memoryview] = [
        _CONTENT.pack(FRAME_HEADER, channel_no, len(header) + 12, _BASIC_CLASS, size),
        header,
        _END,
    ]
    step = frame_max - FRAME_OVERHEAD_BYTES if frame_max else size
    if size <= step:
        if size:
            parts += (_FRAME.pack(FRAME_BODY, channel_no, size), body, _END)
    else:
        view = memoryview(body)
        for start in range(0, size, step):
            part = view[start : start + step]
            parts += (_FRAME.pack(FRAME_BODY, channel_no, len(part)), part, _END)
    return b"".join(parts)


class DeliverEncoder:
    """Encodes the deliveries of one consumer; what repeats from one to the next is kept as bytes."""

    __slots__ = (
        "_addresses",
        "_channel_no",
        "_exchange",
        "_head",
        "_header",
        "_middle",
        "_routing_key",
        "_size",
        "_tag",
    )

    def __init__(self, channel_no: int, consumer_tag: str) -> None:
        self._channel_no = channel_no
        self._tag = write_shortstr(consumer_tag)
        self._addresses: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        self._size = -1
        self._exchange = ""
        self._routing_key = ""
        self._header = b""
        self._head = b""
        self._middle = b""

    def encode(
        self,
        delivery_tag: int,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
        frame_max: int,
    ) -> bytes:
        """Encode one basic.deliver with its content; ``frame_max`` in bytes, 0 for no limit."""
        size = len(body)
        if size > frame_max - FRAME_OVERHEAD_BYTES and frame_max:
            head, behind = self._address(exchange, routing_key)
            content = _encode_content(self._channel_no, header, body, frame_max)
            return b"".join((head, _TAG.pack(delivery_tag, redelivered), behind, content))
        if (
            size != self._size
            or header != self._header
            or routing_key != self._routing_key
            or exchange != self._exchange
        ):
            head, middle = self._around(exchange, routing_key, header, size)
        else:
            head, middle = self._head, self._middle
        if size:
            return b"".join((head, _TAG.pack(delivery_tag, redelivered), middle, body, _END))
        return b"".join((head, _TAG.pack(delivery_tag, redelivered), middle))

    def _address(self, exchange: str, routing_key: str) -> tuple[bytes, bytes]:
        """Encode the method up to the delivery tag, and behind ``redelivered``, with the frame's end."""
        found = self._addresses.get((exchange, routing_key))
        if found is None:
            address = write_shortstr(exchange) + write_shortstr(routing_key)
            size = len(self._tag) + len(address) + 13
            found = (_METHOD.pack(FRAME_METHOD, self._channel_no, size, _DELIVER) + self._tag, address + _END)
            if len(self._addresses) >= _ADDRESSES_MAX:
                self._addresses.clear()
            self._addresses[exchange, routing_key] = found
        return found

    def _around(self, exchange: str, routing_key: str, header: bytes, size: int) -> tuple[bytes, bytes]:
        """Encode what stands before the tag, and from behind ``redelivered`` up to the body; keeps it for the next."""
        head, behind = self._address(exchange, routing_key)
        middle = b"".join(
            (
                behind,
                _CONTENT.pack(FRAME_HEADER, self._channel_no, len(header) + 12, _BASIC_CLASS, size),
                header,
                _END,
                _FRAME.pack(FRAME_BODY, self._channel_no, size) if size else b"",
            )
        )
        if len(header) <= _KEPT_HEADER_MAX_BYTES:
            self._exchange, self._routing_key, self._header, self._size = exchange, routing_key, header, size
            self._head, self._middle = head, middle
        return head, middle

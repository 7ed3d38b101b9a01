"""The hot codec: a byte stream becomes calls of a handler, one tight loop over the buffer.

Owns the framing rules (AMQP 0-9-1, sections 2.3.5 and 4.2; PC-12) with RabbitMQ 3.10's codes for their violation, and
the assembly of content (PU-01).  basic's publish, ack, nack, reject and get are read here, every other method in
``methods.py``; content headers stay bytes.  Must not know which channels are open, nor what any method does.

A publish whose three frames are whole in the buffer and follow one another costs no object but its own strings.  All
else takes ``_frame``, one frame at a time.

The encoders of ``encoders.py`` are part of this module's interface.
"""

from __future__ import annotations

import struct
from typing import Protocol

from pamqp import base

from connector.amqp import methods
from connector.amqp.encoders import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD_BYTES,
    GET_EMPTY,
    HEARTBEAT,
    DeliverEncoder,
    encode_ack,
    encode_get_ok,
    encode_method,
    encode_nack,
    encode_return,
    header_frame_bytes,
)
from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode

__all__ = [
    "FRAME_OVERHEAD_BYTES",
    "GET_EMPTY",
    "HEARTBEAT",
    "DeliverEncoder",
    "FrameHandler",
    "FrameReader",
    "PublishHeld",
    "encode_ack",
    "encode_get_ok",
    "encode_method",
    "encode_nack",
    "encode_return",
    "header_frame_bytes",
]

#: What a client may send before the tuning (PC-21).
INITIAL_FRAME_MAX = 8192
MAX_BODY_BYTES = 16 * 1024 * 1024

#: RabbitMQ lets a payload be this much longer than frame_max allows, as "quite a few" clients forget the overhead.
_SIZE_TOLERANCE_BYTES = FRAME_OVERHEAD_BYTES

_END = bytes((FRAME_END,))

_HEAD_BYTES = 7
_HEAD = struct.Struct(">BHI")
_METHOD_HEAD = struct.Struct(">BHII")
_CONTENT_HEAD = struct.Struct(">BHIIQ")
_SETTLE = struct.Struct(">QB")
_INDEX = struct.Struct(">I")
_CONTENT = struct.Struct(">HHQ")

#: type, channel, size, class, weight, body size, property flags, end
_HEADER_FRAME_MIN_BYTES = 22

_BASIC = 60 << 16
_PUBLISH, _RETURN, _DELIVER, _GET, _GET_OK = (_BASIC | method for method in (40, 50, 60, 70, 71))
_ACK, _REJECT, _NACK = (_BASIC | method for method in (80, 90, 120))
_CONNECTION_OPEN, _CONNECTION_CLOSE, _CONNECTION_CLOSE_OK = (10 << 16 | method for method in (40, 50, 51))
_CHANNEL_CLOSE, _CHANNEL_CLOSE_OK = (20 << 16 | method for method in (40, 41))
_CONNECTION_CLASS = 10
_SERVER_CONTENT = frozenset({_RETURN, _DELIVER, _GET_OK})

#: basic.publish arguments with the frame's end octet -> (exchange, routing key, bits); shared by all readers
_addresses: dict[bytes, tuple[str, str, int]] = {}
_ADDRESSES_MAX = 4096


class PublishHeld(Exception):
    """A basic.publish has begun that is not to be taken now; ``feed(b"")`` goes on behind its method."""


class FrameHandler(Protocol):
    """Who is told what the client sent, in its order; may raise, see ``FrameReader.feed``."""

    def on_publish(
        self, channel_no: int, exchange: str, routing_key: str, bits: int, header: bytes, body: bytes
    ) -> None:
        """One basic.publish with its content; bits: 1 mandatory, 2 immediate; names may hold surrogates."""

    def on_ack(self, channel_no: int, delivery_tag: int, multiple: bool) -> None:
        """One basic.ack."""

    def on_nack(self, channel_no: int, delivery_tag: int, multiple: bool, requeue: bool) -> None:
        """One basic.nack."""

    def on_reject(self, channel_no: int, delivery_tag: int, requeue: bool) -> None:
        """One basic.reject."""

    def on_get(self, channel_no: int, queue: str, no_ack: bool) -> None:
        """One basic.get."""

    def on_method(self, channel_no: int, method: base.Frame, size: int) -> None:
        """Any other method, as ``methods.decode`` gives it, of ``size`` bytes before that.

        Class connection comes on channel 0, and never elsewhere.
        """

    def on_heartbeat(self) -> None:
        """A heartbeat frame."""

    def on_content_too_large(self, channel_no: int, size: int) -> None:
        """A content header announced more than ``max_body_bytes`` or ``max_bodies_bytes`` allow: it is swallowed."""


class _Content:
    """A basic.publish whose content is not complete: no header yet, or bytes of the body missing.

    ``body`` is None when the content is too large and swallowed; its header is empty then.
    """

    __slots__ = ("bits", "body", "exchange", "header", "missing", "routing_key")

    def __init__(self, exchange: str, routing_key: str, bits: int) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.bits = bits
        self.header: bytes | None = None
        self.missing = 0
        self.body: bytearray | None = None

    @property
    def kept_bytes(self) -> int:
        """What has come of header and body."""
        return len(self.header or b"") + len(self.body or b"")


#: Markers in the table of channels that need more than the fast path: channel 0, and one being discarded.
_CONTROL = _Content("", "", 0)
_DISCARDED = _Content("", "", 0)


class FrameReader:
    """Reads what one client sends.

    The contents that have begun and are not whole may announce ``max_bodies_bytes`` together, headers included (0: any
    number).
    ``opened=False`` refuses frames on other channels than 0 with UNEXPECTED_FRAME until the handler has taken a
    connection.open without raising, so that nothing is buffered for a stranger.
    """

    __slots__ = (
        "_channels",
        "_fast_limit",
        "_frame_max",
        "_handler",
        "_holds_publishes",
        "_is_closing",
        "_is_opened",
        "_limit",
        "_max_bodies_bytes",
        "_max_body_bytes",
        "_need",
        "_rest",
        "_rest_at",
        "_tail",
        "is_synchronized",
    )

    def __init__(
        self,
        handler: FrameHandler,
        frame_max: int = INITIAL_FRAME_MAX,
        max_body_bytes: int = MAX_BODY_BYTES,
        *,
        max_bodies_bytes: int = 0,
        opened: bool = True,
    ) -> None:
        self._handler = handler
        self._max_body_bytes = max_body_bytes
        self._max_bodies_bytes = max_bodies_bytes
        self._is_opened = opened
        self._is_closing = False
        self._holds_publishes = False
        #: False after a frame error: where the next frame begins is unknown, nothing more is read.
        self.is_synchronized = True
        self._channels: dict[int, _Content] = {0: _CONTROL}
        #: the beginning of a frame, and how many bytes make it worth a look
        self._tail = bytearray()
        self._need = 0
        #: what was not handled yet when the handler raised
        self._rest = b""
        self._rest_at = 0
        self.frame_max = frame_max

    # ---------------------------------------------------------------------------------------------- settings
    @property
    def frame_max(self) -> int:
        """The largest frame the client may send, in bytes with the overhead; 0: as large as a body may be."""
        return self._frame_max

    @frame_max.setter
    def frame_max(self, frame_max: int) -> None:
        self._frame_max = frame_max
        self._limit = (frame_max or self._max_body_bytes) - FRAME_OVERHEAD_BYTES + _SIZE_TOLERANCE_BYTES
        self._choose_path()

    def _choose_path(self) -> None:
        """Let no frame take the fast path unless the connection is open, not closing, and may publish."""
        may = self._is_opened and not self._is_closing and not self._holds_publishes
        self._fast_limit = min(self._limit, self._max_body_bytes) if may else -1

    @property
    def buffered_bytes(self) -> int:
        """How much is kept of content and frames that are not complete."""
        contents = sum([content.kept_bytes for content in self._channels.values() if content.header is not None])
        return contents + len(self._tail) + len(self._rest) - self._rest_at

    @property
    def has_begun(self) -> bool:
        """True when a basic.publish has come whose content is to be kept and is not whole."""
        contents = [content for content in self._channels.values() if content not in {_CONTROL, _DISCARDED}]
        return any(content.header is None or content.body is not None for content in contents)

    @property
    def holds_publishes(self) -> bool:
        """Whether ``feed`` stops, with PublishHeld, where a publish begins, and reads nothing behind one that has."""
        return self._holds_publishes

    @holds_publishes.setter
    def holds_publishes(self, is_on: bool) -> None:
        self._holds_publishes = is_on
        self._choose_path()

    def _hold(self, data: bytes) -> None:
        """Take what came from the socket without a look at it: that is for a later ``feed``."""
        if self._rest:
            self._rest, self._rest_at = self._rest[self._rest_at :] + data, 0
        else:
            self._keep(data, 0, 0)
        raise PublishHeld

    def reset_channel(self, channel_no: int) -> None:
        """Forget incomplete content of a channel, and that it was discarded: it is opened or closed."""
        if channel_no:
            self._channels.pop(channel_no, None)

    def discard_channel(self, channel_no: int) -> None:
        """Pass on nothing of this channel but channel.close and close-ok, however broken, until ``reset_channel``."""
        if channel_no:
            self._channels[channel_no] = _DISCARDED

    def discard_all(self) -> None:
        """Pass on nothing but connection.close and close-ok: for after our own connection.close.

        A hard AmqpError that leaves ``feed`` has done this already.
        """
        self._is_closing = True
        self._channels.clear()
        self._channels[0] = _CONTROL
        self._choose_path()

    # ---------------------------------------------------------------------------------------------- the loop
    def feed(self, data: bytes) -> None:
        """Read what came from the socket and call the handler, in order.

        Raises AmqpError (hard) on a broken frame, PublishHeld where ``holds_publishes`` asks for it; what the handler
        raises passes through.  Either way the frame is done with and what follows it is kept: ``feed(b"")`` goes on
        there.  After a frame error ``is_synchronized`` is false, and nothing more is read.
        """
        position = 0
        if self._holds_publishes and self.has_begun:
            self._hold(data)
        if self._rest or self._tail or not self.is_synchronized:
            data, position = self._join(data)
        end = len(data)
        channels, addresses = self._channels, _addresses
        on_publish, on_ack = self._handler.on_publish, self._handler.on_ack
        try:
            while True:
                while end - position > 20:
                    kind, channel_no, size, index = _METHOD_HEAD.unpack_from(data, position)
                    behind = position + size + 8
                    if kind != FRAME_METHOD or size > self._fast_limit or behind > end or channel_no in channels:
                        break
                    if index == _PUBLISH and end - behind >= _HEADER_FRAME_MIN_BYTES:
                        arguments = data[position + 11 : behind]
                        address = addresses.get(arguments) or _read_address(arguments)
                        kind, its_channel_no, size, class_id, body_size = _CONTENT_HEAD.unpack_from(data, behind)
                        body_at = behind + size + 8
                        if (
                            address is None
                            or kind != FRAME_HEADER
                            or its_channel_no != channel_no
                            or class_id != _BASIC
                            or not 12 <= size <= self._fast_limit
                            or body_at > end
                            or data[body_at - 1] != FRAME_END
                        ):
                            break
                        header = data[behind + 19 : body_at - 1]
                        if not body_size:
                            position = body_at
                            on_publish(channel_no, *address, header, b"")
                            continue
                        behind = body_at + body_size + 8
                        if behind > end or body_size > self._fast_limit or data[behind - 1] != FRAME_END:
                            break
                        if _HEAD.unpack_from(data, body_at) != (FRAME_BODY, channel_no, body_size):
                            break
                        position = behind
                        on_publish(channel_no, *address, header, data[body_at + 7 : behind - 1])
                    elif index == _ACK and size == 13 and data[behind - 1] == FRAME_END:
                        tag, multiple = _SETTLE.unpack_from(data, position + 11)
                        position = behind
                        on_ack(channel_no, tag, multiple & 1 == 1)
                    else:
                        break
                if end - position < _HEAD_BYTES:
                    if end > position:
                        self._keep(data, position, _HEAD_BYTES)
                    return
                kind, channel_no, size = _HEAD.unpack_from(data, position)
                if size > self._limit:
                    self._lose(f"frame of type {kind} with {size} octets, {self._frame_max} are allowed")
                    return
                behind = position + size + FRAME_OVERHEAD_BYTES
                if behind > end:
                    self._keep(data, position, size + FRAME_OVERHEAD_BYTES)
                    return
                if data[behind - 1] != FRAME_END:
                    self._lose(f"frame of type {kind} ends with {data[behind - 1]}")
                    return
                payload = data[position + _HEAD_BYTES : behind - 1]
                position = behind
                self._frame(kind, channel_no, payload)
        except BaseException as error:
            if isinstance(error, AmqpError) and error.code.is_hard:
                self.discard_all()
            if position < end and self.is_synchronized:
                self._rest, self._rest_at = data, position
            raise

    def _join(self, data: bytes) -> tuple[bytes, int]:
        """Put what was kept in front of ``data``; nothing when that makes no whole frame yet."""
        if not self.is_synchronized:
            return b"", 0
        if self._rest:
            rest, position = self._rest, self._rest_at
            self._rest, self._rest_at = b"", 0
            return (rest[position:] + data, 0) if data else (rest, position)
        tail = self._tail
        tail += data
        if len(tail) < self._need:
            return b"", 0
        data = bytes(tail)
        tail.clear()
        return data, 0

    def _keep(self, data: bytes, position: int, need: int) -> None:
        """Keep the beginning of a frame of ``need`` bytes."""
        self._tail += data[position:] if position else data
        self._need = need

    def _lose(self, reason: str) -> None:
        """Give up reading: where the next frame begins is unknown."""
        self.is_synchronized = False
        if not self._is_closing:
            raise AmqpError(ReplyCode.FRAME_ERROR, reason)

    # ---------------------------------------------------------------------------------------- one frame at a time
    def _frame(self, kind: int, channel_no: int, payload: bytes) -> None:
        content = self._channels.get(channel_no)
        if self._is_closing or content is _DISCARDED:
            self._discard(kind, channel_no, payload)
        elif channel_no and not self._is_opened:
            raise AmqpError(ReplyCode.UNEXPECTED_FRAME, f"channel {channel_no} used before connection.open")
        elif kind == FRAME_METHOD:
            self._method(channel_no, payload, content)
        elif kind == FRAME_HEADER:
            self._header(channel_no, payload, content)
        elif kind == FRAME_BODY:
            self._body(channel_no, payload, content)
        elif kind == FRAME_HEARTBEAT and not payload:
            if channel_no:
                raise AmqpError(ReplyCode.UNEXPECTED_FRAME, f"heartbeat on channel {channel_no}")
            self._handler.on_heartbeat()
        else:
            raise _unknown_frame(kind, payload)

    def _discard(self, kind: int, channel_no: int, payload: bytes) -> None:
        """Pass on only what ends the closing of the channel, or of the connection."""
        if kind != FRAME_METHOD or len(payload) < _INDEX.size:
            return
        index = _INDEX.unpack_from(payload)[0]
        if self._is_closing:
            passed = not channel_no and index in {_CONNECTION_CLOSE, _CONNECTION_CLOSE_OK}
        else:
            passed = index in {_CHANNEL_CLOSE, _CHANNEL_CLOSE_OK}
        if passed:
            self._handler.on_method(channel_no, methods.decode(payload), len(payload))

    def _method(self, channel_no: int, payload: bytes, content: _Content | None) -> None:
        if len(payload) < _INDEX.size:
            raise _unknown_frame(FRAME_METHOD, payload)
        index: int = _INDEX.unpack_from(payload)[0]
        if content is not None and content is not _CONTROL:
            raise _unexpected(content)
        if not channel_no:
            self._control_method(index, payload)
        elif index == _PUBLISH:
            address = _read_address(payload[4:] + _END)
            if address is None:
                raise _undecodable(index)
            self._channels[channel_no] = _Content(*address)
            if self._holds_publishes:
                raise PublishHeld
        elif index in {_ACK, _NACK, _REJECT}:
            self._settlement(channel_no, index, payload)
        elif index == _GET:
            method: base.Frame = methods.decode(payload)
            self._handler.on_get(channel_no, method["queue"], method["no_ack"])  # type: ignore[arg-type]
        elif index >> 16 == _CONNECTION_CLASS or index in _SERVER_CONTENT:
            raise AmqpError(ReplyCode.COMMAND_INVALID, "unimplemented method", index >> 16, index & 0xFFFF)
        else:
            self._handler.on_method(channel_no, methods.decode(payload), len(payload))

    def _control_method(self, index: int, payload: bytes) -> None:
        """Pass on a method on channel 0, where only class connection lives."""
        if index >> 16 != _CONNECTION_CLASS and index in methods.METHODS:
            state = "running" if self._is_opened else "opening"
            reason = f"unexpected method in connection state {state}"
            raise AmqpError(ReplyCode.CHANNEL_ERROR, reason, index >> 16, index & 0xFFFF)
        self._handler.on_method(0, methods.decode(payload), len(payload))
        if index == _CONNECTION_OPEN and not self._is_opened:
            self._is_opened = True
            self._choose_path()

    def _settlement(self, channel_no: int, index: int, payload: bytes) -> None:
        if len(payload) != 13:
            raise _undecodable(index)
        tag, bits = _SETTLE.unpack_from(payload, 4)
        if index == _ACK:
            self._handler.on_ack(channel_no, tag, bits & 1 == 1)
        elif index == _REJECT:
            self._handler.on_reject(channel_no, tag, bits & 1 == 1)
        else:
            self._handler.on_nack(channel_no, tag, bits & 1 == 1, bits & 2 == 2)

    def _header(self, channel_no: int, payload: bytes, content: _Content | None) -> None:
        if len(payload) < _CONTENT.size:
            raise _unknown_frame(FRAME_HEADER, payload)
        if content is None or content is _CONTROL or content.header is not None:
            raise _unexpected(content)
        class_id, weight, size = _CONTENT.unpack_from(payload)
        if class_id << 16 != _BASIC or weight:
            raise _unexpected(content, f"one for class {class_id}")
        header = payload[_CONTENT.size :]
        if not size:
            del self._channels[channel_no]
            self._handler.on_publish(channel_no, content.exchange, content.routing_key, content.bits, header, b"")
            return
        content.missing = size
        if size > self._max_body_bytes or not self._has_room(len(header) + size):
            content.header = b""
            self._handler.on_content_too_large(channel_no, size)
        else:
            content.header = header
            content.body = bytearray()

    def _has_room(self, size: int) -> bool:
        """Return whether one more content fits beside those that have begun; with no other one it does."""
        begun = [content for content in self._channels.values() if content.body is not None]
        if not begun or not self._max_bodies_bytes:
            return True
        return size + sum([content.kept_bytes + content.missing for content in begun]) <= self._max_bodies_bytes

    def _body(self, channel_no: int, payload: bytes, content: _Content | None) -> None:
        if content is None or content.header is None:
            raise _unexpected(content)
        size = len(payload)
        if size > content.missing:
            raise _unexpected(content)
        content.missing -= size
        body = content.body
        if content.missing:
            if body is not None:
                body += payload
            return
        del self._channels[channel_no]
        if body is not None:
            whole = b"".join((body, payload)) if body else payload
            self._handler.on_publish(
                channel_no, content.exchange, content.routing_key, content.bits, content.header, whole
            )


def _read_address(arguments: bytes) -> tuple[str, str, int] | None:
    """Read basic.publish's arguments with the frame's end octet; None when they are not that."""
    try:
        key_at = 3 + arguments[2]
        end = key_at + 1 + arguments[key_at]
        if len(arguments) != end + 2 or arguments[end + 1] != FRAME_END:
            return None
    except IndexError:
        return None
    exchange = arguments[3:key_at].decode("utf-8", "surrogateescape")
    routing_key = arguments[key_at + 1 : end].decode("utf-8", "surrogateescape")
    address = (exchange, routing_key, arguments[end] & 3)
    if len(_addresses) >= _ADDRESSES_MAX:
        _addresses.clear()
    _addresses[arguments] = address
    return address


def _undecodable(index: int) -> AmqpError:
    name = methods.METHODS[index].name.lower()
    reason = f"cannot decode the arguments of {name}"
    return AmqpError(ReplyCode.FRAME_ERROR, reason, index >> 16, index & 0xFFFF)


def _unknown_frame(kind: int, payload: bytes) -> AmqpError:
    return AmqpError(ReplyCode.FRAME_ERROR, f"type {kind}, {len(payload)} octets: unknown_frame")


def _unexpected(content: _Content | None, got: str = "") -> AmqpError:
    """The error for a frame that does not continue what the channel is in the middle of (RabbitMQ's texts)."""
    code = ReplyCode.UNEXPECTED_FRAME
    if content is None or content is _CONTROL:
        return AmqpError(code, "expected method frame, got non method frame instead")
    if content.header is None:
        reason = f"expected content header for class 60, got {got or 'non content header frame'} instead"
    else:
        reason = "expected content body, got non content body frame instead"
    return AmqpError(code, reason, _PUBLISH >> 16, _PUBLISH & 0xFFFF)

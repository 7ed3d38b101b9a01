"""HTTP/2 (RFC 9113) as a client, as much of it as gRPC streams need: frames, windows, one connection.

Owns what is on the socket: the preface, frames in and out, flow control both ways, and that a connection which is
going away gets no new streams.  Knows no gRPC: what comes for a stream is told to its ``Receiver``.  Everything that is
written in one turn of the loop leaves in one write.  Why not gRPC's own: docs/adr/0009-http2.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Protocol, cast

from connector.backend.kubemq import hpack

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x01, 0x01, 0x04, 0x08, 0x20
_TABLE_SIZE, _PUSH, _INITIAL_WINDOW, _MAX_FRAME = 1, 2, 4, 5
CANCEL = 8

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME = struct.Struct(">HBBBI")
_FRAME_BYTES = _FRAME.size
_SETTING = struct.Struct(">HI")
_FOUR = struct.Struct(">I")
_DEFAULT_WINDOW = 65_535
_LARGEST_WINDOW = 2**31 - 1
_LAST_STREAM = 2**31 - 1
_DEFAULT_FRAME = 16_384
#: What was received is credited again after so many bytes.
_CREDIT_BYTES = 64 * 1024 * 1024
#: Unanswered bytes end a connection after this; an idle one is asked by the kernel after so many seconds.
_DEAD_MS = 20_000
_IDLE_S, _ASK_EVERY_S, _ASK_COUNT = 120, 20, 3


class Receiver(Protocol):
    """Whose stream it is."""

    def on_headers(self, headers: hpack.Headers, *, is_end: bool) -> None:
        """Headers, or trailers, have come."""

    def on_data(self, data: bytes) -> None:
        """Bytes have come."""

    def on_end(self) -> None:
        """The server sends no more, and no trailers came."""

    def on_reset(self, code: int) -> None:
        """The server has ended the stream with an HTTP/2 error code."""

    def on_lost(self, reason: str) -> None:
        """The connection is gone, or will not serve this stream."""

    def on_flushed(self) -> None:
        """Everything written has been handed to the socket, after some of it had to wait."""


class Stream:
    """One stream's number, its window for sending, and what waits for it."""

    __slots__ = ("number", "pending", "received_bytes", "receiver", "window")

    def __init__(self, number: int, receiver: Receiver, window: int) -> None:
        self.number = number
        self.receiver = receiver
        self.window = window
        self.pending = b""
        self.received_bytes = 0


class Http2Connection(asyncio.Protocol):
    """One connection; ``on_unusable`` is called once, when it takes no new streams any more."""

    def __init__(self, on_unusable: Callable[[Http2Connection], None]) -> None:
        self.is_usable = True
        self._on_unusable = on_unusable
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._streams: dict[int, Stream] = {}
        self._next_number = 1
        self._window = _DEFAULT_WINDOW
        self._stream_window = _DEFAULT_WINDOW
        self._frame_bytes = _DEFAULT_FRAME
        self._received_bytes = 0
        self._block: tuple[int, int, bytes] | None = None  # stream, flags, header block so far

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface: no dynamic table, no pushes, and as much room for answers as can be said."""
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            for option, value in (
                (socket.TCP_NODELAY, 1),
                (socket.TCP_USER_TIMEOUT, _DEAD_MS),
                (socket.TCP_KEEPIDLE, _IDLE_S),
                (socket.TCP_KEEPINTVL, _ASK_EVERY_S),
                (socket.TCP_KEEPCNT, _ASK_COUNT),
            ):
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.IPPROTO_TCP, option, value)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        settings = ((_TABLE_SIZE, 0), (_PUSH, 0), (_INITIAL_WINDOW, _LARGEST_WINDOW))
        payload = b"".join(_SETTING.pack(name, value) for name, value in settings)
        self._write(_PREFACE + _frame(_SETTINGS, 0, 0, payload))
        self._write(_frame(_WINDOW_UPDATE, 0, 0, _FOUR.pack(_LARGEST_WINDOW - _DEFAULT_WINDOW)))

    def data_received(self, data: bytes) -> None:
        """Frames, or parts of them."""
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        try:
            while size - at >= _FRAME_BYTES:
                high, low, kind, flags, number = _FRAME.unpack_from(data, at)
                begin = at + _FRAME_BYTES
                end = begin + (high << 8 | low)
                if end > size:
                    break
                at = end
                self._on_frame(kind, flags, number & _LAST_STREAM, data[begin:end])
        except (hpack.HpackError, struct.error, IndexError, KeyError) as error:
            self.abort(f"the server sends what is no HTTP/2: {error!r}")
            return
        self._rest = data[at:] if at else data

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._fail(f"the connection is lost: {exc}" if exc else "the server closed the connection")

    # ------------------------------------------------------------------ what streams do

    def open(self, receiver: Receiver, headers: bytes) -> Stream:
        """Start a stream with a header block; the connection must be usable."""
        stream = Stream(self._next_number, receiver, self._stream_window)
        self._next_number += 2
        self._streams[stream.number] = stream
        self._write(_frame(_HEADERS, _END_HEADERS, stream.number, headers))
        if self._next_number > _LAST_STREAM - 2:
            self._retire()
        return stream

    def send(self, stream: Stream, data: bytes) -> bool:
        """Send bytes; False when some have to wait for the server's window: ``on_flushed`` follows."""
        size = len(data)
        if not stream.pending and size <= self._frame_bytes and size <= stream.window and size <= self._window:
            stream.window -= size
            self._window -= size
            self._write(_frame(_DATA, 0, stream.number, data))
            return True
        stream.pending += data
        self._pump(stream)
        return not stream.pending

    def reset(self, stream: Stream) -> None:
        """Cancel the stream; nothing of it is told any more."""
        if self._streams.pop(stream.number, None) is not None:
            self._write(_frame(_RESET, 0, stream.number, _FOUR.pack(CANCEL)))
            self._check_drained()

    def close(self, reason: str) -> None:
        """Send what was written, then close; all streams end."""
        if self._transport is not None:
            self._transport.close()
        self._fail(reason)

    def abort(self, reason: str) -> None:
        """Close at once; all streams end."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(reason)

    # ------------------------------------------------------------------ frames in

    def _on_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and kind != _CONTINUATION:
            raise hpack.HpackError("a header block is not continued")
        handle = _HANDLERS.get(kind)
        if handle is not None:  # else a kind that came later than this
            handle(self, flags, number, payload)

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._received_bytes += size
        if self._received_bytes > _CREDIT_BYTES:
            self._write(_frame(_WINDOW_UPDATE, 0, 0, _FOUR.pack(self._received_bytes)))
            self._received_bytes = 0
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.received_bytes += size
        if stream.received_bytes > _CREDIT_BYTES:
            self._write(_frame(_WINDOW_UPDATE, 0, number, _FOUR.pack(stream.received_bytes)))
            stream.received_bytes = 0
        stream.receiver.on_data(_unpadded(payload) if flags & _PADDED else payload)
        if flags & _END_STREAM and self._streams.pop(number, None) is not None:
            stream.receiver.on_end()
            self._check_drained()

    def _on_header_frame(self, flags: int, number: int, payload: bytes) -> None:
        if flags & _PADDED:
            payload = _unpadded(payload)
        if flags & _PRIORITY:
            payload = payload[5:]
        self._add_block(flags, number, flags, payload)

    def _on_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != number:
            raise hpack.HpackError("nothing to continue")
        _, first_flags, block = self._block
        self._add_block(flags, number, first_flags, block + payload)

    def _add_block(self, flags: int, number: int, first_flags: int, block: bytes) -> None:
        if not flags & _END_HEADERS:
            self._block = number, first_flags, block
            return
        self._block = None
        headers = hpack.decode(block)
        is_end = bool(first_flags & _END_STREAM)
        stream = self._streams.pop(number, None) if is_end else self._streams.get(number)
        if stream is not None:
            stream.receiver.on_headers(headers, is_end=is_end)
            self._check_drained()

    def _on_stream_reset(self, _flags: int, number: int, payload: bytes) -> None:
        (code,) = _FOUR.unpack(payload)
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.receiver.on_reset(code)
            self._check_drained()

    def _on_settings(self, flags: int, _number: int, payload: bytes) -> None:
        if flags & _ACK:
            return
        for name, value in _SETTING.iter_unpack(payload):
            if name == _INITIAL_WINDOW:
                change = value - self._stream_window
                self._stream_window = value
                for stream in self._streams.values():
                    stream.window += change
            elif name == _MAX_FRAME:
                self._frame_bytes = value
        self._write(_frame(_SETTINGS, _ACK, 0, b""))
        self._pump_all()

    def _on_ping(self, flags: int, _number: int, payload: bytes) -> None:
        if not flags & _ACK:
            self._write(_frame(_PING, _ACK, 0, payload))

    def _on_go_away(self, _flags: int, _number: int, payload: bytes) -> None:
        last = _FOUR.unpack_from(payload)[0] & _LAST_STREAM
        self._retire()
        for number in [number for number in self._streams if number > last]:
            self._streams.pop(number).receiver.on_lost("the server is going away")
        self._check_drained()

    def _on_window_update(self, _flags: int, number: int, payload: bytes) -> None:
        more = _FOUR.unpack(payload)[0] & _LARGEST_WINDOW
        if number == 0:
            self._window += more
            self._pump_all()
        elif (stream := self._streams.get(number)) is not None:
            stream.window += more
            if stream.pending:
                self._pump(stream)

    # ------------------------------------------------------------------ frames out

    def _pump_all(self) -> None:
        for stream in [stream for stream in self._streams.values() if stream.pending]:
            self._pump(stream)

    def _pump(self, stream: Stream) -> None:
        """Send what waits, as far as the windows reach."""
        pending, at, frames = stream.pending, 0, []
        while at < len(pending):
            size = min(len(pending) - at, self._frame_bytes, stream.window, self._window)
            if size <= 0:
                break
            frames.append(_frame(_DATA, 0, stream.number, pending[at : at + size]))
            at += size
            stream.window -= size
            self._window -= size
        if not frames:
            return
        stream.pending = pending[at:]
        self._write(b"".join(frames))
        if not stream.pending:
            stream.receiver.on_flushed()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    # ------------------------------------------------------------------ the end

    def _retire(self) -> None:
        if self.is_usable:
            self.is_usable = False
            self._on_unusable(self)

    def _check_drained(self) -> None:
        """A connection without a future and without streams is closed."""
        if not self.is_usable and not self._streams and self._transport is not None:
            self._transport.close()

    def _fail(self, reason: str) -> None:
        self._retire()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.receiver.on_lost(reason)


_HANDLERS: dict[int, Callable[[Http2Connection, int, int, bytes], None]] = {
    _DATA: Http2Connection._on_data,  # noqa: SLF001
    _HEADERS: Http2Connection._on_header_frame,  # noqa: SLF001
    _CONTINUATION: Http2Connection._on_continuation,  # noqa: SLF001
    _RESET: Http2Connection._on_stream_reset,  # noqa: SLF001
    _SETTINGS: Http2Connection._on_settings,  # noqa: SLF001
    _PING: Http2Connection._on_ping,  # noqa: SLF001
    _GO_AWAY: Http2Connection._on_go_away,  # noqa: SLF001
    _WINDOW_UPDATE: Http2Connection._on_window_update,  # noqa: SLF001
}


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    size = len(payload)
    return _FRAME.pack(size >> 8, size & 0xFF, kind, flags, number) + payload


def _unpadded(payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]]

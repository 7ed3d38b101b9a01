"""A gRPC call with streams both ways on our own HTTP/2 connection: what ``grpc.aio.StreamStreamCall`` is, but lighter.

Owns the protocol of one call (gRPC over HTTP/2: length-prefixed messages, the status in the trailers), and the
connection of one address, opened when a call needs it.  Raises what grpc.aio raises, so that ``calls.py`` need not know
which of the two it has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio

from connector.backend.kubemq import hpack
from connector.backend.kubemq.http2 import CANCEL, Http2Connection, Stream

Request = TypeVar("Request")
Response = TypeVar("Response")

_PREFIX_BYTES = 5
_UNIX = "unix:"
_OK = "200"
_CODES = {code.value[0]: code for code in grpc.StatusCode}
#: HTTP/2 error codes that say more than INTERNAL (gRPC over HTTP/2, "Errors").
_RESETS = {
    7: grpc.StatusCode.UNAVAILABLE,
    CANCEL: grpc.StatusCode.CANCELLED,
    11: grpc.StatusCode.RESOURCE_EXHAUSTED,
    12: grpc.StatusCode.PERMISSION_DENIED,
}


class Http2Link:
    """The connection to one address (HOST:PORT or ``unix:/path``): opened when needed, and anew when it was lost."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.authority = "localhost" if address.startswith(_UNIX) else address
        self._connection: Http2Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[Callable[[Http2Connection | None, str], None]] = []
        self._is_closed = False

    @property
    def connection(self) -> Http2Connection | None:
        """The connection for new streams, if there is one."""
        return self._connection

    def connect(self, done: Callable[[Http2Connection | None, str], None]) -> None:
        """Call ``done`` with a connection, or with None and why there is none."""
        if self._is_closed:
            done(None, "not connected to KubeMQ")
            return
        self._waiting.append(done)
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name="kubemq connect")

    async def close(self) -> None:
        """Close it; all streams end, and nobody gets a new one."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        if self._connection is not None:
            self._connection.close("the connection was closed")

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        connection, reason = None, "cancelled"
        try:
            if self.address.startswith(_UNIX):
                path = self.address[len(_UNIX) :]
                _, connection = await loop.create_unix_connection(self._make, path)
            else:
                host, _, port = self.address.rpartition(":")
                _, connection = await loop.create_connection(self._make, host.strip("[]"), int(port))
            reason = "the server closed the connection"
            self._connection = connection = connection if connection.is_usable else None
        except (OSError, ValueError) as error:
            reason = f"cannot connect to {self.address}: {error}"
        finally:
            self._connecting = None
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                done(connection, reason)

    def _make(self) -> Http2Connection:
        return Http2Connection(self._on_unusable)

    def _on_unusable(self, connection: Http2Connection) -> None:
        if self._connection is connection:
            self._connection = None


class StreamCall(Generic[Request, Response]):
    """One call; it begins with the first write.  One task writes and one reads (it may be the same)."""

    __slots__ = (
        "_code", "_connection", "_deserialize", "_details", "_have", "_headers", "_is_cancelled", "_link", "_messages",
        "_parts", "_reading", "_serialize", "_size", "_stream", "_writing",
    )  # fmt: skip

    def __init__(
        self,
        link: Http2Link,
        path: str,
        metadata: tuple[tuple[str, str], ...],
        serialize: Callable[[Request], bytes],
        deserialize: Callable[[bytes], Response],
    ) -> None:
        self._link = link
        self._headers = _request_headers(link.authority, path, metadata)
        self._serialize = serialize
        self._deserialize = deserialize
        self._connection: Http2Connection | None = None
        self._stream: Stream | None = None
        self._code: grpc.StatusCode | None = None  # of the status; None while the call runs
        self._details = ""
        self._is_cancelled = False
        self._messages: deque[bytes] = deque()
        self._parts: list[bytes] = []
        self._have = 0  # bytes in the parts
        self._size = -1  # of the message under way; -1 until its prefix is known
        self._reading: asyncio.Future[bytes | None] | None = None
        self._writing: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------ what grpc.aio has, too

    def done(self) -> bool:
        """Whether it is over."""
        return self._code is not None

    async def code(self) -> grpc.StatusCode:
        """The status of a call that is over."""
        return self._code or grpc.StatusCode.UNKNOWN

    async def details(self) -> str:
        """What the server says to it."""
        return self._details

    async def write(self, request: Request) -> None:
        """Send a request; returns when it is on its way to the socket.

        Raises InvalidStateError when the call is over, CancelledError when it is cancelled meanwhile, AioRpcError.
        """
        data = self._serialize(request)
        if self._code is not None:
            raise asyncio.InvalidStateError("the call is over")
        connection, stream = self._connection, self._stream
        if connection is None or stream is None:
            connection, stream = await self._open()
        if not connection.send(stream, b"\0" + len(data).to_bytes(4) + data):
            await self._wait_for(lambda: None)

    async def read(self) -> Any:
        """The next response, or grpc.aio.EOF.  Raises CancelledError when the call is cancelled, AioRpcError."""
        if self._messages:
            return self._deserialize(self._messages.popleft())
        data = None
        if self._code is None:
            self._reading = asyncio.get_running_loop().create_future()
            try:
                data = await self._reading
            finally:
                self._reading = None
        if data is not None:
            return self._deserialize(data)
        if self._code is grpc.StatusCode.OK:
            return grpc.aio.EOF
        raise self._error()

    def cancel(self) -> bool:
        """End the call; False when it is over already."""
        if self._code is not None:
            return False
        self._is_cancelled = True
        stream, connection = self._stream, self._connection
        if stream is not None and connection is not None:
            connection.reset(stream)
        for future in (self._reading, self._writing):
            if future is not None:
                future.cancel()
        self._end(grpc.StatusCode.CANCELLED, "cancelled here")
        return True

    # ------------------------------------------------------------------ http2.Receiver

    def on_headers(self, headers: hpack.Headers, *, is_end: bool) -> None:
        """The answer's beginning, or its status."""
        found = {name: value.decode("ascii", "replace") for name, value in headers}
        http_status = found.get(b":status", _OK)
        if http_status != _OK:
            self._end(grpc.StatusCode.UNAVAILABLE, f"HTTP status {http_status}")
        elif is_end:
            status = found.get(b"grpc-status", "")
            code = _CODES.get(int(status)) if status.isdigit() else None
            self._end(code or grpc.StatusCode.UNKNOWN, unquote(found.get(b"grpc-message", "")))

    def on_data(self, data: bytes) -> None:
        """Parts of messages, or several."""
        if self._size < 0 and not self._parts:
            data = self._take_whole(data)
            if not data and self._size < 0:
                return
        self._parts.append(data)
        self._have += len(data)
        needed = _PREFIX_BYTES if self._size < 0 else self._size
        if self._have < needed:
            return
        data, size = b"".join(self._parts), self._size
        self._parts.clear()
        self._have, self._size = 0, -1
        if size >= 0:
            self._deliver(data if len(data) == size else data[:size])
            data = data[size:]
        if data:
            self.on_data(data)

    def _take_whole(self, data: bytes) -> bytes:
        """Deliver what is complete; returns the rest, without the prefix of the message under way if that is whole."""
        at, end = 0, len(data)
        while end - at >= _PREFIX_BYTES:
            if data[at]:
                self._give_up(grpc.StatusCode.INTERNAL, "the server sends what it was not told to compress")
                return b""
            size = int.from_bytes(data[at + 1 : at + _PREFIX_BYTES])
            at += _PREFIX_BYTES
            if at + size > end:
                self._size = size
                break
            self._deliver(data[at : at + size])
            at += size
        return data[at:] if at else data

    def on_end(self) -> None:
        """No status."""
        self._end(grpc.StatusCode.UNKNOWN, "the server ended the stream without a status")

    def on_reset(self, code: int) -> None:
        """The server gave the stream up."""
        self._end(_RESETS.get(code, grpc.StatusCode.INTERNAL), f"the server reset the stream with {code}")

    def on_lost(self, reason: str) -> None:
        """No connection any more."""
        self._end(grpc.StatusCode.UNAVAILABLE, reason)

    def on_flushed(self) -> None:
        """What had to wait is written."""
        if self._writing is not None and not self._writing.done():
            self._writing.set_result(None)

    # ------------------------------------------------------------------ inside

    async def _open(self) -> tuple[Http2Connection, Stream]:
        """Begin the call, on a new connection if there is none."""
        connection = self._link.connection
        if connection is None:
            found: list[tuple[Http2Connection | None, str]] = []

            def on_connected(connection: Http2Connection | None, reason: str) -> None:
                found.append((connection, reason))
                self.on_flushed()

            await self._wait_for(lambda: self._link.connect(on_connected))
            connection, reason = found[0]
            if connection is None:
                self._end(grpc.StatusCode.UNAVAILABLE, reason)
                raise self._error()
        self._connection = connection
        self._stream = stream = connection.open(self, self._headers)
        return connection, stream

    async def _wait_for(self, start: Callable[[], None]) -> None:
        """Start something, and wait until ``on_flushed``.  Raises CancelledError or AioRpcError when the call ends."""
        self._writing = asyncio.get_running_loop().create_future()
        try:
            start()
            await self._writing
        finally:
            self._writing = None
        if self._code is not None:
            raise self._error()

    def _deliver(self, data: bytes) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(data)
        else:
            self._messages.append(data)

    def _give_up(self, code: grpc.StatusCode, details: str) -> None:
        if self._connection is not None and self._stream is not None:
            self._connection.reset(self._stream)
        self._end(code, details)

    def _end(self, code: grpc.StatusCode, details: str) -> None:
        if self._code is not None:
            return
        self._code, self._details = code, details
        self._connection = self._stream = None
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)
        self.on_flushed()

    def _error(self) -> BaseException:
        if self._is_cancelled:
            return asyncio.CancelledError()
        code = self._code or grpc.StatusCode.UNKNOWN
        return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=self._details)


def _request_headers(authority: str, path: str, metadata: tuple[tuple[str, str], ...]) -> bytes:
    headers = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "kubemq-amqp"),
        *metadata,
    )
    return hpack.encode([(name.encode(), value.encode()) for name, value in headers])

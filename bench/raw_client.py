"""A blocking AMQP client of one socket, for what real clients do not let one do: stop reading, interleave frames, ask.

Owns the socket and the handshake, on pamqp's codec.  Must not know what is measured.  Raises ClientError for whatever
goes wrong.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from pamqp import base, body, commands, exceptions, frame, header

LIMIT_S = 20.0
_PORT = 5672
_FRAME = struct.Struct(">BHI")
_FRAME_END_BYTES = 1
_READ_BYTES = 1 << 16


class ClientError(Exception):
    """The connection cannot be opened or is over, or there was no answer in time; the text says which."""


class RawClient:
    """One connection, open after the constructor; ``limit_s`` bounds every wait.

    ``receive_buffer_bytes`` makes the kernel's buffer small, for a reader that is to be slow.
    """

    def __init__(self, url: str, limit_s: float = LIMIT_S, receive_buffer_bytes: int = 0) -> None:
        self.frame_max = 131_072
        self.server_properties: dict[str, Any] = {}
        self._limit_s = limit_s
        self._data = bytearray()
        parts = urlsplit(url)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(limit_s)
        try:
            self._socket.connect((parts.hostname or "127.0.0.1", parts.port or _PORT))
            self._log_in(
                unquote(parts.username or "guest"), unquote(parts.password or "guest"), unquote(parts.path[1:]) or "/"
            )
        except OSError as error:
            self._socket.close()
            raise ClientError(f"no connection to {parts.hostname}:{parts.port}: {error}") from error
        except BaseException:
            self._socket.close()
            raise

    def _log_in(self, user: str, password: str, vhost: str) -> None:
        self._socket.sendall(header.ProtocolHeader().marshal())
        start = self._expect(0, commands.Connection.Start)
        self.server_properties = dict(start.server_properties or {})
        capabilities: dict[str, Any] = {"connection.blocked": True, "basic.nack": True}
        properties: dict[str, Any] = {"product": "bench", "capabilities": capabilities}
        self.send(0, commands.Connection.StartOk(properties, "PLAIN", f"\0{user}\0{password}", "en_US"))
        tune = self._expect(0, commands.Connection.Tune)
        self.frame_max = tune.frame_max or self.frame_max
        self.send(0, commands.Connection.TuneOk(tune.channel_max, self.frame_max, 0))
        self.call(0, commands.Connection.Open(vhost), commands.Connection.OpenOk)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def shut_down(self) -> None:
        """End the connection at once; a read in another thread ends with ClientError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    # ------------------------------------------------------------------ sending

    def open_channel(self, channel_no: int) -> None:
        """Open a channel."""
        self.call(channel_no, commands.Channel.Open(), commands.Channel.OpenOk)

    def call(self, channel_no: int, method: base.Frame, answer: type[base.Frame]) -> Any:
        """Send a method and return its answer; deliveries and confirms that come before it are dropped."""
        self.send(channel_no, method)
        return self._expect(channel_no, answer)

    def send(self, channel_no: int, value: frame.FrameTypes) -> None:
        """Send one frame."""
        self.send_bytes(frame.marshal(value, channel_no))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ClientError(f"cannot send: {error!r}") from error

    def content_frames(self, channel_no: int, queue: str, content: bytes) -> list[bytes]:
        """One persistent message to a queue, as frames that may be sent one by one."""
        step = self.frame_max - _FRAME.size - _FRAME_END_BYTES
        properties = commands.Basic.Properties(delivery_mode=2)
        parts: list[frame.FrameTypes] = [commands.Basic.Publish(exchange="", routing_key=queue)]
        parts.append(header.ContentHeader(0, len(content), properties))
        parts += [body.ContentBody(content[at : at + step]) for at in range(0, len(content), step)]
        return [frame.marshal(part, channel_no) for part in parts]

    # ------------------------------------------------------------------ receiving

    def read(self) -> tuple[int, frame.FrameTypes]:
        """The next frame and its channel; waits for it."""
        deadline = time.monotonic() + self._limit_s
        while True:
            if len(self._data) >= _FRAME.size:
                _, channel_no, size = _FRAME.unpack_from(self._data)
                end = _FRAME.size + size + _FRAME_END_BYTES
                if len(self._data) >= end:
                    data = bytes(self._data[:end])
                    del self._data[:end]
                    return channel_no, _unmarshal(data)
            self._receive(deadline)

    def _receive(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise ClientError(f"nothing came within {self._limit_s:g} s")
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise ClientError(f"cannot receive: {error!r}") from error
        if not data:
            raise ClientError("the server closed the connection")
        self._data += data

    def _expect(self, channel_no: int, answer: type[base.Frame]) -> Any:
        deadline = time.monotonic() + self._limit_s
        while time.monotonic() < deadline:
            where, value = self.read()
            if isinstance(value, commands.Connection.Close | commands.Channel.Close):
                raise ClientError(f"{value.name}: {value.reply_code} {value.reply_text}")
            if where == channel_no and isinstance(value, answer):
                return value
        raise ClientError(f"no {answer.name} within {self._limit_s:g} s")


def _unmarshal(data: bytes) -> frame.FrameTypes:
    try:
        return frame.unmarshal(data)[2]
    except exceptions.PAMQPException as error:
        raise ClientError(f"bad frame: {error!r}") from error

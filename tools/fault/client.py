"""A lean AMQP 0-9-1 client for exact bookkeeping: every frame is handled in the order of its arrival, by callbacks.

Owns one connection and its channels on pamqp's codec, which is not the connector's.  Must not know what is tested: the
actors (``actors.py``) decide what to send and write the ledger.  Any error ends the connection; nothing reconnects.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from pamqp import base, body, commands, exceptions, frame, header, heartbeat

Delivered = Callable[[commands.Basic.Deliver, header.ContentHeader, bytes], None]
Confirmed = Callable[[int, bool, bool], None]
Returned = Callable[[bytes], None]

_FRAME = struct.Struct(">BHI")
_FRAME_END_BYTES = 1
#: A real server takes 9 s to come back; what waits for it is answered with 541 after the connector's own deadline.
CALL_LIMIT_S = 25.0
LOCALE = "en_US"


class Gone(Exception):
    """The connection or channel is over; the text says why."""


class Channel:
    """One channel; its user sets ``on_deliver``, ``on_confirm`` (tag, multiple, is_ack) and ``on_return`` (body)."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self.number = number
        self.on_deliver: Delivered | None = None
        self.on_confirm: Confirmed | None = None
        self.on_return: Returned | None = None
        self._waiting: asyncio.Future[tuple[base.Frame, bytes]] | None = None
        self._method: base.Frame | None = None
        self._header: header.ContentHeader | None = None
        self._parts: list[bytes] = []
        self._missing_bytes = 0

    async def call(self, method: base.Frame) -> tuple[Any, bytes]:
        """Send a synchronous method; returns its answer, and the body that a get-ok has.  Raises Gone."""
        return await self.ask(frame.marshal(method, self.number), method.name)

    async def ask(self, data: bytes, name: str) -> tuple[Any, bytes]:
        """Send bytes that are answered with a method.  Raises Gone."""
        self._waiting = future = asyncio.get_running_loop().create_future()
        try:
            self._connection.write(data)
            async with asyncio.timeout(CALL_LIMIT_S):
                return await future
        except TimeoutError:
            text = f"no answer to {name} within {CALL_LIMIT_S:g} s"
            self._connection.abort(text)
            raise Gone(text) from None
        finally:
            self._waiting = None

    def send(self, method: base.Frame) -> None:
        """Send a method without waiting.  Raises Gone."""
        self._connection.write(frame.marshal(method, self.number))

    def publish(self, exchange: str, routing_key: str, properties: commands.Basic.Properties, content: bytes) -> None:
        """Send one mandatory message.  Raises Gone."""
        parts = [
            frame.marshal(
                commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=True), self.number
            ),
            frame.marshal(header.ContentHeader(0, len(content), properties), self.number),
        ]
        step = self._connection.frame_max - _FRAME.size - _FRAME_END_BYTES
        parts += [
            frame.marshal(body.ContentBody(content[at : at + step]), self.number) for at in range(0, len(content), step)
        ]
        self._connection.write(b"".join(parts))

    # ------------------------------------------------------------------ frames of this channel

    def on_frame(self, value: object) -> None:
        """Take one frame."""
        if isinstance(value, body.ContentBody):
            self._parts.append(value.value)
            self._missing_bytes -= len(value.value)
            self._finish_content()
        elif isinstance(value, header.ContentHeader):
            self._header = value
            self._parts = []
            self._missing_bytes = value.body_size
            self._finish_content()
        elif isinstance(value, commands.Basic.Deliver | commands.Basic.GetOk | commands.Basic.Return):
            self._method = value
        elif isinstance(value, commands.Basic.Ack | commands.Basic.Nack):
            if self.on_confirm is not None:
                is_ack = isinstance(value, commands.Basic.Ack)
                self.on_confirm(value.delivery_tag or 0, bool(value.multiple), is_ack)
        elif isinstance(value, commands.Channel.Close):
            self._connection.abort(f"channel closed: {value.reply_code} {value.reply_text}")
        elif isinstance(value, commands.Basic.Cancel):
            self._connection.abort("consumer cancelled by the server")
        elif isinstance(value, base.Frame):
            self._answer(value, b"")

    def fail(self, error: Gone) -> None:
        """The connection is over."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _answer(self, method: base.Frame, content: bytes) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((method, content))

    def _finish_content(self) -> None:
        if self._missing_bytes > 0:
            return
        content, method, properties = b"".join(self._parts), self._method, self._header
        self._method = self._header = None
        if isinstance(method, commands.Basic.Deliver):
            if self.on_deliver is not None and properties is not None:
                self.on_deliver(method, properties, content)
        elif isinstance(method, commands.Basic.Return):
            if self.on_return is not None:
                self.on_return(content)
        elif method is not None:
            self._answer(method, content)


class Connection(asyncio.Protocol):
    """One connection; ``gone`` is set when it is over, ``reason`` says why.

    ``is_blocked`` is connection.blocked, ``is_full`` says that the socket takes no more for now.
    """

    def __init__(self) -> None:
        self.frame_max = 131_072
        self.reason = ""
        self.gone = asyncio.Event()
        self.is_blocked = False
        self.is_full = False
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._control = Channel(self, 0)
        self._channels: dict[int, Channel] = {0: self._control}
        self._beat: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, port: int, *, heartbeat_s: int = 0) -> Connection:
        """Connect to the default vhost on loopback as guest.  Raises Gone."""
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(cls, "127.0.0.1", port)
        except OSError as error:
            raise Gone(str(error)) from error
        try:
            await connection.log_in(heartbeat_s)
        except BaseException:
            connection.abort("not opened")
            raise
        return connection

    async def log_in(self, heartbeat_s: int) -> None:
        """Do the handshake.  Raises Gone."""
        control = self._control
        await control.ask(header.ProtocolHeader().marshal(), "the protocol header")
        capabilities: dict[str, Any] = {"connection.blocked": True, "consumer_cancel_notify": True, "basic.nack": True}
        tune, _ = await control.call(
            commands.Connection.StartOk(
                {"product": "fault runner", "capabilities": capabilities}, "PLAIN", "\0guest\0guest", LOCALE
            )
        )
        if not isinstance(tune, commands.Connection.Tune):
            raise Gone(f"expected tune, got {tune.name}")
        self.frame_max = tune.frame_max or self.frame_max
        control.send(commands.Connection.TuneOk(tune.channel_max, self.frame_max, heartbeat_s))
        await control.call(commands.Connection.Open("/"))
        if heartbeat_s:
            self._send_heartbeat(heartbeat_s / 2)

    def _send_heartbeat(self, interval_s: float) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.write(frame.marshal(heartbeat.Heartbeat(), 0))
            self._beat = asyncio.get_running_loop().call_later(interval_s, self._send_heartbeat, interval_s)

    async def channel(self) -> Channel:
        """Open one more channel.  Raises Gone."""
        number = max(self._channels) + 1
        channel = self._channels[number] = Channel(self, number)
        await channel.call(commands.Channel.Open())
        return channel

    async def close(self) -> None:
        """Close in order: returns after close-ok.  Raises Gone."""
        await self._control.call(commands.Connection.Close(200, "bye", 0, 0))
        self._end("closed by us")

    def abort(self, reason: str) -> None:
        """End it at once, as a client that dies does."""
        self._end(reason)

    def write(self, data: bytes) -> None:
        """Send bytes.  Raises Gone."""
        if self._transport is None or self._transport.is_closing() or self.gone.is_set():
            raise Gone(self.reason or "not connected")
        self._transport.write(data)

    def _end(self, reason: str) -> None:
        if self.gone.is_set():
            return
        self.reason = reason
        self.gone.set()
        if self._beat is not None:
            self._beat.cancel()
        if self._transport is not None:
            self._transport.abort()
        error = Gone(reason)
        for channel in self._channels.values():
            channel.fail(error)

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._end(f"connection lost: {exc}" if exc else "connection lost")

    def pause_writing(self) -> None:
        """The socket takes no more."""
        self.is_full = True

    def resume_writing(self) -> None:
        """It does again."""
        self.is_full = False

    def data_received(self, data: bytes) -> None:
        """Cut frames and hand them out."""
        self._data += data
        at = 0
        while len(self._data) - at >= _FRAME.size and not self.gone.is_set():
            _, number, size = _FRAME.unpack_from(self._data, at)
            end = at + _FRAME.size + size + _FRAME_END_BYTES
            if end > len(self._data):
                break
            try:
                value = frame.unmarshal(bytes(self._data[at:end]))[2]
            except exceptions.PAMQPException as error:
                self._end(f"bad frame: {error!r}")
                return
            at = end
            if number == 0:
                self._on_control(value)
            elif number in self._channels:
                self._channels[number].on_frame(value)
        del self._data[:at]

    def _on_control(self, value: object) -> None:
        if isinstance(value, commands.Connection.Close):
            self._end(f"closed by the server: {value.reply_code} {value.reply_text}")
        elif isinstance(value, commands.Connection.Blocked):
            self.is_blocked = True
        elif isinstance(value, commands.Connection.Unblocked):
            self.is_blocked = False
        elif isinstance(value, base.Frame):
            self._control.on_frame(value)

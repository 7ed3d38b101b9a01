"""A blocking AMQP client that hides nothing: every frame of a channel is kept, in the order of its arrival.

Owns one connection, its channels and what the server said on them.  Must not know what is compared.  A channel or
connection that the server closes is answered and reported, never raised; waiting longer than ``LIMIT_S`` is an error.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from pamqp import base, commands

from connector.amqp.frames import encode_method
from connector.amqp.methods import build, decode
from connector.amqp.wire import table_from_python

LIMIT_S = 15.0
FRAME_END = b"\xce"
_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
_METHOD, _HEADER, _BODY = 1, 2, 3
_BASIC_CLASS = 60
_CAPABILITIES = (
    "publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked", "authentication_failure_close",
)  # fmt: skip
_UNASKED = (commands.Basic.Deliver, commands.Basic.Return, commands.Basic.Cancel)
_CONFIRMS = (commands.Basic.Ack, commands.Basic.Nack)
_WITH_CONTENT = (commands.Basic.Deliver, commands.Basic.Return, commands.Basic.GetOk)


class Silent(Exception):
    """The server does not answer."""


class Arrival(NamedTuple):
    """A method, with the content that came with it."""

    method: Any
    header: bytes = b""
    body: bytes = b""


class Channel:
    """What came on one channel: answers, ``events`` that nobody asked for, and the ``error`` that closed it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.answers: deque[Arrival] = deque()
        self.events: deque[Arrival] = deque()
        self.error: Any = None
        self.confirmed = 0
        self._confirmed_late: set[int] = set()

    def on_confirm(self, tag: int, multiple: bool) -> list[int]:
        """Keep the number up to which all is confirmed; returns what this one confirms."""
        tags = [*range(self.confirmed + 1, tag)] if multiple else []
        tags = [*(known for known in tags if known not in self._confirmed_late), tag]
        self._confirmed_late.update(tags)
        while self.confirmed + 1 in self._confirmed_late:
            self.confirmed += 1
            self._confirmed_late.remove(self.confirmed)
        return tags


class Client:
    """One connection as the URL's user; ``error`` is the connection.close that ended it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5672), timeout=LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = bytearray()
        self._partial: dict[int, list[Any]] = {}
        self._channels: dict[int, Channel] = {0: Channel(0)}
        self.error: Any = None
        self.is_over = False
        self._login(
            unquote(parts.username or "guest"), unquote(parts.password or "guest"), unquote(parts.path[1:]) or "/"
        )

    def _login(self, user: str, password: str, vhost: str) -> None:
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self.answer(0)
        properties = table_from_python({"capabilities": dict.fromkeys(_CAPABILITIES, True)})
        response = f"\0{user}\0{password}"
        start = build(
            commands.Connection.StartOk,
            client_properties=properties, mechanism="PLAIN", response=response, locale="en_US",
        )  # fmt: skip
        tune = self.call(0, start)
        if not isinstance(tune, commands.Connection.Tune):
            raise Silent(f"no login: {self.error}")
        limits = {"channel_max": tune.channel_max, "frame_max": tune.frame_max, "heartbeat": 0}
        self.send(0, build(commands.Connection.TuneOk, **limits))
        self.call(0, build(commands.Connection.Open, virtual_host=vhost))

    # ------------------------------------------------------------------ sending

    def open(self, number: int) -> Channel:
        """Open a channel, perhaps again."""
        channel = self._channels[number] = Channel(number)
        self.call(number, build(commands.Channel.Open))
        return channel

    def send(self, number: int, method: base.Frame) -> None:
        """Send a method."""
        self._write(encode_method(number, method))

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._write(data)

    def publish(self, number: int, method: base.Frame, header: bytes, body: bytes) -> None:
        """Send a message that fits into a frame."""
        content = _frame(_HEADER, number, _CONTENT.pack(_BASIC_CLASS, 0, len(body)) + header)
        self._write(encode_method(number, method) + content + (_frame(_BODY, number, body) if body else b""))

    def call(self, number: int, method: base.Frame) -> Any:
        """Send a method; returns its answer's method, or None when that was a close."""
        arrival = self.ask(number, method)
        return arrival.method if arrival else None

    def ask(self, number: int, method: base.Frame) -> Arrival | None:
        """Likewise, with the answer's content."""
        self.send(number, method)
        return self.answer(number)

    def await_confirms(self, number: int, last: int) -> bool:
        """Wait until all publishes up to this one are confirmed; False when there was a close instead.

        The confirms stay among the events.
        """
        channel = self._channels[number]
        self.wait(lambda: channel.error or channel.confirmed >= last)
        return not (channel.error or self.is_over)

    def close(self) -> None:
        """End the connection in order."""
        if not self.is_over:
            self.call(0, build(commands.Connection.Close, reply_code=200))
        self._end()

    # ------------------------------------------------------------------ receiving

    def wait(self, condition: Callable[[], object], limit_s: float = LIMIT_S) -> bool:
        """Read until the condition holds or the connection is over; False when the time was up.

        Raises Silent when the time that is up is ``LIMIT_S``.
        """
        deadline = time.monotonic() + limit_s
        while not (condition() or self.is_over):
            left = deadline - time.monotonic()
            if left <= 0:
                if limit_s >= LIMIT_S:
                    raise Silent(f"no answer within {limit_s:g} s")
                return False
            self.read(left)
        return True

    def read(self, limit_s: float) -> None:
        """Take in what comes within this time, at least once."""
        if self.is_over or not select.select([self._socket], [], [], limit_s)[0]:
            return
        try:
            data = self._socket.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._end()
        self._data += data
        while len(self._data) >= _FRAME.size:
            kind, number, size = _FRAME.unpack_from(self._data)
            end = _FRAME.size + size + len(FRAME_END)
            if len(self._data) < end:
                return
            payload = bytes(self._data[_FRAME.size : end - len(FRAME_END)])
            del self._data[:end]
            self._on_frame(kind, number, payload)

    def answer(self, number: int) -> Arrival | None:
        """Wait for the next answer; None when there was a close instead."""
        channel = self._channels[number]
        self.wait(lambda: channel.answers or channel.error)
        return channel.answers.popleft() if channel.answers else None

    def _write(self, data: bytes) -> None:
        if not self.is_over:
            try:
                self._socket.sendall(data)
            except OSError:
                self.read(0.1)  # perhaps it said why

    def _end(self) -> None:
        self.is_over = True
        self._socket.close()

    def _on_frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == _METHOD:
            method = decode(payload)
            if isinstance(method, _WITH_CONTENT):
                self._partial[number] = [method, b"", b"", -1]
            else:
                self._on_arrival(number, Arrival(method))
            return
        if kind not in (_HEADER, _BODY):
            return
        partial = self._partial[number]
        if kind == _HEADER:
            partial[1], partial[3] = payload[_CONTENT.size :], _CONTENT.unpack_from(payload)[2]
        else:
            partial[2] += payload
        if len(partial[2]) == partial[3]:
            method, header, body, _ = self._partial.pop(number)
            self._on_arrival(number, Arrival(method, header, body))

    def _on_arrival(self, number: int, arrival: Arrival) -> None:
        method = arrival.method
        channel = self._channels[number]
        if isinstance(method, commands.Connection.Close):
            self.error = method
            self.send(0, build(commands.Connection.CloseOk))
            self._end()
        elif isinstance(method, commands.Channel.Close):
            channel.error = method
            self.send(number, build(commands.Channel.CloseOk))
        elif isinstance(method, commands.Connection.Blocked | commands.Connection.Unblocked):
            pass
        elif isinstance(method, _CONFIRMS):
            for tag in channel.on_confirm(method.delivery_tag, method.multiple):
                channel.events.append(Arrival(type(method)(delivery_tag=tag)))
        elif isinstance(method, _UNASKED):
            channel.events.append(arrival)
        else:
            channel.answers.append(arrival)


def _frame(kind: int, number: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, number, len(payload)) + payload + FRAME_END

"""One client's socket: bytes in to the session, bytes out to the kernel, and the transport's buffer marks.

Owns the asyncio transport; implements ``session.ports.Runtime``.  What the bytes mean is the session's.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

import structlog

from connector.runtime.departed import watch_peer
from connector.session.connection import Connection
from connector.session.info import ConnectionInfo
from connector.session.reply_map import is_bug

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from connector.amqp.errors import AmqpError
    from connector.runtime.hub import Hub
    from connector.session.policy import SessionPolicy

log = structlog.get_logger(__name__)


class ClientProtocol(asyncio.Protocol):
    """The socket of one connection."""

    def __init__(self, hub: Hub, policy: SessionPolicy, limit: ConnectionLimit) -> None:
        self._hub = hub
        self._policy = policy
        self._limit = limit
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._log = log
        self._is_open = False

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        transport = cast("asyncio.Transport", transport)  # uvloop has a class of its own
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("", 0)
        host, port = str(peer[0]), int(peer[1]) if len(peer) > 1 else 0
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            watch_peer(sock)
        self._log = log.bind(connection=f"{host}:{port}")
        transport.set_write_buffer_limits(high=self._policy.output_high_bytes)
        if not self._limit.admit(self):
            self._hub.broker.counters.connections_refused += 1
            self._log.warning("connection refused", reason="connection limit reached", limit=self._limit.maximum)
            transport.close()
            return
        broker = self._hub.broker
        info = ConnectionInfo(peer=f"{host}:{port}", peer_host=host)
        self._connection = Connection(
            broker, self._policy, self, broker.clock, broker.counters, info, self._hub.arriving
        )
        self._hub.add_connection(self._connection)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client: one batch."""
        if self._connection is not None:
            self._connection.feed(data)
            self._hub.settle()

    def eof_received(self) -> bool:
        """The client has ended its side: what it sent is handled; the socket is closed, read or not.

        What it holds goes back now: a client that reads nothing more would keep the socket open.
        """
        transport, connection = self._transport, self._connection
        if transport is not None and connection is not None:
            connection.lost()
            self._hub.settle()
            if transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(self._policy.closing_timeout_s, transport.abort)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        connection, self._connection = self._connection, None
        self._hub.departed.discard(self)
        self._limit.release(self)
        if connection is None:
            return
        self._hub.remove_connection(connection)
        connection.lost()
        self._hub.settle()
        if self._is_open:
            self._log.info("connection closed", reason=str(exc) if exc else "")

    def pause_writing(self) -> None:
        """The kernel takes no more: deliveries stop (PC-17)."""
        if self._connection is not None:
            self._connection.on_write_blocked()

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._connection is not None:
            self._connection.on_write_resumed()
            self._hub.settle()

    @property
    def output_bytes(self) -> int:
        """What waits to be sent."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def blocked_fileno(self) -> int:
        """See ``departed.Client``."""
        transport, connection = self._transport, self._connection
        if transport is None or connection is None or not connection.is_blocked or transport.is_closing():
            return -1
        number: int = transport.get_extra_info("socket").fileno()
        return number

    # ------------------------------------------------------------------ session.ports.Runtime

    def write(self, data: bytes) -> None:
        """Send; never blocks."""
        if self._transport is not None:
            self._transport.write(data)

    def wants_flush(self) -> None:
        """Flush at the end of the batch."""
        if self._connection is not None:
            self._hub.wants_flush(self._connection)

    def wants_read(self) -> None:
        """What was read is kept until there is room."""
        if self._connection is not None:
            self._hub.wants_read(self._connection)

    def pause_reading(self) -> None:
        """Read no more from the socket."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._hub.departed.add(self)

    def resume_reading(self) -> None:
        """Read again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._hub.departed.discard(self)

    def close(self) -> None:
        """Send what was written, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not written is lost."""
        if self._transport is not None:
            self._transport.abort()

    def on_opened(self, connection: Connection) -> None:
        """The client is in."""
        self._is_open = True
        self._log = log.bind(**connection.info.context())
        self._log.info("connection opened")

    def on_error(self, connection: Connection, channel_no: int, error: AmqpError, cause: BaseException) -> None:
        """A channel or the connection is closed for an error: one line (OP-04), a bug with its traceback."""
        write = self._log.bind(**connection.info.context(), channel=channel_no, code=int(error.code))
        if is_bug(cause):
            write.error("internal error", text=error.reply_text, exc_info=cause)
        else:
            write.warning("channel error" if channel_no else "connection error", text=error.reply_text)


class ConnectionLimit:
    """At most so many clients at a time (HA-11)."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._clients: set[ClientProtocol] = set()

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def clients(self) -> AbstractSet[ClientProtocol]:
        """All that are in."""
        return self._clients

    def admit(self, client: ClientProtocol) -> bool:
        """Count the client in, if there is room."""
        if len(self._clients) >= self.maximum:
            return False
        self._clients.add(client)
        return True

    def release(self, client: ClientProtocol) -> None:
        """Count the client out."""
        self._clients.discard(client)

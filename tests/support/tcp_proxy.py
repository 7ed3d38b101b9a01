"""A TCP forwarder whose links can be cut, refused, stalled, delayed and half-closed.

Owns the sockets of one address in front of one server and what is done to the bytes between them.  Must not know what
they mean.  A fault is a state of the proxy: it holds for the links that exist and for those that come.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from enum import Enum
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 65_536
#: SO_LINGER with a time of 0: closing resets the connection.
_RESET = struct.pack("ii", 1, 0)


class Way(Enum):
    """A direction through the proxy."""

    UP = "client to server"
    DOWN = "server to client"


class TcpProxy:
    """Forwards connections on ``port`` to a server; ``async with`` starts and ends it.

    ``target`` is asked at each new connection, since a restarted server may listen elsewhere.  ``bytes_up`` counts
    what clients have sent through.
    """

    def __init__(self, target: Callable[[], tuple[str, int]]) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._flowing = {way: asyncio.Event() for way in Way}
        self._delay_s = dict.fromkeys(Way, 0.0)
        self.port = 0
        self.bytes_up = 0
        for gate in self._flowing.values():
            gate.set()

    @property
    def address(self) -> str:
        """Where to connect to: HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    @property
    def link_count(self) -> int:
        """Connections being forwarded."""
        return len(self._links)

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()

    # ------------------------------------------------------------------ faults

    async def accept(self) -> None:
        """Take connections, again on the same port; nothing happens when it does already."""
        if self._server is None:
            self._server = await asyncio.start_server(self._on_client, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Take no connections, and cut those that exist."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self.cut()

    async def cut(self) -> None:
        """Reset all links, both sides; bytes under way are lost."""
        links = list(self._links)
        for link in links:
            link.reset()
        await asyncio.gather(*[link.wait() for link in links])

    def stall(self, way: Way) -> None:
        """Forward nothing this way, end of stream included; senders notice when their buffers are full."""
        self._flowing[way].clear()

    def resume(self, way: Way) -> None:
        """Forward again, what was held back first."""
        self._flowing[way].set()

    def delay(self, way: Way, seconds: float) -> None:
        """Hold every chunk this long; 0 ends it."""
        self._delay_s[way] = seconds

    def half_close(self, way: Way) -> None:
        """End the stream this way on all links that exist; the other way stays open, later bytes are swallowed."""
        for link in list(self._links):
            link.half_close(way)

    # ------------------------------------------------------------------ what links use

    async def pass_gate(self, way: Way) -> None:
        """Return when a chunk may go on."""
        if self._delay_s[way]:
            await asyncio.sleep(self._delay_s[way])
        await self._flowing[way].wait()

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, writer)
        self._links.add(link)
        try:
            await link.run(reader, self._target())
        finally:
            self._links.discard(link)


class _Link:
    """One client's connection and ours to the server."""

    def __init__(self, proxy: TcpProxy, client: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._writers = {Way.DOWN: client}
        self._closed: set[Way] = set()
        self._pumps: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self._is_reset = False

    async def run(self, reader: asyncio.StreamReader, target: tuple[str, int]) -> None:
        """Forward until both ways have ended, or one has broken."""
        try:
            there, self._writers[Way.UP] = await asyncio.open_connection(*target)
            if not self._is_reset:
                self._pumps = [
                    asyncio.create_task(self._pump(Way.UP, reader), name="proxy up"),
                    asyncio.create_task(self._pump(Way.DOWN, there), name="proxy down"),
                ]
                await asyncio.gather(*self._pumps, return_exceptions=True)
        except OSError:
            self._is_reset = True
        finally:
            for writer in self._writers.values():
                await self._close(writer)
            self._ended.set()

    def reset(self) -> None:
        """Break both sides at once."""
        self._is_reset = True
        for writer in self._writers.values():
            _reset(writer)
        for pump in self._pumps:
            pump.cancel()

    async def wait(self) -> None:
        """Return when the link has ended."""
        await self._ended.wait()

    def half_close(self, way: Way) -> None:
        """The receiver of this way sees the end of the stream."""
        if way in self._writers and way not in self._closed:
            self._closed.add(way)
            _end(self._writers[way])

    async def _pump(self, way: Way, reader: asyncio.StreamReader) -> None:
        writer = self._writers[way]
        try:
            while data := await reader.read(_CHUNK_BYTES):
                if way is Way.UP:
                    self._proxy.bytes_up += len(data)
                await self._proxy.pass_gate(way)
                if way not in self._closed:
                    writer.write(data)
                    await writer.drain()
            await self._proxy.pass_gate(way)
            self.half_close(way)
        except OSError:
            self.reset()

    async def _close(self, writer: asyncio.StreamWriter) -> None:
        if self._is_reset:
            _reset(writer)
        writer.close()
        await _quietly(writer.wait_closed)


def _end(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


async def _quietly(action: Callable[[], Awaitable[None]]) -> None:
    with contextlib.suppress(OSError):
        await action()

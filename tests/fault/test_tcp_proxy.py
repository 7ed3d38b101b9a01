from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.tcp_proxy import TcpProxy, Way
from tests.support.waiting import until


class Echo:
    """A server that sends everything back, and what it has seen."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.writers: list[asyncio.StreamWriter] = []
        self.ended = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return host, port

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self.writers:
            writer.close()
        await until(lambda: self.ended == len(self.writers))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while data := await reader.read(65_536):
                self.received += data
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()
            self.ended += 1


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    server = Echo()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(lambda: echo.address) as proxy:
        yield proxy


async def connect(proxy: TcpProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def test_bytes_go_both_ways(proxy: TcpProxy) -> None:
    reader, writer = await connect(proxy)
    data = bytes(range(256)) * 4096
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    assert proxy.bytes_up == len(data)
    writer.close()


async def test_the_end_of_a_stream_goes_through(proxy: TcpProxy) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"last")
    writer.write_eof()
    assert await reader.read(4) == b"last"
    writer.close()
    await until(lambda: proxy.link_count == 0)


async def test_cut_resets_what_exists_and_takes_new_connections(proxy: TcpProxy, echo: Echo) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"a")
    await reader.readexactly(1)
    await proxy.cut()
    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)
    await until(lambda: echo.ended == 1)
    writer.close()
    reader, writer = await connect(proxy)
    writer.write(b"b")
    assert await reader.readexactly(1) == b"b"
    writer.close()


async def test_refused_until_accepted_again_on_the_same_port(proxy: TcpProxy) -> None:
    port = proxy.port
    await proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await connect(proxy)
    await proxy.accept()
    assert proxy.port == port
    _, writer = await connect(proxy)
    writer.close()


async def test_stalled_bytes_arrive_after_the_stall(proxy: TcpProxy, echo: Echo) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"a")
    await reader.readexactly(1)
    proxy.stall(Way.UP)
    writer.write(b"b")
    await until(lambda: proxy.bytes_up == 2)
    assert echo.received == b"a"
    proxy.resume(Way.UP)
    assert await reader.readexactly(1) == b"b"
    writer.close()


async def test_one_way_may_be_stalled_alone(proxy: TcpProxy, echo: Echo) -> None:
    reader, writer = await connect(proxy)
    proxy.stall(Way.DOWN)
    writer.write(b"a")
    await until(lambda: echo.received == b"a")
    proxy.resume(Way.DOWN)
    assert await reader.readexactly(1) == b"a"
    writer.close()


async def test_half_closed_towards_the_server_still_brings_its_answers(proxy: TcpProxy, echo: Echo) -> None:
    reader, writer = await connect(proxy)
    proxy.stall(Way.DOWN)
    writer.write(b"a")
    await until(lambda: echo.received == b"a")
    proxy.half_close(Way.UP)
    await until(lambda: echo.ended == 1)
    proxy.resume(Way.DOWN)
    assert await reader.readexactly(1) == b"a"
    writer.close()


async def test_half_closed_towards_the_client_still_takes_its_bytes(proxy: TcpProxy, echo: Echo) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"a")
    await reader.readexactly(1)
    proxy.half_close(Way.DOWN)
    assert await reader.read() == b""
    writer.write(b"b")
    await until(lambda: echo.received == b"ab")
    writer.close()


async def test_delayed_bytes_take_their_time(proxy: TcpProxy) -> None:
    reader, writer = await connect(proxy)
    proxy.delay(Way.UP, 0.05)
    loop = asyncio.get_running_loop()
    started = loop.time()
    writer.write(b"a")
    await reader.readexactly(1)
    assert loop.time() - started >= 0.05
    writer.close()


async def test_a_server_that_is_not_there_resets_the_client(echo: Echo) -> None:
    async with TcpProxy(lambda: ("127.0.0.1", 1)) as proxy:
        reader, writer = await connect(proxy)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()

"""One call on our own connection: messages however they are cut, its end in gRPC's words, and the connection's life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from connector.backend.kubemq.http2 import Http2Connection
from connector.backend.kubemq.stream_call import Http2Link, StreamCall
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from tests.support.waiting import until
from tests.unit.backend.scripted import Context, Scripted
from tests.unit.backend.settling import outcome, quiet

Call = StreamCall[bytes, bytes]


def same(data: bytes) -> bytes:
    return data


def call_on(link: Http2Link, name: str = "QueuesUpstream") -> Call:
    return StreamCall(link, f"/kubemq.kubemq/{name}", (("authorization", "secret"),), same, same)


async def raw_echo(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
    async for request in requests:
        yield request


@pytest.fixture
async def link(server: Scripted) -> AsyncIterator[Http2Link]:
    link = Http2Link(server.address)
    yield link
    await link.close()
    await quiet()


def unsent() -> Call:
    """A call that is not on any connection: the test tells it what comes."""
    return call_on(Http2Link("127.0.0.1:1"))


def prefixed(*messages: bytes) -> bytes:
    return b"".join(b"\0" + len(message).to_bytes(4) + message for message in messages)


# --------------------------------------------------------------------------------------------------- messages
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6, 7, 11, 64, 1000])
async def test_messages_are_found_wherever_the_bytes_are_cut(step: int) -> None:
    messages = [b"", b"a", b"12345", b"x" * 300, b"", b"yy"]
    data = prefixed(*messages)
    call = unsent()
    for at in range(0, len(data), step):
        call.on_data(data[at : at + step])
    call.on_headers([(b"grpc-status", b"0")], is_end=True)
    assert [await call.read() for _ in messages] == messages
    assert await call.read() is grpc.aio.EOF


async def test_who_waits_gets_the_first_message() -> None:
    call = unsent()
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(call.read())
        await until(lambda: call._reading is not None)
        call.on_data(prefixed(b"one", b"two"))
    assert reading.result() == b"one"
    assert await call.read() == b"two"


async def test_what_is_compressed_is_refused() -> None:
    call = unsent()
    call.on_data(b"\1\0\0\0\1x")
    with pytest.raises(grpc.aio.AioRpcError, match="compress"):
        await call.read()


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_535, 5_000_000])
async def test_large_messages_pass_both_ways(server: Scripted, link: Http2Link, size: int) -> None:
    """Beyond the server's windows and frames."""

    async def echo(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for request in requests:
            yield pb.QueuesUpstreamResponse(Error=str(len(request.Messages[0].Body)), RefRequestID="x" * size)

    server.handlers["QueuesUpstream"] = echo
    call = call_on(link)
    request = pb.QueuesUpstreamRequest(Messages=[pb.QueueMessage(Body=bytes(size))]).SerializeToString()
    for _ in range(2):
        await call.write(request)
        response = pb.QueuesUpstreamResponse.FromString(await call.read())
        assert (response.Error, len(response.RefRequestID)) == (str(size), size)
    assert server.seen[-1][1]["authorization"] == "secret"
    call.cancel()


# --------------------------------------------------------------------------------------------------- ends
@pytest.mark.parametrize(
    ("headers", "code", "details"),
    [
        ([(b"grpc-status", b"8"), (b"grpc-message", b"too%20large")], grpc.StatusCode.RESOURCE_EXHAUSTED, "too large"),
        ([(b"grpc-status", b"99")], grpc.StatusCode.UNKNOWN, ""),
        ([(b"grpc-status", b"\xb2")], grpc.StatusCode.UNKNOWN, ""),
        ([], grpc.StatusCode.UNKNOWN, ""),
        ([(b":status", b"503")], grpc.StatusCode.UNAVAILABLE, "HTTP status 503"),
    ],
)
async def test_the_status_in_the_trailers(headers: Any, code: grpc.StatusCode, details: str) -> None:
    call = unsent()
    call.on_headers([(b":status", b"200")], is_end=False)
    assert not call.done()
    call.on_headers(headers, is_end=True)
    assert call.done()
    assert (await call.code(), await call.details()) == (code, details)
    error = await outcome(call.read())
    assert isinstance(error, grpc.aio.AioRpcError)
    assert (error.code(), error.details()) == (code, details)
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(b"")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda call: call.on_end(), grpc.StatusCode.UNKNOWN),
        (lambda call: call.on_lost("x"), grpc.StatusCode.UNAVAILABLE),
        (lambda call: call.on_reset(7), grpc.StatusCode.UNAVAILABLE),
        (lambda call: call.on_reset(8), grpc.StatusCode.CANCELLED),
        (lambda call: call.on_reset(11), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (lambda call: call.on_reset(2), grpc.StatusCode.INTERNAL),
    ],
)
async def test_other_ends(end: Any, code: grpc.StatusCode) -> None:
    """What came before is read first; whoever waits is told."""
    call, waiting = unsent(), unsent()
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(outcome(waiting.read()))
        await until(lambda: waiting._reading is not None)
        call.on_data(prefixed(b"before"))
        for one in (call, waiting):
            end(one)
            one.on_lost("what comes later does not count")
    assert await call.read() == b"before"
    for error in (await outcome(call.read()), reading.result()):
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code() is code


async def test_a_call_the_server_does_not_know(link: Http2Link) -> None:
    call = call_on(link, "Nothing")
    await call.write(b"")
    error = await outcome(call.read())
    assert isinstance(error, grpc.aio.AioRpcError)
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_cancelling_ends_both_sides(server: Scripted, link: Http2Link) -> None:
    ended = asyncio.Event()

    async def wait(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        try:
            async for request in requests:
                yield request
        finally:
            ended.set()

    server.handlers["QueuesUpstream"] = wait
    call = call_on(link)
    await call.write(b"")
    assert await call.read() == b""
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(call.read())
        await until(lambda: call._reading is not None)
        assert call.cancel()
        assert not call.cancel()
    assert reading.cancelled()
    with pytest.raises(asyncio.CancelledError):
        await call.read()
    await ended.wait()


# --------------------------------------------------------------------------------------------------- the connection
async def test_calls_share_a_connection_and_a_lost_one_is_replaced(server: Scripted, link: Http2Link) -> None:
    server.handlers["QueuesUpstream"] = raw_echo
    one, two = call_on(link), call_on(link)
    await asyncio.gather(one.write(b""), two.write(b""))
    first = link.connection
    assert isinstance(first, Http2Connection)
    assert one._connection is two._connection is first

    first.abort("cut")
    for call in (one, two):
        while not isinstance(error := await outcome(call.read()), grpc.aio.AioRpcError):
            assert error == b""  # the answer had come already
        assert error.code() is grpc.StatusCode.UNAVAILABLE
    three = call_on(link)
    await three.write(b"")
    assert await three.read() == b""
    assert link.connection is not first
    three.cancel()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "unix:/nowhere/at/all", "127.0.0.1:port"])
async def test_nobody_there(address: str) -> None:
    link = Http2Link(address)
    for _ in range(2):
        error = await outcome(call_on(link).write(b""))
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert address in (error.details() or "")
    await link.close()


async def test_a_closed_link_connects_no_more(server: Scripted) -> None:
    link = Http2Link(server.address)
    await link.close()
    error = await outcome(call_on(link).write(b""))
    assert isinstance(error, grpc.aio.AioRpcError)


@pytest.fixture
async def connecting(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once somebody connects, which takes for ever."""
    tried = asyncio.Event()

    async def never(*_: Any) -> None:
        tried.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    return tried


async def test_a_call_cancelled_while_it_connects(connecting: asyncio.Event) -> None:
    link = Http2Link("127.0.0.1:1")
    call, other = call_on(link), call_on(link)
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(call.write(b""))
        waiting = group.create_task(outcome(other.write(b"")))
        await connecting.wait()
        await until(lambda: call._writing is not None and other._writing is not None)
        call.cancel()
        await until(writing.done)
        assert not waiting.done()
        await link.close()
    assert writing.cancelled()
    error = waiting.result()
    assert isinstance(error, grpc.aio.AioRpcError)
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_unix_socket(tmp_path: Path) -> None:
    server = grpc.aio.server()
    handlers: Any = {"QueuesUpstream": grpc.stream_stream_rpc_method_handler(raw_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("kubemq.kubemq", handlers),))
    address = f"unix:{tmp_path}/s"
    server.add_insecure_port(address)
    await server.start()
    link = Http2Link(address)
    call = call_on(link)
    await call.write(b"hello")
    assert await call.read() == b"hello"
    call.cancel()
    await link.close()
    await server.stop(None)
    await quiet()

"""Streams end once, with one reason, in the port's words; cancelling a task is something else than dropping."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from connector.backend.kubemq import KubeMQClient
from connector.backend.kubemq.calls import Duplex
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.ports import NotSent, StoreError, TimedOut, TooMuch, Unavailable
from tests.support.waiting import until
from tests.unit.backend.scripted import Context, Scripted
from tests.unit.backend.settling import closed, mute, outcome

Stream = Duplex[pb.QueuesDownstreamRequest, pb.QueuesDownstreamResponse]
REQUEST = pb.QueuesDownstreamRequest(RequestID="1")


async def echo(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
    async for request in requests:
        yield pb.QueuesDownstreamResponse(RefRequestId=request.RequestID)


async def silent(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
    async for request in requests:
        if request.RequestID == "answer":
            yield pb.QueuesDownstreamResponse()


def ending(status: grpc.StatusCode) -> Any:
    async def end(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for _ in requests:
            if status is not grpc.StatusCode.OK:
                await context.abort(status, "because")
            return
        yield None

    return end


@pytest.fixture
def stream(client: KubeMQClient) -> Stream:
    return Duplex(client.open_downstream)


async def test_requests_and_answers_pass(server: Scripted, stream: Stream) -> None:
    server.handlers["QueuesDownstream"] = echo
    for number in ("a", "b"):
        await stream.write(pb.QueuesDownstreamRequest(RequestID=number))
        assert (await stream.read()).RefRequestId == number
    assert not stream.is_gone
    stream.drop()
    assert stream.is_gone


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, TooMuch),
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
        (grpc.StatusCode.INTERNAL, Unavailable),
        (grpc.StatusCode.CANCELLED, Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, TimedOut),
    ],
)
async def test_a_stream_that_the_server_ends_raises_the_same_for_ever(
    server: Scripted, stream: Stream, status: grpc.StatusCode, error: type[StoreError]
) -> None:
    server.handlers["QueuesDownstream"] = ending(status)
    await stream.write(REQUEST)
    for _ in range(2):
        with pytest.raises(error, match="because"):
            await stream.read()
        with pytest.raises(error, match="because"):
            await stream.write(REQUEST)


async def test_an_end_without_an_error_is_one(server: Scripted, stream: Stream) -> None:
    server.handlers["QueuesDownstream"] = ending(grpc.StatusCode.OK)
    await stream.write(REQUEST)
    with pytest.raises(Unavailable, match="ended the stream"):
        await stream.read()


async def test_a_write_after_the_end_tells_the_status(server: Scripted, client: KubeMQClient) -> None:
    """A stream that ended while nobody read: gRPC itself says only that it is over."""
    calls = []

    def open_call() -> Any:
        calls.append(client.open_downstream())
        return calls[-1]

    server.handlers["QueuesDownstream"] = ending(grpc.StatusCode.RESOURCE_EXHAUSTED)
    stream: Stream = Duplex(open_call)
    await stream.write(REQUEST)
    await calls[0].code()

    with pytest.raises(TooMuch, match="because"):
        await stream.write(REQUEST)


@pytest.mark.parametrize("user", ["nobody", "reader", "writer"])
async def test_a_call_that_is_over_is_let_go(server: Scripted, client: KubeMQClient, user: str) -> None:
    """Else gRPC goes on connecting its channel, even a closed one: a link to an address that was left."""
    calls: list[weakref.ref[Any]] = []

    def open_call() -> Any:
        call = client.open_downstream()
        calls.append(weakref.ref(call))
        return call

    server.handlers["QueuesDownstream"] = echo
    stream: Stream = Duplex(open_call)
    await stream.write(REQUEST)
    await stream.read()
    async with asyncio.TaskGroup() as group:
        if user == "reader":
            group.create_task(outcome(stream.read()))
            await asyncio.sleep(0)
        await server.stop()
        if user == "writer":
            await until(lambda: stream.is_gone)
            await outcome(stream.write(REQUEST))

    await until(lambda: gc.collect() >= 0 and calls[0]() is None)
    assert stream.is_gone


class EndingCall:
    """A call that is over when its first answer is read; more have come before that."""

    def __init__(self) -> None:
        self._answers = iter(["first", "second", "third"])
        self._on_done: list[Callable[[Any], None]] = []
        self.is_over = False

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._on_done.append(callback)

    def done(self) -> bool:
        return self.is_over

    def cancel(self) -> None:
        self.is_over = True

    async def wait_for_connection(self) -> None:
        pass

    async def write(self, request: object) -> None:
        pass

    async def read(self) -> str:
        await asyncio.sleep(0)  # lets others run, as gRPC does
        if not self.is_over:
            self.is_over = True
            for callback in self._on_done:
                callback(self)
        return next(self._answers)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    async def details(self) -> str:
        return "because"


async def test_a_call_that_is_over_is_let_go_after_what_is_read_of_it() -> None:
    open_call: Any = EndingCall
    stream: Duplex[Any, Any] = Duplex(open_call)
    await stream.write("request")
    assert [await stream.read() for _ in range(3)] == ["first", "second", "third"]
    await until(lambda: stream._call is None)
    with pytest.raises(Unavailable, match="because"):
        await stream.read()


async def test_dropping_ends_who_waits(server: Scripted, stream: Stream) -> None:
    server.handlers["QueuesDownstream"] = silent
    await stream.write(REQUEST)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(outcome(stream.read()))
        await asyncio.sleep(0)
        stream.drop("no longer needed")

    assert_unavailable(reading.result(), "no longer needed")


async def test_a_cancelled_task_stays_cancelled(server: Scripted, stream: Stream) -> None:
    server.handlers["QueuesDownstream"] = silent
    await stream.write(REQUEST)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(outcome(stream.read()))
        await asyncio.sleep(0)
        reading.cancel()

    assert reading.cancelled()
    with pytest.raises(Unavailable, match="the request was cancelled"):
        await stream.read()


async def test_a_task_cancelled_while_its_stream_is_dropped_stays_cancelled(server: Scripted, stream: Stream) -> None:
    server.handlers["QueuesDownstream"] = silent
    await stream.write(REQUEST)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(outcome(stream.read()))
        await asyncio.sleep(0)
        stream.drop()
        reading.cancel()

    assert reading.cancelled()


async def test_a_deadline_ends_the_stream(server: Scripted, stream: Stream) -> None:
    server.handlers["QueuesDownstream"] = silent
    stream.start_deadline(0.05)
    await stream.write(REQUEST)
    for _ in range(2):
        with pytest.raises(TimedOut, match=r"within 0\.05 s"):
            await stream.read()


async def test_a_deadline_that_was_kept_is_forgotten(server: Scripted, stream: Stream) -> None:
    server.handlers["QueuesDownstream"] = silent
    stream.start_deadline(0.01)
    stream.stop_deadline()
    stream.start_deadline(60)
    await stream.write(REQUEST)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(outcome(stream.read()))
        await asyncio.wait([reading], timeout=0.05)
        assert not reading.done()
        await stream.write(pb.QueuesDownstreamRequest(RequestID="answer"))

    assert isinstance(reading.result(), pb.QueuesDownstreamResponse)
    stream.drop()


@pytest.mark.parametrize("first_s", [0.01, 60])
async def test_a_deadline_counts_from_when_it_began(server: Scripted, stream: Stream, first_s: float) -> None:
    """Whatever the deadline before it was."""
    server.handlers["QueuesDownstream"] = silent
    stream.start_deadline(first_s)
    stream.stop_deadline()
    stream.start_deadline(0.05)
    began = asyncio.get_running_loop().time()
    await stream.write(REQUEST)
    with pytest.raises(TimedOut, match=r"within 0\.05 s"):
        await stream.read()
    assert asyncio.get_running_loop().time() - began >= 0.04


async def test_a_dropped_stream_leaves_no_timer(stream: Stream) -> None:
    stream.start_deadline(60)
    timer = stream._timer
    stream.stop_deadline()
    stream.drop()
    assert timer is not None
    assert timer.cancelled()


async def test_a_client_that_is_not_connected(server: Scripted) -> None:
    stream: Stream = Duplex(KubeMQClient(server.address, "unit").open_downstream)
    with pytest.raises(Unavailable, match="not connected"):
        await stream.write(REQUEST)


async def test_closing_the_client_ends_who_waits(server: Scripted, client: KubeMQClient, stream: Stream) -> None:
    server.handlers["QueuesDownstream"] = silent
    await stream.write(REQUEST)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(outcome(stream.read()))
        await asyncio.sleep(0)
        await client.close()

    assert_unavailable(reading.result(), "")


def assert_unavailable(error: object, text: str) -> None:
    assert isinstance(error, Unavailable)
    assert text in str(error)


async def test_what_cannot_be_sent_says_so(server: Scripted, client: KubeMQClient) -> None:
    with pytest.raises(NotSent, match="not connected"):
        await Duplex(KubeMQClient(server.address, "unit").open_downstream).write(REQUEST)
    call = client.open_downstream()
    stream: Stream = Duplex(lambda: call)
    server.handlers["QueuesDownstream"] = ending(grpc.StatusCode.UNAVAILABLE)
    await stream.write(REQUEST)
    await call.code()
    with pytest.raises(NotSent, match="because"):
        await stream.write(REQUEST)
    with pytest.raises(Unavailable) as caught:
        await stream.read()
    assert not isinstance(caught.value, NotSent), "what was written before is unknown"


async def test_a_server_that_cannot_be_reached_was_sent_nothing(client: KubeMQClient, server: Scripted) -> None:
    await server.stop()
    stream: Stream = Duplex(client.open_downstream)
    stream.start_deadline(5)
    with pytest.raises(NotSent):
        await stream.write(REQUEST)


@pytest.fixture
async def unconnected() -> AsyncIterator[KubeMQClient]:
    """Its server takes connections and says nothing."""
    with mute() as address:
        client = KubeMQClient(address, "unit", call_timeout_s=0.01)
        assert isinstance(await outcome(client.probe()), TimedOut)
        yield client
        await closed(client)


@pytest.mark.parametrize("end", ["deadline", "drop", "close"])
async def test_who_waits_for_the_connection_hears_of_the_end(unconnected: KubeMQClient, end: str) -> None:
    """The wait of gRPC itself would not end."""
    stream: Stream = Duplex(unconnected.open_downstream)
    stream.start_deadline(0.05 if end == "deadline" else 60)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        writing = group.create_task(outcome(stream.write(REQUEST)))
        await asyncio.sleep(0)
        if end == "drop":
            stream.drop()
        elif end == "close":
            await unconnected.close()

    assert isinstance(writing.result(), NotSent)
    assert stream.is_gone


async def test_who_is_cancelled_while_waiting_for_the_connection_stays_so(unconnected: KubeMQClient) -> None:
    stream: Stream = Duplex(unconnected.open_downstream)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        writing = group.create_task(outcome(stream.write(REQUEST)))
        await asyncio.sleep(0)
        writing.cancel()

    assert writing.cancelled()
    assert stream.is_gone


REQUESTS: dict[str, Callable[[KubeMQClient], Awaitable[object]]] = {
    "Ping": lambda client: client.ping(),
    "QueuesInfo": lambda client: client.queues_info(),
    "padded Ping": lambda client: client.takes(1_000),
    "batch": lambda client: client.send_batch([]),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["closed", "cancelled"])
async def test_closing_the_client_cancels_nobody(unconnected: KubeMQClient, name: str, is_cancelled: bool) -> None:
    """A closed channel raises CancelledError: a task that took it for its own would end without a word."""
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        asking = group.create_task(outcome(REQUESTS[name](unconnected)))
        await asyncio.sleep(0)
        await unconnected.close()
        if is_cancelled:
            asking.cancel()

    assert asking.cancelled() == is_cancelled
    if not is_cancelled:
        assert isinstance(asking.result(), Unavailable)

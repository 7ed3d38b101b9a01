"""A bare gRPC client of KubeMQ's protocol: what the contract says, with nothing in between.

Owns matching answers to requests; must not know which server it talks to.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from kubemq.grpc import kubemq_pb2 as pb
from kubemq.grpc import kubemq_pb2_grpc

from connector.embedded.info import QueuesInfoRequest, QueuesInfoResponse
from tests.support.waiting import until

LIMIT_S = 10.0
AT_ONCE_S = 0.5
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Kind = pb.QueuesDownstreamRequestType


def new_channel(word: str = "q") -> str:
    """A channel nobody has used before."""
    return f"contract.{word}{uuid.uuid4().hex[:10]}"


def message(channel: str, body: bytes | str = b"x", **fields: Any) -> pb.QueueMessage:
    """A queue message that passes all checks, but for what ``fields`` say."""
    content = body.encode() if isinstance(body, str) else body
    return pb.QueueMessage(**{"ClientID": "contract", "Channel": channel, "Body": content, **fields})


def sequences(answer: Any) -> list[int]:
    """The Sequences of an answer's messages."""
    return [each.Attributes.Sequence for each in answer.Messages]


def bodies(answer: Any) -> list[bytes]:
    """The bodies of an answer's messages."""
    return [each.Body for each in answer.Messages]


def receive_counts(answer: Any) -> list[int]:
    """How often each message of an answer was received."""
    return [each.Attributes.ReceiveCount for each in answer.Messages]


class Downstream:
    """One QueuesDownstream stream."""

    def __init__(self, stub: Any) -> None:
        self.call = stub.QueuesDownstream()
        self.unasked: list[pb.QueuesDownstreamResponse] = []
        self.ended: asyncio.Future[grpc.StatusCode] = asyncio.get_running_loop().create_future()
        self._answers: dict[str, asyncio.Future[pb.QueuesDownstreamResponse]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="downstream reader")

    async def ask(self, kind: int, **fields: Any) -> pb.QueuesDownstreamResponse:
        """Send a request and wait for its answer."""
        request_id = uuid.uuid4().hex
        answer = self._answers[request_id] = asyncio.get_running_loop().create_future()
        await self._send(request_id, kind, fields)
        async with asyncio.timeout(LIMIT_S):
            return await answer

    async def tell(self, kind: int, transaction: str, sequences: Iterable[int] = (), target: str = "") -> None:
        """Send a request that is answered only if it is refused."""
        fields = {"RefTransactionId": transaction, "SequenceRange": list(sequences), "ReQueueChannel": target}
        await self._send(uuid.uuid4().hex, kind, fields)

    async def get(
        self, channel: str, max_items: int, wait_ms: int = 1000, *, auto_ack: bool = False
    ) -> pb.QueuesDownstreamResponse:
        """Get; the answer must not be an error."""
        answer = await self.ask(Kind.Get, Channel=channel, MaxItems=max_items, WaitTimeout=wait_ms, AutoAck=auto_ack)
        assert not answer.IsError, answer.Error
        return answer

    async def ack(self, answer: pb.QueuesDownstreamResponse, only: Iterable[int] | None = None) -> None:
        """AckRange of all of an answer, or of some Sequences; served when this returns."""
        await self.tell(Kind.AckRange, answer.TransactionId, sequences(answer) if only is None else only)
        await self.barrier()

    async def close(self, answer: pb.QueuesDownstreamResponse) -> None:
        """CloseByClient; served when this returns."""
        await self.tell(Kind.CloseByClient, answer.TransactionId)
        await self.barrier()

    async def active(self, answer: pb.QueuesDownstreamResponse) -> list[int]:
        """What the transaction holds."""
        offsets = await self.ask(Kind.ActiveOffsets, RefTransactionId=answer.TransactionId)
        assert not offsets.IsError, offsets.Error
        return sorted(offsets.ActiveOffsets)

    async def barrier(self) -> None:
        """Return when everything sent before was served."""
        await self.ask(Kind.ActiveOffsets, RefTransactionId="no such transaction")

    async def cancel(self) -> None:
        """Drop the stream."""
        self.call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading

    async def _send(self, request_id: str, kind: int, fields: dict[str, Any]) -> None:
        values = {"RequestID": request_id, "ClientID": "contract", "RequestTypeData": kind, **fields}
        await self.call.write(pb.QueuesDownstreamRequest(**values))

    async def _read(self) -> None:
        try:
            while (answer := await self.call.read()) is not grpc.aio.EOF:
                waiting = self._answers.pop(answer.RefRequestId, None)
                if waiting is None or waiting.done():
                    self.unasked.append(answer)
                else:
                    waiting.set_result(answer)
        except grpc.aio.AioRpcError as error:
            self.ended.set_result(error.code())
        finally:
            for future in self._answers.values():
                future.cancel()


class Subscription:
    """One SubscribeToEvents call and what it has received."""

    def __init__(self, call: Any) -> None:
        self.events: list[pb.EventReceive] = []
        self.error: grpc.aio.AioRpcError | None = None
        self._call = call
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="subscription reader")

    def names(self) -> list[str]:
        """The EventIDs received."""
        return [event.EventID for event in self.events]

    async def has(self, name: str) -> None:
        """Wait for an event."""
        await until(lambda: name in self.names())

    async def refused(self) -> str:
        """Wait for the error that ends the subscription; its text."""
        async with asyncio.timeout(LIMIT_S):
            await self._reading
        assert self.error is not None
        assert self.error.code() is grpc.StatusCode.INTERNAL
        return self.error.details() or ""

    async def cancel(self) -> None:
        """End the subscription."""
        self._call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading

    async def _read(self) -> None:
        try:
            while (event := await self._call.read()) is not grpc.aio.EOF:
                self.events.append(event)
        except grpc.aio.AioRpcError as error:
            self.error = error


class RawClient:
    """A connection and its streams; use with ``async with``."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.stub: Any = kubemq_pb2_grpc.kubemqStub(self._channel)
        self._queues_info = self._channel.unary_unary(
            "/kubemq.kubemq/QueuesInfo",
            request_serializer=QueuesInfoRequest.SerializeToString,
            response_deserializer=QueuesInfoResponse.FromString,
        )
        self._streams: list[Downstream] = []
        self._subscriptions: list[Subscription] = []

    def downstream(self) -> Downstream:
        """A new stream, cancelled at the end."""
        stream = Downstream(self.stub)
        self._streams.append(stream)
        return stream

    def subscribe(self, channel: str, kind: int, **fields: Any) -> Subscription:
        """A subscription to events, cancelled at the end; its ClientID is new unless given."""
        values = {"SubscribeTypeData": kind, "ClientID": uuid.uuid4().hex, "Channel": channel, **fields}
        subscription = Subscription(self.stub.SubscribeToEvents(pb.Subscribe(**values)))
        self._subscriptions.append(subscription)
        return subscription

    async def upstream(self, *requests: Sequence[pb.QueueMessage]) -> list[pb.QueuesUpstreamResponse]:
        """One QueuesUpstream stream with one request in flight; the answers."""
        call, answers = self.stub.QueuesUpstream(), []
        for number, messages in enumerate(requests):
            await call.write(pb.QueuesUpstreamRequest(RequestID=str(number), Messages=messages))
            answer = await call.read()
            assert answer.RefRequestID == str(number)
            answers.append(answer)
        call.cancel()
        return answers

    async def publish(self, channel: str, *contents: bytes | str | int, **fields: Any) -> None:
        """Store messages with these bodies."""
        messages = [message(channel, str(each) if isinstance(each, int) else each, **fields) for each in contents]
        (answer,) = await self.upstream(messages)
        assert not any(result.IsError for result in answer.Results), answer

    async def info(self, names: str = "") -> Any:
        """QueuesInfo of all queues, or of those listed."""
        response = await self._queues_info(QueuesInfoRequest(RequestID="info", QueueName=names), timeout=LIMIT_S)
        assert response.RefRequestID == "info"
        return response.Info

    async def row(self, channel: str) -> dict[str, int]:
        """A queue's numbers in QueuesInfo, those that are not 0; empty when it is not listed."""
        for queue in (await self.info()).Queues:
            if queue.Name == channel:
                return {field.name: value for field, value in queue.ListFields() if field.name not in ("Name", "Bytes")}
        return {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams:
            await stream.cancel()
        for subscription in self._subscriptions:
            await subscription.cancel()
        await self._channel.close()
        this = asyncio.current_task()
        await until(lambda: all(task is this or task.done() for task in asyncio.all_tasks()))  # gRPC's own


async def until_row(client: RawClient, channel: str, **expected: int) -> None:
    """Wait until QueuesInfo says so: some effects are not answered, and a real server needs a moment."""
    row: dict[str, int] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while {name: row.get(name, 0) for name in expected} != expected:
                row = await client.row(channel)
    assert {name: row.get(name, 0) for name in expected} == expected


async def a_second_passes(client: RawClient) -> None:
    """Let the server's clock move on: the shortest Get of an idle queue takes a second."""
    with Timed() as took:
        await client.downstream().get(new_channel("idle"), 1)
    assert took.seconds > 0.95
    start = time.monotonic()
    await until(lambda: time.monotonic() > start + 0.1)


class Timed:
    """How long a block took."""

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        self.seconds = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._start

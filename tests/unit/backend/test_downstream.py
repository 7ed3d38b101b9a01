"""Which answer belongs to which request, and what a message becomes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from connector.backend.kubemq import KubeMQClient, KubeMQStore
from connector.backend.kubemq.downstream import messages_of
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.ports import QueueStream, TooMuch, Unavailable
from mapping.attributes import native_header
from mapping.envelope import encode
from tests.unit.backend.scripted import Context, Scripted

HEADER = b"\x10\x00\x02"


def stored(sequence: int, metadata: str = "", **fields: Any) -> pb.QueueMessage:
    attributes = pb.QueueMessageAttributes(Sequence=sequence, Timestamp=1_700_000_000 * 10**9)
    return pb.QueueMessage(MessageID=f"id{sequence}", Metadata=metadata, Attributes=attributes, **fields)


class Downstream:
    """Answers Gets with what is given, tells errors of acks and closes before the next answer; keeps all requests."""

    def __init__(self, *messages: pb.QueueMessage) -> None:
        self.messages = messages
        self.requests: list[pb.QueuesDownstreamRequest] = []
        self.refuse_gets = ""

    async def serve(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for request in requests:
            self.requests.append(request)
            answer = pb.QueuesDownstreamResponse(
                RefRequestId=request.RequestID, RequestTypeData=request.RequestTypeData
            )
            if request.RequestTypeData == pb.Get:
                answer.TransactionId = "t1"
                answer.Messages.extend(self.messages)
                answer.IsError, answer.Error = bool(self.refuse_gets), self.refuse_gets
                yield answer
            elif request.RequestTypeData == pb.ActiveOffsets or request.RefTransactionId != "t1":
                answer.IsError, answer.Error = True, "transaction is completed or transaction id not found"
                yield answer


@pytest.fixture
def stream(client: KubeMQClient) -> QueueStream:
    return KubeMQStore(client).open_stream()


async def test_a_get_asks_for_what_was_wanted_and_waits_as_short_as_it_can(
    server: Scripted, stream: QueueStream
) -> None:
    downstream = Downstream()
    server.handlers["QueuesDownstream"] = downstream.serve

    answer = await stream.get("amqp.default.q", 7)

    (request,) = downstream.requests
    assert (request.Channel, request.MaxItems, request.WaitTimeout) == ("amqp.default.q", 7, 1000)
    assert (request.ClientID, request.AutoAck) == ("unit", False)
    assert (answer.transaction_id, answer.messages, answer.error) == ("t1", [], "")


async def test_acks_and_closes_are_silent_and_in_order(server: Scripted, stream: QueueStream) -> None:
    downstream = Downstream()
    server.handlers["QueuesDownstream"] = downstream.serve
    await stream.ack_range("t1", [3, 5])
    await stream.close_transaction("t1")

    assert list(await stream.barrier()) == []

    ack, close, barrier = downstream.requests
    assert (ack.RequestTypeData, ack.RefTransactionId, list(ack.SequenceRange)) == (pb.AckRange, "t1", [3, 5])
    assert (close.RequestTypeData, close.RefTransactionId) == (pb.CloseByClient, "t1")
    assert barrier.RequestTypeData == pb.ActiveOffsets
    assert len({request.RequestID for request in downstream.requests}) == 3


async def test_failed_acks_are_gathered_and_failed_closes_are_not(server: Scripted, stream: QueueStream) -> None:
    server.handlers["QueuesDownstream"] = Downstream().serve
    first = await stream.ack_range("gone", [1])
    await stream.close_transaction("gone")
    await stream.ack_range("t1", [2])
    second = await stream.ack_range("gone", [3])

    answer = await stream.get("c", 1)

    assert list(answer.failed_acks) == [first, second]
    assert list((await stream.get("c", 1)).failed_acks) == []
    third = await stream.ack_range("gone", [1])
    assert list(await stream.barrier()) == [third]
    assert list(await stream.barrier()) == []


async def test_a_refused_get_is_an_answer(server: Scripted, stream: QueueStream) -> None:
    downstream = Downstream(stored(1))
    server.handlers["QueuesDownstream"] = downstream.serve
    downstream.refuse_gets = "Error 121: cannot subscribe to a queue"
    token = await stream.ack_range("gone", [1])

    answer = await stream.get("c", 1)

    assert (answer.error, answer.messages, answer.transaction_id) == (downstream.refuse_gets, [], "")
    assert list(answer.failed_acks) == [token]


async def test_an_answer_over_the_servers_limit_is_too_much(server: Scripted, stream: QueueStream) -> None:
    async def exhausted(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for _ in requests:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "trying to send message larger than max")
        yield None

    server.handlers["QueuesDownstream"] = exhausted

    with pytest.raises(TooMuch, match="larger than max"):
        await stream.get("c", 1000)
    with pytest.raises(TooMuch):
        await stream.ack_range("t", [1])


async def test_a_cancelled_stream_is_over(server: Scripted, stream: QueueStream) -> None:
    server.handlers["QueuesDownstream"] = Downstream().serve
    await stream.barrier()

    stream.cancel()

    with pytest.raises(Unavailable):
        await stream.get("c", 1)
    with pytest.raises(Unavailable):
        await stream.close_transaction("t")


def test_a_message_with_an_envelope() -> None:
    metadata = encode("orders", "a.b", HEADER, redelivered=True, delivery_count=3)

    (message,) = messages_of("amqp.default.q", [stored(9, metadata, Body=b"body")])

    assert (message.exchange, message.routing_key, message.header) == ("orders", "a.b", HEADER)
    assert (message.body, message.message_id, message.sequence) == (b"body", "id9", 9)
    assert (message.kubemq_channel, message.redelivered, message.delivery_count) == ("amqp.default.q", True, 3)


@pytest.mark.parametrize("key", ["a.b", "\0" * 255, "ä\0" * 80, "\u20ac" * 85])
def test_the_size_of_its_envelope_is_known(key: str) -> None:
    metadata = encode("orders", key, HEADER)
    for _ in range(2):  # remembered, too
        (message,) = messages_of("amqp.default.q", [stored(9, metadata, Body=b"body")])
        assert message.envelope_bytes == len(metadata.encode())


@pytest.mark.parametrize("metadata", ["", "note", "{}", '{"v":1', "null", "[1]"])
def test_a_native_message(metadata: str) -> None:
    (message,) = messages_of("amqp.default.q%2fx", [stored(9, metadata, Body=b"b", Tags={"k": "v"})])

    assert (message.exchange, message.routing_key) == ("", "q/x")
    assert message.header == native_header({"k": "v"}, "id9", metadata, 1_700_000_000 * 10**9)
    assert (message.sequence, message.redelivered, message.delivery_count) == (9, False, 0)


def test_a_native_message_on_a_channel_without_a_queue_keeps_the_channels_name_as_its_key() -> None:
    (message,) = messages_of("orders", [stored(1, Body=b"b")])

    assert message.routing_key == "orders"


def test_messages_are_in_sequence_order() -> None:
    messages = messages_of("c", [stored(number) for number in (4, 5, 1, 2, 6)])

    assert [message.sequence for message in messages] == [1, 2, 4, 5, 6]


def test_what_an_answer_has_twice_is_one_message() -> None:
    """KubeMQ sends it again while it redelivers, and lists it again."""
    for numbers in ((1, 2, 2, 3), (2, 3, 1, 2, 3, 4), (1, 1)):
        messages = messages_of("c", [stored(number) for number in numbers])
        assert [message.sequence for message in messages] == sorted({*numbers})

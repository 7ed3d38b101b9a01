"""What becomes of messages that a client acknowledges, rejects or moves.

One suite on the embedded server and on a real KubeMQ: where both agree here, an adapter that passes on the embedded one
is right about the real one.  Source: measurements on KubeMQ 2.4.0.
"""

from __future__ import annotations

import pytest
from kubemq.grpc import kubemq_pb2 as pb

from tests.contract.raw_client import (
    Kind,
    RawClient,
    bodies,
    new_channel,
    receive_counts,
    sequences,
    until_row,
)

# ------------------------------------------------------------------------------------------------ settling


async def test_ack_range_of_all_closes_the_transaction(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(4))
    stream = client.downstream()
    answer = await stream.get(queue, 4)
    await stream.ack(answer)
    await until_row(client, queue, Waiting=0, Delivered=4)
    assert not stream.unasked
    assert (await stream.ask(Kind.ActiveOffsets, RefTransactionId=answer.TransactionId)).IsError


async def test_ack_range_stops_at_the_first_unknown_sequence(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(6))
    stream = client.downstream()
    answer = await stream.get(queue, 6)
    refused = await stream.ask(Kind.AckRange, RefTransactionId=answer.TransactionId, SequenceRange=[2, 1, 99, 3])
    assert refused.IsError
    assert (refused.TransactionId, refused.RequestTypeData) == (answer.TransactionId, Kind.AckRange)
    assert await stream.active(answer) == [3, 4, 5, 6]
    twice = await stream.ask(Kind.AckRange, RefTransactionId=answer.TransactionId, SequenceRange=[5, 5, 6])
    assert twice.IsError
    assert await stream.active(answer) == [3, 4, 6]
    await until_row(client, queue, Waiting=3)


@pytest.mark.parametrize("kind", [Kind.AckRange, Kind.NAckRange, Kind.ReQueueRange])
async def test_an_empty_range_is_an_error(client: RawClient, queue: str, kind: int) -> None:
    await client.publish(queue, "x")
    stream = client.downstream()
    answer = await stream.get(queue, 1)
    fields = {"RefTransactionId": answer.TransactionId, "ReQueueChannel": new_channel()}
    assert (await stream.ask(kind, **fields)).IsError
    assert await stream.active(answer) == [1]


@pytest.mark.parametrize("kind", [Kind.AckAll, Kind.AckRange, Kind.NAckAll, Kind.CloseByClient, Kind.ActiveOffsets])
async def test_an_unknown_transaction_is_an_error_that_names_its_request(client: RawClient, kind: int) -> None:
    answer = await client.downstream().ask(kind, RefTransactionId="nobody", SequenceRange=[1])
    assert answer.IsError
    assert (answer.RequestTypeData, answer.TransactionId) == (kind, "nobody")


@pytest.mark.parametrize("kind", [Kind.AckAll, Kind.AckRange, Kind.NAckAll, Kind.NAckRange, Kind.ReQueueAll])
async def test_a_closed_transaction_refuses_everything_but_another_close(
    client: RawClient, queue: str, kind: int
) -> None:
    await client.publish(queue, "x")
    stream = client.downstream()
    answer = await stream.get(queue, 1)
    await stream.close(answer)
    fields = {"RefTransactionId": answer.TransactionId, "SequenceRange": [1], "ReQueueChannel": new_channel()}
    assert (await stream.ask(kind, **fields)).IsError
    await stream.close(answer)
    assert not stream.unasked


@pytest.mark.parametrize("kind", [Kind.TransactionStatus, Kind.CloseByServer, Kind.PollRequestTypeUnknown])
async def test_request_types_nobody_serves(client: RawClient, queue: str, kind: int) -> None:
    await client.publish(queue, "x")
    stream = client.downstream()
    answer = await stream.get(queue, 1)
    refused = await stream.ask(kind, RefTransactionId=answer.TransactionId)
    assert refused.IsError
    assert refused.RequestTypeData == Kind.PollRequestTypeUnknown
    assert await stream.active(answer) == [1]


async def test_a_nack_is_a_copy_at_the_tail(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(4))
    stream = client.downstream()
    answer = await stream.get(queue, 2)
    await stream.tell(Kind.NAckAll, answer.TransactionId)
    await until_row(client, queue, LastSequence=6, Waiting=4)
    again = await stream.get(queue, 4)
    assert sequences(again) == [3, 4, 5, 6]
    assert sorted(zip(bodies(again), receive_counts(again), strict=True)) == [
        (b"0", 2),
        (b"1", 2),
        (b"2", 1),
        (b"3", 1),
    ]
    assert not stream.unasked


async def test_a_nack_range_keeps_the_rest(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(4))
    stream = client.downstream()
    answer = await stream.get(queue, 4)
    await stream.tell(Kind.NAckRange, answer.TransactionId, [2, 4])
    await until_row(client, queue, LastSequence=6, Waiting=4)
    assert await stream.active(answer) == [1, 3]


async def test_at_its_receive_limit_a_message_moves_to_the_dead_letter_queue(client: RawClient, queue: str) -> None:
    dead = new_channel("dead")
    policy = pb.QueueMessagePolicy(MaxReceiveCount=2, MaxReceiveQueue=dead)
    await client.publish(queue, "x", MessageID="m", Tags={"k": "v"}, Policy=policy)
    stream = client.downstream()
    for count in (1, 2):
        answer = await stream.get(queue, 1)
        assert receive_counts(answer) == [count]
        await stream.tell(Kind.NAckAll, answer.TransactionId)
    await until_row(client, queue, Waiting=0)
    (got,) = (await stream.get(dead, 1, 5000)).Messages
    assert (got.MessageID, got.Channel, got.Body, dict(got.Tags)) == ("m", dead, b"x", {"k": "v"})
    assert (got.Attributes.ReceiveCount, got.Attributes.ReRouted) == (1, True)
    assert got.Attributes.ReRoutedFromQueue == queue
    assert got.Policy.MaxReceiveCount == 0


async def test_at_its_receive_limit_a_message_without_a_dead_letter_queue_is_gone(
    client: RawClient, queue: str
) -> None:
    await client.publish(queue, "x", Policy=pb.QueueMessagePolicy(MaxReceiveCount=1))
    stream = client.downstream()
    await stream.tell(Kind.NAckAll, (await stream.get(queue, 1)).TransactionId)
    await until_row(client, queue, Waiting=0, LastSequence=1)


async def test_closing_and_losing_a_stream_count_no_failed_delivery(client: RawClient, queue: str) -> None:
    await client.publish(queue, "x", Policy=pb.QueueMessagePolicy(MaxReceiveCount=1))
    stream = client.downstream()
    for _ in range(3):
        answer = await stream.get(queue, 1)
        assert receive_counts(answer) == [1]
        await stream.close(answer)


@pytest.mark.parametrize("kind", [Kind.ReQueueAll, Kind.ReQueueRange])
async def test_a_requeue_is_a_new_message_elsewhere(client: RawClient, queue: str, kind: int) -> None:
    target = new_channel("target")
    await client.publish(queue, "x", MessageID="m", Tags={"k": "v"})
    stream = client.downstream()
    answer = await stream.get(queue, 1)
    await stream.tell(kind, answer.TransactionId, [1], target)
    await until_row(client, queue, Waiting=0)
    (got,) = (await stream.get(target, 1)).Messages
    assert (got.MessageID, got.Channel, got.Body, dict(got.Tags)) == ("m", target, b"x", {"k": "v"})
    assert (got.Attributes.Sequence, got.Attributes.ReceiveCount, got.Attributes.ReRouted) == (1, 1, False)
    assert not stream.unasked


@pytest.mark.parametrize("kind", [Kind.ReQueueAll, Kind.ReQueueRange])
async def test_a_requeue_to_nowhere_is_an_error(client: RawClient, queue: str, kind: int) -> None:
    await client.publish(queue, "x")
    stream = client.downstream()
    answer = await stream.get(queue, 1)
    refused = await stream.ask(kind, RefTransactionId=answer.TransactionId, SequenceRange=[1])
    assert refused.IsError
    assert await stream.active(answer) == [1]

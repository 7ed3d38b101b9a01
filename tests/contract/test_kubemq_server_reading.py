"""What the adapter relies on, and must survive, when it reads a queue.

One suite on the embedded server and on a real KubeMQ: where both agree here, an adapter that passes on the embedded one
is right about the real one.  Source: measurements on KubeMQ 2.4.0.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from kubemq.grpc import kubemq_pb2 as pb

from tests.contract.raw_client import (
    AT_ONCE_S,
    Kind,
    RawClient,
    Timed,
    a_second_passes,
    bodies,
    new_channel,
    receive_counts,
    sequences,
    until_row,
)

#: So often a Get may find that what another transaction had is not back yet.
_TRIES = 100

# ------------------------------------------------------------------------------------------------ Get


async def test_a_get_of_what_is_there_is_answered_at_once(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(10))
    with Timed() as took:
        answer = await client.downstream().get(queue, 7)
    assert bodies(answer) == [b"%d" % number for number in range(7)]
    assert took.seconds < AT_ONCE_S
    assert (answer.IsError, answer.TransactionComplete, list(answer.ActiveOffsets)) == (False, False, [])
    assert answer.TransactionId


async def test_a_get_of_one_is_answered_when_one_arrives(client: RawClient, queue: str) -> None:
    stream = client.downstream()
    async with asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(stream.get(queue, 1, 5000))
        await until_row(client, queue, Subscribers=1)
        with Timed() as took:
            await client.publish(queue, "x")
            await getting
    assert bodies(getting.result()) == [b"x"]
    assert took.seconds < AT_ONCE_S


async def test_a_short_get_waits_a_second_at_least(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(3))
    with Timed() as took:
        answer = await client.downstream().get(queue, 5, 1)
    assert bodies(answer) == [b"0", b"1", b"2"]
    assert took.seconds > 0.95


async def test_an_empty_answer_leaves_a_closed_transaction(client: RawClient, queue: str) -> None:
    stream = client.downstream()
    answer = await stream.get(queue, 3)
    assert not answer.Messages
    assert answer.TransactionId
    assert (await stream.ask(Kind.ActiveOffsets, RefTransactionId=answer.TransactionId)).IsError
    await until_row(client, queue, Waiting=0, Subscribers=1)


async def test_no_max_items_means_all(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(30))
    assert len((await client.downstream().get(queue, 0)).Messages) == 30


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"ClientID": ""}, "Error 101"),
        ({"Channel": ""}, "Error 120"),
        ({"Channel": "a."}, "Error 120"),
        ({"Channel": "a..b"}, "Error 121"),
        ({"Channel": "a/b"}, "Error 121"),
        ({"Channel": "a:b"}, "Error 121"),
    ],
)
async def test_refused_gets(client: RawClient, queue: str, fields: dict[str, str], error: str) -> None:
    answer = await client.downstream().ask(Kind.Get, **{"Channel": queue, "MaxItems": 1, "WaitTimeout": 1, **fields})
    assert answer.IsError
    assert answer.Error.startswith(error)
    assert answer.RequestTypeData == Kind.Get


async def test_auto_ack_acknowledges_with_the_answer(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(3))
    stream = client.downstream()
    answer = await stream.get(queue, 2, auto_ack=True)
    assert len(answer.Messages) == 2
    await until_row(client, queue, Waiting=1)
    assert (await stream.ask(Kind.ActiveOffsets, RefTransactionId=answer.TransactionId)).IsError


async def test_an_answer_over_the_body_limit_ends_the_stream_and_loses_nothing(client: RawClient, queue: str) -> None:
    half = b"x" * (55 * 1024 * 1024)
    for _ in range(2):
        await client.publish(queue, half)
    stream = client.downstream()
    with pytest.raises(asyncio.CancelledError):
        await stream.get(queue, 2, 9000)
    assert await stream.ended is grpc.StatusCode.RESOURCE_EXHAUSTED
    await until_row(client, queue, Waiting=2)
    again = client.downstream()
    answer = await again.get(queue, 1)
    for _ in range(_TRIES):  # KubeMQ takes back a moment later what the answer had
        if sequences(answer) != [1]:
            await again.close(answer)
            answer = await again.get(queue, 1)
    assert (sequences(answer), len(answer.Messages[0].Body)) == ([1], len(half))
    await client.stub.AckAllQueueMessages(pb.AckAllQueueMessagesRequest(RequestID="r", ClientID="c", Channel=queue))


# ------------------------------------------------------------------------------------------------ streams


async def test_a_waiting_get_blocks_every_later_request_of_its_stream(client: RawClient, queue: str) -> None:
    stream = client.downstream()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(stream.get(queue, 1, 1500))
        await until_row(client, queue, Subscribers=1)
        with Timed() as took:
            await stream.barrier()
    assert took.seconds > 1


async def test_a_waiting_get_stalls_one_in_two_hundred_others(client: RawClient, queue: str) -> None:
    idle, waiting = new_channel("idle"), client.downstream()
    await client.publish(queue, "x")
    stream = client.downstream()
    slowest = 0.0
    async with asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(waiting.get(idle, 1, 5000))
        await until_row(client, idle, Subscribers=1)
        for _ in range(200):
            with Timed() as took:
                await stream.close(await stream.get(queue, 1))
            slowest = max(slowest, took.seconds)
        assert getting.done() or slowest > 1
    assert slowest > 1


async def test_a_lost_stream_gives_everything_back_in_place(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(10))
    lost = client.downstream()
    await lost.get(queue, 6)
    await lost.cancel()
    await until_row(client, queue, Subscribers=1)
    answer = await client.downstream().get(queue, 10)
    assert sequences(answer) == list(range(1, 11))
    assert receive_counts(answer) == [1] * 10


async def test_a_half_closed_stream_keeps_what_it_holds(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(2))
    stream = client.downstream()
    await stream.get(queue, 2)
    await stream.call.done_writing()
    answer = await client.downstream().get(queue, 1)
    assert not answer.Messages
    await until_row(client, queue, Waiting=2)


async def test_a_cancelled_waiting_get_loses_nothing(client: RawClient, queue: str) -> None:
    lost = client.downstream()
    async with asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(lost.get(queue, 1, 2000))
        await until_row(client, queue, Subscribers=1)
        await lost.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await getting
    await client.publish(queue, "x")
    answer = await client.downstream().get(queue, 1, 5000)
    assert (bodies(answer), receive_counts(answer)) == ([b"x"], [1])


# ------------------------------------------------------------------------------------------------ groups


async def test_a_short_get_parks_later_messages_until_it_ends(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(5))
    short, other = client.downstream(), client.downstream()
    answer = await short.get(queue, 20)
    assert sequences(answer) == [1, 2, 3, 4, 5]
    await client.publish(queue, *range(5, 10))
    await until_row(client, queue, Delivered=10, Waiting=10)
    assert not (await other.get(queue, 5)).Messages
    assert await short.active(answer) == [1, 2, 3, 4, 5]
    refused = await short.ask(Kind.AckRange, RefTransactionId=answer.TransactionId, SequenceRange=[6])
    assert refused.IsError
    await short.tell(Kind.AckAll, answer.TransactionId)
    await until_row(client, queue, Waiting=5)
    assert sequences(await other.get(queue, 5)) == [6, 7, 8, 9, 10]


async def test_a_partial_ack_pulls_further_messages_in(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(10))
    stream, other = client.downstream(), client.downstream()
    answer = await stream.get(queue, 5)
    await stream.ack(answer, [1, 2, 3])
    await until_row(client, queue, Delivered=8, Waiting=7)
    assert await stream.active(answer) == [4, 5]
    short = await other.get(queue, 5)
    assert sequences(short) == [9, 10]
    await other.cancel()
    await until_row(client, queue, Subscribers=1)
    await stream.close(answer)
    again = await client.downstream().get(queue, 7)
    assert sequences(again) == [4, 5, 6, 7, 8, 9, 10]


async def test_give_back_is_in_place_and_the_next_get_starts_with_it(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(60))
    stream, got, left = client.downstream(), [], 60
    while left:
        with Timed() as took:
            answer = await stream.get(queue, min(20, left))
        assert took.seconds < AT_ONCE_S
        settled = sequences(answer)[: max(1, len(answer.Messages) // 3)]
        got += settled
        left -= len(settled)
        await stream.ack(answer, settled)
        await stream.close(answer)
    assert got == list(range(1, 61))
    assert not stream.unasked


async def test_the_next_get_must_ask_for_all_that_was_given_back(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(10))
    stream = client.downstream()
    await stream.close(await stream.get(queue, 8))
    answer = await stream.get(queue, 3)
    assert sequences(answer) == [1, 2, 3]
    other = client.downstream()
    assert sequences(await other.get(queue, 3)) == [9, 10]
    await other.cancel()
    await stream.tell(Kind.AckAll, answer.TransactionId)
    await until_row(client, queue, Waiting=7, Subscribers=1)
    assert sequences(await stream.get(queue, 7)) == [4, 5, 6, 7, 8, 9, 10]


async def test_what_a_closed_transaction_held_goes_to_a_waiting_one(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(2))
    closing, waiting = client.downstream(), client.downstream()
    answer = await closing.get(queue, 2)
    async with asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(waiting.get(queue, 2, 5000))
        await until_row(client, queue, Subscribers=2)
        with Timed() as took:
            await closing.close(answer)
            await getting
    assert sequences(getting.result()) == [1, 2]
    assert 0.05 < took.seconds < 1


async def test_what_a_closed_transaction_held_is_withheld_by_an_open_one(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(6))
    one, other = client.downstream(), client.downstream()
    first, second = await one.get(queue, 3), await other.get(queue, 3)
    assert sequences(first) + sequences(second) == [1, 2, 3, 4, 5, 6]
    await until_row(client, queue, Waiting=6, Subscribers=2, Delivered=9)
    await one.close(first)
    await until_row(client, queue, Waiting=6, Subscribers=1)
    await a_second_passes(client)
    assert not (await one.get(queue, 3)).Messages
    await other.close(second)
    await until_row(client, queue, Waiting=6, Subscribers=1)
    assert sequences(await one.get(queue, 6)) == [1, 2, 3, 4, 5, 6]


# ------------------------------------------------------------------------------------------------ unary reads


async def receive(client: RawClient, queue: str, count: int, wait_s: int = 1, *, peek: bool = False) -> Any:
    return await client.stub.ReceiveQueueMessages(
        pb.ReceiveQueueMessagesRequest(
            RequestID="r", ClientID="c", Channel=queue, MaxNumberOfMessages=count, WaitTimeSeconds=wait_s, IsPeak=peek
        )
    )


async def test_receive_takes_and_acknowledges(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(5))
    with Timed() as took:
        answer = await receive(client, queue, 2)
    assert (sequences(answer), receive_counts(answer), answer.MessagesReceived) == ([1, 2], [1, 1], 2)
    assert (answer.IsError, answer.IsPeak, answer.RequestID) == (False, False, "r")
    assert took.seconds < AT_ONCE_S
    await until_row(client, queue, Waiting=3)


async def test_receive_waits_for_as_many_as_were_asked_for(client: RawClient, queue: str) -> None:
    await client.publish(queue, "x")
    with Timed() as took:
        answer = await receive(client, queue, 2)
    assert bodies(answer) == [b"x"]
    assert took.seconds > 0.95


async def test_peek_leaves_everything_in_place(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(5))
    answer = await receive(client, queue, 3, peek=True)
    assert (sequences(answer), receive_counts(answer), answer.IsPeak) == ([1, 2, 3], [1, 1, 1], True)
    await until_row(client, queue, Waiting=5, Delivered=3)
    assert sequences(await client.downstream().get(queue, 5)) == [1, 2, 3, 4, 5]


async def test_peek_does_not_see_what_a_transaction_holds(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(4))
    await client.downstream().get(queue, 2)
    assert sequences(await receive(client, queue, 4, peek=True)) == [3, 4]


async def test_receive_counts_what_had_expired(client: RawClient, queue: str) -> None:
    await client.publish(queue, "old", Policy=pb.QueueMessagePolicy(ExpirationSeconds=1))
    await client.publish(queue, "new")
    await a_second_passes(client)
    answer = await receive(client, queue, 1)
    assert (bodies(answer), answer.MessagesExpired) == ([b"new"], 1)


@pytest.mark.parametrize(
    ("count", "wait_s", "error"), [(0, 1, "Error 122"), (1025, 1, "Error 122"), (1, 3601, "Error 136")]
)
async def test_refused_receives(client: RawClient, queue: str, count: int, wait_s: int, error: str) -> None:
    answer = await receive(client, queue, count, wait_s)
    assert answer.IsError
    assert answer.Error.startswith(error)


async def acknowledge_all(client: RawClient, request: pb.AckAllQueueMessagesRequest) -> Any:
    return await client.stub.AckAllQueueMessages(request)


async def test_acknowledge_all_also_eats_what_is_published_meanwhile(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(5))
    request = pb.AckAllQueueMessagesRequest(RequestID="r", ClientID="c", Channel=queue, WaitTimeSeconds=1)
    async with asyncio.TaskGroup() as tasks:
        with Timed() as took:
            purge = tasks.create_task(acknowledge_all(client, request))
            await until_row(client, queue, Waiting=0)
            await client.publish(queue, *range(2))
            answer = await purge
    assert (answer.AffectedMessages, answer.IsError, answer.RequestID) == (7, False, "r")
    assert took.seconds > 0.95
    await until_row(client, queue, Waiting=0, LastSequence=7)


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"ClientID": ""}, "Error 101"), ({"Channel": "a b"}, "Error 120"), ({"WaitTimeSeconds": -1}, "Error 136")],
)
async def test_refused_acknowledge_all(client: RawClient, queue: str, fields: dict[str, Any], error: str) -> None:
    request = pb.AckAllQueueMessagesRequest(**{"RequestID": "r", "ClientID": "c", "Channel": queue, **fields})
    answer = await client.stub.AckAllQueueMessages(request)
    assert answer.IsError
    assert answer.Error.startswith(error)

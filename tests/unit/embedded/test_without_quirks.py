"""With quirks off the server is what a newcomer expects: Gets answer at once, nothing is parked, nothing blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from kubemq.core.config import ClientConfig
from kubemq.core.exceptions import KubeMQChannelError
from kubemq.grpc import kubemq_pb2 as pb
from kubemq.queues import Client, QueueMessage

from tests.contract.raw_client import (
    AT_ONCE_S,
    Kind,
    RawClient,
    Timed,
    bodies,
    message,
    new_channel,
    sequences,
    until_row,
)
from tests.unit.embedded.process import EmbeddedProcess


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedProcess(tmp_path_factory.mktemp("plain"), "--quirks", "off") as process:
        yield process.address


@pytest.fixture
async def client(address: str) -> AsyncIterator[RawClient]:
    async with RawClient(address) as client:
        yield client


@pytest.fixture
def queue() -> str:
    return new_channel()


async def test_a_get_answers_at_once_with_what_is_there(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(3))
    with Timed() as took:
        assert sequences(await client.downstream().get(queue, 10, 5000)) == [1, 2, 3]
    assert took.seconds < AT_ONCE_S


async def test_an_empty_get_waits_no_longer_than_it_says(client: RawClient, queue: str) -> None:
    with Timed() as took:
        assert not (await client.downstream().get(queue, 10, 0)).Messages
        assert not (await client.downstream().get(queue, 10, 50)).Messages
    assert took.seconds < AT_ONCE_S


async def test_a_get_answers_as_soon_as_anything_arrives(client: RawClient, queue: str) -> None:
    stream = client.downstream()
    async with asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(stream.get(queue, 10, 9000))
        await until_row(client, queue, Subscribers=1)
        with Timed() as took:
            await client.publish(queue, *range(2))
            await getting
    assert sequences(getting.result()) == [1, 2]
    assert took.seconds < AT_ONCE_S


async def test_a_get_waits_a_moment_for_the_rest(client: RawClient, queue: str) -> None:
    stream = client.downstream()
    async with asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(stream.get(queue, 8, 9000))
        await until_row(client, queue, Subscribers=1)
        with Timed() as took:
            for number in range(8):
                tasks.create_task(client.publish(queue, number))
            await getting
    assert sequences(getting.result()) == [*range(1, 9)]
    assert took.seconds < AT_ONCE_S


async def test_a_waiting_get_blocks_nothing_on_its_stream(client: RawClient, queue: str) -> None:
    other = new_channel()
    await client.publish(other, *range(2))
    stream = client.downstream()
    async with asyncio.TaskGroup() as tasks:
        getting = tasks.create_task(stream.get(queue, 1, 9000))
        await until_row(client, queue, Subscribers=1)
        with Timed() as took:
            await stream.ack(await stream.get(other, 2))
        assert took.seconds < AT_ONCE_S
        await client.publish(queue, "x")
        assert bodies(await getting) == [b"x"]


async def test_a_lost_stream_gives_back_at_once_under_a_waiting_get(client: RawClient, queue: str) -> None:
    other = new_channel()
    await client.publish(other, *range(2))
    lost = client.downstream()
    await lost.get(other, 2)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ended(lost.get(queue, 1, 9000)))
        await until_row(client, queue, Subscribers=1)
        await lost.cancel()
    with Timed() as took:
        assert sequences(await client.downstream().get(other, 2, 5000)) == [1, 2]
        await client.publish(queue, "x")
        assert bodies(await client.downstream().get(queue, 1, 5000)) == [b"x"]
    assert took.seconds < AT_ONCE_S


async def ended(getting: object) -> None:
    with pytest.raises(asyncio.CancelledError):
        await getting  # type: ignore[misc]


async def test_nothing_is_parked(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(2))
    await client.downstream().get(queue, 20)
    await client.publish(queue, *range(2))
    assert sequences(await client.downstream().get(queue, 20)) == [3, 4]


async def test_a_partial_ack_pulls_nothing_in(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(10))
    stream = client.downstream()
    answer = await stream.get(queue, 5)
    await stream.ack(answer, [1, 2, 3])
    await until_row(client, queue, Delivered=5, Waiting=7)
    assert sequences(await client.downstream().get(queue, 10)) == [6, 7, 8, 9, 10]


async def test_what_is_given_back_goes_to_whoever_asks_next(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(6))
    one, other = client.downstream(), client.downstream()
    first = await one.get(queue, 3)
    await other.get(queue, 1)
    await one.close(first)
    assert sequences(await one.get(queue, 2)) == [1, 2]
    assert sequences(await one.get(queue, 2)) == [3, 5]


async def test_acknowledge_all_answers_when_the_queue_is_empty(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(3000))
    request = pb.AckAllQueueMessagesRequest(RequestID="r", ClientID="c", Channel=queue, WaitTimeSeconds=60)
    with Timed() as took:
        assert (await client.stub.AckAllQueueMessages(request)).AffectedMessages == 3000
    assert took.seconds < 1
    await until_row(client, queue, Waiting=0)


async def test_receive_answers_with_what_is_there(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(3))
    request = pb.ReceiveQueueMessagesRequest(
        RequestID="r", ClientID="c", Channel=queue, MaxNumberOfMessages=10, WaitTimeSeconds=9
    )
    with Timed() as took:
        answer = await client.stub.ReceiveQueueMessages(request)
    assert (sequences(answer), answer.MessagesReceived) == ([1, 2, 3], 3)
    assert took.seconds < AT_ONCE_S


async def test_an_unknown_sequence_is_an_error_here_too(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(2))
    stream = client.downstream()
    answer = await stream.get(queue, 2)
    refused = await stream.ask(Kind.AckRange, RefTransactionId=answer.TransactionId, SequenceRange=[1, 9])
    assert refused.IsError
    assert await stream.active(answer) == [2]


async def test_requests_in_flight_keep_their_order(client: RawClient, queue: str) -> None:
    call = client.stub.QueuesUpstream()
    for number in range(200):
        large = b"x" * 1_500_000 if number == 100 else b""
        messages = [] if number == 50 else [message(queue, b"%d " % number + large)]
        await call.write(pb.QueuesUpstreamRequest(RequestID=str(number), Messages=messages))
    answers = [await call.read() for _ in range(200)]
    assert [answer.RefRequestID for answer in answers] == [str(number) for number in range(200)]
    assert [answer.IsError for answer in answers] == [number == 50 for number in range(200)]
    call.cancel()
    got = await client.downstream().get(queue, 199)
    assert [int(body.split()[0]) for body in bodies(got)] == [number for number in range(200) if number != 50]


def test_the_sdk_creates_lists_and_deletes_channels(address: str, queue: str) -> None:
    with Client(config=ClientConfig(address=address, client_id="sdk")) as sdk:
        assert sdk.create_queues_channel(queue)
        sdk.send_queue_message(QueueMessage(channel=queue, body=b"x"))
        (row,) = sdk.list_queues_channels(queue)
        assert (row.name, row.type, row.incoming.messages, row.incoming.waiting) == (queue, "queues", 1, 1)
        assert sdk.delete_queues_channel(queue)
        assert sdk.list_queues_channels(queue) == []
        with pytest.raises(KubeMQChannelError):
            sdk.delete_queues_channel(queue)


async def test_a_round_trip_takes_little_time(client: RawClient, queue: str) -> None:
    stream, slowest = client.downstream(), []
    for _ in range(50):
        start = time.monotonic()
        await client.publish(queue, "x")
        await stream.ack(await stream.get(queue, 1))
        slowest.append(time.monotonic() - start)
    assert sorted(slowest)[25] < 0.1

"""KubeMQ's own Python SDK works against the server, whichever it is: its two queue clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from kubemq.core.config import ClientConfig
from kubemq.queues import Client, QueueMessage
from kubemq.queues.async_client import AsyncClient

from tests.contract.raw_client import RawClient, new_channel, until_row
from tests.support.waiting import until, wait_until


@pytest.fixture
def sdk(kubemq_address: str) -> Iterator[Client]:
    with Client(config=ClientConfig(address=kubemq_address, client_id="contract-sdk")) as client:
        yield client


def send(sdk: Client, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        result = sdk.send_queue_message(QueueMessage(channel=queue, body=body, metadata="m", tags={"k": "v"}))
        assert not result.is_error, result.error


def test_ping(sdk: Client) -> None:
    assert sdk.ping().host


def test_send_receive_acknowledge(sdk: Client, queue: str) -> None:
    send(sdk, queue, b"1", b"2")
    response = sdk.receive_queue_messages(queue, max_messages=2, wait_timeout_in_seconds=2)
    assert not response.is_error, response.error
    assert [(each.body, each.metadata, each.tags["k"], each.sequence) for each in response.messages] == [
        (b"1", "m", "v", 1),
        (b"2", "m", "v", 2),
    ]
    for each in response.messages:
        each.ack()
    wait_until(lambda: not sdk.peek_queue_messages(queue, 1, 1).messages)


def test_acknowledge_all_at_once(sdk: Client, queue: str) -> None:
    send(sdk, queue, b"1", b"2")
    sdk.receive_queue_messages(queue, max_messages=2, wait_timeout_in_seconds=2).ack_all()
    assert not sdk.receive_queue_messages(queue, max_messages=1, wait_timeout_in_seconds=1).messages


def test_reject_and_receive_again(sdk: Client, queue: str) -> None:
    send(sdk, queue, b"1")
    (first,) = sdk.receive_queue_messages(queue, max_messages=1, wait_timeout_in_seconds=2).messages
    first.nack()
    (again,) = sdk.receive_queue_messages(queue, max_messages=1, wait_timeout_in_seconds=2).messages
    assert (again.id, again.receive_count, again.sequence) == (first.id, 2, 2)
    again.ack()


def test_requeue(sdk: Client, queue: str) -> None:
    target = new_channel("target")
    send(sdk, queue, b"1")
    (first,) = sdk.receive_queue_messages(queue, max_messages=1, wait_timeout_in_seconds=2).messages
    first.re_queue(target)
    (moved,) = sdk.receive_queue_messages(target, max_messages=1, wait_timeout_in_seconds=2).messages
    assert moved.body == b"1"


def test_dead_letter(sdk: Client, queue: str) -> None:
    dead = new_channel("dead")
    limited = QueueMessage(channel=queue, body=b"1", max_receive_count=1, max_receive_queue=dead)
    assert not sdk.send_queue_message(limited).is_error
    (first,) = sdk.receive_queue_messages(queue, max_messages=1, wait_timeout_in_seconds=2).messages
    first.nack()
    (moved,) = sdk.receive_queue_messages(dead, max_messages=1, wait_timeout_in_seconds=2).messages
    assert (moved.body, moved.is_re_routed, moved.re_route_from_queue) == (b"1", True, queue)


def test_batch_peek_pull_and_purge(sdk: Client, queue: str) -> None:
    batch = [QueueMessage(channel=queue, body=b"%d" % number) for number in range(5)]
    sent = sdk.send_queue_messages_batch(batch)
    assert (len(sent.results), sent.have_errors) == (5, False)
    assert [each.body for each in sdk.peek_queue_messages(queue, 5, 1).messages] == [b"%d" % each for each in range(5)]
    assert [each.body for each in sdk.pull(queue, 2, 1).messages] == [b"0", b"1"]
    assert sdk.ack_all_queue_messages(queue, 1) == 3


def test_one_call_send(sdk: Client, queue: str) -> None:
    result = sdk.send_queue_message_simple(QueueMessage(channel=queue, body=b"x", expiration_in_seconds=60))
    assert not result.is_error
    assert result.expired_at is not None


async def test_the_asynchronous_client(kubemq_address: str, client: RawClient, queue: str) -> None:
    config = ClientConfig(address=kubemq_address, client_id="contract-sdk")
    async with AsyncClient(config=config) as sdk:
        assert (await sdk.ping()).host
        for body in (b"1", b"2"):
            assert not (await sdk.send_queue_message(QueueMessage(channel=queue, body=body))).is_error
        response = await sdk.receive_queue_messages(queue, max_messages=2, wait_timeout_seconds=2, auto_ack=True)
        assert [each.body for each in response.messages] == [b"1", b"2"]
        await until_row(client, queue, Waiting=0)
    this = asyncio.current_task()
    kept = {"downstream reader"}
    await until(lambda: all(task is this or task.done() or task.get_name() in kept for task in asyncio.all_tasks()))

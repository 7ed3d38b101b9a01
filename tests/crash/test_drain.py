"""SIGTERM, seen from outside: each step of the drain (HA-08), before the embedded server and at KUBEMQ_ADDRESS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import aiormq.exceptions
import pika.exceptions
import pytest

from tests.support import traffic
from tests.support.server import ConnectorProcess
from tests.support.traffic import Received, numbered
from tests.support.waiting import wait_until

#: Longer than a test may take: whoever gets past it has not waited for it.
PATIENT = ("--drain-ack-seconds", "60")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ConnectorProcess]]:
    """Starts a connector with flags."""
    with contextlib.ExitStack() as stack:

        def start(*flags: str) -> ConnectorProcess:
            connector = ConnectorProcess(tmp_path, os.environ.get("KUBEMQ_ADDRESS", ""), flags)
            return stack.enter_context(connector)

        yield start


def readyz(connector: ConnectorProcess) -> int:
    """The page's status."""
    try:
        with urllib.request.urlopen(f"{connector.ops_url}/readyz", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def is_refused(url: str) -> bool:
    """Whether nobody listens there any more."""
    try:
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def await_320(connection: Any) -> None:
    """Let the connection work until the connector closes it."""
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        wait_until(lambda: connection.process_data_events(0.05))
    assert closed.value.reply_code == 320


def test_consumers_are_cancelled_and_may_acknowledge_what_they_hold(
    start: Callable[..., ConnectorProcess], queue: str
) -> None:
    connector = start(*PATIENT)
    traffic.declare(connector.url, queue)
    traffic.publish_confirmed(connector.url, queue, numbered(30))
    cancelled: list[Any] = []
    connection = traffic.connect(connector.url)
    channel = connection.channel()
    channel.add_on_cancel_callback(cancelled.append)
    got = traffic.collect(channel, queue, 10, prefetch=10)
    idle = traffic.connect(connector.url)
    connector.begin_end()
    traffic.pump(channel, lambda: cancelled)
    assert readyz(connector) == 503
    assert is_refused(connector.url)
    for method, _, _ in got[:9]:
        channel.basic_ack(method.delivery_tag)
    assert channel.queue_declare(queue, passive=True).method.message_count == 20, "it still serves who is there"
    channel.basic_publish("", queue, b"one more")
    channel.basic_ack(got[9][0].delivery_tag)
    await_320(connection)
    await_320(idle)
    assert connector.wait_end() == 0
    assert [body for _, _, body in got] == numbered(10), "nothing came after the cancel"
    assert not [line for line in connector.log().splitlines() if '"level": "error"' in line]
    connector.start()
    assert traffic.bodies_of(traffic.drain(connector.url, queue, 21)) == [*numbered(20, 10), b"one more"]
    traffic.delete(connector.url, queue)


def test_what_is_not_acknowledged_in_time_goes_back(start: Callable[..., ConnectorProcess], queue: str) -> None:
    connector = start("--drain-ack-seconds", "0.3")
    traffic.declare(connector.url, queue)
    traffic.publish_confirmed(connector.url, queue, numbered(4))
    with traffic.channel_of(connector.url) as channel:
        got = traffic.collect(channel, queue, 4, prefetch=4)
        channel.basic_ack(got[0][0].delivery_tag)
        connector.begin_end()
        await_320(channel.connection)
    assert connector.wait_end() == 0
    [entry] = connector.entries("stopping: clients hold messages, which go back to their queues")
    assert entry["count"] == 3
    connector.start()
    assert traffic.drain(connector.url, queue, 3) == [Received(body, True) for body in numbered(3, 1)]
    traffic.delete(connector.url, queue)


def test_what_was_taken_is_confirmed_before_the_close(start: Callable[..., ConnectorProcess], queue: str) -> None:
    """What a publisher has no confirm for was never taken: it can publish it again without doubling it."""
    connector = start()
    traffic.declare(connector.url, queue)
    confirmed = asyncio.run(_publish_until_closed(connector, queue))
    assert connector.wait_end() == 0
    connector.start()
    with traffic.channel_of(connector.url) as channel:
        count = channel.queue_declare(queue, passive=True).method.message_count
    assert confirmed
    assert sorted(traffic.bodies_of(traffic.drain(connector.url, queue, count))) == sorted(confirmed)
    traffic.delete(connector.url, queue)


async def _publish_until_closed(connector: ConnectorProcess, queue: str) -> list[bytes]:
    connection = await aio_pika.connect(connector.url)
    channel = await connection.channel()
    confirmed: list[bytes] = []

    async def publish(body: bytes) -> None:
        with contextlib.suppress(aiormq.exceptions.AMQPError, aio_pika.exceptions.ChannelInvalidStateError):
            await channel.default_exchange.publish(aio_pika.Message(body), queue)
            confirmed.append(body)

    async with asyncio.TaskGroup() as group:
        for number in range(4000):
            group.create_task(publish(b"%d" % number))
            if number == 1000:
                connector.begin_end()
            if not number % 20:
                await asyncio.sleep(0)
    with contextlib.suppress(aiormq.exceptions.AMQPError):
        await connection.close()
    return confirmed


def test_two_signals_at_once_are_one_request(start: Callable[..., ConnectorProcess], queue: str) -> None:
    connector = start()
    with traffic.channel_of(connector.url) as channel:
        connector.begin_end()
        os.kill(connector.pid, signal.SIGTERM)
        os.kill(connector.pid, signal.SIGINT)
        await_320(channel.connection)
    assert connector.wait_end() == 0
    assert not connector.entries("second signal: leaving at once")


def test_an_open_transaction_may_be_committed(start: Callable[..., ConnectorProcess], queue: str) -> None:
    """What it has acknowledged is with the client still."""
    connector = start(*PATIENT)
    traffic.declare(connector.url, queue)
    traffic.publish_confirmed(connector.url, queue, numbered(5))
    cancelled: list[Any] = []
    with traffic.channel_of(connector.url) as channel:
        channel.tx_select()
        channel.add_on_cancel_callback(cancelled.append)
        got = traffic.collect(channel, queue, 5, prefetch=5)
        channel.basic_ack(got[-1][0].delivery_tag, multiple=True)
        channel.basic_publish("", queue, b"one more")
        connector.begin_end()
        traffic.pump(channel, lambda: cancelled)
        assert readyz(connector) == 503
        channel.tx_commit()
        await_320(channel.connection)
    assert connector.wait_end() == 0
    connector.start()
    assert traffic.bodies_of(traffic.drain(connector.url, queue, 1)) == [b"one more"]
    traffic.delete(connector.url, queue)

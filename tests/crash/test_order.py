"""What one client had in hand, many megabytes of it, comes in order to the next, however little that takes at a time.

A real KubeMQ gives such a transaction back piece by piece, later pieces first if it is read meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support import traffic
from tests.support.server import ConnectorProcess

BODIES = [b"%05d" % number + bytes(100_000) for number in range(400)]


@pytest.fixture(params=["tail", "original"])
def connector(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConnectorProcess]:
    flags = ("--requeue", request.param)
    with ConnectorProcess(tmp_path, os.environ.get("KUBEMQ_ADDRESS", ""), flags) as connector:
        yield connector


def take(channel: BlockingChannel, queue: str, count: int, *, acks: bool) -> list[bytes]:
    """The numbers of so many deliveries."""
    numbers: list[bytes] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=20):
        assert method is not None, f"only {len(numbers)} came"
        numbers.append(body[:5])
        if acks:
            channel.basic_ack(method.delivery_tag)
        if len(numbers) == count:
            break
    return numbers


@pytest.mark.parametrize("restarts", [False, True], ids=["client leaves", "connector restarts"])
def test_what_was_held_comes_in_order(connector: ConnectorProcess, queue: str, restarts: bool) -> None:
    traffic.declare(connector.url, queue)
    traffic.publish_confirmed(connector.url, queue, BODIES)
    numbers = [body[:5] for body in BODIES]
    with traffic.channel_of(connector.url) as channel:
        assert take(channel, queue, len(BODIES), acks=False) == numbers
        if restarts:
            connector.restart()
    with traffic.channel_of(connector.url) as channel:
        channel.basic_qos(prefetch_count=1)
        assert take(channel, queue, len(BODIES), acks=True) == numbers
    traffic.delete(connector.url, queue)

"""Any of several connectors shows how much there is in every queue (OP-11), as it may be asked behind one Service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.request import Request, urlopen

import pytest

from connector.backend.kubemq import KubeMQClient
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from tests.replicas.conftest import MEMBER_TIMEOUT_S, Pair
from tests.support.server import ConnectorProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(120)  # starts processes, waits until one is missed

Connect = Callable[..., Any]
READY, UNACKED = "rabbitmq_queue_messages_ready", "rabbitmq_queue_messages_unacked"


def rows(connector: ConnectorProcess, *names: str) -> list[tuple[int, int, int]]:
    """Messages, ready and in hand, of these queues as a connector lists them; each page of one says the same."""
    listed = {row["name"]: row for row in _get(connector, "")}
    for name in names:
        assert _counts(_get(connector, f"/%2F/{name}")) == _counts(listed[name])
    return [_counts(listed[name]) for name in names]


def _get(connector: ConnectorProcess, path: str) -> Any:
    request = Request(f"{connector.ops_url}/api/queues{path}", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    with urlopen(request, timeout=10) as answer:
        return json.load(answer)


def _counts(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["messages"], row["messages_ready"], row["messages_unacknowledged"]


def test_counts_are_the_readers_whoever_is_asked(steady: Pair, connect: Connect, name: str) -> None:
    here, there = connect(steady.a), connect(steady.b)
    here.queue_declare(name, durable=True)
    here.queue_declare(f"{name}-x", exclusive=True)
    here.basic_qos(prefetch_count=5)
    tags: list[int] = []
    here.basic_consume(name, lambda _c, method, _p, _b: tags.append(method.delivery_tag))
    for queue in (name, f"{name}-x"):
        for _ in range(20):
            there.basic_publish("", queue, b"x", mandatory=True)

    def has(count: int) -> bool:
        here.connection.process_data_events(0.01)
        return len(tags) == count

    wait_until(lambda: has(5))
    for connector in steady.both:
        wait_until(
            lambda connector=connector: rows(connector, name, f"{name}-x") == [(20, 15, 5), (20, 20, 0)]  # type: ignore[misc]
        )
    wait_until(lambda: sum(connector.metrics()[READY] for connector in steady.both) == 35)
    assert sum(connector.metrics()[UNACKED] for connector in steady.both) == 5
    for number in range(20):
        wait_until(lambda number=number: has(min(20, number + 5)))  # type: ignore[misc]
        here.basic_ack(tags[number])
    for connector in steady.both:
        wait_until(
            lambda connector=connector: rows(connector, name, f"{name}-x") == [(0, 0, 0), (20, 20, 0)]  # type: ignore[misc]
        )
    here.queue_delete(name)


def test_who_is_left_shows_what_it_has_taken_over(doomed: Pair, connect: Connect, name: str) -> None:
    here, there = connect(doomed.a), connect(doomed.b)
    here.queue_declare(name, durable=True)
    for _ in range(7):
        there.basic_publish("", name, b"x", mandatory=True)
    for connector in doomed.both:
        wait_until(lambda connector=connector: rows(connector, name) == [(7, 7, 0)])  # type: ignore[misc]
    doomed.a.kill()
    wait_until(lambda: doomed.b.metrics()["kubemq_amqp_members"] == 1, limit_s=4 * MEMBER_TIMEOUT_S)
    assert rows(doomed.b, name) == [(7, 7, 0)]
    wait_until(lambda: doomed.b.metrics()[READY] == 7)


def test_who_takes_over_counts_what_is_there_not_what_it_stored(
    steady: Pair, address: str, connect: Connect, name: str
) -> None:
    here, there = connect(steady.a), connect(steady.b)
    here.queue_declare(name, durable=True)
    assert here.basic_get(name)[0] is None
    for _ in range(3):
        there.basic_publish("", name, b"x", mandatory=True)
    for _ in range(3):
        assert here.basic_get(name, auto_ack=True)[0]
    channel = f"amqp.default.{name}"
    wait_until(lambda: not asyncio.run(_waiting(address, channel)))
    asyncio.run(_store(address, channel, 3))
    assert there.basic_get(name, auto_ack=True)[0]
    assert there.queue_purge(name).method.message_count == 2
    here.queue_delete(name)


@asynccontextmanager
async def _native(address: str) -> AsyncIterator[KubeMQClient]:
    client = KubeMQClient(address, "native")
    await client.connect(10.0)
    try:
        yield client
    finally:
        await client.close()


async def _waiting(address: str, kubemq_channel: str) -> int:
    async with _native(address) as client:
        return sum(info.waiting for info in await client.queues_info() if info.name == kubemq_channel)


async def _store(address: str, kubemq_channel: str, count: int) -> None:
    messages = [
        pb.QueueMessage(MessageID=f"n{number}", ClientID="native", Channel=kubemq_channel, Body=b"n")
        for number in range(count)
    ]
    async with _native(address) as client:
        assert await client.send_batch(messages) == [""] * count

"""Several addresses: what counts as unhealthy, and the move to another one (HA-09)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from connector.backend.kubemq import KubeMQClient, KubeMQStore
from connector.backend.kubemq.health import GET, INFO, TROUBLE_S, Health
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.ports import NotSent, ReadEvent, TimedOut, Unavailable
from tests.unit.backend.scripted import Context, Scripted
from tests.unit.backend.settling import closed, mute, outcome


class Time:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def ours(_read: ReadEvent) -> bool:
    return True


async def refuse(request: Any, context: Context) -> Any:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "not today")


async def refuse_gets(requests: Any, context: Context) -> AsyncIterator[pb.QueuesDownstreamResponse]:
    async for request in requests:
        yield pb.QueuesDownstreamResponse(RefRequestId=request.RequestID, IsError=True, Error="no more subscriptions")


@pytest.fixture
async def second() -> AsyncIterator[Scripted]:
    async with Scripted() as server:
        yield server


def test_trouble_is_what_fails_for_a_while_without_a_success() -> None:
    now = Time()
    health = Health(now)
    health.bad(GET, "no")
    assert health.trouble() == ""
    now.now += TROUBLE_S
    assert health.trouble() == "", "once is not enough"
    health.bad(GET, "never")
    assert health.trouble() == "Get: never"
    health.good(INFO)
    assert health.trouble() == "Get: never", "that other things work does not help"
    health.good(GET)
    assert health.trouble() == ""
    for _ in range(100):
        health.bad(INFO, "all at once, as when a link breaks")
    assert health.trouble() == ""
    now.now += TROUBLE_S
    health.bad(INFO, "still")
    health.reset()
    assert health.trouble() == ""


async def test_an_address_that_answers_pings_only_is_passed_over(server: Scripted, second: Scripted) -> None:
    server.handlers["QueuesInfo"] = refuse
    client = KubeMQClient([server.address, second.address], "unit")
    await client.connect(5)
    assert client.address == second.address
    await closed(client)


async def test_a_server_that_refuses_gets_is_in_trouble(server: Scripted) -> None:
    server.handlers["QueuesDownstream"] = refuse_gets
    now = Time()
    client = KubeMQClient(server.address, "unit")
    client.health = Health(now)
    store = KubeMQStore(client)
    await store.start(5)
    stream = store.open_stream()
    for _ in range(2):
        assert (await stream.get("c", 1)).error
        now.now += TROUBLE_S
    assert store.trouble() == "Get: no more subscriptions"
    stream.cancel()
    await closed(store)


async def test_a_server_that_refuses_counts_is_in_trouble(server: Scripted) -> None:
    now = Time()
    client = KubeMQClient(server.address, "unit")
    client.health = Health(now)
    store = KubeMQStore(client)
    await store.start(5)
    server.handlers["QueuesInfo"] = refuse
    for _ in range(2):
        assert isinstance(await outcome(store.snapshot()), Unavailable)
        now.now += TROUBLE_S
    assert store.trouble().startswith("QueuesInfo: ")
    await closed(store)


async def test_everything_moves_at_once(server: Scripted, second: Scripted) -> None:
    hanging = asyncio.Event()

    async def hang(requests: Any, context: Context) -> AsyncIterator[Any]:
        async for _ in requests:
            hanging.set()
            await asyncio.Event().wait()
            yield None

    server.handlers["QueuesDownstream"] = hang
    store = KubeMQStore(KubeMQClient([server.address, second.address], "unit", auth_token="secret"))
    await store.start(5)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(outcome(store.open_stream().get("c", 1)))
        await hanging.wait()
        assert await store.move(ours) == {}
    assert isinstance(reading.result(), Unavailable)
    assert store.address == second.address
    await store.ping()
    assert [name for name, _ in second.seen] == ["Ping", "QueuesInfo", "Ping"]
    assert {metadata.get("authorization") for _, metadata in second.seen} == {"secret"}
    await closed(store)


async def test_what_waits_for_a_connection_moves_too(second: Scripted) -> None:
    """The address in use has stopped answering: a stream that was opened there would never connect."""
    with mute() as address:
        store = KubeMQStore(KubeMQClient([address, second.address], "unit", call_timeout_s=0.01))
        assert isinstance(await outcome(store.client.probe()), TimedOut)
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            reading = group.create_task(outcome(store.open_stream().get("c", 1)))
            asking = group.create_task(outcome(store.ping()))
            await asyncio.sleep(0)
            assert await store.move(ours) == {}
        assert isinstance(reading.result(), NotSent)
        assert isinstance(asking.result(), Unavailable | TimedOut)
        await closed(store)


async def test_nothing_moves_where_nobody_is_better(server: Scripted, second: Scripted) -> None:
    store = KubeMQStore(KubeMQClient([server.address, second.address], "unit"))
    await store.start(5)
    second.handlers["QueuesInfo"] = refuse

    refused = await store.move(ours)

    assert list(refused) == [second.address]
    assert "not today" in refused[second.address]
    assert store.address == server.address
    await store.ping()
    await closed(store)


async def test_other_data_are_not_taken_for_ours(server: Scripted, second: Scripted) -> None:
    async def foreign(_read: ReadEvent) -> bool:
        return False

    store = KubeMQStore(KubeMQClient([server.address, second.address], "unit"))
    await store.start(5)
    assert "not those of the address in use" in (await store.move(foreign))[second.address]
    assert store.address == server.address
    await closed(store)


@pytest.mark.parametrize(("sequence", "found"), [(7, b"seven"), (8, None)])
async def test_one_event_is_read(server: Scripted, sequence: int, found: bytes | None) -> None:
    asked: list[pb.Subscribe] = []

    async def subscribe(request: pb.Subscribe, context: Context) -> AsyncIterator[pb.EventReceive]:
        asked.append(request)
        yield pb.EventReceive(Sequence=7, Body=b"seven", Metadata="event")

    async def read_it(read: ReadEvent) -> bool:
        assert await read(sequence) == found
        return False

    async with Scripted(SubscribeToEvents=subscribe) as other:
        store = KubeMQStore(KubeMQClient([server.address, other.address], "unit"))
        await store.start(5)
        await store.move(read_it)
        assert [(one.EventsStoreTypeData, one.EventsStoreTypeValue) for one in asked] == [
            (pb.Subscribe.StartAtSequence, sequence)
        ]
        await closed(store)

"""``ports.TopologyLog`` as the adapter keeps it: one suite on the embedded server and on a real KubeMQ."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from connector.backend.kubemq import KubeMQClient, KubeMQTopologyLog
from connector.broker.ports import Rejected, TooMuch, Unavailable
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import LIMIT_S
from tests.unit.backend.settling import closed

Log = KubeMQTopologyLog
END = (0, b"")


@pytest.fixture
async def client(kubemq_address: str) -> AsyncIterator[KubeMQClient]:
    client = KubeMQClient(kubemq_address, f"contract-{uuid.uuid4().hex}")
    await client.connect(LIMIT_S)
    yield client
    await closed(client)


@pytest.fixture
def kubemq_channel() -> str:
    return f"amqp.~contract-{uuid.uuid4().hex}"


@pytest.fixture
async def log(client: KubeMQClient, kubemq_channel: str) -> AsyncIterator[Log]:
    log = KubeMQTopologyLog(client, kubemq_channel)
    yield log
    await log.close()


async def existing(log: Log) -> list[tuple[int, bytes]]:
    """What a new follower gets before the end of what existed."""
    events: list[tuple[int, bytes]] = []
    async with aclosing(log.follow()) as follower:
        async for event in follower:
            if event == END:
                return events
            events.append(event)
    raise AssertionError("no end")


def bodies(events: list[tuple[int, bytes]]) -> list[bytes]:
    return [event for _, event in events]


async def test_an_empty_log_ends_at_once(log: Log) -> None:
    assert await existing(log) == []


async def test_replay_in_order_of_appending(log: Log) -> None:
    for number in range(5):
        await log.append(b"%d" % number)

    events = await existing(log)

    assert bodies(events) == [b"0", b"1", b"2", b"3", b"4"]
    assert [sequence for sequence, _ in events] == [1, 2, 3, 4, 5]


async def test_every_follower_starts_at_the_first_event(log: Log) -> None:
    await log.append(b"a")
    assert bodies(await existing(log)) == [b"a"]
    await log.append(b"b")

    assert bodies(await existing(log)) == [b"a", b"b"]
    assert bodies(await existing(log)) == [b"a", b"b"]


async def test_a_new_follower_begins_where_the_log_is_enough(
    log: Log, client: KubeMQClient, kubemq_channel: str
) -> None:
    """A snapshot makes what is before it superfluous: the events after it say where it begins."""
    events = [b"%d" % number for number in range(300)]
    await asyncio.gather(*[log.append(event, 1) for event in events])
    await log.append(b"after a snapshot", 290)
    later = KubeMQTopologyLog(client, kubemq_channel)

    assert bodies(await existing(later)) == [*events[289:], b"after a snapshot"]
    assert bodies(await existing(later)) == [*events[289:], b"after a snapshot"]
    await later.close()


async def test_live_events_come_after_the_end(log: Log) -> None:
    await log.append(b"before")
    async with aclosing(log.follow()) as follower:
        assert await anext(follower) == (1, b"before")
        assert await anext(follower) == END
        await log.append(b"first")
        sequence, event = await anext(follower)
        assert event == b"first"
        assert sequence > 1
        await log.append(b"second")
        assert await anext(follower) == (sequence + 1, b"second")


async def test_markers_of_others_are_never_yielded(log: Log) -> None:
    async with aclosing(log.follow()) as follower:
        assert await anext(follower) == END
        assert await existing(log) == []
        await log.append(b"x")
        assert (await anext(follower))[1] == b"x"


async def test_pipelined_appends_keep_their_order(log: Log) -> None:
    events = [b"%d" % number for number in range(200)]

    await asyncio.gather(*[log.append(event) for event in events])

    assert bodies(await existing(log)) == events


async def test_the_end_is_right_under_concurrent_appends(client: KubeMQClient, kubemq_channel: str) -> None:
    """All that was appended before the call comes before the end, whatever others append meanwhile."""
    logs = [KubeMQTopologyLog(client, kubemq_channel) for _ in range(3)]
    is_over = False

    async def append(log: Log, name: int) -> int:
        count = 0
        while not is_over:
            await log.append(b"%d-%d" % (name, count))
            count += 1
        return count

    reader = KubeMQTopologyLog(client, kubemq_channel)
    async with asyncio.TaskGroup() as group:
        appending = [group.create_task(append(log, name)) for name, log in enumerate(logs)]
        for number in range(5):
            await reader.append(b"mine-%d" % number)
            mine = [event for event in bodies(await existing(reader)) if event.startswith(b"mine")]
            assert mine == [b"mine-%d" % earlier for earlier in range(number + 1)]
        is_over = True

    events = bodies(await existing(reader))

    for name, task in enumerate(appending):
        expected = [b"%d-%d" % (name, number) for number in range(task.result())]
        assert [event for event in events if event.startswith(b"%d-" % name)] == expected
    for log in (*logs, reader):
        await log.close()


async def test_two_followers_see_one_order(log: Log, client: KubeMQClient, kubemq_channel: str) -> None:
    other = KubeMQTopologyLog(client, kubemq_channel)
    await asyncio.gather(*[appender.append(b"%d" % number) for number in range(20) for appender in (log, other)])

    assert await existing(log) == await existing(other)
    await other.close()


async def test_an_event_that_kubemq_refuses(client: KubeMQClient) -> None:
    log = KubeMQTopologyLog(client, "amqp.~a b")

    with pytest.raises(Rejected):
        await log.append(b"x")

    await log.close()


async def test_an_event_larger_than_kubemq_takes(log: Log) -> None:
    with pytest.raises(TooMuch):
        await log.append(bytes(105_000_000))

    await log.append(b"the next one passes")
    assert bodies(await existing(log)) == [b"the next one passes"]


async def test_a_broken_link_ends_followers_and_appends(kubemq_address: str, kubemq_channel: str) -> None:
    host, _, port = kubemq_address.rpartition(":")
    async with TcpProxy(lambda: (host, int(port))) as proxy:
        client = KubeMQClient(proxy.address, f"contract-{uuid.uuid4().hex}")
        await client.connect(LIMIT_S)
        log = KubeMQTopologyLog(client, kubemq_channel)
        await log.append(b"a")
        async with aclosing(log.follow()) as follower:
            assert await anext(follower) == (1, b"a")
            assert await anext(follower) == END

            await proxy.refuse()

            with pytest.raises(Unavailable):
                await anext(follower)
        with pytest.raises(Unavailable):
            await log.append(b"b")
        with pytest.raises(Unavailable):
            await existing(log)

        await proxy.accept()
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    await log.append(b"c")
                    break
                except Unavailable:
                    await asyncio.sleep(0)
        assert bodies(await existing(log)) == [b"a", b"c"]
        await closed(log, client)

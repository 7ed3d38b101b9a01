"""A killed server's subscriptions live on, as those of a real KubeMQ do (docs/adr/0005-generations.md)."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubemq.grpc import kubemq_pb2 as pb

from tests.contract.raw_client import RawClient, bodies, new_channel, until_row
from tests.unit.embedded.process import EmbeddedProcess

HELD = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedProcess]:
    with EmbeddedProcess(tmp_path / "data", "--quirks", "on", "--afterlife") as process:
        yield process


async def hold_some(server: EmbeddedProcess, how: signal.Signals) -> str:
    """Six messages, four of them held when the server ends; returns the queue."""
    queue = new_channel()
    async with RawClient(server.address) as client:
        await client.publish(queue, *range(6))
        stream = client.downstream()
        answer = await stream.get(queue, HELD)
        assert len(bodies(answer)) == HELD
        server.end(how)
    server.start()
    return queue


async def test_what_was_held_is_withheld_after_sigkill_and_comes_back_by_the_dead_ones_id(
    server: EmbeddedProcess,
) -> None:
    queue = await hold_some(server, signal.SIGKILL)
    async with RawClient(server.address) as client:
        await until_row(client, queue, Subscribers=1, Waiting=6)
        stream = client.downstream()
        answer = await stream.get(queue, 6)
        assert bodies(answer) == [b"4", b"5"], "a short answer: the rest is somebody else's"
        await until_row(client, queue, Subscribers=2)
        await stream.close(answer)
        [dead] = re.findall(r"subscription (\S+) withholds 4 messages", server.log)
        start = pb.Subscribe.StartFromFirst
        client.subscribe("rescue", pb.Subscribe.EventsStore, ClientID=dead, EventsStoreTypeData=start)
        await until_row(client, queue, Subscribers=1, Waiting=6)
        assert sorted(bodies(await stream.get(queue, 6))) == [b"%d" % number for number in range(6)]


async def test_an_orderly_stop_withholds_nothing(server: EmbeddedProcess) -> None:
    queue = await hold_some(server, signal.SIGTERM)
    async with RawClient(server.address) as client:
        assert bodies(await client.downstream().get(queue, 6)) == [b"%d" % number for number in range(6)]

"""``kubemq-amqp rescue``: what the operator reads, the exit code, and which connectors' queues are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from connector import rescue
from connector.broker.generations import Left, queue_moved, queue_moving, queue_rescued
from connector.broker.topology import QueueRecord, decode_event, encode_event, queue_declared
from connector.config import Config
from tests.support.fake_kubemq import FakeTopologyLog
from tests.unit.backend.crashed import BEFORE, NOW, CrashedServer, Member, crashed_server
from tests.unit.backend.scripted import Scripted

ANSWERS = "left alone: its client answers the server, so it lives"


class Log(FakeTopologyLog):
    async def close(self) -> None:
        """Nothing is open."""

    def note(self, *events: dict[str, Any]) -> None:
        """What connectors have written."""
        self.events += [encode_event({"v": 1, "id": f"e{len(self.events)}", **event}) for event in events]

    @property
    def told(self) -> list[str]:
        """The queues that were told of a rescue."""
        return [event["name"] for event in map(decode_event, self.events) if event and event["type"] == "queue.rescued"]


class World:
    """A crashed server, the connectors' log, and the command."""

    def __init__(self, server: Scripted, crashed: CrashedServer, log: Log) -> None:
        self.crashed, self.log = crashed, log
        self._config = Config(kubemq_address=(server.address,))

    def add(self, queue: str, client_id: str, pending: int, mark: str, *, answers: bool = False) -> Member:
        """A subscription on this queue."""
        member = Member(client_id, pending, mark, answers=answers, name=f"amqp.default.{queue}")
        self.crashed.add(member)
        return member

    async def run(self, *, is_dry: bool = False) -> int:
        """The exit code."""
        running = rescue._rescue(self._config, self.crashed.monitor, is_dry=is_dry)
        return await asyncio.wait_for(running, 10)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    log = Log()
    monkeypatch.setattr(rescue, "KubeMQTopologyLog", lambda _client: log)
    async with Scripted() as server, crashed_server(server, monkeypatch) as crashed:
        yield World(server, crashed, log)


def withheld(queue: str, count: int) -> tuple[dict[str, Any], ...]:
    """A queue that has moved away from so many."""
    return (
        queue_declared(QueueRecord("default", queue, durable=True)),
        queue_moving("default", queue, 0, 1, "withheld"),
        queue_moved("default", queue, 0, 1, Left(count)),
    )


async def test_a_dry_run_tells_per_channel_and_does_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.add("a", "dead1", 7, BEFORE)
    world.add("a", "dead2", 2, BEFORE)
    world.add("b", "living", 10, NOW, answers=True)
    world.add("c", "idle", 0, NOW, answers=True)
    world.log.note(*withheld("a", 9))
    assert await world.run(is_dry=True) == 0
    assert capsys.readouterr().out.splitlines() == [
        "amqp.default.a: 9 messages in 2 subscriptions of a dead server: would be freed",
        "amqp.default.b: 10 messages in 1 subscription of the running server: left alone",
    ]
    assert not world.crashed.provoked
    assert not world.log.told


async def test_what_is_freed_is_told_and_living_ones_do_not_count(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """One on the same queue included: the queue is free all the same."""
    world.add("a", "dead", 7, BEFORE)
    world.add("a", "living", 10, NOW, answers=True)
    other = world.add("a", "other", 4, BEFORE, answers=True)
    world.log.note(*withheld("a", 7))
    assert await world.run() == 0
    assert capsys.readouterr().out.splitlines() == [
        "amqp.default.a: 11 messages in 2 subscriptions of a dead server: to be freed",
        "amqp.default.a: 10 messages in 1 subscription of the running server: left alone",
        "amqp.default.a: 7 messages in 1 subscription of a dead server: freed",
        f"amqp.default.a: 4 messages in 1 subscription of another process: {ANSWERS}",
        "connectors were told: queue 'a' in vhost 'default'",
    ]
    assert other in world.crashed.members
    assert "living" not in world.crashed.provoked
    assert world.log.told == ["a"]


async def test_a_queue_that_is_still_withheld_from_is_not_told(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("a", "dead", 7, BEFORE)
    stuck = world.add("b", "stuck", 5, BEFORE)
    world.log.note(*withheld("a", 7), *withheld("b", 5))
    monkeypatch.setattr(world.crashed, "drop", lambda client_id: client_id != "stuck")
    assert await world.run() == 1
    lines = capsys.readouterr().out.splitlines()
    assert "amqp.default.a: 7 messages in 1 subscription of a dead server: freed" in lines
    assert "amqp.default.b: 5 messages in 1 subscription of a dead server: STILL WITHHELD" in lines
    assert stuck in world.crashed.members
    assert world.log.told == ["a"]


async def test_a_queue_that_moves_is_told_when_something_of_it_was_freed(world: World) -> None:
    """Else what the move counts as withheld would stay unread."""
    for queue in ("a", "b"):
        world.log.note(
            queue_declared(QueueRecord("default", queue, durable=True)),
            queue_moving("default", queue, 0, 1, "withheld"),
        )
    world.add("a", "dead", 7, BEFORE)
    assert await world.run() == 0
    assert world.log.told == ["a"]


async def test_what_was_told_is_not_told_again(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.log.note(*withheld("a", 7), queue_rescued("default", "a"))
    assert await world.run() == 0
    assert capsys.readouterr().out == "no subscription of a dead server on any queue\n"
    assert world.log.told == ["a"]

"""When the link moves to another KubeMQ address, and when it stays (HA-07, HA-09)."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from connector.broker.counters import Counters
from connector.broker.ports import ServerInfo, Unavailable
from connector.runtime.link import Link, jittered
from connector.runtime.outage import Outage
from tests.support.waiting import until


class Store:
    """Addresses a to c; ``dead`` answer no Ping, ``refusing`` nothing else."""

    def __init__(self) -> None:
        self.address = "a"
        self.dead: set[str] = set()
        self.refusing: set[str] = set()
        self.pings = self.moves = 0

    async def start(self) -> ServerInfo:
        return await self.ping()

    async def ping(self) -> ServerInfo:
        self.pings += 1
        if self.address in self.dead:
            raise Unavailable("dead")
        return ServerInfo("host", "v", 1)

    def trouble(self) -> str:
        return "Get: refused" if self.address in self.refusing else ""

    async def move(self, is_ours: Any) -> dict[str, str]:
        self.moves += 1
        bad = self.dead | self.refusing
        others = [address for address in "abc" if address != self.address]
        self.address = next((address for address in others if address not in bad), self.address)
        return {address: "bad" for address in others if address in bad}


class Hub:
    """What the link tells."""

    def __init__(self) -> None:
        self.pings: list[ServerInfo | None] = []
        self.sync = SimpleNamespace(recognises=None)
        self.outage = Outage(Counters(), time.monotonic)

    @property
    def is_down(self) -> bool:
        return not self.is_reachable

    @property
    def is_reachable(self) -> bool:
        return bool(self.pings) and self.pings[-1] is not None

    def on_ping(self, server: ServerInfo | None) -> None:
        self.pings.append(server)

    def settle(self) -> None:
        pass


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def link(store: Store, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("connector.runtime.link.PING_S", 0.01)
    monkeypatch.setattr("connector.runtime.link.RETRY_PING_S", 0.01)
    link = Link(store)
    await link.connect()
    hub: Any = Hub()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(link.run(hub))
        yield link
        running.cancel()


async def test_a_server_that_is_gone_is_left_for_one_that_is_there(store: Store, link: Link) -> None:
    assert link.state() == (True, "")
    store.dead = {"a", "b"}
    await until(lambda: store.address == "c")
    store.dead = set()
    pings = store.pings
    await until(lambda: store.pings > pings + 5)
    assert store.address == "c", "no address is preferred"
    assert (link.move_count, store.moves) == (1, 1)


async def test_not_usable_as_soon_as_it_does_not_answer(store: Store, link: Link) -> None:
    store.dead = {"a", "b", "c"}
    await until(lambda: link.state() == (False, "no answer"))
    store.dead = set()
    await until(lambda: link.state() == (True, ""))


async def test_one_lost_ping_is_no_reason(store: Store, link: Link) -> None:
    pings = store.pings
    store.dead = {"a"}
    await until(lambda: store.pings > pings)
    store.dead = set()
    await until(lambda: store.pings > pings + 3)
    assert store.address == "a"


async def test_a_server_that_only_answers_pings_is_left(store: Store, link: Link) -> None:
    store.refusing = {"a"}
    assert link.state() == (False, "Get: refused")
    await until(lambda: store.address == "b")
    assert link.state() == (True, "")


async def test_it_does_not_go_round_where_all_refuse_the_same(store: Store, link: Link) -> None:
    store.refusing = {"a"}
    await until(lambda: store.address == "b")
    store.refusing = {"b"}  # one queue, perhaps, that nobody can read
    pings = store.pings
    await until(lambda: store.pings > pings + 5)
    assert (store.address, store.moves) == ("b", 1)


async def test_without_another_address_it_stays(store: Store, link: Link) -> None:
    store.dead = {"a", "b", "c"}
    await until(lambda: store.moves > 3)
    assert (store.address, link.move_count) == ("a", 0)
    store.dead = {"b", "c"}
    moves = store.moves
    pings = store.pings
    await until(lambda: store.pings > pings + 3)
    assert store.moves <= moves + 1


def test_pauses_differ() -> None:
    pauses = {jittered(1.0) for _ in range(50)}
    assert len(pauses) > 40
    assert all(0.5 <= pause <= 1.0 for pause in pauses)

"""The rescuer against a server and its monitoring page that are both scripted, over TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from connector.backend.kubemq import KubeMQClient
from connector.backend.kubemq import rescue as rescue_module
from connector.backend.kubemq.rescue import Rescuer
from connector.backend.kubemq.store import KubeMQStore
from connector.broker.ports import Unavailable
from tests.unit.backend.crashed import BEFORE, NOW, QUEUE, CrashedServer, Member, crashed_server
from tests.unit.backend.scripted import Scripted


@pytest.fixture
async def crashed(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CrashedServer]:
    async with crashed_server(server, monkeypatch) as crashed:
        yield crashed


@pytest.fixture
def rescuer(client: KubeMQClient, crashed: CrashedServer) -> Rescuer:
    return Rescuer(KubeMQStore(client), crashed.monitor)


async def test_dead_is_who_has_the_mark_of_another_process(rescuer: Rescuer, crashed: CrashedServer) -> None:
    """However busy the server is: nothing depends on how many of its clients have a turn meanwhile."""
    dead, living = Member("dead", 7, BEFORE), [Member(f"living{n}", 10, NOW) for n in range(300)]
    crashed.add(dead, *living)
    found = await rescuer.find()
    assert found.dead == [dead.found]
    assert sorted(found.living) == sorted(member.found for member in living)
    assert not found.changing


async def test_a_subscription_is_living_when_its_client_is(rescuer: Rescuer, crashed: CrashedServer) -> None:
    """One of the two marks may be strange, and a client that nobody knows is on its way."""
    half, unknown = Member("half", 3, BEFORE), Member("unknown", 3, BEFORE)
    crashed.add(half, unknown)
    crashed.clients["half"] = f"_INBOX.{NOW}0000000002"
    del crashed.clients["unknown"]
    found = await rescuer.find()
    assert not found.dead
    assert found.living == [half.found, unknown.found]


async def test_who_acknowledges_between_two_looks_is_not_dead(rescuer: Rescuer, crashed: CrashedServer) -> None:
    acknowledging, growing = Member("a", 5, BEFORE), Member("g", 5, BEFORE)
    acknowledging.trend, growing.trend = [4], [6]  # the dead are given more, and never less
    crashed.add(acknowledging, growing)
    found = await rescuer.find()
    assert [row.client_id for row in found.changing] == ["a"]
    assert [(row.client_id, row.pending_count) for row in found.dead] == [("g", 6)]


async def test_the_dead_are_dropped_and_nobody_else_is_touched(rescuer: Rescuer, crashed: CrashedServer) -> None:
    dead, living = Member("dead", 7, BEFORE), Member("living", 10, NOW, answers=True)
    crashed.add(dead, living)
    outcome = await rescuer.free((await rescuer.find()).dead)
    assert (outcome.freed, outcome.answering, outcome.left) == ([dead.found], [], [])
    assert crashed.members == [living]
    assert set(crashed.provoked) == {"dead"}


async def test_who_answers_the_server_is_left_alone(rescuer: Rescuer, crashed: CrashedServer) -> None:
    other = Member("other", 7, BEFORE, answers=True)
    crashed.add(other)
    outcome = await rescuer.free((await rescuer.find()).dead)
    assert (outcome.freed, outcome.answering, outcome.left) == ([], [other.found], [])
    assert crashed.members == [other]


async def test_what_the_server_does_not_drop_is_left(rescuer: Rescuer, crashed: CrashedServer) -> None:
    dead = Member("dead", 7, BEFORE)
    crashed.add(dead)
    rows = (await rescuer.find()).dead
    del crashed.clients["dead"]  # so the server knows nobody to drop
    outcome = await rescuer.free(rows)
    assert (outcome.freed, outcome.answering, outcome.left) == ([], [], [dead.found])


async def test_the_page_of_another_server_is_refused(
    rescuer: Rescuer, crashed: CrashedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue_module, "_SAMPLE_LIMIT_S", 0.05)
    crashed.add(Member("dead", 7, BEFORE))
    crashed.shows_clients = False
    with pytest.raises(Unavailable, match="does not show this server's clients"):
        await rescuer.find()


async def test_only_members_on_our_queues_count(rescuer: Rescuer, crashed: CrashedServer) -> None:
    ours, offline = Member("dead", 7, BEFORE), Member("gone", 2, BEFORE)
    offline.is_offline = True
    crashed.add(ours, offline, Member("dead", 1, BEFORE, name="native"))
    assert await rescuer.subscriptions() == [ours.found]


async def test_all_pages_are_read(rescuer: Rescuer, crashed: CrashedServer) -> None:
    crashed.add(*(Member(f"c{n}", 1, BEFORE, name=f"{QUEUE}{n}") for n in range(1030)))
    assert len((await rescuer.find()).dead) == 1030


async def test_a_missing_page_is_said(client: KubeMQClient) -> None:
    rescuer = Rescuer(KubeMQStore(client), "127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"no monitoring page at 127\.0\.0\.1:1"):
        await rescuer.subscriptions()

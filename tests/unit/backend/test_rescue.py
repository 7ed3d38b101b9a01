"""The rescuer against a monitoring page and a server that are both scripted."""

from __future__ import annotations

from typing import Any, cast

import pytest

from connector.backend.kubemq.rescue import Rescuer, Subscription
from connector.backend.kubemq.store import KubeMQStore
from connector.broker.ports import Unavailable


def channel(name: str, *rows: tuple[str, int, bool]) -> dict[str, Any]:
    """One channel of the page; a row is (client, pending, offline)."""
    return {
        "name": name,
        "subscriptions": [
            {"client_id": client, "pending_count": pending, "is_offline": offline} for client, pending, offline in rows
        ],
    }


class Page(Rescuer):
    """The monitoring page is a list, fetched in pages; the living are given."""

    def __init__(self, channels: list[dict[str, Any]], living: set[str]) -> None:
        super().__init__(cast("KubeMQStore", None), "127.0.0.1:1")
        self.channels = channels
        self.living = living

    def _fetch(self, offset: int) -> dict[str, Any]:
        return {"total": len(self.channels), "channels": self.channels[offset : offset + 1024]}

    async def _living(self) -> set[str]:
        return self.living


async def test_only_members_on_our_queues_count() -> None:
    page = Page(
        [
            channel("_QUEUES_.amqp.default.q", ("dead", 7, False), ("", 3, True), ("gone", 2, True)),
            channel("_QUEUES_.native", ("dead", 1, False)),
            channel("_EVENTS_STORE_.amqp.~topology", ("dead", 1, False)),
        ],
        set(),
    )
    assert await page.subscriptions() == [Subscription("amqp.default.q", "dead", 7)]


async def test_who_answers_the_roll_call_is_not_dead() -> None:
    page = Page([channel("_QUEUES_.amqp.default.q", ("dead", 7, False), ("living", 1, False))], {"living"})
    assert [row.client_id for row in await page.dead()] == ["dead"]


async def test_all_pages_are_read() -> None:
    page = Page([channel(f"_QUEUES_.amqp.default.q{n}", (f"c{n}", 1, False)) for n in range(1030)], set())
    assert len(await page.subscriptions()) == 1030


async def test_a_missing_page_is_said() -> None:
    rescuer = Rescuer(cast("KubeMQStore", None), "127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"no monitoring page at 127\.0\.0\.1:1"):
        await rescuer.subscriptions()

"""A Get that had to wait: perhaps less is there than is thought, and the next counts look."""

from __future__ import annotations

import pytest

from connector.broker.backlog import Backlog
from connector.runtime import queue_reader
from tests.support.fake_kubemq import FakeKubeMQ, FakeTopologyLog
from tests.support.running import running
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("waited_s", "waited_bytes", "is_looked"), [(0.0, 1_000, True), (1_000.0, 1_000, False), (0.0, 0, False)]
)
async def test_a_get_that_waited_is_looked_into(
    monkeypatch: pytest.MonkeyPatch, waited_s: float, waited_bytes: int, is_looked: bool
) -> None:
    """But not one that brought many bytes, which takes its time."""
    monkeypatch.setattr(queue_reader, "WAITED_S", waited_s)
    monkeypatch.setattr(queue_reader, "WAITED_BYTES", waited_bytes)
    async with running(FakeKubeMQ(), FakeTopologyLog()) as world:
        await world.declare()
        await world.publish(5)
        suspected: list[None] = []
        monkeypatch.setattr(Backlog, "suspect", lambda _: suspected.append(None))
        consumer = world.consume(5)
        await until(lambda: len(consumer.held) == 5)
        assert bool(suspected) is is_looked

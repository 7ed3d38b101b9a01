"""What connectors tell each other: a stream that takes nothing any more is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from connector.backend.kubemq import KubeMQClient
from connector.backend.kubemq.peer_bus import KubeMQPeerBus
from connector.broker.ports import TimedOut
from tests.unit.backend.scripted import Context, Scripted

FRAME = bytes(1_000_000)


async def send_for_ever(bus: KubeMQPeerBus) -> None:
    async with asyncio.timeout(5):
        while True:
            await bus.send("", FRAME)


async def test_a_server_that_takes_nothing_is_not_waited_for(server: Scripted, client: KubeMQClient) -> None:
    streams = 0

    async def deaf(requests: Any, context: Context) -> AsyncIterator[Any]:
        nonlocal streams
        streams += 1
        await asyncio.Event().wait()
        yield None

    server.handlers["SendEventsStream"] = deaf
    bus = KubeMQPeerBus(client, silence_s=0.2)
    for _ in range(2):
        with pytest.raises(TimedOut):
            await send_for_ever(bus)
    assert streams == 2, "another stream is tried"

"""A scripted server and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from connector.backend.kubemq import KubeMQClient
from tests.unit.backend.scripted import Scripted
from tests.unit.backend.settling import closed


@pytest.fixture
async def server() -> AsyncIterator[Scripted]:
    async with Scripted() as server:
        yield server


@pytest.fixture
async def client(server: Scripted) -> AsyncIterator[KubeMQClient]:
    client = KubeMQClient(server.address, "unit")
    await client.connect(5)
    yield client
    await closed(client)

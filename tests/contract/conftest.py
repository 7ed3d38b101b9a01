"""Which server the contract suite runs on: the embedded one with all quirks, and a real KubeMQ where there is one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.contract.raw_client import RawClient, new_channel
from tests.unit.embedded.process import EmbeddedProcess


@pytest.fixture(scope="session")
def embedded_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An embedded server with the quirks of a real KubeMQ."""
    with EmbeddedProcess(tmp_path_factory.mktemp("embedded"), "--quirks", "on") as process:
        yield process.address


@pytest.fixture(params=["embedded", "kubemq"])
def kubemq_address(request: pytest.FixtureRequest) -> str:
    """HOST:PORT of the server under test; KUBEMQ_ADDRESS names the real one."""
    if request.param == "embedded":
        return str(request.getfixturevalue("embedded_address"))
    address = os.environ.get("KUBEMQ_ADDRESS", "")
    if not address:
        pytest.skip("KUBEMQ_ADDRESS is not set: no real KubeMQ to compare with")
    return address


@pytest.fixture
async def client(kubemq_address: str) -> AsyncIterator[RawClient]:
    """A bare client of the server under test."""
    async with RawClient(kubemq_address) as client:
        yield client


@pytest.fixture
def queue() -> str:
    """The name of a queue nobody has used."""
    return new_channel()

"""Two connectors on one KubeMQ, with clients of both, and a name that nobody has used."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.backend import kubemq_server
from tests.support.server import ConnectorProcess

MEMBER_TIMEOUT_S = 4


@dataclass
class Pair:
    """``a`` was there first."""

    a: ConnectorProcess
    b: ConnectorProcess

    @property
    def both(self) -> tuple[ConnectorProcess, ConnectorProcess]:
        """In the order in which they started."""
        return self.a, self.b


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The KubeMQ server of the connectors that live long."""
    with kubemq_server(tmp_path_factory.mktemp("kubemq")) as address:
        yield address


def _pair(folder: Path, address: str) -> Iterator[Pair]:
    flags = ["--member-timeout-seconds", str(MEMBER_TIMEOUT_S)]
    with (
        ConnectorProcess(folder / "a", address, flags) as a,
        ConnectorProcess(folder / "b", address, flags) as b,
    ):
        yield Pair(a, b)


@pytest.fixture(scope="module")
def steady(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two connectors that live as long as the tests of one file."""
    yield from _pair(tmp_path_factory.mktemp("steady"), address)


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Pair]:
    """Two connectors for this test alone, which may end them as it likes; embedded, with a server of their own."""
    with kubemq_server(tmp_path / "kubemq") as address:
        yield from _pair(tmp_path, address)


@pytest.fixture
def connect() -> Iterator[Callable[..., Any]]:
    """A channel of a new connection to a connector; what is open at the end is closed."""
    with contextlib.ExitStack() as open_ones:

        def connect(connector: ConnectorProcess, *, confirms: bool = True) -> Any:
            connection = pika.BlockingConnection(pika.URLParameters(connector.url))
            open_ones.callback(_close, connection)
            channel = connection.channel()
            if confirms:
                channel.confirm_delivery()
            return channel

        yield connect


def _close(connection: pika.BlockingConnection) -> None:
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.close()


@pytest.fixture
def name() -> str:
    """A name that nobody has used yet."""
    return f"replicas-{uuid.uuid4().hex[:12]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show both logs with a failure."""
    report: Any = yield
    pairs = [pair for pair in getattr(item, "funcargs", {}).values() if isinstance(pair, Pair)]
    if report.failed:
        for pair in pairs:
            for letter, connector in zip("ab", pair.both, strict=True):
                report.sections.append((f"log of {letter}", connector.log_tail()))
    return report

"""What crash tests get: a connector of their own, and queue names nobody else has."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ConnectorProcess


@pytest.fixture
def connector(tmp_path: Path) -> Iterator[ConnectorProcess]:
    """A running connector with its embedded server and fresh data, or before the KubeMQ at KUBEMQ_ADDRESS."""
    with ConnectorProcess(tmp_path, os.environ.get("KUBEMQ_ADDRESS", "")) as connector:
        yield connector


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Names that are new on a real server, too."""
    mark = uuid.uuid4().hex[:12]
    return lambda kind: f"crash-{kind}-{mark}"


@pytest.fixture
def queue(new_name: Callable[[str], str]) -> str:
    """The name of a queue to declare."""
    return new_name("queue")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show the connector's log with a failure."""
    report: Any = yield
    connector: ConnectorProcess | None = getattr(item, "funcargs", {}).get("connector")
    if report.failed and connector is not None:
        report.sections.append(("connector's log", connector.log_tail()))
    return report

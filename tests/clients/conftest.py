"""What client tests get: a server, each client library in turn, connections that end with the test, fresh names."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.clients.aio_pika_driver import AioPikaClient
from tests.clients.driver import Client, Connection
from tests.clients.pika_driver import PikaClient
from tests.support.server import ConnectorProcess

CLIENTS: dict[str, Client] = {client.name: client for client in (PikaClient(), AioPikaClient())}


@dataclass(frozen=True, slots=True)
class Target:
    """The broker under test."""

    url: str
    requeue: str
    """Where a requeued message goes: ``tail``, or ``original`` as with RabbitMQ."""
    connector: ConnectorProcess | None
    """Ours; None where AMQP_URL names another broker, to try the scenarios themselves."""


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A connector with its embedded server, or before the KubeMQ at KUBEMQ_ADDRESS; or the broker at AMQP_URL."""
    if url := os.environ.get("AMQP_URL"):
        yield Target(url.rstrip("/") + "/", os.environ.get("AMQP_REQUEUE", "original"), None)
        return
    folder = tmp_path_factory.mktemp("connector")
    with ConnectorProcess(folder, os.environ.get("KUBEMQ_ADDRESS", "")) as connector:
        yield Target(connector.url, "tail", connector)


@pytest.fixture
def connector(target: Target) -> ConnectorProcess:
    """The connector under test, for what only it has."""
    if target.connector is None:
        pytest.skip("AMQP_URL names another broker")
    return target.connector


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest) -> Client:
    """Each client library in turn."""
    return CLIENTS[request.param]


@pytest.fixture
def connect(client: Client, target: Target) -> Iterator[Callable[..., Connection]]:
    """Connects to the target, or to another URL; what is open at the end is closed."""
    with contextlib.ExitStack() as connections:

        def connect(url: str = target.url, vhost: str | None = None) -> Connection:
            connection = client.connect(url, vhost)
            connections.callback(connection.close)
            return connection

        yield connect


@pytest.fixture
def new_name(client: Client) -> Callable[..., str]:
    """Names that nobody has used yet."""
    return lambda kind="queue": f"{client.name}-{kind}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue(connect: Callable[..., Connection], new_name: Callable[..., str]) -> Iterator[str]:
    """A durable queue, deleted at the end."""
    name = new_name()
    connection = connect()
    connection.channel().declare_queue(name, durable=True)
    connection.close()
    yield name
    connection = connect()
    connection.channel().delete_queue(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show the connector's log with a failure."""
    report: Any = yield
    target: Target | None = getattr(item, "funcargs", {}).get("target")
    if report.failed and target is not None and target.connector is not None:
        report.sections.append(("connector's log", target.connector.log_tail()))
    return report

"""Publishers while KubeMQ is away: held within the marks, and answered when it is back (HA-07, PU-09)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from bench.raw_client import RawClient
from tests.support.server import ConnectorProcess
from tests.support.waiting import wait_until
from tests.unit.embedded.process import EmbeddedProcess

MARK_BYTES = 1024 * 1024
#: What one read of a socket brings, at most.
READ_BYTES = 256 * 1024
BODY_BYTES = 4_000_000
PUBLISHERS = 8
DEADLINE_S = 20
FLAGS = ("--outbox-high-bytes", str(MARK_BYTES), "--publish-deadline-seconds", str(DEADLINE_S))


@pytest.fixture
def kubemq(tmp_path: Path) -> Iterator[EmbeddedProcess]:
    with EmbeddedProcess(tmp_path / "kubemq") as process:
        yield process


@pytest.fixture
def connector(tmp_path: Path, kubemq: EmbeddedProcess) -> Iterator[ConnectorProcess]:
    with ConnectorProcess(tmp_path / "connector", kubemq.address, FLAGS) as connector:
        yield connector


def publisher(connector: ConnectorProcess) -> RawClient:
    """With confirms, and a queue."""
    client = RawClient(connector.url, limit_s=DEADLINE_S)
    client.open_channel(1)
    client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    return client


def declare(client: RawClient) -> Any:
    return client.call(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)


def go_away(kubemq: EmbeddedProcess, connector: ConnectorProcess) -> None:
    kubemq.kill()
    wait_until(lambda: connector.entries("publishers blocked"))


def test_what_is_published_meanwhile_is_held_and_stored_once(
    kubemq: EmbeddedProcess, connector: ConnectorProcess
) -> None:
    with publisher(connector) as client:
        declare(client)
        go_away(kubemq, connector)
        messages = [client.content_frames(1, "q", b"%d" % number) for number in range(3)]
        client.send_bytes(b"".join(b"".join(frames) for frames in messages))
        assert client.read()[1].name == "Connection.Blocked"
        wait_until(lambda: connector.metrics()["kubemq_amqp_outbox_messages"] == 3)
        kubemq.start()
        last = 0
        while last < 3:
            frame = client.read()[1]
            if isinstance(frame, commands.Basic.Ack | commands.Basic.Nack):
                assert isinstance(frame, commands.Basic.Ack)
                last = frame.delivery_tag or 0
        for number in range(3):
            got = client.call(1, commands.Basic.Get(queue="q", no_ack=True), commands.Basic.GetOk)
            assert (got.redelivered, got.message_count) == (False, 2 - number)
            client.read()
            assert getattr(client.read()[1], "value", b"") == b"%d" % number


def test_large_messages_are_not_read_meanwhile(kubemq: EmbeddedProcess, connector: ConnectorProcess) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(publisher(connector)) for _ in range(PUBLISHERS)]
        declare(clients[0])
        go_away(kubemq, connector)
        threads = [threading.Thread(target=publish, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        wait_until(lambda: connector.metrics()["kubemq_amqp_paused_connections"] == PUBLISHERS)
        metrics = connector.metrics()
        kubemq.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        kept = metrics["kubemq_amqp_outbox_bytes"] + metrics["kubemq_amqp_partial_bytes"]
        assert kept < MARK_BYTES + PUBLISHERS * READ_BYTES
        assert [confirm(client) for client in clients] == ["Basic.Ack"] * PUBLISHERS
        assert declare(clients[0]).message_count == PUBLISHERS


def publish(client: RawClient) -> None:
    client.send_bytes(b"".join(client.content_frames(1, "q", bytes(BODY_BYTES))))


def confirm(client: RawClient) -> str:
    while True:
        name = client.read()[1].name
        if name.startswith("Basic."):
            return name


def test_a_client_that_goes_while_it_is_not_read_is_noticed(
    kubemq: EmbeddedProcess, connector: ConnectorProcess
) -> None:
    with publisher(connector) as client:
        declare(client)
        go_away(kubemq, connector)
        client.send_bytes(client.content_frames(1, "q", b"begun")[0])
        wait_until(lambda: connector.metrics()["kubemq_amqp_paused_connections"] == 1)
    wait_until(lambda: connector.metrics()["rabbitmq_connections"] == 0)

"""Declarations while KubeMQ is away: they wait for its return, and end at the deadline."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pamqp import commands
from pamqp.base import Frame

from tests.support import traffic
from tests.support.server import ConnectorProcess
from tests.support.waiting import until, wait_until
from tests.unit.embedded.process import EmbeddedProcess
from tools.fault.client import Connection, Gone

pytestmark = pytest.mark.skipif("KUBEMQ_ADDRESS" in os.environ, reason="ends the server")

DECLARATIONS: list[Frame] = [
    commands.Queue.Declare(queue="new", durable=True),
    commands.Exchange.Declare(exchange="new", durable=True),
    commands.Queue.Bind(queue="old", exchange="amq.direct", routing_key="k"),
    commands.Queue.Delete(queue="gone"),
    commands.Queue.Purge(queue="old"),
]


@pytest.fixture
def kubemq(tmp_path: Path) -> Iterator[EmbeddedProcess]:
    with EmbeddedProcess(tmp_path / "kubemq") as process:
        yield process


async def answer_to(declaration: Frame, port: int) -> str:
    """The name of the answer, or why the connection ended."""
    connection = await Connection.open(port)
    try:
        answer, _ = await (await connection.channel()).call(declaration)
    except Gone as error:
        return str(error)
    finally:
        connection.abort("")
    return str(answer.name)


@asynccontextmanager
async def waiting(connector: ConnectorProcess, kubemq: EmbeddedProcess) -> AsyncIterator[list[asyncio.Task[str]]]:
    """Every declaration, made while KubeMQ is away; the tasks have ended after the block."""
    for name in ("old", "gone"):
        await asyncio.to_thread(traffic.declare, connector.url, name)
    await asyncio.to_thread(traffic.publish_confirmed, connector.url, "old", [b"purged"])
    kubemq.kill()
    await until(lambda: not connector.is_ready())
    port = int(connector.url.rpartition(":")[2].partition("/")[0])
    async with asyncio.TaskGroup() as group:
        yield [group.create_task(answer_to(declaration, port)) for declaration in DECLARATIONS]


async def test_declarations_wait_for_the_end_of_an_outage(tmp_path: Path, kubemq: EmbeddedProcess) -> None:
    with ConnectorProcess(tmp_path / "connector", kubemq.address) as connector:
        async with waiting(connector, kubemq) as tasks:
            done, _ = await asyncio.wait(tasks, timeout=0.5)
            assert not done
            await asyncio.to_thread(kubemq.start)
        assert [task.result() for task in tasks] == [f"{declaration.name}Ok" for declaration in DECLARATIONS]


async def test_what_was_given_up_is_not_there_afterwards(tmp_path: Path, kubemq: EmbeddedProcess) -> None:
    with ConnectorProcess(tmp_path / "connector", kubemq.address, ["--declare-deadline-seconds", "1"]) as connector:
        async with waiting(connector, kubemq) as tasks:
            pass
        assert all("541 INTERNAL_ERROR" in task.result() for task in tasks), [task.result() for task in tasks]
        await asyncio.to_thread(kubemq.start)
        await asyncio.to_thread(wait_until, connector.is_ready)
        await asyncio.to_thread(traffic.declare, connector.url, "later")
        port = int(connector.url.rpartition(":")[2].partition("/")[0])
        assert await answer_to(commands.Queue.Declare(queue="gone", passive=True), port) == "Queue.DeclareOk"
        assert "404" in await answer_to(commands.Queue.Declare(queue="new", passive=True), port)


async def test_an_auto_delete_queue_whose_deletion_fails_goes(tmp_path: Path, kubemq: EmbeddedProcess) -> None:
    with ConnectorProcess(tmp_path / "connector", kubemq.address, ["--declare-deadline-seconds", "1"]) as connector:
        port = int(connector.url.rpartition(":")[2].partition("/")[0])
        look = commands.Queue.Declare(queue="auto", passive=True)
        consumer = await Connection.open(port)
        channel = await consumer.channel()
        await channel.call(commands.Queue.Declare(queue="auto", durable=True, auto_delete=True))
        await channel.call(commands.Basic.Consume(queue="auto"))
        kubemq.kill()
        async with asyncio.TaskGroup() as group:
            deletion = group.create_task(answer_to(commands.Queue.Delete(queue="auto"), port))
            while "404" not in await answer_to(look, port):  # it is not found from when it is on its way out
                assert not deletion.done()
            consumer.abort("")
        assert "541 INTERNAL_ERROR" in deletion.result()
        await asyncio.to_thread(kubemq.start)
        await asyncio.to_thread(wait_until, connector.is_ready)
        async with asyncio.timeout(10):
            while "404" not in await answer_to(look, port):
                pass

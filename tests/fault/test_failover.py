"""Several KubeMQ addresses: when one fails another takes over, with everything, and keeps it (HA-09).

Two proxies stand before one server, the embedded one or that at KUBEMQ_ADDRESS: nodes of one cluster.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aio_pika
import pytest

from tests.support.server import ConnectorProcess
from tests.support.tcp_proxy import TcpProxy, Way
from tests.support.waiting import until
from tests.unit.embedded.process import EmbeddedProcess

LIMIT_S = 12.0


class Rig:
    """The proxies and the connector behind them."""

    def __init__(self, connector: ConnectorProcess, proxies: list[TcpProxy]) -> None:
        self.connector = connector
        self.proxies = proxies

    @property
    def in_use(self) -> list[bool]:
        """Which proxies forward anything."""
        return [proxy.link_count > 0 for proxy in self.proxies]


@asynccontextmanager
async def rig(folder: Path, kubemq: str, dead: int = -1) -> AsyncIterator[Rig]:
    """Start all; proxy number ``dead`` takes no connections."""
    host, _, port = kubemq.rpartition(":")
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(TcpProxy(lambda: (host, int(port)))) for _ in range(2)]
        if dead >= 0:
            await proxies[dead].refuse()
        connector = ConnectorProcess(folder, ",".join(proxy.address for proxy in proxies))
        await asyncio.to_thread(connector.start)
        stack.push_async_callback(asyncio.to_thread, connector.stop)
        yield Rig(connector, proxies)


@pytest.fixture
def kubemq(tmp_path: Path) -> Iterator[str]:
    """The address of the server behind the proxies."""
    if address := os.environ.get("KUBEMQ_ADDRESS"):
        yield address
        return
    (tmp_path / "embedded").mkdir()
    with EmbeddedProcess(tmp_path / "embedded", "--quirks", "on") as process:
        yield process.address


class Traffic:
    """A publisher with confirms that goes on publishing, and a consumer that holds every tenth message for a while."""

    def __init__(self, url: str) -> None:
        self.queue = f"failover-{uuid.uuid4().hex[:12]}"
        self.confirmed: list[bytes] = []
        self.got: list[tuple[bytes, bool]] = []
        self.held: list[aio_pika.abc.AbstractIncomingMessage] = []
        self._url = url
        self._is_over = False

    @property
    def bodies(self) -> set[bytes]:
        """What the consumer has got."""
        return {body for body, _ in self.got}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[aio_pika.abc.AbstractConnection]:
        """Both clients, on one connection that must not break."""
        connection = await aio_pika.connect(self._url)
        channel = await connection.channel()
        await channel.set_qos(50)
        queue = await channel.declare_queue(self.queue, durable=True)
        await queue.consume(self._take)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish(await connection.channel()))
            yield connection
            self._is_over = True
        for message in self.held:
            await message.ack()
        await until(lambda: set(self.confirmed) <= self.bodies, LIMIT_S)
        await queue.delete(if_unused=False, if_empty=False)
        await connection.close()

    async def _take(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        self.got.append((message.body, bool(message.redelivered)))
        if len(self.held) < 20 and not int(message.body) % 10:
            self.held.append(message)
        else:
            await message.ack()

    async def _publish(self, channel: aio_pika.abc.AbstractChannel) -> None:
        number = 0
        while not self._is_over:
            body = b"%d" % number
            try:
                await channel.default_exchange.publish(aio_pika.Message(body, delivery_mode=2), self.queue)
            except aio_pika.exceptions.DeliveryError:  # the result was unknown
                await asyncio.sleep(0.01)
                continue
            self.confirmed.append(body)
            number += 1

    async def more(self) -> None:
        """Return when confirms and deliveries go on."""
        confirmed, got = len(self.confirmed), len(self.got)
        await until(lambda: len(self.confirmed) > confirmed + 50 and len(self.got) > got + 50, LIMIT_S)


async def test_another_address_takes_over_and_keeps_it(tmp_path: Path, kubemq: str) -> None:
    async with rig(tmp_path, kubemq) as parts:
        first, second = parts.proxies
        traffic = Traffic(parts.connector.url)
        async with traffic.running() as connection:
            await traffic.more()
            assert parts.in_use == [True, False]
            await first.refuse()
            await traffic.more()
            assert parts.in_use == [False, True]
            await until(parts.connector.is_ready)
            await first.accept()
            await traffic.more()
            assert parts.in_use == [False, True], "no address is preferred"
            await second.refuse()
            await traffic.more()
            assert parts.in_use == [True, False]
            assert not connection.is_closed
        assert [body for body, flagged in traffic.got if flagged] == [], "it stayed: nothing comes to it again"
        twice = len(traffic.got) - len(traffic.bodies)
        assert twice <= 2, "published again after a nack: its result was unknown"
        moves = parts.connector.entries("moved to another KubeMQ address")
        assert [entry["kubemq"] for entry in moves] == [second.address, first.address]
        assert parts.connector.metrics()["kubemq_amqp_kubemq_moves"] == 2


@pytest.mark.timeout(60)
async def test_what_waits_at_a_silent_address_moves_too(tmp_path: Path, kubemq: str) -> None:
    """Its links stay open: requests wait for their answers at the move."""
    async with rig(tmp_path, kubemq) as parts:
        first = parts.proxies[0]
        traffic = Traffic(parts.connector.url)
        async with traffic.running():
            await traffic.more()
            first.stall(Way.DOWN)
            await until(lambda: parts.connector.entries("moved to another KubeMQ address"), 2 * LIMIT_S)
            first.resume(Way.DOWN)
            await traffic.more()


async def test_the_start_passes_over_a_dead_address(tmp_path: Path, kubemq: str) -> None:
    async with rig(tmp_path, kubemq, dead=0) as parts:
        assert parts.in_use == [False, True]
        assert parts.connector.kubemq_address == f"{parts.proxies[0].address},{parts.proxies[1].address}"


async def test_a_server_with_other_data_does_not_take_over(tmp_path: Path) -> None:
    """It would be asked for messages that it does not have, and would keep what the others never see."""
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    with EmbeddedProcess(folders[0]) as one, EmbeddedProcess(folders[1]) as other:
        connector = ConnectorProcess(tmp_path, f"{one.address},{other.address}")
        await asyncio.to_thread(connector.start)
        try:
            traffic = Traffic(connector.url)
            async with traffic.running():
                await traffic.more()
                one.kill()
                await until(lambda: connector.entries("KubeMQ address cannot take over"), LIMIT_S)
                reasons = {
                    entry["kubemq"]: entry["reason"] for entry in connector.entries("KubeMQ address cannot take over")
                }
                assert "not those of the address in use" in reasons[other.address]
                one.start()
                await traffic.more()
        finally:
            await asyncio.to_thread(connector.stop)

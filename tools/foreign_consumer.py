"""A native KubeMQ consumer joins a queue that AMQP consumers read: nothing is lost, and it is noticed.

Owns the traffic and its ledger.  A publisher sends confirmed messages at a steady rate; two AMQP consumers share the
queue, one of which holds its first message for half of the native consumer's time; KubeMQ's own SDK joins for a while
and leaves.  Everything is one process, so one clock tells all times.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from kubemq.core.config import ClientConfig
from kubemq.queues.async_client import AsyncClient

from mapping.names import kubemq_channel
from tests.support.server import ConnectorProcess

PUBLISH_EVERY_S = 0.01
#: What was given back before the second subscriber was noticed may come twice.
NOTICE_LIMIT_S = 2.0
CALM_S = 6.0
END_LIMIT_S = 45.0


class Run:
    """The three consumers and the publisher."""

    def __init__(self, connector: ConnectorProcess, rate: float, stay_s: float) -> None:
        self._connector = connector
        self._rate = rate
        self._stay_s = stay_s
        self.queue = f"foreign-{uuid.uuid4().hex[:8]}"
        self.confirmed: set[int] = set()
        self.deliveries: list[tuple[float, str, int, bool]] = []
        self.joined_at = self.left_at = 0.0
        self._is_publishing = True

    async def run(self) -> None:
        """Calm, the native consumer's stay, calm again; then until everything has been seen."""
        connection = await aio_pika.connect(self._connector.url)
        async with connection:
            await self._consume(connection, hold_s=self._stay_s / 2)
            await self._consume(connection, hold_s=0.0)
            publishing = asyncio.create_task(self._publish(connection))
            await asyncio.sleep(CALM_S)
            await self._be_native()
            await asyncio.sleep(CALM_S)
            self._is_publishing = False
            await publishing
            deadline = time.monotonic() + END_LIMIT_S
            while self.missing() and time.monotonic() < deadline:  # noqa: ASYNC110 # a condition of many parts
                await asyncio.sleep(0.1)
            channel = await connection.channel()
            await channel.queue_delete(self.queue)

    def missing(self) -> set[int]:
        """Confirmed and seen by nobody."""
        return self.confirmed - {number for _, _, number, _ in self.deliveries}

    async def _consume(self, connection: aio_pika.abc.AbstractConnection, hold_s: float) -> None:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=5)
        queue = await channel.declare_queue(self.queue, durable=True)
        holding = hold_s

        async def on_message(message: AbstractIncomingMessage) -> None:
            nonlocal holding
            self.deliveries.append((time.monotonic(), "amqp", int(message.body), bool(message.redelivered)))
            hold, holding = (holding, 0.0) if self.joined_at else (0.0, holding)
            await asyncio.sleep(hold or 0.005)
            await message.ack()

        await queue.consume(on_message)

    async def _publish(self, connection: aio_pika.abc.AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=True)
        number, started = 0, time.monotonic()
        while self._is_publishing:
            due = int((time.monotonic() - started) * self._rate)
            numbers = range(number, due)
            number = due
            results = await asyncio.gather(
                *(
                    channel.default_exchange.publish(
                        aio_pika.Message(b"%d" % one, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), self.queue
                    )
                    for one in numbers
                ),
                return_exceptions=True,
            )
            self.confirmed.update(
                one for one, result in zip(numbers, results, strict=True) if not isinstance(result, BaseException)
            )
            await asyncio.sleep(PUBLISH_EVERY_S)

    async def _be_native(self) -> None:
        config = ClientConfig(address=self._connector.kubemq_address, client_id="native-consumer")
        async with AsyncClient(config=config) as sdk:
            self.joined_at = time.monotonic()
            while time.monotonic() < self.joined_at + self._stay_s:
                response = await sdk.receive_queue_messages(
                    kubemq_channel("/", self.queue), max_messages=10, wait_timeout_seconds=1, auto_ack=True
                )
                for message in response.messages:
                    self.deliveries.append((time.monotonic(), "native", int(message.body), False))
            self.left_at = time.monotonic()


def verdict(run: Run, connector: ConnectorProcess) -> bool:
    """Print the figures; returns whether everything is as it must be."""
    count = Counter(number for _, _, number, _ in run.deliveries)
    first: dict[int, tuple[float, str]] = {}
    doubled_late = []
    for at, who, number, _ in run.deliveries:
        before = first.setdefault(number, (at, who))
        is_late = min(at, before[0]) > run.joined_at + NOTICE_LIMIT_S
        if before != (at, who) and is_late and "amqp" in (who, before[1]):  # KubeMQ doubles within a native batch
            doubled_late.append(number)
    after = [at for at, who, _, _ in run.deliveries if who == "amqp" and at > run.left_at]
    first_after_s = min(after, default=float("inf")) - run.left_at
    noticed = connector.entries("channel is read by others")
    alone = connector.entries("channel is read by us alone")
    native = sum(1 for _, who, _, _ in run.deliveries if who == "native")
    flagged = sum(1 for _, who, _, is_redelivered in run.deliveries if who == "amqp" and is_redelivered)
    doubled = sum(1 for times in count.values() if times > 1)
    sys.stdout.write(
        f"confirmed {len(run.confirmed)}, native took {native}, lost {len(run.missing())}, doubled {doubled} ("
        f"after it was to be noticed {len(doubled_late)}), flagged {flagged}; noticed {len(noticed)} times, alone "
        f"again {len(alone)} times; first AMQP delivery {first_after_s:.2f} s after it left\n"
    )
    for late in set(doubled_late):
        times = [(round(at - run.joined_at, 3), who) for at, who, number, _ in run.deliveries if number == late]
        sys.stdout.write(f"doubled late {late}: {times}\n")
    return bool(noticed) and bool(alone) and not run.missing() and not doubled_late and bool(after) and native > 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when something is not as it must be."""
    parser = argparse.ArgumentParser(description="A native consumer joins two AMQP consumers.")
    parser.add_argument("--kubemq-address", default="", metavar="HOST:PORT", help="use this KubeMQ server")
    parser.add_argument("--rate", type=float, default=200, help="messages per second (default %(default)s)")
    parser.add_argument("--stay", type=float, default=60, help="seconds of the native consumer (default %(default)s)")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="kubemq-amqp-foreign-") as folder,
        ConnectorProcess(Path(folder), options.kubemq_address) as connector,
    ):
        run = Run(connector, options.rate, options.stay)
        asyncio.run(run.run())
        is_good = verdict(run, connector)
        if not is_good:
            sys.stdout.write(connector.log_tail() + "\n")
    sys.stdout.write("as it must be\n" if is_good else "NOT as it must be\n")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

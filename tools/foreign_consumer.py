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
from collections.abc import Sequence
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from kubemq.core.config import ClientConfig
from kubemq.queues.async_client import AsyncClient

from mapping.names import kubemq_channel
from tests.support.server import ConnectorProcess

PUBLISH_EVERY_S = 0.01
MOST_AT_ONCE = 50
#: What was given back before the second subscriber was noticed may come twice.
NOTICE_LIMIT_S = 2.0
#: Which of two came first is not known when they come so soon after each other: this process reads both sockets, when
#: it gets a core.  (Of three that seemed to be ours last, the connector had written all, 2 to 3 ms before.)
TOGETHER_S = 0.1
CALM_S = 6.0
#: After it has left, everything published goes to the AMQP consumers again, this soon and this fast.
NORMAL_AFTER_S = 15.0
NORMAL_S = 10.0
NORMAL_WAIT_S = 1.0
END_LIMIT_S = 45.0


class Run:
    """The three consumers and the publisher."""

    def __init__(self, connector: ConnectorProcess, rate: float, stay_s: float) -> None:
        self._connector = connector
        self._rate = rate
        self._stay_s = stay_s
        self.queue = f"foreign-{uuid.uuid4().hex[:8]}"
        self.confirmed: set[int] = set()
        self.published_at: dict[int, float] = {}
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
            await asyncio.sleep(NORMAL_AFTER_S + NORMAL_S)
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
            due = min(int((time.monotonic() - started) * self._rate), number + MOST_AT_ONCE)
            numbers = range(number, due)
            number = due
            self.published_at.update(dict.fromkeys(numbers, time.monotonic()))
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


class Doubled:
    """What was delivered more than once, by what is known of it; KubeMQ doubles by itself within a native batch."""

    def __init__(self, run: Run) -> None:
        self.stories: dict[int, list[tuple[float, str, bool]]] = {}
        for at, who, number, is_redelivered in run.deliveries:
            self.stories.setdefault(number, []).append((at - run.joined_at, who, is_redelivered))
        self.stories = {number: story for number, story in self.stories.items() if len(story) > 1}
        self.by_us = {n: story for n, story in self.stories.items() if any(who == "amqp" for _, who, _ in story)}
        #: both after it was to be noticed
        self.late = {n: story for n, story in self.by_us.items() if story[0][0] > NOTICE_LIMIT_S}
        #: second deliveries of ours without the mark
        self.unflagged = {
            n: story
            for n, story in self.by_us.items()
            if any(
                who == "amqp" and not is_redelivered and at - story[0][0] > TOGETHER_S
                for at, who, is_redelivered in story[1:]
            )
        }


def verdict(run: Run, connector: ConnectorProcess) -> bool:
    """Print the figures; returns whether everything is as it must be."""
    doubled = Doubled(run)
    noticed = connector.entries("channel is read by others")
    alone = connector.entries("channel is read by us alone")
    native = sum(1 for _, who, _, _ in run.deliveries if who == "native")
    flagged = sum(1 for _, who, _, is_redelivered in run.deliveries if who == "amqp" and is_redelivered)
    sys.stdout.write(
        f"confirmed {len(run.confirmed)}, native took {native}, lost {len(run.missing())}, doubled "
        f"{len(doubled.stories)} (with an AMQP consumer {len(doubled.by_us)}, of them after it was to be noticed "
        f"{len(doubled.late)}, unflagged {len(doubled.unflagged)}), flagged {flagged}; noticed {len(noticed)} times, "
        f"alone again {len(alone)} times\n"
    )
    for number, story in {**doubled.late, **doubled.unflagged}.items():
        sys.stdout.write(f"doubled {number}: {[(round(at, 3), who, flag) for at, who, flag in story]}\n")
    is_normal = _is_normal(run)
    is_good = not (run.missing() or doubled.late or doubled.unflagged)
    return is_good and bool(noticed) and bool(alone) and native > 0 and is_normal


def _is_normal(run: Run) -> bool:
    """Whether what was published some seconds after it left came once, to AMQP consumers, without delay."""
    since = run.left_at + NORMAL_AFTER_S
    late = {number for number, at in run.published_at.items() if since <= at and number in run.confirmed}
    waits = sorted(
        at - run.published_at[number] for at, who, number, _ in run.deliveries if number in late and who == "amqp"
    )
    middle_s = waits[len(waits) // 2] if waits else float("inf")
    sys.stdout.write(
        f"afterwards: {len(late)} confirmed, {len(waits)} delivered to AMQP consumers, wait {middle_s * 1000:.0f} ms "
        f"median, {waits[-1] * 1000 if waits else 0:.0f} ms longest\n"
    )
    return bool(late) and len(waits) == len(late) and middle_s <= NORMAL_WAIT_S


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

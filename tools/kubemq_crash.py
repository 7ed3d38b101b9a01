"""SIGKILL of a KubeMQ server under load: nothing that can be read is lost, and service is back soon after the server.

Owns the load, the ledger and the verdict; the server is stopped and started by commands that the caller gives.
Confirmed messages are published at a steady rate into a queue with fast and slow consumers and a backlog; the server is
killed and started again; then everything is drained.  What the connector says is withheld may be missing, nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

from tests.support.server import ConnectorProcess

CALM_S = 4.0
AFTER_S = 6.0
END_LIMIT_S = 60.0
CONFIRM_LIMIT_S = 3.0


class Run:
    """One crash under load."""

    def __init__(self, connector: ConnectorProcess, options: argparse.Namespace) -> None:
        self._connector = connector
        self._options = options
        self.queue = f"kubemq-crash-{uuid.uuid4().hex[:8]}"
        self.confirmed: dict[int, float] = {}
        self.published = 0
        self.seen: Counter[int] = Counter()
        self.unflagged: set[int] = set()
        self.back_at = 0.0
        self._is_publishing = True
        self._is_slow = True

    async def run(self) -> None:
        """Load, crash, load, drain."""
        connection = await aio_pika.connect(self._connector.url)
        async with connection:
            channel = await connection.channel()
            await channel.declare_queue(self.queue, durable=True)
            await self._publish_many(connection, self._options.backlog)
            consuming = await asyncio.gather(
                self._consume(connection, 10, 0.002),
                self._consume(connection, 5, 0.5),
                self._consume(connection, 1, 12.0),
            )
            publishing = asyncio.create_task(self._publish(connection))
            await asyncio.sleep(CALM_S)
            await asyncio.to_thread(self._crash)
            await asyncio.sleep(AFTER_S)
            self._is_publishing = self._is_slow = False
            await publishing
            deadline = time.monotonic() + END_LIMIT_S
            while len(self.missing()) > self.withheld() and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            del consuming

    def missing(self) -> set[int]:
        """Confirmed, and seen by nobody."""
        return set(self.confirmed) - set(self.seen)

    def withheld(self) -> int:
        """What the connector says it cannot read."""
        return int(self._connector.metrics().get("kubemq_amqp_withheld_messages", 0))

    @property
    def first_confirm_s(self) -> float:
        """From the server's return to the next confirm."""
        return min((at for at in self.confirmed.values() if at > self.back_at), default=float("inf")) - self.back_at

    def _crash(self) -> None:
        subprocess.run(shlex.split(self._options.kubemq_kill), check=True, close_fds=True)
        subprocess.run(shlex.split(self._options.kubemq_start), check=True, close_fds=True)
        self.back_at = time.monotonic()

    async def _consume(self, connection: AbstractConnection, prefetch: int, work_s: float) -> None:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=prefetch)
        queue = await channel.get_queue(self.queue)

        async def on_message(message: AbstractIncomingMessage) -> None:
            number = int(message.body)
            self.seen[number] += 1
            if self.seen[number] > 1 and not message.redelivered:
                self.unflagged.add(number)
            await asyncio.sleep(work_s if self._is_slow else 0)
            await message.ack()

        await queue.consume(on_message)

    async def _publish_many(self, connection: AbstractConnection, count: int) -> None:
        channel = await connection.channel(publisher_confirms=True)
        numbers = range(self.published, self.published + count)
        self.published += count
        await self._send(channel, numbers)

    async def _publish(self, connection: AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=True)
        started, first = time.monotonic(), self.published
        sending: set[asyncio.Task[None]] = set()
        while self._is_publishing:
            due = first + int((time.monotonic() - started) * self._options.rate)
            numbers = range(self.published, due)
            self.published = due
            task = asyncio.create_task(self._send(channel, numbers))
            sending.add(task)
            task.add_done_callback(sending.discard)
            await asyncio.sleep(0.02)
        await asyncio.gather(*sending)

    async def _send(self, channel: aio_pika.abc.AbstractChannel, numbers: range) -> None:
        async def one(number: int) -> None:
            message = aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            try:
                await channel.default_exchange.publish(message, self.queue)
            except aio_pika.exceptions.DeliveryError:
                return  # nacked: it may be stored or not
            self.confirmed[number] = time.monotonic()

        await asyncio.gather(*(one(number) for number in numbers))


def verdict(run: Run, connector: ConnectorProcess) -> bool:
    """Print the figures; returns whether everything is as it must be."""
    moved = connector.entries("queue has moved to a new channel")
    withheld = run.withheld()
    missing = len(run.missing())
    doubled = sum(1 for count in run.seen.values() if count > 1)
    sys.stdout.write(
        f"published {run.published}, confirmed {len(run.confirmed)}, missing {missing}, withheld {withheld}, doubled "
        f"{doubled} (unflagged {len(run.unflagged)}), first confirm {run.first_confirm_s:.2f} s after the server's "
        f"return, moves {[(entry['moved'], entry['withheld']) for entry in moved]}\n"
    )
    return missing <= withheld and not run.unflagged and run.first_confirm_s <= CONFIRM_LIMIT_S


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when something is not as it must be."""
    parser = argparse.ArgumentParser(description="SIGKILL of a KubeMQ server under load.")
    parser.add_argument("--kubemq-address", required=True, metavar="HOST:PORT")
    parser.add_argument("--kubemq-kill", required=True, metavar="COMMAND")
    parser.add_argument("--kubemq-start", required=True, metavar="COMMAND", help="returns when the server answers")
    parser.add_argument("--rate", type=float, default=500, help="messages per second (default %(default)s)")
    parser.add_argument("--backlog", type=int, default=10_000, help="messages there before (default %(default)s)")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="kubemq-amqp-crash-") as folder,
        ConnectorProcess(Path(folder), options.kubemq_address) as connector,
    ):
        run = Run(connector, options)
        asyncio.run(run.run())
        is_good = verdict(run, connector)
        sys.stdout.write(connector.log_tail() + "\n")
    sys.stdout.write("as it must be\n" if is_good else "NOT as it must be\n")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

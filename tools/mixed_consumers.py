"""One queue, consumers of very different speed: see that nothing is lost, doubled, out of order or kept waiting.

Owns the traffic, the ledger of every message and its verdict.  Consumers work at one message after the other, 3 ms,
3 ms, 500 ms and (holding each message) 30 s long, with prefetch 10, 10, 5 and 1; a publisher sends 300 messages a
second, confirmed.  All of it is one process and one event loop (aio-pika), so one clock tells all times.

*Waiting* is a time span in which a fast consumer has free prefetch and the queue has ready messages: confirmed, not yet
delivered to anybody.  It ends with a delivery to that consumer, or when nothing is ready any more.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from connector.backend.kubemq import KubeMQClient
from mapping.names import kubemq_channel, reported_name
from tests.support.server import ConnectorProcess

#: The publisher sends so often; what is due then goes at once.
PUBLISH_EVERY_S = 0.01
WAIT_LIMIT_MS = 50.0
END_LIMIT_S = 60.0


class Kind(NamedTuple):
    """A consumer's speed, its prefetch, and whether it is one of the fast ones, whose waiting counts."""

    name: str
    work_s: float
    prefetch: int
    is_fast: bool


class Event(NamedTuple):
    """What happened to a message: ``confirmed``, ``delivered`` or ``acked``, by whom (-1: the publisher)."""

    at: float
    what: str
    consumer: int
    number: int
    is_redelivered: bool = False


@dataclass
class Ledger:
    """Every event, in the order it was seen."""

    events: list[Event] = field(default_factory=list)
    published: int = 0
    refused: int = 0
    unfinished: set[int] = field(default_factory=set)

    def add(self, what: str, consumer: int, number: int, is_redelivered: bool = False) -> None:
        """Note an event that happens now."""
        self.events.append(Event(time.monotonic(), what, consumer, number, is_redelivered))

    def of(self, what: str, consumer: int | None = None) -> Iterator[Event]:
        """The events of one kind, of one consumer or of all."""
        return (e for e in self.events if e.what == what and (consumer is None or e.consumer == consumer))

    def lost(self) -> set[int]:
        """Confirmed and never delivered."""
        return {e.number for e in self.of("confirmed")} - {e.number for e in self.of("delivered")}

    def doubled(self) -> set[int]:
        """Delivered more than once."""
        return {number for number, count in Counter(e.number for e in self.of("delivered")).items() if count > 1}

    def is_ascending(self, consumer: int) -> bool:
        """Whether this consumer's messages came in the order they were sent."""
        numbers = [e.number for e in self.of("delivered", consumer)]
        return numbers == sorted(numbers)

    def waits(self, consumer: int, prefetch: int) -> list[float]:
        """The spans in which this consumer waited though the queue had messages and it had room, in seconds."""
        spans: list[float] = []
        ready: set[int] = set()
        delivered: set[int] = set()
        held = 0
        since: float | None = None
        for event in self.events:
            is_own = event.consumer == consumer
            if event.what == "confirmed" and event.number not in delivered:
                ready.add(event.number)
            elif event.what == "delivered":
                ready.discard(event.number)
                delivered.add(event.number)
                held += is_own
            elif event.what == "acked":
                held -= is_own
            could = bool(ready) and held < prefetch
            if since is not None and (not could or (is_own and event.what == "delivered")):
                spans.append(event.at - since)
                since = None
            if since is None and could:
                since = event.at
        return spans


class Run:
    """One run against a broker."""

    def __init__(self, url: str, kinds: Sequence[Kind], rate: float, duration_s: float) -> None:
        self._url = url
        self._kinds = kinds
        self._rate = rate
        self._duration_s = duration_s
        self.queue = f"mixed-{uuid.uuid4().hex[:12]}"
        self.ledger = Ledger()
        self._is_done = asyncio.Event()
        self._is_all_sent = False

    async def run(self) -> None:
        """Publish for the duration, and consume until everything is acknowledged or the time is over."""
        publisher = await self._connect()
        await (await publisher.channel()).declare_queue(self.queue, durable=True)
        consumers = [await self._connect() for _ in self._kinds]
        async with asyncio.TaskGroup() as group:
            workers = [
                group.create_task(self._consume(connection, number)) for number, connection in enumerate(consumers)
            ]
            await self._publish(publisher, group)
            self._is_all_sent = True
            try:
                async with asyncio.timeout(END_LIMIT_S + 2 * max(kind.work_s for kind in self._kinds)):
                    await self._is_done.wait()
            except TimeoutError:
                pass  # the verdict shows what is missing
            for worker in workers:
                worker.cancel()
        for connection in (publisher, *consumers):
            await connection.close()

    async def delete(self) -> None:
        """Delete the queue."""
        async with await self._connect() as connection:
            await (await connection.channel()).queue_delete(self.queue)

    async def _connect(self) -> aio_pika.abc.AbstractConnection:
        return await aio_pika.connect(self._url, timeout=15)

    async def _publish(self, connection: aio_pika.abc.AbstractConnection, group: asyncio.TaskGroup) -> None:
        exchange = (await connection.channel()).default_exchange
        started = time.monotonic()
        number = 0
        while (elapsed := time.monotonic() - started) < self._duration_s:
            while number < elapsed * self._rate:
                self.ledger.unfinished.add(number)
                group.create_task(self._publish_one(exchange, number))
                number += 1
            await asyncio.sleep(PUBLISH_EVERY_S)
        self.ledger.published = number

    async def _publish_one(self, exchange: aio_pika.abc.AbstractExchange, number: int) -> None:
        message = aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        try:
            await exchange.publish(message, self.queue)
        except aio_pika.exceptions.DeliveryError:
            self.ledger.refused += 1
            self._finish(number)
        else:
            self.ledger.add("confirmed", -1, number)

    async def _consume(self, connection: aio_pika.abc.AbstractConnection, consumer: int) -> None:
        kind = self._kinds[consumer]
        channel = await connection.channel()
        await channel.set_qos(kind.prefetch)
        waiting: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()

        async def on_message(message: AbstractIncomingMessage) -> None:
            self.ledger.add("delivered", consumer, int(message.body), bool(message.redelivered))
            waiting.put_nowait(message)

        await (await channel.get_queue(self.queue, ensure=False)).consume(on_message)
        while True:
            message = await waiting.get()
            await asyncio.sleep(kind.work_s)
            self.ledger.add("acked", consumer, int(message.body))
            await message.ack()
            self._finish(int(message.body))

    def _finish(self, number: int) -> None:
        self.ledger.unfinished.discard(number)
        if self._is_all_sent and not self.ledger.unfinished:
            self._is_done.set()


async def left_in_kubemq(address: str, queue: str, limit_s: float = 5.0) -> int:
    """What QueuesInfo says is still waiting in the queue's channel, once it stops falling."""
    client = KubeMQClient(address, "mixed-consumers")
    name = reported_name(kubemq_channel("/", queue))
    try:
        await client.connect(limit_s)
        deadline = time.monotonic() + limit_s
        while True:
            waiting = sum(row.waiting for row in await client.queues_info() if row.name == name)
            if not waiting or time.monotonic() > deadline:
                return waiting
            await asyncio.sleep(0.1)
    finally:
        await client.close()


def percentile(values: Sequence[float], percent: int) -> float:
    """A percentile in ms; 0 of nothing."""
    return 1000 * sorted(values)[len(values) * percent // 100] if values else 0.0


def verdict(ledger: Ledger, kinds: Sequence[Kind], left: int) -> bool:
    """Print the table; returns whether everything is as it must be."""
    say(f"{'consumer':<10} {'work':>8} {'prefetch':>8} {'messages':>9} {'order':>10} {'waits':>7} "
        f"{'50 %':>9} {'99 %':>9} {'worst':>9}")  # fmt: skip
    all_waits: list[float] = []
    is_ordered = True
    for number, kind in enumerate(kinds):
        count = sum(1 for _ in ledger.of("delivered", number))
        is_ascending = ledger.is_ascending(number)
        is_ordered = is_ordered and is_ascending
        line = f"{kind.name:<10} {kind.work_s * 1000:>5.0f} ms {kind.prefetch:>8} {count:>9} "
        line += f"{'ascending' if is_ascending else 'BROKEN':>10}"
        if kind.is_fast:
            waits = ledger.waits(number, kind.prefetch)
            all_waits += waits
            line += f" {len(waits):>7}" + "".join(f" {percentile(waits, p):>6.1f} ms" for p in (50, 99))
            line += f" {1000 * max(waits, default=0.0):>6.1f} ms"
        say(line)
    p99 = percentile(all_waits, 99)
    flagged = sum(e.is_redelivered for e in ledger.of("delivered"))
    say(f"published {ledger.published}, refused {ledger.refused}, lost {len(ledger.lost())}, "
        f"doubled {len(ledger.doubled())}, redelivered {flagged}, unfinished {len(ledger.unfinished)}, "
        f"left in KubeMQ {left}; fast consumers waited {p99:.1f} ms at 99 %")  # fmt: skip
    is_complete = not (ledger.lost() or ledger.doubled() or ledger.unfinished or ledger.refused or left)
    return is_complete and is_ordered and p99 <= WAIT_LIMIT_MS


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def check(connector: ConnectorProcess, kinds: Sequence[Kind], options: argparse.Namespace) -> bool:
    """One run and its verdict."""
    run = Run(connector.url, kinds, options.rate, options.duration)
    say(f"{options.rate:g} msg/s for {options.duration:g} s, then up to {END_LIMIT_S + 2 * options.hold:g} s to finish")
    await run.run()
    is_good = verdict(run.ledger, kinds, await left_in_kubemq(connector.kubemq_address, run.queue))
    await run.delete()
    return is_good


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when something is not as it must be."""
    parser = argparse.ArgumentParser(description="One queue, consumers of very different speed.")
    parser.add_argument("--kubemq-address", default="", metavar="HOST:PORT", help="use this KubeMQ server")
    parser.add_argument("--rate", type=float, default=300, help="messages per second (default %(default)s)")
    parser.add_argument("--duration", type=float, default=60, help="seconds (default %(default)s)")
    parser.add_argument("--hold", type=float, default=30, help="seconds the last one holds (default %(default)s)")
    options = parser.parse_args(arguments)
    kinds = [
        Kind("fast", 0.003, 10, True), Kind("fast too", 0.003, 10, True), Kind("slow", 0.5, 5, False),
        Kind("holder", options.hold, 1, False),
    ]  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="kubemq-amqp-mixed-") as folder,
        ConnectorProcess(Path(folder), options.kubemq_address) as connector,
    ):
        is_good = asyncio.run(check(connector, kinds, options))
        if not is_good:
            say(connector.log_tail())
    say("as it must be" if is_good else "NOT as it must be")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

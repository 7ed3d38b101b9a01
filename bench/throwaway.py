"""``python -m bench.throwaway``: queues that are declared, used once and dropped, as RPC and pub/sub clients do.

Two parts.  ``churn``: 100,000 such queues in turn, half of them reply queues (exclusive, named by the server), half
subscribers of a fanout exchange; most are deleted, the rest goes with its connection.  KubeMQ must have no channel of
them afterwards, the log of declarations must not know them, and memory must stay flat.  ``rpc``: round trips, request
through a durable queue, reply through an exclusive queue or by direct reply-to.  Exit codes: 0 measured, 1 something
went wrong or, with ``--check``, a limit was exceeded, 2 it cannot run.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from pamqp import commands, header

from bench.figures import percentile
from bench.findings import Failed, Findings
from bench.growth import Series
from bench.parts import parser as make_parser
from bench.parts import run
from bench.scale import rss_mb
from bench.targets import Endpoint, Target, delete_queues
from connector.backend.kubemq import KubeMQClient, KubeMQTopologyLog
from tools.fault.client import Channel, Connection

PARTS = ("churn", "rpc")
FANOUT = "bench-throwaway"
REQUESTS = "bench-throwaway-requests"
DIRECT_REPLY = "amq.rabbitmq.reply-to"
#: Connections at work at a time, one channel each; each is closed with its last queues undeleted after so many queues.
_CLIENTS, _QUEUES_EACH, _LEFT = 10, 200, 5
_LIMIT_S = 25.0
_CHANNEL_LIMIT = 20


# ------------------------------------------------------------------------------------------------- churn


class Subscriber:
    """One client that makes a queue, gets one message through it and drops it, again and again."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        channel.on_deliver = lambda _method, _properties, body: self._arrived.put_nowait(body)

    async def use_one(self, is_fanout: bool, is_left: bool) -> None:
        """A queue's whole life.  Raises Gone and Failed."""
        channel = self._channel
        declared, _ = await channel.call(commands.Queue.Declare(queue="", exclusive=True))
        name = declared.queue
        if is_fanout:
            await channel.call(commands.Queue.Bind(queue=name, exchange=FANOUT))
        started, _ = await channel.call(commands.Basic.Consume(queue=name, no_ack=True))
        body = uuid.uuid4().bytes
        channel.publish(FANOUT if is_fanout else "", "" if is_fanout else name, commands.Basic.Properties(), body)
        try:
            async with asyncio.timeout(_LIMIT_S):
                while await self._arrived.get() != body:  # the others' messages come too
                    pass
        except TimeoutError:
            raise Failed(f"a message through {name} did not arrive") from None
        if not is_left:
            await channel.call(commands.Basic.Cancel(consumer_tag=started.consumer_tag))
            await channel.call(commands.Queue.Delete(queue=name))


async def work(port: int, numbers: Any, used: list[int]) -> None:
    """Connect, use some queues, leave the last ones to the end of the connection, and again.  Raises Gone, Failed."""
    while True:
        some = [number for number, _ in zip(numbers, range(_QUEUES_EACH), strict=False)]
        if not some:
            return
        connection = await Connection.open(port)
        subscriber = Subscriber(await connection.channel())
        for at, number in enumerate(some):
            await subscriber.use_one(number % 2 == 0, len(some) - at <= _LEFT)
            used[0] += 1
        await connection.close()


class Watched:
    """Memory by group, noted every so many queues."""

    def __init__(self, endpoint: Endpoint, every: int) -> None:
        self._endpoint = endpoint
        self._every = every
        self.series = {group: Series(group, "MB") for group in endpoint.groups}
        self.lines: list[str] = []

    async def run(self, used: list[int]) -> None:
        """Note it until cancelled."""
        following = 0
        while True:
            if used[0] >= following:
                memory = rss_mb(self._endpoint)
                for group, series in self.series.items():
                    series.points.append((float(used[0]), memory[group]))
                self.lines.append(
                    f"{used[0]:,}: " + ", ".join(f"{key} {value:.1f} MB" for key, value in memory.items())
                )
                following += self._every
            await asyncio.sleep(0.2)


async def churn(target: Target, endpoint: Endpoint, options: argparse.Namespace, findings: Findings) -> None:
    """Make and drop the queues; what is left of them.  Raises Gone and Failed."""
    port = urlsplit(endpoint.url).port or 5672
    connection = await Connection.open(port)
    channel = await connection.channel()
    await channel.call(commands.Exchange.Declare(exchange=FANOUT, exchange_type="fanout", durable=True))
    before = await known(endpoint)
    numbers, used = iter(range(options.queues)), [0]
    watched = Watched(endpoint, max(1, options.queues // 10))
    watching = asyncio.create_task(watched.run(used))
    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(_CLIENTS):
            group.create_task(work(port, numbers, used))
    findings.add(target.name, f"{options.queues:,} queues", options.queues / (time.monotonic() - started), "queues/s")
    watching.cancel()
    await channel.call(commands.Exchange.Delete(exchange=FANOUT))
    await connection.close()
    sys.stdout.write("\n".join(watched.lines) + "\n")
    for series in watched.series.values():
        early, late, is_flat = series.growth()
        findings.add(target.name, f"{series.name}, memory in the second quarter", early, "MB")
        findings.add(target.name, f"{series.name}, memory in the last quarter", late, "MB")
        if not is_flat:
            findings.bad.append(f"{target.name}: the memory of the {series.name} grows: {early:.1f} to {late:.1f} MB")
    after = await known(endpoint)
    findings.add(target.name, "KubeMQ channels more than before", after[0] - before[0], "", _CHANNEL_LIMIT - 1)
    findings.add(target.name, "events more in the log of declarations", after[1] - before[1], "", _CHANNEL_LIMIT - 1)


async def known(endpoint: Endpoint) -> tuple[int, int]:
    """What KubeMQ has: its queue channels, and the last Sequence of the log of declarations.  Raises Failed."""
    if endpoint.connector is None:
        return 0, 0
    client = KubeMQClient(endpoint.connector.kubemq_address, f"bench-{uuid.uuid4().hex}")
    await client.connect(10)
    log = KubeMQTopologyLog(client)
    try:
        channels = len(await client.queues_info())
        await log.append(b"{}")
        last = 0
        async with aclosing(log.follow()) as events:
            async for sequence, _ in events:
                if not sequence:
                    return channels, last
                last = sequence
    finally:
        await log.close()
        await client.close()
    raise Failed("the log of declarations ends before its end")


# ------------------------------------------------------------------------------------------------- rpc


async def rpc(target: Target, endpoint: Endpoint, options: argparse.Namespace, findings: Findings) -> None:
    """Round trips one after the other.  Raises Gone and Failed."""
    port = urlsplit(endpoint.url).port or 5672
    server = await Connection.open(port)
    answering = await server.channel()
    await answering.call(commands.Queue.Declare(queue=REQUESTS, durable=True))
    await answering.call(commands.Basic.Qos(prefetch_count=10))

    def answer(method: commands.Basic.Deliver, request: header.ContentHeader, body: bytes) -> None:
        asked = request.properties
        answering.publish(
            "", asked.reply_to or "", commands.Basic.Properties(correlation_id=asked.correlation_id), body
        )
        answering.send(commands.Basic.Ack(method.delivery_tag or 0))

    answering.on_deliver = answer
    await answering.call(commands.Basic.Consume(queue=REQUESTS))
    client = await Connection.open(port)
    for name, limit in (("an exclusive reply queue", options.rpc_limit_ms), ("direct reply-to", None)):
        channel = await client.channel()
        reply_to = DIRECT_REPLY
        if limit is not None:
            declared, _ = await channel.call(commands.Queue.Declare(queue="", exclusive=True))
            reply_to = declared.queue
        times = await round_trips(channel, reply_to, options.calls)
        findings.add(target.name, f"RPC over {name}, median", statistics.median(times), "ms", limit)
        findings.add(target.name, f"RPC over {name}, 99 %", percentile(times, 0.99), "ms")
    await client.close()
    await server.close()
    if target.keeps_queues:
        findings.bad += filter(None, [delete_queues(endpoint.url, [REQUESTS])])


async def round_trips(channel: Channel, reply_to: str, count: int) -> list[float]:
    """Ask so many times; milliseconds of each, without the first tenth.  Raises Gone and Failed."""
    answers: asyncio.Queue[bytes] = asyncio.Queue()
    channel.on_deliver = lambda _method, _properties, body: answers.put_nowait(body)
    await channel.call(commands.Basic.Consume(queue=reply_to, no_ack=True))
    times = []
    for number in range(count):
        start = time.perf_counter()
        asked = commands.Basic.Properties(reply_to=reply_to, correlation_id=str(number), delivery_mode=2)
        channel.publish("", REQUESTS, asked, b"%d" % number)
        async with asyncio.timeout(_LIMIT_S):
            if await answers.get() != b"%d" % number:
                raise Failed("the answer to another call has come")
        times.append((time.perf_counter() - start) * 1e3)
    return times[count // 10 :]


# ------------------------------------------------------------------------------------------------- command


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts at the targets; returns the exit code."""
    options = _parser().parse_args(arguments)

    def measure(target: Target, findings: Findings) -> None:
        with target.serve() as endpoint:
            if options.part != PARTS[1]:
                asyncio.run(churn(target, endpoint, options, findings))
            if options.part != PARTS[0]:
                asyncio.run(rpc(target, endpoint, options, findings))

    return run("throwaway", options, measure)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("throwaway", "Queues that are used once.", PARTS)
    parser.add_argument("--queues", type=int, default=100_000, help="of the churn (default %(default)s)")
    parser.add_argument("--calls", type=int, default=2_000, help="round trips of each kind (default %(default)s)")
    parser.add_argument("--rpc-limit-ms", type=float, default=3, help="of the median (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""``python -m bench.scale``: many queues and bindings: declaring them, starting with them, publishing through them.

Two parts.  ``declare``: so many durable queues and bindings by clients with several channels each, and a few more one
at a time by a single client; the memory of each; a restart, after which everything must be as before.  ``topic``: the
rate of confirmed publishes through a topic exchange with 10,000 bindings, with keys that repeat and with keys that
never do, beside a direct exchange with as many.  Exit codes: 0 measured, 1 something went wrong or, with ``--check``,
a limit was exceeded, 2 it cannot run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from pamqp import body as content
from pamqp import commands, frame, header

from bench import processes
from bench.findings import Failed, Findings
from bench.parts import parser as make_parser
from bench.parts import run
from bench.targets import Endpoint, Target, delete_queues
from tests.support.server import ConnectorProcess
from tools.fault.client import Channel, Connection, Gone

PARTS = ("declare", "topic")
STEM = "bench-scale"
TOPIC, DIRECT = f"{STEM}-topic", f"{STEM}-direct"
_MB = 1e6
#: Of the topic part: queues that its bindings lead to, messages in one turn, and how many may be unconfirmed.
_TARGETS, _TURN, _WINDOW, _WRITE = 20, 20_000, 2_000, 200
_CHANNELS = 20


# ------------------------------------------------------------------------------------------------- declare


def queue_names(count: int) -> list[str]:
    """The queues, in order."""
    return [f"{STEM}-{at}" for at in range(count)]


def bindings(
    queues: Sequence[str], count: int, exchange: str = TOPIC, second_word: str = "*"
) -> Iterator[commands.Queue.Bind]:
    """So many different patterns, spread over the queues."""
    for at in range(count):
        key = f"site-{at % 50}.{second_word}.device-{at}.state"
        yield commands.Queue.Bind(queue=queues[at % len(queues)], exchange=exchange, routing_key=key)


async def spread(port: int, clients: int, methods: Iterable[Any]) -> None:
    """Call the methods over so many connections of 20 channels, each channel one after the other.  Raises Gone."""
    shared = iter(methods)

    async def work(channel: Channel) -> None:
        for method in shared:
            await channel.call(method)

    connections = [await Connection.open(port) for _ in range(clients)]
    channels = [await connection.channel() for connection in connections for _ in range(_CHANNELS)]
    async with asyncio.TaskGroup() as group:
        for channel in channels:
            group.create_task(work(channel))
    for connection in connections:
        await connection.close()


async def one_by_one(port: int, methods: Iterable[Any]) -> list[float]:
    """Call the methods over one channel, each after the answer to the last; milliseconds of each.  Raises Gone."""
    connection = await Connection.open(port)
    channel = await connection.channel()
    times = []
    for method in methods:
        start = time.perf_counter()
        await channel.call(method)
        times.append((time.perf_counter() - start) * 1e3)
    await connection.close()
    return times


def declare(target: Target, endpoint: Endpoint, options: argparse.Namespace, findings: Findings) -> None:
    """Declare everything, count what it costs, and start again with it.  Raises Gone, Failed and NotReady."""
    port = urlsplit(endpoint.url).port or 5672
    names = queue_names(options.queues)
    before = rss_mb(endpoint)
    started = time.monotonic()
    queues = [commands.Queue.Declare(queue=name, durable=True) for name in names]
    asyncio.run(spread(port, 1, [commands.Exchange.Declare(exchange=TOPIC, exchange_type="topic", durable=True)]))
    asyncio.run(spread(port, options.clients, queues))
    declared, with_queues = time.monotonic(), rss_mb(endpoint)
    asyncio.run(spread(port, options.clients, bindings(names, options.bindings)))
    bound, with_all = time.monotonic(), rss_mb(endpoint)
    findings.add(target.name, f"declaring {options.queues:,} queues", declared - started, "s")
    findings.add(target.name, f"binding them {options.bindings:,} times", bound - declared, "s")
    findings.add(target.name, "both", bound - started, "s", options.declare_limit_s)
    for group in before:
        per_queue = (with_queues[group] - before[group]) * 1e3 / options.queues
        findings.add(target.name, f"{group}, memory per idle queue", per_queue, "KB")
        per_binding = (with_all[group] - with_queues[group]) * 1e3 / options.bindings
        findings.add(target.name, f"{group}, memory per binding", per_binding, "KB")
        findings.add(target.name, f"{group}, memory with all", with_all[group], "MB")
    more = [f"{STEM}-more-{at}" for at in range(options.single)]
    times = asyncio.run(one_by_one(port, [commands.Queue.Declare(queue=name, durable=True) for name in more]))
    findings.add(target.name, "one client, one declare at a time, median", statistics.median(times), "ms")
    times = asyncio.run(one_by_one(port, bindings(more, options.single)))
    findings.add(target.name, "one client, one binding at a time, median", statistics.median(times), "ms")
    if endpoint.connector is not None:
        restart(target, endpoint.connector, options, findings)
    if target.keeps_queues:
        findings.bad += filter(None, [delete_queues(endpoint.url, [*names, *more], [TOPIC])])


def restart(target: Target, connector: ConnectorProcess, options: argparse.Namespace, findings: Findings) -> None:
    """End it in order and start it again; its definitions must be the same.  Raises NotReady."""
    before = definitions(connector)
    connector.terminate()
    started = time.monotonic()
    connector.start(wait=False)
    connector.wait_ready(60.0)
    findings.add(target.name, "start with all of it", time.monotonic() - started, "s", options.start_limit_s)
    findings.add(target.name, "of it the connector's own", connector.entries("listening")[-1]["seconds"], "s")
    if definitions(connector) != before:
        findings.bad.append(f"{target.name}: after the restart the definitions are not the same")


def definitions(connector: ConnectorProcess) -> dict[str, list[str]]:
    """What is declared, by kind, in an order that does not depend on that of declaring."""
    login = b64encode(b"guest:guest").decode("ascii")
    headers = {"Authorization": f"Basic {login}"}
    request = urllib.request.Request(f"{connector.ops_url}/api/definitions", headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        document = json.load(answer)
    kinds = ("queues", "exchanges", "bindings")
    return {kind: sorted(json.dumps(each, sort_keys=True) for each in document[kind]) for kind in kinds}


def rss_mb(endpoint: Endpoint) -> dict[str, float]:
    """Memory by group of processes."""
    return {group: processes.usage(pids()).rss_bytes / _MB for group, pids in endpoint.groups.items()}


# ------------------------------------------------------------------------------------------------- topic


class Publisher:
    """One connection that publishes with confirms, never more unconfirmed than the window."""

    def __init__(self, connection: Connection, channel: Channel) -> None:
        self._connection = connection
        self._confirmed = 0
        self._sent = 0
        self._refused = 0
        self._progress = asyncio.Event()
        channel.on_confirm = self._on_confirm

    @classmethod
    async def open(cls, port: int) -> Publisher:
        """Connect.  Raises Gone."""
        connection = await Connection.open(port)
        channel = await connection.channel()
        await channel.call(commands.Confirm.Select())
        return cls(connection, channel)

    def _on_confirm(self, tag: int, _multiple: bool, is_ack: bool) -> None:
        self._confirmed = max(self._confirmed, tag)
        self._refused += not is_ack
        self._progress.set()

    async def rate(self, messages: Sequence[bytes]) -> float:
        """Publish them all; messages per second up to the last confirm.  Raises Gone and Failed."""
        started = time.monotonic()
        for at in range(0, len(messages), _WRITE):
            some = messages[at : at + _WRITE]
            await self._wait(self._sent + len(some) - _WINDOW)
            self._connection.write(b"".join(some))
            self._sent += len(some)
        await self._wait(self._sent)
        if self._refused:
            raise Failed(f"{self._refused} messages were refused")
        return len(messages) / (time.monotonic() - started)

    async def _wait(self, confirmed: int) -> None:
        while self._confirmed < confirmed:
            if self._connection.gone.is_set():
                raise Gone(self._connection.reason)
            self._progress.clear()
            async with asyncio.timeout(60):
                await self._progress.wait()


def message(exchange: str, routing_key: str) -> bytes:
    """The frames of one message of 100 bytes on channel 1."""
    parts: list[frame.FrameTypes] = [
        commands.Basic.Publish(exchange=exchange, routing_key=routing_key),
        header.ContentHeader(0, 100, commands.Basic.Properties(delivery_mode=2)),
        content.ContentBody(bytes(100)),
    ]
    return b"".join(frame.marshal(part, 1) for part in parts)


def turns(count: int) -> dict[str, list[list[bytes]]]:
    """Messages by name of the load, some turns each: every key leads to one queue, of the last no key comes twice."""
    keys = [f"site-{at % 50}.{{}}.device-{at}.state" for at in range(count)]
    direct = [message(DIRECT, key.format("line")) for key in keys]
    topic = [message(TOPIC, key.format("line")) for key in keys]
    few = [topic[at % 100] for at in range(_TURN)]
    never = [[message(TOPIC, keys[at % count].format(f"n{turn}-{at}")) for at in range(_TURN)] for turn in range(3)]

    def whole(messages: list[bytes]) -> list[list[bytes]]:
        return [[messages[at % count] for at in range(_TURN)]] * 3

    return {
        "direct exchange": whole(direct),
        "topic exchange, 100 keys": [few] * 3,
        f"topic exchange, {count:,} keys": whole(topic),
        "topic exchange, no key twice": never,
    }


async def topic(target: Target, endpoint: Endpoint, options: argparse.Namespace, findings: Findings) -> None:
    """Publish through both exchanges in turn.  Raises Gone and Failed."""
    port = urlsplit(endpoint.url).port or 5672
    count, names = options.patterns, queue_names(_TARGETS)
    declares = [commands.Exchange.Declare(exchange=each, exchange_type=each.rpartition("-")[2], durable=True)
                for each in (TOPIC, DIRECT)]  # fmt: skip
    await spread(port, 1, [*declares, *[commands.Queue.Declare(queue=name, durable=True) for name in names]])
    await spread(port, options.clients, bindings(names, count))
    await spread(port, options.clients, bindings(names, count, DIRECT, "line"))
    publisher = await Publisher.open(port)
    loads = turns(count)
    await publisher.rate(loads["direct exchange"][0][: _TURN // 2])  # warm-up
    rates: dict[str, list[float]] = {name: [] for name in loads}
    for turn in range(3):
        for name, messages in loads.items():
            rates[name].append(await publisher.rate(messages[turn]))
            await spread(port, 1, [commands.Queue.Purge(queue=each) for each in names])
    direct = statistics.median(rates.pop("direct exchange"))
    findings.add(target.name, f"direct exchange, {count:,} bindings", direct, "msg/s")
    for name, of_it in rates.items():
        findings.add(target.name, name, statistics.median(of_it), "msg/s")
        findings.add(target.name, f"{name}, share of direct", statistics.median(of_it) / direct, "x", least=0.5)
    if target.keeps_queues:
        findings.bad += filter(None, [delete_queues(endpoint.url, names, [TOPIC, DIRECT])])


# ------------------------------------------------------------------------------------------------- command


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts at the targets; returns the exit code."""
    options = _parser().parse_args(arguments)

    def measure(target: Target, findings: Findings) -> None:
        if options.part != PARTS[1]:
            with target.serve() as endpoint:
                declare(target, endpoint, options, findings)
        if options.part != PARTS[0]:
            with target.serve() as endpoint:
                asyncio.run(topic(target, endpoint, options, findings))

    return run("scale", options, measure)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("scale", "Many queues and bindings.", PARTS)
    parser.add_argument("--clients", type=int, default=4, help="that declare, 20 channels each (default %(default)s)")
    group = parser.add_argument_group("declare")
    group.add_argument("--queues", type=int, default=10_000, help="default %(default)s")
    group.add_argument("--bindings", type=int, default=50_000, help="default %(default)s")
    group.add_argument("--single", type=int, default=1_000, help="more, by one client (default %(default)s)")
    group.add_argument("--declare-limit-s", type=float, default=60, help="default %(default)s")
    group.add_argument("--start-limit-s", type=float, default=5, help="default %(default)s")
    group = parser.add_argument_group("topic")
    group.add_argument("--patterns", type=int, default=10_000, help="bindings of each exchange (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

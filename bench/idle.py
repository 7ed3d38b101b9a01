"""``python -m bench.idle``: what queues and clients cost that do nothing, and what others cost that do something.

Two parts.  ``idle``: so many declared queues without messages and so many connections that only keep their heartbeat;
memory and CPU of the connector.  ``beside``: the latency of one busy queue, alone and beside 500 queues with producers,
consumers and traffic, by PerfTest.  Exit codes: 0 measured, 1 something went wrong or, with ``--check``, a limit was
exceeded, 2 it cannot run.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from pamqp import commands

from bench import processes
from bench.figures import mixed_quantile
from bench.findings import Failed, Findings
from bench.measure import Plan, counted
from bench.parts import UNUSABLE, run
from bench.parts import parser as make_parser
from bench.perftest import PerfTest, Unusable, classpath
from bench.results import CONNECTOR
from bench.targets import WORK_FOLDER, Endpoint, Target, delete_queues
from bench.workloads import EXCHANGE, MANY, Workload, chosen
from tools.fault.client import Channel, Connection

PARTS = ("idle", "beside")
#: Declaring goes over so many channels at a time, connecting over so many connections.
_DECLARING, _CONNECTING = 20, 50
_SETTLE_S = 5.0
_MB = 1e6


# ------------------------------------------------------------------------------------------------- idle


class Crowd:
    """Connections and the queues declared over them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.connections: list[Connection] = []
        self._stem = f"bench-idle-{uuid.uuid4().hex[:8]}"

    def queue_names(self, count: int) -> list[str]:
        """The names, in order."""
        return [f"{self._stem}-{at}" for at in range(count)]

    async def declare(self, count: int) -> None:
        """Declare durable queues over some channels at a time.  Raises Gone."""
        await self._spread(self.queue_names(count), lambda name: commands.Queue.Declare(queue=name, durable=True))

    async def delete(self, count: int) -> None:
        """Delete them again.  Raises Gone."""
        await self._spread(self.queue_names(count), lambda name: commands.Queue.Delete(queue=name))

    async def _spread(self, names: list[str], method: Callable[[str], Any]) -> None:
        connection = await Connection.open(self._port)

        async def work(channel: Channel, part: list[str]) -> None:
            for name in part:
                await channel.call(method(name))

        channels = [await connection.channel() for _ in range(_DECLARING)]
        async with asyncio.TaskGroup() as group:
            for at, channel in enumerate(channels):
                group.create_task(work(channel, names[at::_DECLARING]))
        await connection.close()
        connection.abort("done")

    async def connect(self, count: int, heartbeat_s: int) -> None:
        """Open connections that do nothing but keep their heartbeat.  Raises Gone."""
        gate = asyncio.Semaphore(_CONNECTING)

        async def one() -> None:
            async with gate:
                self.connections.append(await Connection.open(self._port, heartbeat_s=heartbeat_s))

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(one())

    @property
    def lost(self) -> int:
        """Connections that are over."""
        return sum(connection.gone.is_set() for connection in self.connections)

    def leave(self) -> None:
        """Drop all connections."""
        for connection in self.connections:
            connection.abort("done")


async def idle(target: Target, endpoint: Endpoint, options: argparse.Namespace, report: Findings) -> None:
    """Measure the crowd; raises Gone when it cannot be set up."""
    crowd = Crowd(urlsplit(endpoint.url).port or 5672)
    before = {group: processes.usage(pids()).rss_bytes / _MB for group, pids in endpoint.groups.items()}
    started = time.monotonic()
    await crowd.declare(options.queues)
    declared = time.monotonic()
    await crowd.connect(options.connections, options.heartbeat)
    report.add(target.name, f"declaring {options.queues:,} queues", declared - started, "s")
    report.add(target.name, f"opening {options.connections:,} connections", time.monotonic() - declared, "s")
    await asyncio.sleep(_SETTLE_S)
    with processes.Watch(endpoint.groups) as watch:
        start = time.monotonic()
        await asyncio.sleep(options.seconds)
        end = time.monotonic()
    for group in watch.groups:
        is_ours = group == CONNECTOR
        report.add(target.name, f"{group}, memory before", before[group], "MB")
        report.add(
            target.name, f"{group}, memory", watch.rss_bytes(group, start, end) / _MB, "MB",
            options.memory_limit_mb if is_ours else None,
        )  # fmt: skip
        report.add(
            target.name, f"{group}, CPU", 100 * watch.cpu_s(group, start, end) / (end - start), "% of a core",
            options.cpu_limit if is_ours else None,
        )  # fmt: skip
    if crowd.lost:
        report.bad.append(f"{target.name}: {crowd.lost} of the connections were lost: {crowd.connections[0].reason}")
    crowd.leave()
    if target.keeps_queues:
        await crowd.delete(options.queues)


def _raise_limit() -> None:
    """As many descriptors as this process may have; the connector inherits them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# ------------------------------------------------------------------------------------------------- beside


def crowd_of_queues(rate: float) -> Workload:
    """500 queues with a producer and a consumer each, together at a rate in msg/s."""
    queues, channels = 500, 10
    return Workload(
        "crowd",
        "500 queues",
        (
            "--producers", str(queues // channels), "--producer-channel-count", str(channels),
            "--consumers", str(queues // channels), "--consumer-channel-count", str(channels),
            "--confirm", "10", "--qos", "10", "--publishing-interval", f"{queues / rate:g}",
            "--producer-scheduler-threads", "4", *MANY,
        ),
        queues=queues,
    )  # fmt: skip


def beside(target: Target, endpoint: Endpoint, options: argparse.Namespace, report: Findings, jars: str) -> None:
    """Measure the busy queue alone and in company, in turn."""
    alone: list[float] = []
    company: list[float] = []
    crowd, token = crowd_of_queues(options.rate), uuid.uuid4().hex[:8]
    for _ in range(options.rounds):
        alone.append(_median_ms(endpoint, options, jars))
        seconds = options.seconds + options.warm_up + 60
        csv_path = WORK_FOLDER / f"crowd-{token}.csv"
        with PerfTest(jars, endpoint.url, crowd.perftest_arguments(token), seconds, csv_path) as noise:
            if not noise.wait_started():
                raise Failed("the 500 queues do not start")
            time.sleep(_SETTLE_S)
            company.append(_median_ms(endpoint, options, jars))
            if not noise.is_running:
                raise Failed("the 500 queues ended early")
        csv_path.unlink(missing_ok=True)
    if target.keeps_queues:
        report.bad += filter(None, [delete_queues(endpoint.url, crowd.queue_names(token), [EXCHANGE])])
    report.add(target.name, "median latency of a busy queue, alone", statistics.median(alone), "ms")
    report.add(target.name, "the same beside 500 queues", statistics.median(company), "ms")
    added = statistics.median(company) - statistics.median(alone)
    report.add(target.name, "added", added, "ms", options.added_limit_ms)


def _median_ms(endpoint: Endpoint, options: argparse.Namespace, jars: str) -> float:
    (busy,) = chosen(["latency"])
    token = uuid.uuid4().hex[:8]
    csv_path = WORK_FOLDER / f"busy-{token}.csv"
    plan = Plan(options.warm_up, options.seconds)
    arguments = busy.perftest_arguments(token)
    with PerfTest(jars, endpoint.url, arguments, plan.warm_up_s + plan.seconds, csv_path) as perftest:
        outcome = perftest.wait()
    csv_path.unlink(missing_ok=True)
    if outcome.problem:
        raise Failed(outcome.problem)
    delete_queues(endpoint.url, busy.queue_names(token))
    parts = [(row.received * row.seconds, row.consumer) for row in counted(outcome.rows, plan)]
    return mixed_quantile([(weight, quantiles) for weight, quantiles in parts if quantiles], 0.5)


# ------------------------------------------------------------------------------------------------- command


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts at the targets; returns the exit code."""
    options = _parser().parse_args(arguments)
    _raise_limit()
    try:
        jars = classpath() if options.part != PARTS[0] else ""
    except Unusable as error:
        sys.stderr.write(f"idle: {error}\n")
        return UNUSABLE

    def measure(target: Target, findings: Findings) -> None:
        if options.part != PARTS[1]:
            with target.serve() as endpoint:
                asyncio.run(idle(target, endpoint, options, findings))
        if options.part != PARTS[0]:
            with target.serve() as endpoint:
                beside(target, endpoint, options, findings, jars)

    return run("idle", options, measure)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("idle", "Idle queues and clients.", PARTS)
    parser.add_argument("--seconds", type=int, default=20, help="measured in each run (default %(default)s)")
    group = parser.add_argument_group("idle")
    group.add_argument("--queues", type=int, default=10_000, help="default %(default)s")
    group.add_argument("--connections", type=int, default=1_000, help="default %(default)s")
    group.add_argument("--heartbeat", type=int, default=10, help="of each, in seconds (default %(default)s)")
    group.add_argument("--memory-limit-mb", type=float, default=400, help="of the connector (default %(default)s)")
    group.add_argument("--cpu-limit", type=float, default=5, help="of it, in %% of a core (default %(default)s)")
    group = parser.add_argument_group("beside")
    group.add_argument("--rate", type=float, default=500, help="msg/s of the 500 queues together (default %(default)s)")
    group.add_argument("--rounds", type=int, default=2, help="alone and in company, in turn (default %(default)s)")
    group.add_argument("--warm-up", type=int, default=15, help="seconds before each (default %(default)s)")
    group.add_argument("--added-limit-ms", type=float, default=5, help="to the median (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

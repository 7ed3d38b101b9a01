"""``python -m bench.many_consumers``: many consumers with prefetch 1 and slow jobs, near what they can do at most.

A paced publisher keeps ``--consumers`` busy at ``--rate``; measured are the waits (from basic.publish to the delivery)
and how busy the consumers are (their share of the time between a delivery and its acknowledgement).  Small and large
bodies, since a refill reads again what consumers hold.  Exit codes: 0 measured, 1 something went wrong or, with
``--check``, a limit was exceeded, 2 it cannot run.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import struct
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pamqp import commands, header

from bench import processes, results, targets
from bench.figures import percentile
from bench.tables import aligned, number
from bench.targets import Endpoint, Skipped
from tests.support.server import NotReady
from tools.fault.client import Channel, Connection, Gone

FAILED, UNUSABLE = 1, 2
_STAMP = struct.Struct("<d")
_TICK_S = 0.002
#: How long the last jobs and confirms may take at the end.
_LAST_S = 15.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is done; ``wait_limit_ms`` bounds 99 % of the waits, ``busy_limit`` the share of time (None: no limit)."""

    body_bytes: int
    consumers: int
    job_s: float
    rate: float
    seconds: float
    warm_up_s: float
    connections: int
    wait_limit_ms: float | None
    busy_limit: float | None


@dataclass(slots=True)
class Tally:
    """What happened, in monotonic seconds; jobs are (consumer, delivered, acknowledged)."""

    waits: list[tuple[float, float]] = field(default_factory=list)
    jobs: list[tuple[int, float, float]] = field(default_factory=list)
    published: int = 0
    refused: int = 0
    redelivered: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """The figures of one load; ``most_busy`` is what ``rate`` allows at most."""

    target: str
    body_bytes: int
    rate: float
    wait_median_ms: float
    wait_p99_ms: float
    wait_worst_ms: float
    gap_median_ms: float
    busy: float
    most_busy: float
    cpu_of_a_core: dict[str, float]
    rss_mb: dict[str, float]
    problem: str


class Consumer:
    """One consumer with prefetch 1: a job for each delivery, then the acknowledgement."""

    def __init__(self, number_: int, channel: Channel, job_s: float, tally: Tally) -> None:
        self._number = number_
        self._channel = channel
        self._job_s = job_s
        self._tally = tally
        self._loop = asyncio.get_running_loop()
        channel.on_deliver = self._on_deliver

    async def start(self, queue: str) -> None:
        """Begin to consume.  Raises Gone."""
        await self._channel.call(commands.Basic.Qos(prefetch_count=1))
        await self._channel.call(commands.Basic.Consume(queue=queue))

    def _on_deliver(self, method: commands.Basic.Deliver, _properties: header.ContentHeader, content: bytes) -> None:
        now = time.monotonic()
        self._tally.waits.append((now, now - _STAMP.unpack_from(content)[0]))
        self._tally.redelivered += bool(method.redelivered)
        self._loop.call_later(self._job_s, self._finish, method.delivery_tag or 0, now)

    def _finish(self, delivery_tag: int, started: float) -> None:
        self._tally.jobs.append((self._number, started, time.monotonic()))
        try:
            self._channel.send(commands.Basic.Ack(delivery_tag))
        except Gone:
            return  # the publisher meets the same end, and says so


async def publish(channel: Channel, queue: str, load: Load, tally: Tally) -> None:
    """Publish at the rate, for warm-up and measurement, then wait for the last jobs.  Raises Gone."""
    confirmed = [0]

    def on_confirm(tag: int, multiple: bool, is_ack: bool) -> None:
        count = tag - confirmed[0] if multiple else 1
        confirmed[0] = max(confirmed[0], tag)
        tally.refused += 0 if is_ack else count

    channel.on_confirm = on_confirm
    await channel.call(commands.Confirm.Select())
    properties = commands.Basic.Properties(delivery_mode=2)
    padding = bytes(max(0, load.body_bytes - _STAMP.size))
    start = time.monotonic()
    while (spent := time.monotonic() - start) < load.warm_up_s + load.seconds:
        for _ in range(int(spent * load.rate) - tally.published):
            tally.published += 1
            channel.publish("", queue, properties, _STAMP.pack(time.monotonic()) + padding)
        await asyncio.sleep(_TICK_S)
    deadline = time.monotonic() + _LAST_S
    while len(tally.jobs) < tally.published and time.monotonic() < deadline:  # noqa: ASYNC110 # jobs end by timers
        await asyncio.sleep(10 * _TICK_S)
    await asyncio.sleep(10 * _TICK_S)  # the last acknowledgements leave


async def run(endpoint: Endpoint, load: Load) -> Tally:
    """All consumers and the publisher in this process; raises Gone when a connection or channel ends."""
    port = urlsplit(endpoint.url).port or 5672
    queue = f"bench-many-{uuid.uuid4().hex[:8]}"
    tally = Tally()
    connections: list[Connection] = []
    try:
        connections += [await Connection.open(port) for _ in range(load.connections + 1)]
        publisher = await connections[0].channel()
        await publisher.call(commands.Queue.Declare(queue=queue, durable=True))
        for at in range(load.consumers):
            channel = await connections[1 + at % load.connections].channel()
            await Consumer(at, channel, load.job_s, tally).start(queue)
        await publish(publisher, queue, load, tally)
        for connection in connections[1:]:
            await connection.close()
        await publisher.call(commands.Queue.Delete(queue=queue))
    finally:
        for connection in connections:
            connection.abort("done")
    return tally


def finding(target: str, load: Load, tally: Tally, start: float, watch: processes.Watch) -> Finding:
    """The figures between the end of the warm-up and the end of the load, which began at ``start``."""
    begin, end = start + load.warm_up_s, start + load.warm_up_s + load.seconds
    waits = [wait * 1000 for at, wait in tally.waits if begin <= at < end]
    problems = []
    if tally.refused:
        problems.append(f"{tally.refused} publishes refused")
    if tally.redelivered:
        problems.append(f"{tally.redelivered} deliveries marked redelivered")
    if len(tally.jobs) != tally.published:
        problems.append(f"{tally.published} published, {len(tally.jobs)} done")
    if not waits:
        problems.append("nothing was delivered in the measured time")
        waits = [0.0]
    gaps = [gap * 1000 for at, gap in gaps_of(tally.jobs) if begin <= at < end]
    return Finding(
        target=target,
        body_bytes=load.body_bytes,
        rate=round(len(waits) / load.seconds, 1),
        wait_median_ms=percentile(waits, 0.5),
        wait_p99_ms=percentile(waits, 0.99),
        wait_worst_ms=max(waits),
        gap_median_ms=percentile(gaps or [0.0], 0.5),
        busy=busy_share(tally.jobs, load.consumers, begin, end),
        most_busy=min(1.0, load.rate * load.job_s / load.consumers),
        cpu_of_a_core={group: watch.cpu_s(group, begin, end) / load.seconds for group in watch.groups},
        rss_mb={group: watch.rss_bytes(group, begin, end) / 1e6 for group in watch.groups},
        problem="; ".join(problems),
    )


def busy_share(jobs: Sequence[tuple[int, float, float]], consumers: int, begin: float, end: float) -> float:
    """The share of the consumers' time in which they had a job."""
    spent = sum(max(0.0, min(stop, end) - max(start, begin)) for _, start, stop in jobs)
    return spent / (consumers * (end - begin))


def gaps_of(jobs: Sequence[tuple[int, float, float]]) -> list[tuple[float, float]]:
    """(moment, how long) a consumer was without a job between two of its jobs."""
    gaps: list[tuple[float, float]] = []
    last: dict[int, float] = {}
    for consumer, start, stop in sorted(jobs, key=lambda job: job[1]):
        if consumer in last:
            gaps.append((start, start - last[consumer]))
        last[consumer] = stop
    return gaps


def exceeded(one: Finding, load: Load) -> list[str]:
    """The limits that are exceeded."""
    found = []
    if load.wait_limit_ms is not None and one.wait_p99_ms >= load.wait_limit_ms:
        found.append(f"99 % of the waits under {one.wait_p99_ms:.1f} ms, {load.wait_limit_ms:g} ms wanted")
    if load.busy_limit is not None and one.busy < load.busy_limit:
        found.append(f"consumers {one.busy:.1%} busy, {load.busy_limit:.0%} wanted")
    return found


def table(findings: Sequence[Finding]) -> str:
    """One line per target and body size."""
    headings = [
        "target", "body", "msg/s", "wait median", "99 %", "worst", "gap median", "busy", "at most", "CPU of a core",
        "memory MB",
    ]  # fmt: skip
    rows = [
        [
            one.target, f"{one.body_bytes:,} B", number(one.rate), f"{one.wait_median_ms:.1f} ms",
            f"{one.wait_p99_ms:.1f} ms", f"{one.wait_worst_ms:.0f} ms", f"{one.gap_median_ms:.1f} ms",
            f"{one.busy:.1%}", f"{one.most_busy:.1%}", by_group(one.cpu_of_a_core, 2), by_group(one.rss_mb, 0),
        ]
        for one in findings
    ]  # fmt: skip
    return aligned(headings, rows)


def by_group(values: dict[str, float], digits: int) -> str:
    """``connector 0.41, backend 0.12``."""
    return ", ".join(f"{group} {value:.{digits}f}" for group, value in values.items())


def measure(target: targets.Target, load: Load) -> Finding:
    """One load at one target; raises Gone, NotReady and Skipped when it cannot be measured."""
    with target.serve() as endpoint, processes.Watch(endpoint.groups) as watch:
        start = time.monotonic()
        tally = asyncio.run(run(endpoint, load))
        first = min((at - wait for at, wait in tally.waits), default=start)
        return finding(target.name, load, tally, first, watch)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all body sizes at all targets; returns the exit code."""
    options = _parser().parse_args(arguments)
    targets.end_in_order()
    try:
        wanted = targets.available([name for name in options.targets.split(",") if name])
    except Skipped as error:
        sys.stderr.write(f"many_consumers: {error}\n")
        return UNUSABLE
    findings: list[Finding] = []
    bad: list[str] = []
    for body_bytes in map(int, options.bodies.split(",")):
        load = _load(options, body_bytes)
        for target in wanted:
            try:
                one = measure(target, load)
            except (Gone, NotReady, Skipped, OSError) as error:
                bad.append(f"{target.name}, {body_bytes} B: {error}")
                continue
            findings.append(one)
            texts = [*filter(None, [one.problem]), *(exceeded(one, load) if options.check else [])]
            bad += [f"{target.name}, {body_bytes} B: {text}" for text in texts]
    sys.stdout.write("\n".join([table(findings), *bad, ""]))
    _write([dataclasses.asdict(one) for one in findings])
    return FAILED if bad else 0


def _load(options: argparse.Namespace, body_bytes: int) -> Load:
    is_small = body_bytes <= options.small
    return Load(
        body_bytes=body_bytes,
        consumers=options.consumers,
        job_s=options.job_ms / 1000,
        rate=options.rate,
        seconds=options.seconds,
        warm_up_s=options.warm_up,
        connections=options.connections,
        wait_limit_ms=options.wait_limit_ms if is_small else None,
        busy_limit=None if is_small else options.busy_limit,
    )


def _write(findings: list[dict[str, Any]]) -> None:
    path: Path = results.FOLDER / "many_consumers.json"
    document = {"machine": results.machine(), "findings": findings}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.many_consumers", description="Many slow consumers.")
    parser.add_argument("--targets", default="", metavar="NAME,...", help="embedded, kubemq, rabbitmq; default: all")
    parser.add_argument("--consumers", type=int, default=100, help="each with prefetch 1 (default %(default)s)")
    parser.add_argument("--connections", type=int, default=10, help="that they share (default %(default)s)")
    parser.add_argument("--job-ms", type=float, default=200, help="time of a job (default %(default)s)")
    parser.add_argument("--rate", type=float, default=450, help="messages per second (default %(default)s)")
    parser.add_argument("--bodies", default="100,100000", metavar="BYTES,...", help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=20, help="measured for each (default %(default)s)")
    parser.add_argument("--warm-up", type=float, default=3, help="seconds before that (default %(default)s)")
    parser.add_argument("--check", action="store_true", help="fail when a limit is exceeded")
    parser.add_argument("--small", type=int, default=1000, help="bodies up to this have the limit of the waits")
    parser.add_argument("--wait-limit-ms", type=float, default=30, help="99 %% of the waits, small bodies")
    parser.add_argument("--busy-limit", type=float, default=0.85, help="busy consumers, large bodies")
    return parser


if __name__ == "__main__":
    sys.exit(main())

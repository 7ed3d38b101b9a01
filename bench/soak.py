"""``python -m bench.soak``: does anything grow with time, and do the marks bound memory; behind ``make soak``.

Four phases.  ``mixed``: a mixed load with clients that come and go, for ``--minutes``; memory, tasks, threads and
descriptors of connector and backend over time.  ``slow-reader``: a consumer that stops reading its socket while others
publish.  ``big-bodies``: one connection publishes bodies of 16 MiB on 50 channels, one message after the other;
``big-bodies-mixed``: with the channels' frames mixed.  Exit codes: 0 all flat and within the marks, 1 not, 2 it cannot
run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from bench import plots, processes, results, targets
from bench.growth import Report, Series
from bench.raw_client import ClientError
from bench.results import BACKEND
from bench.soak_load import MixedLoad
from bench.soak_marks import big_bodies, bounded, slow_reader
from bench.tables import aligned
from bench.targets import Endpoint, Skipped, Target
from tests.support.server import NotReady
from tools.fault.client import Gone

FAILED, UNUSABLE = 1, 2
PHASES = ("mixed", "slow-reader", "big-bodies", "big-bodies-mixed")
_MB = 1e6
_SAMPLE_S = 5.0
#: What a real KubeMQ keeps in memory of each message that it ever stored, until retention (measured).
_KEPT_BYTES = 100
_STORED = 'rabbitmq_global_messages_routed_total{protocol="amqp091"}'
_TASKS = "kubemq_amqp_tasks"


# ------------------------------------------------------------------------------------------------- mixed


class Sampler:
    """Reads the processes and the connector's metrics, and keeps what it read."""

    def __init__(self, endpoint: Endpoint, *, keeps_messages: bool) -> None:
        self._endpoint = endpoint
        self._kept_bytes = _KEPT_BYTES if keeps_messages else 0
        self._start = time.monotonic()
        self._series: dict[str, Series] = {}

    @property
    def series(self) -> list[Series]:
        """All that was seen, in order."""
        return list(self._series.values())

    def sample(self) -> None:
        """Read once."""
        metrics = self._endpoint.connector.metrics() if self._endpoint.connector else {}
        for group, pids in self._endpoint.groups.items():
            ids = pids()
            used = processes.usage(ids)
            size = used.rss_bytes - (self._kept_bytes * metrics.get(_STORED, 0.0) if group == BACKEND else 0)
            self._add(f"{group} memory", "MB", size / _MB)
            self._add(f"{group} threads", "", used.threads)
            self._add(f"{group} descriptors", "", processes.descriptors(ids))
        if _TASKS in metrics:
            self._add("connector tasks", "", metrics[_TASKS])

    def _add(self, name: str, unit: str, value: float) -> None:
        series = self._series.setdefault(name, Series(name, unit))
        series.points.append((time.monotonic() - self._start, value))


def mixed(target: Target, endpoint: Endpoint, options: argparse.Namespace, report: Report) -> None:
    """Load and sample."""
    load = MixedLoad(urlsplit(endpoint.url).port or 5672, options.rate, options.visits)
    sampler = Sampler(endpoint, keeps_messages=target.keeps_queues)
    asyncio.run(_run_mixed(load, sampler, options.minutes * 60))
    for series in sampler.series:
        early, late, is_flat = series.growth()
        texts = [f"{value:.1f} MB" if series.unit == "MB" else f"{value:.0f}" for value in (early, late)]
        per_hour = f"{series.per_hour():+.1f} {series.unit}".strip()
        report.rows.append((target.name, series.name, *texts, per_hour, "flat" if is_flat else "GROWS"))
        if not is_flat:
            report.bad.append(f"{target.name}: {series.name} grows from {texts[0]} to {texts[1]}")
    report.series[target.name] = sampler.series
    report.notes.append(f"{target.name}: " + ", ".join(f"{count:,} {what}" for what, count in load.tally.items()))
    report.bad += [f"{target.name}: {problem}" for problem in load.problems]


async def _run_mixed(load: MixedLoad, sampler: Sampler, seconds: float) -> None:
    working = asyncio.create_task(load.run(seconds))  # awaited below
    while not working.done():
        await asyncio.to_thread(sampler.sample)
        await asyncio.wait([working], timeout=_SAMPLE_S)
    await working
    await load.delete_queues()


# ------------------------------------------------------------------------------------------------- command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the phases at the targets; returns the exit code."""
    options = _parser().parse_args(arguments)
    targets.end_in_order()
    report = Report()
    try:
        phases = _phases(options.phases)
        wanted = targets.available([name for name in options.targets.split(",") if name])
    except (Skipped, ValueError) as error:
        sys.stderr.write(f"soak: {error}\n")
        return UNUSABLE
    for target in wanted:
        for phase in phases:
            try:
                with target.serve() as endpoint:
                    _run(phase, target, endpoint, options, report)
            except* (Gone, NotReady, ClientError, Skipped, OSError) as errors:
                report.bad += [f"{target.name}, {phase}: {error}" for error in _leaves(errors)]
    headings = ["target", "what", "second quarter", "last quarter", "per hour", ""]
    parts = [aligned(headings, report.rows, (0, 1, 5))] if report.rows else []
    sys.stdout.write("\n".join([*parts, "", *report.notes, *(f"BAD {text}" for text in report.bad), ""]))
    _write(report, options)
    return FAILED if report.bad else 0


def _phases(text: str) -> list[str]:
    phases = [name for name in text.split(",") if name]
    if set(phases) - set(PHASES):
        raise ValueError(f"there are the phases {', '.join(PHASES)}")
    return phases


def _leaves(group: BaseExceptionGroup[Any]) -> Iterable[BaseException]:
    for error in group.exceptions:
        yield from _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]


def _run(phase: str, target: Target, endpoint: Endpoint, options: argparse.Namespace, report: Report) -> None:
    if phase == "mixed":
        mixed(target, endpoint, options, report)
    elif phase == "slow-reader":
        bounded("slow-reader", target, endpoint, report, slow_reader(options.reader_seconds))
    else:
        bounded(phase, target, endpoint, report, big_bodies(is_mixed=phase == PHASES[-1]))


def _write(report: Report, options: argparse.Namespace) -> None:
    document = {
        "machine": results.machine(),
        "minutes": options.minutes,
        "notes": report.notes,
        "bad": report.bad,
        "series": {target: {series.name: series.points for series in many} for target, many in report.series.items()},
    }
    (results.FOLDER / "soak.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
    for target, many in report.series.items():
        charts = [
            (label, [plots.Line(one.name, one.points) for one in many if (one.unit == "MB") is is_memory])
            for label, is_memory in (("MB", True), ("count", False))
        ]
        path = results.FOLDER / f"soak-{target}.svg"
        path.write_text(plots.lines(f"Soak: {target}", charts), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description="Does anything grow?")
    parser.add_argument("--minutes", type=float, default=15, help="of the mixed load (default %(default)s)")
    parser.add_argument("--targets", default="embedded", metavar="NAME,...", help="embedded, kubemq")
    parser.add_argument("--phases", default=",".join(PHASES), metavar="NAME,...", help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=400, help="msg/s of the steady publishers (default %(default)s)")
    parser.add_argument("--visits", type=float, default=5, help="clients that come and go, per second")
    parser.add_argument("--reader-seconds", type=float, default=30, help="of the slow reader (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

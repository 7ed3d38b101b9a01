"""One measurement: a workload at a target, by PerfTest, with what the processes used meanwhile.

Owns the order of things (start, warm-up, window, clean-up) and what of PerfTest's seconds counts.  Must not know other
runs or how results are shown.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from bench import processes
from bench.figures import Quantiles, mixed_quantile
from bench.perftest import Outcome, PerfTest, Row
from bench.results import CLIENT, Run
from bench.targets import WORK_FOLDER, Endpoint, Skipped, Target, delete_queues
from bench.workloads import EXCHANGE, Workload
from tests.support.server import NotReady

#: A second that began this much before the end of the warm-up still counts: PerfTest's seconds are not exact.
_TOLERANCE_S = 0.1
_INTERNAL_ERRORS = "kubemq_amqp_internal_errors_total"


@dataclass(frozen=True, slots=True)
class Plan:
    """How long: the warm-up is measured too, and does not count."""

    warm_up_s: int
    seconds: int


def measure(workload: Workload, target: Target, round_no: int, plan: Plan, jars: str) -> Run:
    """Measure once; whatever fails is in the result's ``problem``."""
    token = uuid.uuid4().hex[:8]
    try:
        with target.serve() as endpoint:
            run = _with_endpoint(workload, target, round_no, plan, jars, endpoint, token)
    except (NotReady, Skipped, OSError) as error:
        return Run(workload.name, target.name, round_no, problem=str(error))
    return run


def _with_endpoint(
    workload: Workload, target: Target, round_no: int, plan: Plan, jars: str, endpoint: Endpoint, token: str
) -> Run:
    csv_path = WORK_FOLDER / f"perftest-{token}.csv"
    WORK_FOLDER.mkdir(parents=True, exist_ok=True)
    arguments = workload.perftest_arguments(token)
    try:
        with PerfTest(jars, endpoint.url, arguments, plan.warm_up_s + plan.seconds, csv_path) as perftest:
            groups = {**endpoint.groups, CLIENT: lambda: [perftest.pid]}
            with processes.Watch(groups) as watch:
                outcome = perftest.wait()
    finally:
        csv_path.unlink(missing_ok=True)
    problem = outcome.problem or _errors_of(endpoint)
    if target.keeps_queues:
        left = delete_queues(endpoint.url, workload.queue_names(token), [EXCHANGE])
        problem = problem or left
    return run_of(workload, target.name, round_no, plan, outcome, watch, problem)


def _errors_of(endpoint: Endpoint) -> str:
    if endpoint.connector is None:
        return ""
    try:
        errors = endpoint.connector.metrics().get(_INTERNAL_ERRORS, 0.0)
    except OSError as error:
        return f"the connector does not answer: {error}"
    return f"{errors:.0f} internal errors in the connector:\n{endpoint.connector.log_tail()}" if errors else ""


def run_of(
    workload: Workload, target: str, round_no: int, plan: Plan, outcome: Outcome, watch: processes.Watch, problem: str
) -> Run:
    """The figures of what was measured behind the warm-up."""
    rows = counted(outcome.rows, plan)
    seconds = sum(row.seconds for row in rows)
    if not rows or seconds <= 0:
        return Run(workload.name, target, round_no, problem=problem or "PerfTest ended before its warm-up did")
    start = outcome.started_at + rows[0].until_s - rows[0].seconds
    end = outcome.started_at + rows[-1].until_s
    messages = sum(_rate(row, workload) * row.seconds for row in rows)
    latencies = _latencies(rows, workload)
    if not messages:
        problem = problem or "no message came through behind the warm-up"
    return Run(
        workload.name,
        target,
        round_no,
        seconds=round(seconds, 3),
        messages=round(messages),
        rate=round(messages / seconds, 1),
        median_ms=round(mixed_quantile(latencies, 0.5), 3) if latencies else None,
        p99_ms=round(mixed_quantile(latencies, 0.99), 3) if latencies else None,
        cpu_s={group: round(watch.cpu_s(group, start, end), 3) for group in watch.groups},
        rss_bytes={group: watch.rss_bytes(group, start, end) for group in watch.groups},
        nacked=sum(row.nacked * row.seconds for row in outcome.rows),
        returned=sum(row.returned * row.seconds for row in outcome.rows),
        rates=[(round(row.until_s, 2), round(_rate(row, workload), 1)) for row in outcome.rows],
        problem=problem,
    )


def counted(rows: Sequence[Row], plan: Plan) -> list[Row]:
    """The rows behind the warm-up; PerfTest goes on past its time while it closes, that is no load any more."""
    end = plan.warm_up_s + plan.seconds + _TOLERANCE_S
    return [row for row in rows if row.until_s - row.seconds >= plan.warm_up_s - _TOLERANCE_S and row.until_s <= end]


def _rate(row: Row, workload: Workload) -> float:
    return row.confirmed if workload.counts == "confirmed" else row.received


def _latencies(rows: Sequence[Row], workload: Workload) -> list[tuple[float, Quantiles]]:
    found = [
        (_rate(row, workload) * row.seconds, row.confirm if workload.counts == "confirmed" else row.consumer)
        for row in rows
    ]
    return [(weight, quantiles) for weight, quantiles in found if quantiles is not None and weight > 0]

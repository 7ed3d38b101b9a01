"""Results as text: aligned tables that are Markdown too, with ratios to the peer and goals.

Pure functions from results to text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.figures import Spread, ratio
from bench.results import SERVER_GROUPS, Results, Summary
from bench.workloads import Workload

#: The goals are for the connector on a real KubeMQ.
GOAL_TARGET = "kubemq"
_NOTHING = "-"
_HEADINGS = (
    "workload", "target", "msg/s", "x", "median ms", "x", "99 % ms", "x", "CPU us/msg", "x", "of these",
    "memory MB", "x", "of these", "goal",
)  # fmt: skip
_TEXT_COLUMNS = {0, 1, 14}


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Iterable[int] = (0,)) -> str:
    """A table in Markdown whose columns stand below each other; those in ``left`` start left."""
    lines = [list(row) for row in rows]
    widths = [max(3, *(len(line[at]) for line in [list(headings), *lines])) for at in range(len(headings))]
    to_left = set(left)

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if at in to_left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * width if at in to_left else "-" * (width - 1) + ":" for at, width in enumerate(widths)]
    return "\n".join([line(headings), "|" + "|".join(f" {cell} " for cell in rule) + "|", *map(line, lines)])


def bench_table(results: Results, workloads: Sequence[Workload], peer: str, baseline: Results | None = None) -> str:
    """One line per workload and target; ``x`` is the figure to its left by that of ``peer``."""
    headings = [*_HEADINGS, *(["before"] if baseline else [])]
    rows = []
    for workload in workloads:
        theirs = results.summary(workload.name, peer) if peer in results.targets else None
        for target in results.targets:
            ours = results.summary(workload.name, target)
            row = _row(workload, target, ours, theirs if target != peer else None)
            rows.append([*row, *([change(results, baseline, workload.name, target, peer)] if baseline else [])])
    return aligned(headings, rows, _TEXT_COLUMNS)


def _row(workload: Workload, target: str, ours: Summary, theirs: Summary | None) -> list[str]:
    names = ("rate", "median_ms", "p99_ms", "cpu_us", "rss_mb")
    figures = [(getattr(ours, name), getattr(theirs, name, None)) for name in names]
    cells = [(number(mine.middle) if mine else _NOTHING, _times(ratio(mine, other))) for mine, other in figures]
    rate, median, p99, cpu, memory = cells
    return [
        workload.title, target, *rate, *median, *p99, *cpu, _parts(ours.cpu_us_of), *memory, _parts(ours.rss_mb_of),
        goals(workload, ours, theirs) if target == GOAL_TARGET else "",
    ]  # fmt: skip


def goals(workload: Workload, ours: Summary, theirs: Summary | None) -> str:
    """Each goal of a workload and whether it is met; the rate's only where there is a peer."""
    rate = ratio(ours.rate, theirs.rate if theirs else None)
    found = [
        _goal(f">= {workload.rate_goal} x", rate, workload.rate_goal, at_least=True),
        _goal(f"median <= {workload.median_goal_ms:g}" if workload.median_goal_ms else "", _value(ours.median_ms),
              workload.median_goal_ms, at_least=False),
        _goal(f"99 % <= {workload.p99_goal_ms:g}" if workload.p99_goal_ms else "", _value(ours.p99_ms),
              workload.p99_goal_ms, at_least=False),
    ]  # fmt: skip
    return ", ".join(filter(None, found))


def _goal(text: str, value: float | None, goal: float | None, *, at_least: bool) -> str:
    if goal is None or value is None:
        return ""
    is_met = value >= goal if at_least else value <= goal
    return f"{text}: {'met' if is_met else 'MISSED'}"


def _value(figure: Spread | None) -> float | None:
    return figure.middle if figure else None


def _times(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"


def _parts(by_group: dict[str, float]) -> str:
    return " + ".join(number(by_group[group]) for group in SERVER_GROUPS if group in by_group) or _NOTHING


def number(value: float) -> str:
    """Three digits that matter: 12,345  123  12.3  1.23."""
    for least, digits in ((100, 0), (10, 1)):
        if value >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.2f}"


def change(results: Results, baseline: Results, workload: str, target: str, peer: str) -> str:
    """The rate by the baseline's; both as multiples of the peer's where both have one, so that machines cancel out."""
    now, then = (one.summary(workload, target).rate for one in (results, baseline))
    raw = ratio(now, then)
    if raw is None:
        return _NOTHING
    peer_change = ratio(results.summary(workload, peer).rate, baseline.summary(workload, peer).rate)
    return f"{raw / peer_change:.2f}" if peer_change and target != peer else f"{raw:.2f}"


def problems(results: Results) -> list[str]:
    """A line for each run that does not count, or that had refused messages."""
    lines = []
    for run in results.runs:
        where = f"{run.workload}, {run.target}, round {run.round_no}"
        if run.problem:
            lines.append(f"{where}: {run.problem}")
        elif run.nacked or run.returned:
            lines.append(f"{where}: {run.nacked:.0f} nacked, {run.returned:.0f} returned")
    return lines


def has_missed_goal(table: str) -> bool:
    """Whether a goal in the table is missed."""
    return ": MISSED" in table

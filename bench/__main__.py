"""``python -m bench``: PerfTest's workloads at every target in turn, a table, plots and JSON; behind ``make bench``.

Owns the command line, the order of the measurements and the files of the results.  The targets alternate (A B C, A B C,
...), so that what else happens on the machine meets all of them.  Exit codes: 0 measured, 1 a run failed or, with
``--check``, a goal was missed, 2 it cannot run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import micro, plots, results, tables, targets
from bench.figures import Spread
from bench.measure import Plan, measure
from bench.parts import add_flags
from bench.perftest import Unusable, classpath
from bench.results import Results, Run, Summary
from bench.targets import RABBITMQ, Skipped, Target
from bench.workloads import WARM_UP_S, WORKLOADS, Workload, chosen

FAILED, UNUSABLE = 1, 2
#: Start and end of connector and PerfTest, for the estimate only.
_OVERHEAD_S = 6
_CHARTS = {
    "rate": "Messages per second (more is better)",
    "latency": "Latency in ms: median, and 99 % below it (less is better)",
    "cpu": "CPU of the servers, microseconds per message (less is better)",
    "memory": "Memory of the servers, MB (less is better)",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    options = _parser().parse_args(arguments)
    targets.end_in_order()
    try:
        workloads = chosen(_names(options.workloads))
        wanted = targets.available(_names(options.targets), shlex.split(options.flags))
        found = results.begin(
            {"seconds": options.seconds, "warm_up": options.warm_up, "rounds": options.rounds, "flags": options.flags},
            {target.name: target.version() for target in wanted},
        )
        jars = classpath()
        baseline = results.read(results.BASELINE) if results.BASELINE.exists() else None
    except (ValueError, Skipped, Unusable) as error:
        sys.stderr.write(f"bench: {error}\n")
        return UNUSABLE
    _announce(found, workloads, options)
    _measure_all(found, workloads, wanted, options, jars)
    if options.micro if options.micro is not None else not options.workloads:
        _say("micro-benchmarks ...")
        found.micro = micro.measure()
    return _report(found, workloads, baseline, options)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="PerfTest against the connector and a RabbitMQ. KUBEMQ_ADDRESS and RABBITMQ_URL add targets.",
        epilog="Workloads: " + "; ".join(f"{workload.name} ({workload.title})" for workload in WORKLOADS),
    )
    parser.add_argument("--workloads", default="", metavar="NAME,...", help="default: all")
    parser.add_argument("--targets", default="", metavar="NAME,...", help="embedded, kubemq, rabbitmq; default: all")
    parser.add_argument("--seconds", type=int, default=15, help="measured in each run (default %(default)s)")
    parser.add_argument("--warm-up", type=int, help=f"seconds before that (default: {WARM_UP_S}, `latency` more)")
    add_flags(parser)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default %(default)s)")
    parser.add_argument(
        "--micro",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="the micro-benchmarks too (default: when all workloads run)",
    )
    parser.add_argument("--check", action="store_true", help="fail when a goal is missed")
    parser.add_argument("--save-baseline", action="store_true", help="keep the results as the baseline")
    return parser


def _announce(found: Results, workloads: Sequence[Workload], options: argparse.Namespace) -> None:
    one_run = sum(_warm_up_s(workload, options) + options.seconds + _OVERHEAD_S for workload in workloads)
    minutes = one_run * len(found.targets) * options.rounds / 60
    _say(f"{len(workloads)} workloads, {options.rounds} rounds of {options.seconds} s: about {minutes:.0f} minutes")
    for name, version in found.targets.items():
        _say(f"  {name}: {version}")
    load, cores = found.machine["load_before"][0], os.cpu_count() or 1
    _say(f"  machine: {found.machine['cpu']}, {cores} cores, load {load}")
    if load > cores / 2:
        _say("  WARNING: the machine is busy; the figures will be low and uneven")


def _measure_all(
    found: Results, workloads: Sequence[Workload], wanted: Sequence[Target], options: argparse.Namespace, jars: str
) -> None:
    for workload in workloads:
        plan = Plan(_warm_up_s(workload, options), options.seconds)
        _say(workload.title)
        for round_no in range(1, options.rounds + 1):
            for target in wanted:
                run = measure(workload, target, round_no, plan, jars)
                found.runs.append(run)
                _say(f"  {round_no} {target.name:9} {_line(run)}")


def _warm_up_s(workload: Workload, options: argparse.Namespace) -> int:
    return workload.warm_up_s if options.warm_up is None else options.warm_up


def _line(run: Run) -> str:
    text = f"{run.rate:9,.0f} msg/s"
    if run.median_ms is not None and run.p99_ms is not None:
        text += f"   median {tables.number(run.median_ms):>6} ms   99 % {tables.number(run.p99_ms):>6} ms"
    return text + (f"   PROBLEM: {run.problem}" if run.problem else "")


# ------------------------------------------------------------------------------------------------- report


def _report(
    found: Results, workloads: Sequence[Workload], baseline: Results | None, options: argparse.Namespace
) -> int:
    table = tables.bench_table(found, workloads, RABBITMQ, baseline)
    text = "\n".join([
        table, "", *_legend(found, baseline), *tables.problems(found), *micro.report(found.micro),
    ])  # fmt: skip
    folder = results.FOLDER / found.started.replace(":", "").replace("+0000", "Z")
    results.write(found, folder / "bench.json")
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    for name, title in _CHARTS.items():
        _write_chart(folder, name, title, found, workloads)
    if options.save_baseline:
        results.write(found, results.BASELINE)
    _say(f"\n{text}\n\nJSON and plots: {os.path.relpath(folder)}")
    is_bad = any(run.problem for run in found.runs) or (options.check and tables.has_missed_goal(table))
    return FAILED if is_bad else 0


def _legend(found: Results, baseline: Results | None) -> list[str]:
    lines = ["Medians of the rounds, the warm-up left out. Memory is the most; `of these`: connector + backend."]
    if RABBITMQ in found.targets:
        lines.append("`x`: the figure to the left by RabbitMQ's. Above 1 is better for msg/s, below 1 for all else.")
    if baseline is not None:
        lines.append(f"`before`: msg/s by that of the baseline ({baseline.machine['commit']}, {baseline.started}),")
        lines.append("as multiples of RabbitMQ where both have one, so that the machine counts less.")
    return lines


def _write_chart(folder: Path, name: str, title: str, found: Results, workloads: Sequence[Workload]) -> None:
    panels = []
    for workload in workloads:
        bars: list[plots.Bar] = []
        for at, target in enumerate(found.targets):
            summary = found.summary(workload.name, target)
            for suffix, figure, points in _figures(name, summary, found, workload.name, target):
                if figure is not None:
                    bars.append(plots.Bar(target + suffix, figure.middle, points, plots.COLOURS[at]))
        if bars:
            panels.append(plots.Panel(workload.title, bars))
    (folder / f"{name}.svg").write_text(plots.bars(title, panels), encoding="utf-8")


def _figures(
    name: str, summary: Summary, found: Results, workload: str, target: str
) -> list[tuple[str, Spread | None, list[float]]]:
    if name == "cpu":
        return [("", summary.cpu_us, [])]
    if name == "memory":
        return [("", summary.rss_mb, [])]
    runs = [run for run in found.runs if (run.workload, run.target) == (workload, target) and not run.problem]
    if name == "rate":
        return [("", summary.rate, [run.rate for run in runs])]
    return [
        ("", summary.median_ms, [run.median_ms for run in runs if run.median_ms is not None]),
        (" 99 %", summary.p99_ms, [run.p99_ms for run in runs if run.p99_ms is not None]),
    ]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

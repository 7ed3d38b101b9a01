"""``python -m tools.fault``: run seeds one after the other and print what came of each.

Owns the command line, folders and the table.  Exit codes: 0 all good, 1 a seed failed.  A failing seed keeps its folder
(scenario, logs, story of each problem) and prints the command that replays it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tools.fault import report
from tools.fault.rig import Target
from tools.fault.run import Outcome, perform
from tools.fault.scenario import Backend, FaultKind, draw
from tools.fault.verdict import Verdict

FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds; returns the exit code."""
    options = _parser().parse_args(arguments)
    target = Target(
        amqp_url=os.environ.get("AMQP_URL", ""),
        kubemq_address=os.environ.get("KUBEMQ_ADDRESS", ""),
        kubemq_start=options.kubemq_start,
        kubemq_stop=options.kubemq_stop,
        kubemq_signal=options.kubemq_signal,
        kubemq_monitor=options.kubemq_monitor,
    )
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    totals: Counter[str] = Counter()
    verdicts: list[Verdict] = []
    failed: list[int] = []
    for seed in seeds:
        outcome, folder = _one(seed, options, target)
        totals.update(outcome.verdict.counts)
        totals.update({f"! {problem}": len(texts) for problem, texts in outcome.verdict.problems.items()})
        verdicts.append(outcome.verdict)
        _print(report.line(outcome))
        if outcome.verdict.is_good:
            if not options.keep:
                shutil.rmtree(folder)
            continue
        failed.append(seed)
        report.write_story(outcome, folder)
        _print(report.failure(outcome))
        _print(f"  scenario, logs and all problems: {folder}")
        _print(f"  replay: {_replay(seed, options)}")
    _print(report.summary(totals, verdicts, failed))
    return FAILED if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.fault", description="Faults under load, drawn from seeds.")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long the workload lasts")
    parser.add_argument(
        "--backend",
        choices=[each.name.lower() for each in Backend],
        help="default: the seed's choice, or the environment",
    )
    parser.add_argument(
        "--only",
        default="",
        help="kinds of fault, separated by commas: " + ", ".join(k.name.lower() for k in FaultKind),
    )
    parser.add_argument("--kubemq-start", default="", help="command that starts KubeMQ; {folder} is the run's folder")
    parser.add_argument("--kubemq-stop", default="", help="command that stops it with {signal}: TERM or KILL")
    parser.add_argument("--kubemq-signal", default="", help="command that sends it {signal}: STOP or CONT")
    parser.add_argument("--kubemq-monitor", default="", help="command that prints HOST:PORT of its monitoring page")
    parser.add_argument("--keep", action="store_true", help="keep the folders of good runs too")
    return parser


def _backend(options: argparse.Namespace, target: Target) -> Backend | None:
    if options.backend:
        return Backend[options.backend.upper()]
    if target.amqp_url:
        return Backend.NONE
    return Backend.REAL if target.kubemq_address else None


def _one(seed: int, options: argparse.Namespace, target: Target) -> tuple[Outcome, Path]:
    only = tuple(FaultKind[name.strip().upper()] for name in options.only.split(",") if name.strip())
    scenario = draw(
        seed,
        _backend(options, target),
        seconds=options.seconds,
        only=only,
        can_restart=target.can_restart,
    )
    folder = Path(tempfile.mkdtemp(prefix=f"fault-{seed}-"))
    return asyncio.run(perform(scenario, folder, target)), folder


def _replay(seed: int, options: argparse.Namespace) -> str:
    words = [".venv/bin/python -m tools.fault", f"--seed {seed}"]
    words += [f"--backend {options.backend}"] if options.backend else []
    words += [f"--only {options.only}"] if options.only else []
    words += [f"--seconds {options.seconds:g}"]
    words += [f"--kubemq-start '{options.kubemq_start}'"] if options.kubemq_start else []
    words += [f"--kubemq-stop '{options.kubemq_stop}'"] if options.kubemq_stop else []
    words += [f"--kubemq-signal '{options.kubemq_signal}'"] if options.kubemq_signal else []
    words += [f"--kubemq-monitor '{options.kubemq_monitor}'"] if options.kubemq_monitor else []
    return " ".join(words)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

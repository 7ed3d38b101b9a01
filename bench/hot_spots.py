"""``python -m bench.hot_spots``: where the connector's (or the embedded server's) time goes, by py-spy.

A sampling profiler from outside: the process runs undisturbed.  Prints the shares by layer and the functions with the
most time of their own.  py-spy is no dependency of the project: it is looked for on the PATH, beside this Python, or
where ``PY_SPY`` says.  Exit codes: 0 done, 2 it cannot run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import targets
from bench.perftest import PerfTest, Unusable, classpath
from bench.results import BACKEND, CONNECTOR
from bench.tables import aligned
from bench.targets import EMBEDDED, KUBEMQ, WORK_FOLDER, Endpoint, Skipped, delete_queues
from bench.workloads import EXCHANGE, WORKLOADS, Workload, chosen
from tests.support.server import NotReady

UNUSABLE = 2
_RATE = 250
_MARGIN_S = 30.0
_FRAME = re.compile(r"(?P<name>.+) \((?P<file>[^():]+)(?::\d+)?\)")
#: The innermost frame of one of these says to which layer a sample belongs; the first that fits.
LAYERS = (
    "connector/amqp", "connector/session", "connector/broker", "connector/backend", "connector/runtime",
    "connector/embedded", "connector/ops", "connector", "mapping", "grpc", "google/protobuf", "kubemq", "asyncio",
)  # fmt: skip
OTHER = "other"


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile; returns the exit code."""
    options = _parser().parse_args(arguments)
    targets.end_in_order()
    try:
        spy = _find_spy()
        (workload,) = chosen([options.workload])
        (target,) = targets.available([options.target])
        jars = classpath()
        with target.serve() as endpoint:
            stacks = _record(spy, endpoint, workload, options, jars)
    except (ValueError, Skipped, Unusable, NotReady) as error:
        sys.stderr.write(f"hot_spots: {error}\n")
        return UNUSABLE
    sys.stdout.write(report(stacks, options.top))
    return 0


def _find_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = os.environ.get("PY_SPY") or shutil.which("py-spy") or (str(beside) if beside.exists() else "")
    if not found:
        raise Unusable("py-spy is missing: .venv/bin/python -m pip install py-spy, or set PY_SPY to where it is")
    return found


def _record(spy: str, endpoint: Endpoint, workload: Workload, options: argparse.Namespace, jars: str) -> Counter[str]:
    token = uuid.uuid4().hex[:8]
    csv_path, raw_path = WORK_FOLDER / f"hot-{token}.csv", WORK_FOLDER / f"hot-{token}.txt"
    pid = min(endpoint.groups[BACKEND if options.backend else CONNECTOR]())
    command = [
        spy, "record", "--pid", str(pid), "--duration", str(options.seconds), "--rate", str(_RATE), "--format", "raw",
        "--function", "--output", str(raw_path),
    ]  # fmt: skip
    seconds = options.warm_up + options.seconds + 5
    try:
        with PerfTest(jars, endpoint.url, workload.perftest_arguments(token), seconds, csv_path) as perftest:
            if not perftest.wait_started(options.warm_up):
                raise Unusable(f"the workload does not start: {perftest.wait().problem}")
            made = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=options.seconds + _MARGIN_S
            )
        if options.target != EMBEDDED:
            delete_queues(endpoint.url, workload.queue_names(token), [EXCHANGE])
        if made.returncode or not raw_path.exists():
            raise Unusable(f"py-spy: {(made.stderr or made.stdout).strip()}")
        return read_stacks(raw_path.read_text(encoding="utf-8").splitlines())
    finally:
        csv_path.unlink(missing_ok=True)
        raw_path.unlink(missing_ok=True)


def read_stacks(lines: Iterable[str]) -> Counter[str]:
    """py-spy's raw format: frames from the outside in, joined by ``;``, and a count."""
    stacks: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        if count.isdigit():
            stacks[stack] += int(count)
    return stacks


def layer_of(stack: str) -> str:
    """The layer of the innermost frame that is in one."""
    for frame in reversed(stack.split(";")):
        found = _FRAME.fullmatch(frame)
        name = _layer_of_file(found["file"]) if found else ""
        if name:
            return name
    return OTHER


def _layer_of_file(path: str) -> str:
    return next((layer for layer in LAYERS if f"/{layer}/" in f"/{path}"), "")


def report(stacks: Counter[str], top: int) -> str:
    """Both tables, as text."""
    total = stacks.total() or 1
    layers: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for stack, count in stacks.items():
        layers[layer_of(stack)] += count
        functions[stack.rpartition(";")[2]] += count
    tables = [
        aligned([heading, "share"], [[name, f"{count / total:.1%}"] for name, count in counts.most_common(top)])
        for heading, counts in (("layer", layers), ("function, time of its own", functions))
    ]
    return f"{total} samples\n\n" + "\n\n".join(tables) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.hot_spots", description="Where the time goes.")
    parser.add_argument("--workload", default=WORKLOADS[0].name, choices=[one.name for one in WORKLOADS])
    parser.add_argument("--target", default=EMBEDDED, choices=(EMBEDDED, KUBEMQ), help="default: %(default)s")
    parser.add_argument("--backend", action="store_true", help="the embedded server instead of the connector")
    parser.add_argument("--seconds", type=int, default=10, help="profiled (default %(default)s)")
    parser.add_argument("--warm-up", type=int, default=5, help="seconds before that (default %(default)s)")
    parser.add_argument("--top", type=int, default=25, help="lines of each table (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

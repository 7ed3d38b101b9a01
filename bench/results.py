"""What a bench found: one record per run, the summary over rounds, the machine, and their JSON.

Owns the shape of the results file (version 1).  Must not know PerfTest or how anything was measured.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.figures import Spread, spread

FOLDER = Path(__file__).resolve().parent / "results"
BASELINE = FOLDER / "baseline.json"
FORMAT_VERSION = 1
#: Groups of processes: ours, the server behind it, a broker of its own, and the load generator.
CONNECTOR, BACKEND, PEER, CLIENT = "connector", "backend", "peer", "client"
#: Those that serve; their CPU and memory are compared.
SERVER_GROUPS = (CONNECTOR, BACKEND, PEER)
_US_PER_S = 1e6
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of ``seconds`` behind the warm-up; ``problem`` says what went wrong, empty when nothing did.

    ``rate`` in msg/s, latencies in ms, ``cpu_s`` (used in that time) and ``rss_bytes`` (the most) by group of
    processes; ``rates``: (second, msg/s) from the start, the warm-up included.
    """

    workload: str
    target: str
    round_no: int
    seconds: float = 0.0
    messages: float = 0.0
    rate: float = 0.0
    median_ms: float | None = None
    p99_ms: float | None = None
    cpu_s: dict[str, float] = field(default_factory=dict)
    rss_bytes: dict[str, int] = field(default_factory=dict)
    nacked: float = 0.0
    returned: float = 0.0
    rates: list[tuple[float, float]] = field(default_factory=list)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """The good rounds of one workload at one target; CPU in microseconds per message, memory in MB, by group."""

    rate: Spread | None
    median_ms: Spread | None
    p99_ms: Spread | None
    cpu_us: Spread | None
    rss_mb: Spread | None
    cpu_us_of: dict[str, float]
    rss_mb_of: dict[str, float]


@dataclass(slots=True)
class Results:
    """Everything of one bench."""

    started: str
    machine: dict[str, Any]
    options: dict[str, Any]
    targets: dict[str, str]
    runs: list[Run] = field(default_factory=list)
    micro: dict[str, Any] = field(default_factory=dict)

    def summary(self, workload: str, target: str) -> Summary:
        """What the rounds say together; runs with a problem do not count."""
        runs = [run for run in self.runs if (run.workload, run.target) == (workload, target) and not run.problem]
        groups = [group for group in SERVER_GROUPS if any(group in run.cpu_s for run in runs)]
        return Summary(
            rate=spread([run.rate for run in runs]),
            median_ms=spread([run.median_ms for run in runs if run.median_ms is not None]),
            p99_ms=spread([run.p99_ms for run in runs if run.p99_ms is not None]),
            cpu_us=_total(runs, groups, _cpu_us),
            rss_mb=_total(runs, groups, _rss_mb),
            cpu_us_of={group: _middle(runs, group, _cpu_us) for group in groups},
            rss_mb_of={group: _middle(runs, group, _rss_mb) for group in groups},
        )

    @property
    def workloads(self) -> list[str]:
        """The workloads that have runs, in their order."""
        return list(dict.fromkeys(run.workload for run in self.runs))


def _cpu_us(run: Run, group: str) -> float:
    return run.cpu_s.get(group, 0.0) * _US_PER_S / run.messages if run.messages else 0.0


def _rss_mb(run: Run, group: str) -> float:
    return run.rss_bytes.get(group, 0) / _MB


def _total(runs: list[Run], groups: list[str], figure: Callable[[Run, str], float]) -> Spread | None:
    return spread([sum(figure(run, group) for group in groups) for run in runs]) if groups else None


def _middle(runs: list[Run], group: str, figure: Callable[[Run, str], float]) -> float:
    found = _total(runs, [group], figure)
    return found.middle if found else 0.0


def begin(options: dict[str, Any], targets: dict[str, str]) -> Results:
    """Results without runs, of now and here."""
    return Results(datetime.now(UTC).isoformat(timespec="seconds"), machine(), options, targets)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": _first_line(["java", "-version"]),
        "commit": _first_line(["git", "-C", str(FOLDER), "describe", "--always", "--dirty"]),
        "load_before": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _first_line(command: list[str]) -> str:
    try:
        made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (made.stdout + made.stderr).partition("\n")[0].strip()


# ------------------------------------------------------------------------------------------------- JSON


def write(results: Results, path: Path) -> None:
    """Write the file and, where they are missing, its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"version": FORMAT_VERSION, **dataclasses.asdict(results)}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Results:
    """Read what ``write`` wrote; raises ValueError when it is something else."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if document.pop("version", None) != FORMAT_VERSION:
        raise ValueError(f"{path} is not a results file of version {FORMAT_VERSION}")
    runs = [Run(**{**run, "rates": [(at, rate) for at, rate in run["rates"]]}) for run in document.pop("runs")]
    return Results(runs=runs, **document)

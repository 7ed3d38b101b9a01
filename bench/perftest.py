"""PerfTest, RabbitMQ's own load tool: got by Maven, started, bounded in time, its figures read.

Owns the tool: its version, where its jars are, its command line's common part, its CSV.  Must not know what is measured
(``workloads.py``) or against whom (``targets.py``).
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.figures import Quantiles

COORDINATES = ("com.rabbitmq", "perf-test", "2.22.1")
CLASSPATH_VARIABLE = "PERFTEST_CLASSPATH"
CACHE = Path(__file__).resolve().parents[1] / ".cache" / "perftest" / COORDINATES[2]
_DOWNLOAD_LIMIT_S = 300.0
#: What start, the last confirms and the end may take beside the time of the run itself.
_MARGIN_S = 45.0
_MAIN = "com.rabbitmq.perf.PerfTest"
_HEAP = ("-Xms256m", "-Xmx2g")
_TAIL_LINES = 15

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>bench</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
  </dependency></dependencies>
</project>
"""
_TIME = re.compile(r"time (?P<seconds>\d+\.\d+) s")
_KIND = {"consumer": "consumer latency", "confirm": "confirm latency"}
_COLUMNS = ("min", "median", "75th p.", "95th p.", "99th p.")
_UNITS = {"(µs)": 1000.0, "(ms)": 1.0}


class Unusable(Exception):
    """PerfTest cannot be used; the text says what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sampling interval that ended ``until_s`` after the start: rates in msg/s, latencies in ms."""

    until_s: float
    seconds: float
    published: float
    returned: float
    confirmed: float
    nacked: float
    received: float
    consumer: Quantiles | None
    confirm: Quantiles | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that is over: its rows, the monotonic second of its start, and what went wrong (empty: nothing)."""

    rows: list[Row]
    started_at: float
    problem: str


def classpath() -> str:
    """Where PerfTest's jars are, got by Maven the first time; raises Unusable."""
    if shutil.which("java") is None:
        raise Unusable(
            "java is missing: PerfTest needs Java 11 or newer (Debian: apt-get install default-jre-headless)"
        )
    given = os.environ.get(CLASSPATH_VARIABLE, "")
    if given:
        return f"{given.rstrip('/')}/*" if Path(given).is_dir() else given
    jars = CACHE / "lib"
    if not (CACHE / "complete").exists():
        _download(jars)
    return f"{jars}/*"


def _download(jars: Path) -> None:
    if shutil.which("mvn") is None:
        raise Unusable(
            f"mvn is missing: Maven gets PerfTest ({':'.join(COORDINATES)}) from Maven Central "
            f"(Debian: apt-get install maven); or set {CLASSPATH_VARIABLE} to a folder with its jars"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    pom = CACHE / "pom.xml"
    pom.write_text(_POM.format(*COORDINATES), encoding="utf-8")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    try:
        made = subprocess.run(
            ["mvn", "--batch-mode", "--quiet", "--file", str(pom), *goal],
            check=False, capture_output=True, text=True, timeout=_DOWNLOAD_LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unusable(f"Maven did not get PerfTest within {_DOWNLOAD_LIMIT_S:g} s; try again") from None
    if made.returncode:
        raise Unusable(f"Maven could not get PerfTest:\n{_tail(made.stdout + made.stderr)}")
    (CACHE / "complete").touch()


class PerfTest:
    """One run of PerfTest; ``with`` starts it and makes sure that it is gone afterwards."""

    def __init__(self, jars: str, url: str, arguments: Sequence[str], seconds: int, csv_path: Path) -> None:
        self._limit_s = seconds + _MARGIN_S
        self._csv_path = csv_path
        self._command = [
            "java", *_HEAP, "-cp", jars, _MAIN, "--uri", url, "--time", str(seconds), "--interval", "1",
            "--output-file", str(csv_path), "--disable-connection-recovery", *arguments,
        ]  # fmt: skip
        self._lines: list[str] = []
        self._started_at = 0.0
        self._has_started = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None

    @property
    def pid(self) -> int:
        """The Java process."""
        assert self._process is not None  # noqa: S101
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self._csv_path.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._listener = threading.Thread(target=self._listen, name="listen to PerfTest", daemon=True)
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, listener = self._process, self._listener
        assert process is not None  # noqa: S101
        assert listener is not None  # noqa: S101
        if process.poll() is None:
            process.kill()
            process.wait()
        listener.join()
        if process.stdout is not None:
            process.stdout.close()

    def _listen(self) -> None:
        assert self._process is not None  # noqa: S101
        for line in self._process.stdout or ():
            found = _TIME.search(line)
            if found and not self._started_at:
                self._started_at = time.monotonic() - float(found["seconds"])
                self._has_started.set()
            self._lines.append(line)

    def wait_started(self, warm_up_s: float = 0.0) -> bool:
        """Return once the first second is measured and the warm-up over; False when that does not come."""
        deadline = time.monotonic() + _MARGIN_S
        while not self._has_started.wait(0.1):
            if not self.is_running or time.monotonic() > deadline:
                return False
        time.sleep(max(0.0, self._started_at + warm_up_s - time.monotonic()))
        return self.is_running

    def wait(self) -> Outcome:
        """Wait for the end, at most for the time of the run and a margin."""
        assert self._process is not None  # noqa: S101
        problem = ""
        try:
            code = self._process.wait(self._limit_s)
        except subprocess.TimeoutExpired:
            problem = f"PerfTest did not end within {self._limit_s:g} s"
        else:
            if self._listener is not None:
                self._listener.join(_MARGIN_S)  # its last words may still be on their way
            if code:
                problem = f"PerfTest ended with {code}: {_tail(''.join(self._lines))}"
        rows = read_rows(self._csv_path.read_text(encoding="utf-8")) if self._csv_path.exists() else []
        if not rows and not problem:
            problem = f"PerfTest measured nothing: {_tail(''.join(self._lines))}"
        return Outcome(rows, self._started_at, problem)


def read_rows(text: str) -> list[Row]:
    """PerfTest's CSV; a last line that was cut off is left out."""
    rows: list[Row] = []
    before = 0.0
    complete = text[: text.rfind("\n") + 1]
    for fields in csv.DictReader(io.StringIO(complete)):
        until = float(fields["time (s)"])
        rows.append(
            Row(
                until_s=until,
                seconds=until - before,
                published=_rate(fields, "published"),
                returned=_rate(fields, "returned"),
                confirmed=_rate(fields, "confirmed"),
                nacked=_rate(fields, "nacked"),
                received=_rate(fields, "received"),
                consumer=_latency(fields, "consumer"),
                confirm=_latency(fields, "confirm"),
            )
        )
        before = until
    return rows


def _rate(fields: dict[str, str], name: str) -> float:
    return float(fields[f"{name} (msg/s)"] or 0)


def _latency(fields: dict[str, str], kind: str) -> Quantiles | None:
    for unit, per_ms in _UNITS.items():
        texts = [fields.get(f"{column} {_KIND[kind]} {unit}") for column in _COLUMNS]
        if all(texts):
            return Quantiles(*(float(text or 0) / per_ms for text in texts))
    return None


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])

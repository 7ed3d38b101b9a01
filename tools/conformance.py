"""Run the AMQP conformance kit against a freshly started server; behind ``make conformance``.

Owns the server's life and the verdict.  The kit (not part of this repository) brings the checks: ``registry.CASES``,
rows of (id, title, function), and ``run_cases.run_one``.  ``tests/conformance_excluded.txt`` names the checks that wait
for a feature; they run too, and one that passes fails the run, so the list only shrinks.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
EXCLUDED = ROOT / "tests" / "conformance_excluded.txt"
START_S = 30.0
STOP_S = 30.0
POLL_S = 0.05


class Waits(NamedTuple):
    """Why a check is excluded: the feature row it waits for, and a few words."""

    row: str
    reason: str


class Tally:
    """What came out, printed line by line."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self.skipped = 0

    def add(self, verdict: str, case_id: str, text: str) -> None:
        """Count and print one check."""
        self.passed += verdict == "PASS"
        self.failed += verdict == "FAIL"
        self.skipped += verdict == "SKIP"
        say(f"{verdict} {case_id:<5} {text}")


def say(line: str) -> None:
    """Print a line at once: the run takes minutes."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def read_excluded(text: str) -> dict[str, Waits]:
    """Return the excluded ids; each line is ``ID ROW reason``; raises ValueError for any other."""
    excluded: dict[str, Waits] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split(None, 2)
        if len(words) < len(Waits._fields) + 1 or words[0] in excluded:
            raise ValueError(f"line {number}: wants an id (once), a feature row and a reason: {line!r}")
        excluded[words[0]] = Waits(words[1], words[2])
    return excluded


def judge(case_id: str, title: str, outcome: tuple[str, str], excluded: Mapping[str, Waits]) -> tuple[str, str]:
    """Return the verdict (PASS, FAIL or SKIP) and its text; ``outcome`` is the kit's own verdict and reason."""
    result, why = outcome
    waits = excluded.get(case_id)
    if waits is None:
        return result, f"{title} -- {why}"
    if result == "PASS":
        return "FAIL", f"{title} -- passes now: take it out of {EXCLUDED.name}"
    return "SKIP", f"{title} -- waits for {waits.row}: {waits.reason}"


def load_kit(folder: Path, url: str) -> Any:
    """Import the kit's runner with ``url`` as its target; raises ImportError when one of its parts is missing."""
    os.environ["AMQP_URL"] = url
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    runner = importlib.import_module("run_cases")
    missing = [path.stem for path in sorted(folder.glob("cases_*.py")) if path.stem not in sys.modules]
    if missing:
        raise ImportError("could not import " + ", ".join(missing))
    return runner


def run_checks(runner: Any, wanted: Sequence[str], excluded: Mapping[str, Waits], *, strict: bool) -> Tally:
    """Run the checks one after the other: the wanted ids, or all (ids with X only when ``strict``)."""
    tally = Tally()
    cases = {case_id: (title, check) for case_id, title, check in sorted(runner.registry.CASES, key=lambda row: row[0])}
    for unknown in sorted({*wanted, *excluded} - cases.keys()):
        tally.add("FAIL", unknown, "the kit has no such check")
    for case_id, (title, check) in cases.items():
        if case_id in wanted or not (wanted or (case_id.startswith("X") and not strict)):
            verdict, text = judge(case_id, title, runner.run_one(check), excluded)
            tally.add(verdict, case_id, text)
    return tally


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def server(flags: Sequence[str]) -> Iterator[str]:
    """Run ``kubemq-amqp serve`` on a free port with a data folder of its own; yields its URL.

    Raises RuntimeError with the end of its log when it does not become ready.
    """
    port, ops_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="kubemq-amqp-") as folder:
        log = Path(folder) / "log"
        where = ["--host", "127.0.0.1", "--port", str(port), "--ops-host", "127.0.0.1", "--ops-port", str(ops_port)]
        command = [sys.executable, "-m", "connector", "serve", *where, "--data-dir", str(Path(folder) / "data"), *flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CONNECTORS_AMQP_")}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            if not _is_ready(process, f"http://127.0.0.1:{ops_port}/readyz"):
                raise RuntimeError(f"the server did not become ready; its log ends so:\n{_tail(log)}")
            yield f"amqp://guest:guest@127.0.0.1:{port}/"
            if process.poll() is not None:
                raise RuntimeError(f"the server ended by itself ({process.returncode}); its log ends so:\n{_tail(log)}")
        finally:
            _stop(process)


def _is_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=1):  # noqa: S310  (our own http URL)
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_S)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        say(f"the server did not end within {STOP_S:g} s of SIGTERM: killed")
        process.kill()
        process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kit; return 1 when a check failed, or an excluded one passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kit", type=Path, help="folder of the conformance kit")
    parser.add_argument("ids", nargs="*", help="only these checks")
    parser.add_argument("--strict", action="store_true", help="also the X checks, stricter than RabbitMQ")
    parser.add_argument("--url", help="use this running server and start none")
    parser.add_argument(
        "--serve", action="append", default=[], metavar="FLAG", help="--serve=FLAG passes FLAG to serve"
    )
    options = parser.parse_args(arguments)
    excluded = read_excluded(EXCLUDED.read_text(encoding="utf-8"))
    try:
        with contextlib.nullcontext(options.url) if options.url else server(options.serve) as url:
            tally = run_checks(load_kit(options.kit, url), options.ids, excluded, strict=options.strict)
    except RuntimeError as error:
        say(str(error))
        return 1
    skipped = f", {tally.skipped} skipped" if tally.skipped else ""
    say(f"{tally.passed} passed, {tally.failed} failed{skipped}")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())

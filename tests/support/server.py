"""The connector as a process of its own: started, asked whether it is ready, killed, started again.

Owns the child, its folder and its log; must not know what is tested.  Without a KubeMQ address the connector brings its
embedded server along, with the data in ``folder``; with one, its queues are on that server.  The ports are the system's
choice at the first start and stay the same over restarts, so clients find the successor where its predecessor was.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 60.0
STOP_LIMIT_S = 15.0
LOG_TAIL_LINES = 30
_POLL_S = 0.01


class NotReady(Exception):
    """The connector did not start, or ended by itself; the text ends with its log."""


class ConnectorProcess:
    """``python -m connector serve`` on loopback; ``with`` starts and ends it."""

    def __init__(self, folder: Path, kubemq_address: str = "", flags: Sequence[str] = ()) -> None:
        self.folder = folder
        self._given_address = kubemq_address
        self._flags = list(flags)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_path = folder / "connector.log"
        self._log_offset = 0
        self._port = 0
        self._ops_port = 0

    # ------------------------------------------------------------------ what it is

    @property
    def pid(self) -> int:
        """The connector's process id."""
        return self._running.pid

    @property
    def embedded_pid(self) -> int:
        """The process id of the embedded server last started."""
        return int(self._last_entry("embedded server started")["pid"])

    @property
    def is_embedded(self) -> bool:
        """Whether the messages are in the embedded server."""
        return not self._given_address

    @property
    def kubemq_address(self) -> str:
        """Where KubeMQ's gRPC port is, embedded or real: HOST:PORT."""
        return self._given_address or str(self._last_entry("listening")["kubemq"])

    @property
    def url(self) -> str:
        """The AMQP URL of the default vhost."""
        return self.url_of("/")

    @property
    def ops_url(self) -> str:
        """Where /healthz, /readyz and /metrics are."""
        return f"http://127.0.0.1:{self._ops_port}"

    def url_of(self, vhost: str, user: str = "guest", password: str = "guest") -> str:
        """The AMQP URL of a vhost and user."""
        return f"amqp://{quote(user, '')}:{quote(password, '')}@127.0.0.1:{self._port}/{quote(vhost, '')}"

    def log(self) -> str:
        """Everything logged since the first start."""
        return self._log_path.read_text(encoding="utf-8", errors="replace") if self._log_path.exists() else ""

    def log_tail(self, start: int = 0) -> str:
        """The last lines logged, none from before offset ``start`` of ``log()``."""
        return "\n".join(self.log()[start:].splitlines()[-LOG_TAIL_LINES:])

    def entries(self, message: str) -> list[dict[str, Any]]:
        """The log entries of the present run with this message, oldest first."""
        return [entry for entry in self._entries() if entry.get("message") == message]

    # ------------------------------------------------------------------ its life

    def start(self, *, wait: bool = True) -> None:
        """Start it; raises NotReady when it does not become ready."""
        assert self._process is None or self._process.poll() is not None, "is running"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log_offset = self._log_path.stat().st_size if self._log_path.exists() else 0
        command = [
            sys.executable, "-m", "connector", "serve", "--log-format", "json",
            "--host", "127.0.0.1", "--port", str(self._port),
            "--ops-host", "127.0.0.1", "--ops-port", str(self._ops_port),
            "--data-dir", str(self.folder / "data"),
            "--drain-ack-seconds", "0",  # who ends it while it holds messages does not mean to acknowledge them
            *self._flags,
        ]  # fmt: skip
        if self._given_address:
            command += ["--kubemq-address", self._given_address]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CONNECTORS_AMQP_")}
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if wait:
            self.wait_ready()

    def wait_ready(self, limit_s: float = START_LIMIT_S) -> None:
        """Return once clients are served; raises NotReady."""
        deadline = time.monotonic() + limit_s
        while not self.is_ready():
            code = self._running.poll()
            if code is not None:
                raise NotReady(f"the connector ended with {code}; its log:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise NotReady(f"the connector is not ready after {limit_s:g} s; its log:\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def is_ready(self) -> bool:
        """Whether /readyz says so."""
        listening = self.entries("listening")
        if not listening:
            return False
        self._port = int(listening[-1]["amqp"].rpartition(":")[2])
        self._ops_port = int(listening[-1]["ops"].rpartition(":")[2])
        try:
            with urllib.request.urlopen(f"{self.ops_url}/readyz", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def metrics(self) -> dict[str, float]:
        """The samples of /metrics by name, labels included."""
        with urllib.request.urlopen(f"{self.ops_url}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (li.rpartition(" ") for li in lines if not li.startswith("#"))}

    def begin_end(self) -> None:
        """SIGTERM."""
        self._running.send_signal(signal.SIGTERM)

    def wait_end(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Wait for the orderly end after SIGTERM; returns the exit code, raises NotReady when it does not end."""
        process = self._running
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise NotReady(f"did not end within {limit_s:g} s of SIGTERM; its log:\n{self.log_tail()}") from None

    def terminate(self) -> int:
        """SIGTERM, and wait for the orderly end; returns the exit code."""
        self.begin_end()
        return self.wait_end()

    def kill(self) -> None:
        """SIGKILL, and wait until the connector (not its child) is gone."""
        self._running.kill()
        self._running.wait()

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it with SIGTERM or SIGKILL and start its successor at once, on the same ports and data."""
        if how == signal.SIGTERM:
            self.terminate()
        else:
            self.kill()
        self.start()

    def stop(self) -> None:
        """End it if it runs, for tear-downs."""
        if self._process is not None and self._process.poll() is None:
            self.terminate()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._abandon()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------ inside

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "was never started"
        return self._process

    def _abandon(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _entries(self) -> Iterator[dict[str, Any]]:
        with self._log_path.open("rb") as log:
            log.seek(self._log_offset)
            for line in log:
                if line.startswith(b"{") and line.endswith(b"\n"):
                    yield json.loads(line)

    def _last_entry(self, message: str) -> dict[str, Any]:
        found = self.entries(message)
        assert found, f"the log has no {message!r}:\n{self.log_tail()}"
        return found[-1]


def is_gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"

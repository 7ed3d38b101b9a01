"""The embedded server as a child process of a test.

Owns its start, its port and its end; what it is asked is the test's business.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Self

ROOT = Path(__file__).parents[3]
_END_LIMIT_S = 10.0


class EmbeddedProcess:
    """``python -m connector.embedded`` on one data folder; use with ``with``."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._log = folder.with_name(f"{folder.name}.log")
        self._options = options
        self._child: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it has written to standard error since the folder was new."""
        return self._log.read_text()

    @property
    def child(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._child is not None
        return self._child

    def start(self) -> Self:
        """Start on the port of the last time (or any) and wait until it listens."""
        with self._log.open("ab") as log:
            self._child = spawn(self.folder, "--port", str(self.port), "--parent-pipe", *self._options, errors=log)
        assert self._child.stdout is not None
        line = self._child.stdout.readline().decode()
        assert line.startswith("listening "), f"{line}{self._log.read_text()}"
        self.port = int(line.split()[1])
        return self

    def kill(self) -> None:
        """SIGKILL: no chance to write anything."""
        self.end(signal.SIGKILL)

    def restart(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it and start its successor on the same folder and port."""
        self.end(how)
        self.start()

    def end(self, how: signal.Signals = signal.SIGTERM) -> str:
        """End it; returns what it wrote to standard error since the folder was new."""
        child, self._child = self.child, None
        child.send_signal(how)
        child.communicate(timeout=_END_LIMIT_S)
        return self._log.read_text()

    def close_pipe(self) -> int:
        """Close the parent's pipe and wait for the end; the exit code."""
        child, self._child = self.child, None
        child.communicate(timeout=_END_LIMIT_S)  # closes standard input
        return child.returncode

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self.end(signal.SIGKILL)


def spawn(folder: Path, *options: str, errors: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """The bare process, its pipes ours."""
    return subprocess.Popen(
        [sys.executable, "-m", "connector.embedded", "--data-dir", str(folder), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
    )

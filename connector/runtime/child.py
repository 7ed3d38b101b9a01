"""The embedded server's process: started, restarted when it dies, ended with us.

Owns the child and the pipe whose closing ends it, so it never outlives its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, cast

import structlog

if TYPE_CHECKING:
    from pathlib import Path

START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 10.0
MAX_PAUSE_S = 5.0

log = structlog.get_logger(__name__)


class ChildFailed(Exception):
    """The embedded server did not start; the text says why."""


class EmbeddedServer:
    """``python -m connector.embedded`` on a loopback port that stays the same over restarts."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._process: asyncio.subprocess.Process | None = None
        self.is_stopping = False
        self.port = 0

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start it and wait until it listens; raises ChildFailed."""
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = "it is no folder" if self._data_dir.exists() else error.strerror
            message = f"the data folder {self._data_dir} cannot be had: {reason}"
            raise ChildFailed(message) from error
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "connector.embedded",
            "--data-dir", str(self._data_dir), "--port", str(self.port), "--quirks", "off", "--parent-pipe",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        stdout = cast("asyncio.StreamReader", self._process.stdout)
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                line = (await stdout.readline()).decode("utf-8", "replace").strip()
        except TimeoutError:
            line = ""
        word, _, port = line.partition(" ")
        if word != "listening" or not port.isdecimal():
            await self.stop()
            self.is_stopping = False
            reason = port if word == "unusable" else f"it said {line!r}" if line else "it said nothing"
            message = f"the embedded server did not start (data folder {self._data_dir}): {reason}"
            raise ChildFailed(message)
        self.port = int(port)
        log.info("embedded server started", port=self.port, data_dir=str(self._data_dir), pid=self._process.pid)

    async def watch(self) -> None:
        """Restart it whenever it dies."""
        pause_s = 0.1
        while self._process is not None:
            code = await self._process.wait()
            if self.is_stopping:
                return
            log.error("embedded server died", exit_code=code)
            try:
                await self.start()
                pause_s = 0.1
            except ChildFailed as error:
                log.error("embedded server not restarted", error=str(error))  # noqa: TRY400 # its text says it all
                await asyncio.sleep(pause_s)
                pause_s = min(MAX_PAUSE_S, pause_s * 2)

    async def stop(self) -> None:
        """Close its pipe and wait; kill it when it does not end."""
        self.is_stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_DEADLINE_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

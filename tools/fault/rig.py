"""The processes and links of one run: backend, connector, a proxy in front of each.

Owns starting, ending and finding them.  Must not know when faults happen (``faults.py``) or what clients do.  The
connector is driven by the same ``ConnectorProcess`` as in the client tests, in threads, since it waits by polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol, Self
from urllib.parse import urlsplit

from tests.support.server import ROOT, ConnectorProcess
from tests.support.tcp_proxy import TcpProxy
from tools.fault.scenario import Backend, Scenario

START_LIMIT_S = 60.0
POLL_S = 0.02
#: Short, so that a SIGTERM while the backend is away does not take the whole run.
DRAIN_S = 3


class RigError(Exception):
    """Something does not start or end; no verdict is possible, or the product is to blame."""


class Server(Protocol):
    """A backend that can be stopped and started."""

    def address(self) -> tuple[str, int]:
        """Where it listens."""

    async def start(self) -> None:
        """Start it and wait until it listens."""

    async def end(self, how: signal.Signals) -> None:
        """Send SIGKILL or SIGTERM and wait until it is gone."""

    def send(self, number: signal.Signals) -> None:
        """Send SIGSTOP or SIGCONT."""


class EmbeddedProcess:
    """``python -m connector.embedded`` as a process of its own, on a port that stays the same."""

    def __init__(self, folder: Path, *, has_quirks: bool) -> None:
        self._folder = folder
        self._quirks = "on" if has_quirks else "off"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def address(self) -> tuple[str, int]:
        """See ``Server``."""
        return "127.0.0.1", self._port

    async def start(self) -> None:
        """See ``Server``."""
        line = await asyncio.to_thread(self._start)
        word, _, port = line.partition(" ")
        if word != "listening":
            raise RigError(f"the embedded server does not start; see {self._folder / 'embedded.log'}")
        self._port = int(port)

    def _start(self) -> str:
        command = [
            sys.executable, "-m", "connector.embedded", "--data-dir", str(self._folder / "kubemq"),
            "--port", str(self._port), "--quirks", self._quirks, "--parent-pipe",
        ]  # fmt: skip
        with (self._folder / "embedded.log").open("ab") as log:
            process = self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        assert process.stdout is not None  # noqa: S101
        return process.stdout.readline().decode().strip()

    async def end(self, how: signal.Signals) -> None:
        """See ``Server``."""
        await asyncio.to_thread(self._end, how)

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        process.wait(START_LIMIT_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None

    def send(self, number: signal.Signals) -> None:
        """See ``Server``."""
        if self._process is not None:
            self._process.send_signal(number)


class CommandedServer:
    """A KubeMQ that two shell commands start and stop.

    ``{folder}`` in them is a folder of this run, ``{signal}`` the signal's name without SIG; a third one only sends it.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        host, _, port = target.kubemq_address.rpartition(":")
        self._address = (host, int(port))
        self._commands = {"start": target.kubemq_start, "stop": target.kubemq_stop}
        self._signal = target.kubemq_signal
        self._folder = folder

    def address(self) -> tuple[str, int]:
        """See ``Server``."""
        return self._address

    async def start(self) -> None:
        """See ``Server``."""
        await self._run("start", "")

    async def end(self, how: signal.Signals) -> None:
        """See ``Server``."""
        await self._run("stop", how.name.removeprefix("SIG"))

    async def _run(self, which: str, signal_name: str) -> None:
        template = self._commands[which]
        if not template:
            return
        words = [word.format(folder=self._folder / "kubemq", signal=signal_name) for word in shlex.split(template)]
        with (self._folder / "commands.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            code = await process.wait()
        if code:
            raise RigError(f"the command to {which} KubeMQ ended with {code}: {template}")

    def send(self, number: signal.Signals) -> None:
        """See ``Server``; scenarios ask for that only where there is a command for it."""
        subprocess.run(
            [word.format(signal=number.name.removeprefix("SIG")) for word in shlex.split(self._signal)],
            check=True,
            stdin=subprocess.DEVNULL,
        )


class Child:
    """The embedded server that the connector starts by itself."""

    def __init__(self, connector: ConnectorProcess) -> None:
        self._connector = connector

    def address(self) -> tuple[str, int]:
        """See ``Server``."""
        host, _, port = self._connector.kubemq_address.rpartition(":")
        return host, int(port)

    async def start(self) -> None:
        """See ``Server``: the connector does it."""

    async def end(self, how: signal.Signals) -> None:
        """See ``Server``: returns when the connector has started the next one."""
        entries = self._connector.entries("embedded server started")
        os.kill(int(entries[-1]["pid"]), how)
        async with asyncio.timeout(START_LIMIT_S):
            while len(self._connector.entries("embedded server started")) == len(entries):  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)

    def send(self, number: signal.Signals) -> None:
        """See ``Server``."""
        os.kill(self._connector.embedded_pid, number)


class Rig:
    """Everything that runs for one scenario; ``async with`` starts and ends it.

    ``server``, ``connector`` and ``backend_proxy`` are None where the scenario has none.
    """

    def __init__(self, scenario: Scenario, folder: Path, target: Target) -> None:
        self.connector: ConnectorProcess | None = None
        self.server: Server | None = None
        self.backend_proxy: TcpProxy | None = None
        self.proxies = {name: TcpProxy(self._amqp_address) for name in scenario.clients}
        self._amqp_url = target.amqp_url
        self._monitor = target.kubemq_monitor
        self._folder = folder
        self._flags = ["--drain-deadline-seconds", str(DRAIN_S)]
        if scenario.backend is Backend.CHILD:
            self.connector = ConnectorProcess(folder, flags=self._flags)
            self.server = Child(self.connector)
        elif scenario.backend is Backend.PROXIED:
            self.server = EmbeddedProcess(folder, has_quirks=scenario.has_quirks)
        elif scenario.backend is Backend.REAL:
            self.server = CommandedServer(target, folder)

    def _amqp_address(self) -> tuple[str, int]:
        url = urlsplit(self.connector.url if self.connector is not None else self._amqp_url)
        return url.hostname or "127.0.0.1", url.port or 5672

    @property
    def amqp_port(self) -> int:
        """The connector's own port, without a proxy."""
        return self._amqp_address()[1]

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        if self.server is not None:
            await self.server.start()
            if self.connector is None:
                self.backend_proxy = TcpProxy(self.server.address)
                await self.backend_proxy.accept()
                self.connector = ConnectorProcess(self._folder, self.backend_proxy.address, self._flags)
        if self.connector is not None:
            await asyncio.to_thread(self.connector.start, wait=False)
            await self.wait_ready()
        for proxy in self.proxies.values():
            await proxy.accept()

    async def wait_ready(self) -> None:
        """Return when the connector serves.  Raises RigError."""
        if self.connector is not None:
            await asyncio.to_thread(self.connector.wait_ready, START_LIMIT_S)

    async def withheld(self) -> int:
        """How many messages the connector says that nobody can read."""
        if self.connector is None:
            return 0
        return int((await asyncio.to_thread(self.connector.metrics)).get("kubemq_amqp_withheld_messages", 0))

    @property
    def can_rescue(self) -> bool:
        """Whether the monitoring page of KubeMQ can be found."""
        return bool(self._monitor)

    async def rescue(self) -> None:
        """``kubemq-amqp rescue``, as an operator does it.  Raises RigError."""
        assert self.server is not None  # noqa: S101
        host, port = self.server.address()
        with (self._folder / "rescue.log").open("ab") as log:
            finding = await asyncio.create_subprocess_exec(
                *shlex.split(self._monitor), stdin=subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log
            )
            found, _ = await finding.communicate()
            command = [
                sys.executable, "-m", "connector", "rescue", "--kubemq-address", f"{host}:{port}",
                "--monitor", found.decode().strip(),
            ]  # fmt: skip
            rescuing = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            if await rescuing.wait():
                raise RigError(f"the rescue failed; see {self._folder / 'rescue.log'}")

    async def stop(self) -> None:
        """End everything, stopped processes included."""
        for proxy in self.proxies.values():
            await proxy.refuse()
        connector = self.connector
        if connector is not None:
            with contextlib.suppress(AssertionError, ProcessLookupError):
                os.kill(connector.pid, signal.SIGCONT)
            await asyncio.to_thread(connector.stop)
        if self.backend_proxy is not None:
            await self.backend_proxy.refuse()
        if self.server is not None and not isinstance(self.server, Child):
            await self.server.end(signal.SIGTERM)


class Target:
    """What is given from outside: addresses and commands, empty where there are none."""

    def __init__(
        self,
        *,
        amqp_url: str = "",
        kubemq_address: str = "",
        kubemq_start: str = "",
        kubemq_stop: str = "",
        kubemq_signal: str = "",
        kubemq_monitor: str = "",
    ) -> None:
        self.amqp_url = amqp_url
        self.kubemq_address = kubemq_address
        self.kubemq_start = kubemq_start
        self.kubemq_stop = kubemq_stop
        self.kubemq_signal = kubemq_signal
        self.kubemq_monitor = kubemq_monitor

    @property
    def can_restart(self) -> bool:
        """Whether KubeMQ can be stopped and started."""
        return bool(self.kubemq_start and self.kubemq_stop)

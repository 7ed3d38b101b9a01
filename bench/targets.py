"""Whom to measure: our connector on its embedded server, on a given KubeMQ, and a given RabbitMQ.

Owns starting and ending the connector for one measurement (free ports, loopback, a folder of its own), the clean-up of
queues on servers that keep them, and which processes belong to whom.  Must not know workloads.  Addresses come from the
environment: ``KUBEMQ_ADDRESS`` (HOST:PORT of its gRPC port) and ``RABBITMQ_URL``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from pamqp import commands

from bench import processes
from bench.raw_client import ClientError, RawClient
from bench.results import BACKEND, CONNECTOR, PEER
from connector.version import VERSION
from tests.support.server import ROOT, ConnectorProcess

#: On the disk of the repository: /tmp may be in memory.
WORK_FOLDER = ROOT / ".cache" / "bench"
#: The last log of a connector in which there is an error.
ERROR_LOG = WORK_FOLDER / "connector-errors.log"
EMBEDDED, KUBEMQ, RABBITMQ = "embedded", "kubemq", "rabbitmq"
_DELETE_LIMIT_S = 60.0
_MAX_CONNECTIONS = 5000


class Skipped(Exception):
    """This target cannot be measured; the text says why."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A target that answers: its AMQP URL, its processes by group, and the connector (None: a peer)."""

    url: str
    groups: Mapping[str, Callable[[], Collection[int]]]
    connector: ConnectorProcess | None = None


class Target(Protocol):
    """One of those that are measured in turn."""

    name: str
    keeps_queues: bool

    def version(self) -> str:
        """What it is, for the record.  Raises Skipped when it does not answer."""

    def serve(self) -> contextlib.AbstractContextManager[Endpoint]:
        """Have it running for one measurement."""


class ConnectorTarget:
    """Our connector, started anew for each measurement; without an address on the embedded server."""

    def __init__(self, kubemq_address: str = "", flags: Sequence[str] = ()) -> None:
        self.name = KUBEMQ if kubemq_address else EMBEDDED
        self.keeps_queues = bool(kubemq_address)
        self._address = kubemq_address
        self._flags = ["--max-connections", str(_MAX_CONNECTIONS), *flags]

    def version(self) -> str:
        """See ``Target``."""
        where = f"KubeMQ at {self._address}" if self._address else "its embedded server"
        return f"kubemq-amqp {VERSION} on {where}"

    @contextlib.contextmanager
    def serve(self) -> Iterator[Endpoint]:
        """See ``Target``."""
        WORK_FOLDER.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=WORK_FOLDER, prefix="connector-") as folder,
            ConnectorProcess(Path(folder), self._address, self._flags) as connector,
            contextlib.ExitStack() as stack,
        ):
            backend = processes.listener(_port_of(self._address)) if self._address else connector.embedded_pid
            stack.callback(_keep_errors, connector)
            pid = connector.pid
            groups: dict[str, Callable[[], Collection[int]]] = {
                CONNECTOR: lambda: processes.family(pid, without=[backend] if backend else [])
            }
            if backend is not None:
                groups[BACKEND] = lambda: processes.family(backend)
            yield Endpoint(connector.url, groups, connector)


def _keep_errors(connector: ConnectorProcess) -> None:
    """The folder goes; a log that tells of an error stays."""
    text = connector.log()
    if '"level": "error"' in text or '"level":"error"' in text:
        ERROR_LOG.write_text(text, encoding="utf-8")


class PeerTarget:
    """A RabbitMQ that runs already."""

    name = RABBITMQ
    keeps_queues = True

    def __init__(self, url: str) -> None:
        self._url = url

    def version(self) -> str:
        """See ``Target``."""
        try:
            with RawClient(self._url) as client:
                properties = client.server_properties
        except ClientError as error:
            raise Skipped(f"RABBITMQ_URL: {error}") from error
        return f"{properties.get('product', '?')} {properties.get('version', '?')}"

    @contextlib.contextmanager
    def serve(self) -> Iterator[Endpoint]:
        """See ``Target``."""
        parts = urlsplit(self._url)
        pid = processes.listener(parts.port or 5672)
        groups: dict[str, Callable[[], Collection[int]]] = {}
        if pid is not None:
            groups[PEER] = lambda: processes.family(pid)
        yield Endpoint(self._url, groups)


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def available(names: Iterable[str] = (), flags: Sequence[str] = ()) -> list[Target]:
    """The targets of these names, all there are of none; raises Skipped for one that is asked for and not there."""
    address, url = os.environ.get("KUBEMQ_ADDRESS", ""), os.environ.get("RABBITMQ_URL", "")
    there: dict[str, Target] = {EMBEDDED: ConnectorTarget(flags=flags)}
    if address:
        there[KUBEMQ] = ConnectorTarget(address, flags)
    if url:
        there[RABBITMQ] = PeerTarget(url)
    reasons = {KUBEMQ: "KUBEMQ_ADDRESS is not set", RABBITMQ: "RABBITMQ_URL is not set"}
    wanted = list(names) or list(there)
    for name in wanted:
        if name not in there:
            raise Skipped(reasons.get(name, f"there are the targets {', '.join((EMBEDDED, *reasons))}"))
    return [there[name] for name in wanted]


def end_in_order() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that what it has started is ended too."""

    def on_signal(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, on_signal)


def delete_queues(url: str, queues: Iterable[str], exchanges: Iterable[str] = ()) -> str:
    """Delete what a measurement left behind; returns what went wrong, empty when nothing did."""
    try:
        with RawClient(url, _DELETE_LIMIT_S) as client:
            client.open_channel(1)
            for queue in queues:
                client.call(1, commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)
            for exchange in exchanges:
                client.call(1, commands.Exchange.Delete(exchange=exchange), commands.Exchange.DeleteOk)
    except ClientError as error:
        return f"clean-up: {error}"
    return ""

"""The examples, run as their READMEs say, against the broker under test: what they print is what they promise.

Each program waits for the others by what they print; nothing here sleeps.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.conftest import Target

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIMIT_S = 15.0


class Program:
    """A program of an example; ``lines`` are what it has printed and nobody has looked at."""

    def __init__(self, url: str, example: str, script: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", f"{script}.py", *arguments],
            cwd=EXAMPLES / example / "python",
            env={**os.environ, "KUBEMQ_AMQP_URL": url, "SECONDS_PER_TASK": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.put(line.rstrip("\n"))

    def says(self, text: str) -> None:
        """Wait for the next line, which must begin with this."""
        line = self._lines.get(timeout=LIMIT_S)
        assert line.startswith(text), line

    def ends(self) -> tuple[int, list[str]]:
        """Wait for its end; returns the exit code, and what it printed."""
        code = self._process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        lines = []
        with contextlib.suppress(queue.Empty):
            while True:
                lines.append(self._lines.get_nowait())
        return code, lines

    def stop(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._reader.join(LIMIT_S)


Start = Callable[..., Program]


@pytest.fixture
def start(target: Target) -> Iterator[Start]:
    """Start a program of an example; it ends with the test."""
    with contextlib.ExitStack() as programs:

        def start(example: str, script: str, *arguments: str) -> Program:
            program = Program(target.url, example, script, *arguments)
            programs.callback(program.stop)
            return program

        yield start


def test_work_queues(start: Start) -> None:
    workers = [start("work_queues", "worker", name) for name in ("Anna", "Bert")]
    for worker, name in zip(workers, ("Anna", "Bert"), strict=True):
        worker.says(f"{name}: waiting")
    code, lines = start("work_queues", "producer", "4").ends()
    assert (code, lines) == (0, [f"sent task {number}" for number in range(1, 5)])
    for worker, name in zip(workers, ("Anna", "Bert"), strict=True):
        for _ in range(2):
            worker.says(f"{name}: started")
            worker.says(f"{name}: finished")


def test_publish_subscribe(start: Start) -> None:
    subscribers = [start("publish_subscribe", "subscriber", name) for name in ("Anna", "Bert")]
    for subscriber, name in zip(subscribers, ("Anna", "Bert"), strict=True):
        subscriber.says(f"{name}: listening")
    assert start("publish_subscribe", "publisher", "3").ends()[0] == 0
    for subscriber, name in zip(subscribers, ("Anna", "Bert"), strict=True):
        for number in range(1, 4):
            subscriber.says(f"{name}: news {number}")


def test_routing(start: Start) -> None:
    both, errors = start("routing", "receive_logs", "error", "warning"), start("routing", "receive_logs", "error")
    both.says("listening to error, warning")
    errors.says("listening to error")
    assert start("routing", "emit_log", "warning", "nearly", "full").ends() == (0, ["sent warning: nearly full"])
    assert start("routing", "emit_log", "error", "full").ends()[0] == 0
    assert start("routing", "emit_log", "info", "nothing").ends() == (1, ["nobody listens to info"])
    both.says("warning: nearly full")
    both.says("error: full")
    errors.says("error: full")


def test_topics(start: Start) -> None:
    orders = start("topics", "receive_events", "order.#")
    europe = start("topics", "receive_events", "*.*.created", "*.eu.#")
    orders.says("listening to order.#")
    europe.says("listening to *.*.created, *.eu.#")
    for key, text in (("order.eu.created", "17"), ("order.us.paid", "12"), ("customer.us.created", "4")):
        assert start("topics", "emit_event", key, text).ends() == (0, [f"sent {key}: {text}"])
    orders.says("order.eu.created: 17")
    orders.says("order.us.paid: 12")
    europe.says("order.eu.created: 17")
    europe.says("customer.us.created: 4")


@pytest.mark.parametrize("flags", [[], ["--direct"]])
def test_rpc(start: Start, flags: list[str]) -> None:
    start("rpc", "server").says("waiting")
    code, lines = start("rpc", "client", *flags, "10", "20", "x").ends()
    assert lines == ["fibonacci of 10 is 55", "fibonacci of 20 is 6765", "fibonacci of x is not a number"]
    assert code == 0

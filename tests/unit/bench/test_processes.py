"""Processes: families, who listens, and what was used between two moments."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import processes
from bench.processes import Usage, Watch, descriptors, family, listener, usage
from tests.support.waiting import wait_until

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=0)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    """A process with a child; both end with their input."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.communicate("\n", timeout=10)


def test_a_family_has_the_children_but_for_those_left_out(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert sorted(family(parent.pid)) == sorted([parent.pid, child])
    assert family(parent.pid, without=[child]) == [parent.pid]
    assert child in family(os.getpid())


def test_what_this_process_uses() -> None:
    used = usage([os.getpid()])
    assert used.rss_bytes > 1_000_000
    assert used.threads >= threading.active_count()
    assert used.cpu_s == pytest.approx(sum(os.times()[:4]), abs=0.1)


def test_a_process_that_is_gone_uses_nothing() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert usage([process.pid]) == Usage(0.0, 0, 0)
    assert descriptors([process.pid]) == 0


def test_descriptors_are_counted() -> None:
    before = descriptors([os.getpid()])
    with socket.socket(), socket.socket():
        assert descriptors([os.getpid()]) == before + 2


def test_who_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listener(port) == os.getpid()
    assert listener(port) is None


def test_a_watch_sees_what_is_used() -> None:
    start = time.monotonic()
    with Watch({"me": lambda: [os.getpid()], "nobody": list}, 0.01) as watch:
        wait_until(lambda: sum(range(100_000)) and time.process_time() and len(watch._times) > 20)
    end = time.monotonic()
    assert watch.groups == ["me", "nobody"]
    assert 0 <= watch.cpu_s("me", start, end) <= end - start + 1
    assert watch.rss_bytes("me", start, end) > 1_000_000
    assert (watch.cpu_s("nobody", start, end), watch.rss_bytes("nobody", start, end)) == (0, 0)


def watched(points: list[tuple[float, float, int]]) -> Watch:
    """A watch that has seen (moment, CPU seconds, memory)."""
    watch = Watch({"it": list})
    for moment, cpu_s, rss_bytes in points:
        watch._times.append(moment)
        watch._usages["it"].append(Usage(cpu_s, rss_bytes, 1))
    return watch


def test_cpu_between_samples_lies_on_a_straight_line() -> None:
    watch = watched([(10, 1.0, 5), (12, 3.0, 7), (14, 3.5, 6)])
    assert watch.cpu_s("it", 11, 13) == pytest.approx(1.25)
    assert watch.cpu_s("it", 0, 100) == pytest.approx(2.5)


def test_a_process_that_ended_keeps_what_it_used() -> None:
    assert watched([(10, 1.0, 5), (12, 3.0, 7), (14, 0.0, 0)]).cpu_s("it", 10, 14) == pytest.approx(2.0)


def test_memory_is_the_most_within_the_window() -> None:
    watch = watched([(10, 0, 9), (12, 0, 5), (14, 0, 6)])
    assert watch.rss_bytes("it", 11, 15) == 6
    assert watch.rss_bytes("it", 20, 30) == 6
    assert Watch({"it": list}).rss_bytes("it", 0, 1) == 0


def test_nothing_listens_where_there_is_no_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert listener(5672) is None

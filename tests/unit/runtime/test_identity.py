"""Whether the process of another member is known to have ended: by its id and its start, as far as /proc shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.broker.members import Member
from connector.runtime.identity import ProcessIdentity


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """A /proc that shows a process only itself, as with ``hidepid``."""
    for file in ("sys/kernel/random/boot_id", f"{os.getpid()}/stat"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_bytes((Path("/proc") / file).read_bytes())
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(Path("/proc/self/ns/pid").readlink())
    return tmp_path


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    yield process
    process.kill()
    process.communicate()


def member(pid: int, started: str = "") -> Member:
    """As it has joined, from this host."""
    place = ProcessIdentity().process.rsplit(" ", 2)[0]
    started = started or Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
    return Member("m", 1, "here", f"{place} {pid} {started}")


def test_a_process_that_runs_has_not_ended_whether_it_shows_or_not(
    hidden: Path, other: subprocess.Popen[bytes]
) -> None:
    peer = member(other.pid)
    assert not ProcessIdentity().has_ended(peer)
    assert not ProcessIdentity(proc=hidden).has_ended(peer)


def test_a_process_that_is_gone_has_ended(hidden: Path, other: subprocess.Popen[bytes]) -> None:
    peer = member(other.pid)
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert ProcessIdentity().has_ended(peer)  # a zombie
    other.wait()
    assert ProcessIdentity().has_ended(peer)
    assert ProcessIdentity(proc=hidden).has_ended(peer)


def test_a_later_process_of_the_same_id_is_another() -> None:
    assert ProcessIdentity().has_ended(member(os.getpid(), "1"))


def test_of_another_host_nothing_is_known() -> None:
    assert not ProcessIdentity().has_ended(Member("m", 1, "there", "other-boot pid:[1] 1 1"))

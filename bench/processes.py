"""What processes use, read from /proc (Linux): CPU time, memory, descriptors, threads.

Owns finding processes (a family, who listens on a port) and sampling them in the background.  Must not know what the
processes are.  Times are monotonic seconds, as ``time.monotonic`` says.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LISTEN = "0A"
#: Fields of /proc/PID/stat behind the program's name (which may hold anything, brackets too).
_PPID, _UTIME, _CSTIME, _THREADS, _RSS = 1, 11, 14, 17, 21

#: Which processes to look at, by group; asked at every sample, as they may come and go.
Groups = Mapping[str, Callable[[], Collection[int]]]


class Usage(NamedTuple):
    """Sums over some processes; ``cpu_s`` since their start, children that ended included."""

    cpu_s: float
    rss_bytes: int
    threads: int


def family(pid: int, without: Collection[int] = ()) -> list[int]:
    """A process and its living descendants, but for the families of ``without``."""
    children: dict[int, list[int]] = {}
    for other in _pids():
        fields = _stat(other)
        if fields:
            children.setdefault(int(fields[_PPID]), []).append(other)
    members: list[int] = []
    queue = [pid]
    while queue:
        one = queue.pop()
        if one not in without:
            members.append(one)
            queue += children.get(one, ())
    return members


def usage(pids: Collection[int]) -> Usage:
    """What these processes use now; those that are gone count nothing."""
    cpu_s, rss_bytes, threads = 0.0, 0, 0
    for pid in pids:
        fields = _stat(pid)
        if fields:
            cpu_s += sum(map(int, fields[_UTIME : _CSTIME + 1])) / _TICKS_PER_S
            rss_bytes += int(fields[_RSS]) * _PAGE_BYTES
            threads += int(fields[_THREADS])
    return Usage(cpu_s, rss_bytes, threads)


def descriptors(pids: Collection[int]) -> int:
    """How many file descriptors these processes have open."""
    return sum(sum(1 for _ in _links(pid)) for pid in pids)


def listener(port: int) -> int | None:
    """The process that listens on a TCP port of this machine; None where none can be seen."""
    inodes = set(_listening_inodes(port))
    owners = {pid for pid in _pids() if inodes and any(link in inodes for link in _links(pid))}
    for pid in sorted(owners):  # a child may have inherited the socket
        fields = _stat(pid)
        if fields and int(fields[_PPID]) not in owners:
            return pid
    return None


class Watch:
    """Samples the usage of groups of processes in a thread of its own, from ``__enter__`` to ``__exit__``."""

    def __init__(self, groups: Groups, interval_s: float = 0.5) -> None:
        self._groups = groups
        self._interval_s = interval_s
        self._times: list[float] = []
        self._usages: dict[str, list[Usage]] = {name: [] for name in groups}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch processes", daemon=True)

    @property
    def groups(self) -> list[str]:
        """The names of the groups."""
        return list(self._usages)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._sample()
            if self._is_over.wait(self._interval_s):
                return

    def _sample(self) -> None:
        usages = {name: usage(pids()) for name, pids in self._groups.items()}
        for name, one in usages.items():
            self._usages[name].append(one)
        self._times.append(time.monotonic())

    def cpu_s(self, group: str, start: float, end: float) -> float:
        """CPU seconds that a group used between two moments."""
        used = [one.cpu_s for one in self._usages[group]]
        return max(0.0, self._at(used, end) - self._at(used, start))

    def rss_bytes(self, group: str, start: float, end: float) -> int:
        """The most memory that a group had between two moments."""
        sizes = [one.rss_bytes for one in self._usages[group]]
        within = [size for at, size in zip(self._times, sizes, strict=False) if start <= at <= end]
        return max(within or sizes[-1:], default=0)

    def _at(self, values: list[float], moment: float) -> float:
        """The value at a moment, a straight line between samples; a process that has ended keeps what it had."""
        known = [max(values[: number + 1]) for number in range(len(values))]
        after = bisect_left(self._times, moment)
        if after == 0 or after >= len(self._times):
            return known[min(after, len(known) - 1)] if known else 0.0
        before = after - 1
        share = (moment - self._times[before]) / (self._times[after] - self._times[before])
        return known[before] + share * (known[after] - known[before])


# ------------------------------------------------------------------------------------------------- /proc


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir(PROC) if entry.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """The fields behind the name; empty when the process is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def _links(pid: int) -> Iterator[str]:
    folder = PROC / str(pid) / "fd"
    try:
        paths = list(folder.iterdir())
    except OSError:
        return
    for path in paths:
        try:
            yield str(path.readlink())
        except OSError:
            continue


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            rows = (PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield f"socket:[{fields[9]}]"

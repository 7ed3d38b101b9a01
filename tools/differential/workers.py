"""Plays seeds, in several processes at a time.

Owns the processes and what is done with a difference: played again, shrunk, told.  Must not know the command line
beyond its options.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tools.differential.operations import Operation, draw, shrink
from tools.differential.play import Difference, Player

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from multiprocessing.queues import SimpleQueue

FAILED = 2


class Result(NamedTuple):
    """What came of one seed: counts, and the story of a difference."""

    seed: int
    tally: Counter[str]
    ended_by: Counter[str]
    story: str


def results(options: argparse.Namespace) -> Iterator[Result]:
    """Play all seeds, in as many processes as there shall be workers; what comes first is yielded first."""
    seeds = range(options.seed, options.seed + options.count)
    if options.workers == 1:
        worker = _Worker(options, "")
        yield from map(worker.play, seeds)
        return
    context = multiprocessing.get_context("spawn")
    places: SimpleQueue[int] = context.SimpleQueue()
    for place in range(options.workers):
        places.put(place + 1)
    with context.Pool(options.workers, _begin, (options, places)) as pool:
        yield from pool.imap_unordered(_play, seeds)


def _begin(options: argparse.Namespace, places: SimpleQueue[int]) -> None:
    """A worker process starts."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _own.append(_Worker(options, f"-{places.get()}"))


def _play(seed: int) -> Result:
    return _own[0].play(seed)


class _Worker:
    """Plays seeds in one virtual host."""

    def __init__(self, options: argparse.Namespace, suffix: str) -> None:
        self._options = options
        self._player = Player(options.url + suffix, options.reference + suffix)

    def play(self, seed: int) -> Result:
        """Play this seed's sequence, to the bottom of a difference."""
        player = self._player
        player.ended_by.clear()
        tally = Counter(sequences=1)
        operations = draw(seed, self._options.length)
        found = player.play(operations)
        tally["operations"] += player.performed
        ended_by = Counter(player.ended_by)
        if found is None:
            return Result(seed, tally, ended_by, "")
        found = player.play(operations, is_slow=True)
        if found is None:
            tally["only when fast"] += 1
            return Result(seed, tally, ended_by, "")
        tally["differences"] += 1
        summary = f"seed {seed}: {found.summary}"
        if not self._options.no_shrink:
            operations = shrink(operations[: found.place + 1], lambda some: player.play(some) is not None)
            found = player.play(operations, is_slow=True) or found
        return Result(seed, tally, ended_by, f"{summary}\n{_story(operations, found)}")


#: The one of this process.
_own: list[_Worker] = []


def _story(operations: Sequence[Operation], found: Difference) -> str:
    return "\n".join([*(operation.line() for operation in operations), str(found), ""])

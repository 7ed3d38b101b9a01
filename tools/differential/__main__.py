"""``python -m tools.differential``: random operations played to the connector and to RabbitMQ 3.10, side by side.

Owns the command line and the report.  Each seed gives one sequence; a sequence with a difference is
played once more, slowly, to rule out chance, then shrunk, and printed as lines that ``--replay`` takes.  Exit codes:
0 no difference, 1 some, 2 ended from outside.  Both brokers must run already, the connector with ``--requeue
original``.  Every worker needs a virtual host of its own, of the same name on both sides, as what others have bound to
the predeclared exchanges shows: of two workers, the URLs' ``name`` becomes ``name-1`` and ``name-2``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tools.differential.operations import read_line
from tools.differential.play import Player
from tools.differential.workers import FAILED, results

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRESS = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the seeds; returns the exit code."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))  # nothing may stay behind
    if options.replay:
        text = Path(options.replay).read_text(encoding="utf-8")
        operations = [read_line(line) for line in text.splitlines() if line]
        found = Player(options.url, options.reference).play(operations, is_slow=True)
        say(str(found) if found else "no difference")
        return 1 if found else 0
    tally: Counter[str] = Counter()
    ended_by: Counter[str] = Counter()
    began = time.monotonic()
    say(f"seeds {options.seed} to {options.seed + options.count - 1}, {options.workers} workers")
    for result in results(options):
        tally += result.tally
        ended_by += result.ended_by
        if result.story:
            say(result.story)
            if tally["differences"] >= options.stop_after:
                break
        if tally["sequences"] % PROGRESS == 0:
            say(f"{tally['sequences']} sequences, {tally['differences']} differences, {time.monotonic() - began:.0f} s")
    say(f"{dict(tally)} in {time.monotonic() - began:.0f} s; ended by known differences: {dict(ended_by)}")
    return 1 if tally["differences"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.differential", description="The connector against RabbitMQ.")
    add = parser.add_argument
    add("--url", default="amqp://guest:guest@127.0.0.1:5672/", help="the connector")
    add("--reference", default="amqp://guest:guest@127.0.0.1:5673/", help="RabbitMQ")
    add("--seed", type=int, default=1, help="the first seed")
    add("--count", type=int, default=100, help="how many seeds")
    add("--workers", type=int, default=1, help="processes; each in its own virtual host, named as above")
    add("--length", type=int, default=30, help="operations of a sequence, after some declarations")
    add("--stop-after", type=int, default=5, help="differences after which to stop")
    add("--no-shrink", action="store_true", help="print a difference as it was found")
    add("--replay", metavar="FILE", default="", help="play the lines of this file instead")
    return parser


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

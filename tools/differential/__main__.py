"""``python -m tools.differential``: random operations played to the connector and to RabbitMQ 3.10, side by side.

Owns the command line and the report.  Each seed gives one sequence; a sequence with a difference is played once more,
slowly, to rule out chance, then shrunk, and printed as lines that ``--replay`` takes.  Exit codes: 0 no difference,
1 some, 2 ended from outside.  Both brokers must run already, the connector with ``--requeue original``; a virtual host
of its own is best, of the same name on both sides, as what others have bound to the predeclared exchanges shows, too.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tools.differential.operations import Operation, draw, read_line, shrink
from tools.differential.play import Difference, Player

PROGRESS = 100
FAILED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the seeds; returns the exit code."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))  # nothing may stay behind
    player = Player(options.url, options.reference)
    if options.replay:
        text = Path(options.replay).read_text(encoding="utf-8")
        operations = [read_line(line) for line in text.splitlines() if line]
        found = player.play(operations, is_slow=True)
        say(str(found) if found else "no difference")
        return 1 if found else 0
    tally: Counter[str] = Counter()
    began = time.monotonic()
    for seed in range(options.seed, options.seed + options.count):
        found = _play(player, seed, options, tally)
        tally["sequences"] += 1
        if tally["sequences"] % PROGRESS == 0:
            say(f"{tally['sequences']} sequences, {tally['differences']} differences, {time.monotonic() - began:.0f} s")
        if found and tally["differences"] >= options.stop_after:
            break
    say(f"{dict(tally)} in {time.monotonic() - began:.0f} s; ended by known differences: {dict(player.ended_by)}")
    return 1 if tally["differences"] else 0


def _play(player: Player, seed: int, options: argparse.Namespace, tally: Counter[str]) -> Difference | None:
    operations = draw(seed, options.length)
    found = player.play(operations)
    tally["operations"] += player.performed
    if found is None:
        return None
    found = player.play(operations, is_slow=True)
    if found is None:
        tally["only when fast"] += 1
        return None
    tally["differences"] += 1
    say(f"seed {seed}: {found.summary}")
    if not options.no_shrink:
        operations = shrink(operations[: found.place + 1], lambda some: player.play(some) is not None)
        found = player.play(operations, is_slow=True) or found
    say(_story(operations, found))
    return found


def _story(operations: Sequence[Operation], found: Difference) -> str:
    return "\n".join([*(operation.line() for operation in operations), str(found), ""])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.differential", description="The connector against RabbitMQ.")
    add = parser.add_argument
    add("--url", default="amqp://guest:guest@127.0.0.1:5672/", help="the connector")
    add("--reference", default="amqp://guest:guest@127.0.0.1:5673/", help="RabbitMQ")
    add("--seed", type=int, default=1, help="the first seed")
    add("--count", type=int, default=100, help="how many seeds")
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

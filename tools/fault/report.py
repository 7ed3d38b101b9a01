"""What people read of a run: one line, the story of a failure, the table at the end.

Owns texts only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tools.fault.run import Outcome
from tools.fault.verdict import Verdict

TEXTS_SHOWN = 3


def line(outcome: Outcome) -> str:
    """One line about one seed."""
    counts, scenario = outcome.verdict.counts, outcome.scenario
    faults = " ".join(fault.kind.name.lower() for fault in scenario.faults)
    doubled = counts["doubled"] + counts["doubled by a move"]
    return (
        f"seed {scenario.seed:4} {scenario.backend.name.lower():7} {outcome.seconds:5.1f} s "
        f"{counts['published']:5} published {counts['confirmed']:5} confirmed {counts['deliveries']:5} deliveries "
        f"{counts['came back']:5} came back {doubled:4} doubled "
        f"{'good' if outcome.verdict.is_good else 'FAILED'}: {faults}"
    )


def failure(outcome: Outcome) -> str:
    """The first problems of each kind."""
    lines = []
    for problem, texts in outcome.verdict.problems.items():
        lines.append(f"  {problem}: {len(texts)}")
        lines += [f"    {text}" for text in texts[:TEXTS_SHOWN]]
    return "\n".join(lines)


def write_story(outcome: Outcome, folder: Path) -> None:
    """All problems, faults and sessions of a run, into ``problems.txt``."""
    ledger = outcome.ledger

    def at(moment: float | None) -> str:
        return "the end" if moment is None else f"{moment - ledger.began_at:.3f}"

    every = [f"{problem}: {text}" for problem, texts in outcome.verdict.problems.items() for text in texts]
    every += [
        f"fault {fault.kind} of {fault.what} from {at(fault.began_at)} to {at(fault.ended_at)}"
        for fault in ledger.disturbances
    ]
    every += [
        f"session {session.name} from {at(session.opened_at)} to {at(session.ended_at)}: {session.reason}"
        for session in ledger.sessions
    ]
    (folder / "problems.txt").write_text("\n".join(every) + "\n", encoding="utf-8")


def summary(totals: Counter[str], verdicts: Iterable[Verdict], failed: list[int]) -> str:
    """The table over all seeds."""
    verdicts = list(verdicts)
    count = len(verdicts)
    lines = [f"{count} seeds, {len(failed)} failed{': ' if failed else ''}{' '.join(map(str, failed))}"]
    lines += [f"  {name:24} {value:8}" for name, value in sorted(totals.items())]
    for text, seconds in (
        ("from a certain ack to the crash that undid it", [each for verdict in verdicts for each in verdict.windows]),
        ("from the end of an outage to the next confirm", [each for verdict in verdicts for each in verdict.pauses]),
    ):
        if seconds:
            middle = sorted(seconds)[len(seconds) // 2]
            lines.append(f"  {text}: median {middle:.3f} s, longest {max(seconds):.3f} s, {len(seconds)} times")
    return "\n".join(lines)

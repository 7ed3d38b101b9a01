"""What a lease tells its reader to do next (``lease.py`` chooses, ``runtime/queue_reader.py`` performs)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class StepKind(Enum):
    """What the reader is to do next."""

    WAIT = "wait for a wake-up"
    FINISH = "acknowledge all of mine; that closes the transaction"
    CLOSE = "acknowledge what is settled, close the transaction, read nothing"
    REFILL = "acknowledge, close, Get(mine + new)"
    RECOVER = "close if open, take a fresh snapshot, Get(mine + new) of what is there"
    BARRIER = "prove that the last acknowledgements arrived"
    EXAMINE = "the server was restarted: see whether it withholds messages, and move the queue if it does"


class Step(NamedTuple):
    """One thing to do; ``until`` is the monotonic second at which a WAIT ends by itself (None: only by a wake-up).

    ``can_wait``: nobody waits for what it brings.
    """

    kind: StepKind
    until: float | None = None
    can_wait: bool = False


WAIT = Step(StepKind.WAIT)
NOT_AT_ALL = float("inf")

"""When to send a heartbeat, and when a silent peer is dead (PC-06).

Owns the times of the last sign of life in both directions.  Any octet counts; what we do not read is no silence.  Must
not know sockets: it is told what happened since the last look.  Source: AMQP 0-9-1 section 4.2.7, RabbitMQ's
``rabbit_heartbeat`` (send at half the interval, dead after two).
"""

from __future__ import annotations

from enum import Enum, auto


class Verdict(Enum):
    """What to do after a look at the time."""

    NOTHING = auto()
    SEND = auto()
    DEAD = auto()


class Heartbeat:
    """One connection's; ``interval_s`` is the negotiated one, 0 for none.  Looks should come several times in it."""

    __slots__ = ("_last_look", "_last_read", "_last_written", "interval_s")

    def __init__(self, now: float) -> None:
        self.interval_s = 0
        self._last_look = self._last_read = self._last_written = now

    def look(self, now: float, *, was_read: bool, was_written: bool) -> Verdict:
        """Return what to do; the flags say what happened since the last look."""
        if was_read:
            self._last_read = now
        if was_written:
            self._last_written = self._last_look  # at the earliest
        self._last_look = now
        if not self.interval_s:
            return Verdict.NOTHING
        if now - self._last_read > 2 * self.interval_s:
            return Verdict.DEAD
        return Verdict.SEND if now - self._last_written >= self.interval_s / 2 else Verdict.NOTHING

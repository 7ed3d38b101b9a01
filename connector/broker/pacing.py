"""When a queue is read again while consumers hold messages, and how far ahead.

Owns the clock work of a lease: how long the last refill took, which part of it was read before, how fast consumers take
messages.  Knows no messages and no transaction: the lease asks (``lease.py``).  Why: docs/adr/0008-pacing.md.

A refill reads again what is held, so three things compete: new messages are to come soon, acknowledgements are to
arrive within ``ACK_WINDOW_S``, and reading again is to remain the smaller part of what KubeMQ and we do.
"""

from __future__ import annotations

#: Gets closer than this to each other read further ahead, those further apart than that do not.
QUICK_S = 0.1
SLOW_S = 0.5
#: Acknowledgements wait at most this long for a refill while something is still held.
ACK_DELAY_S = 0.1
#: A refill puts off the next acknowledgements by this since it began, or twice the time it took, whichever is longer.
ACK_WINDOW_S = 0.2
#: Shortest time between two refills that re-read what consumers hold.
MIN_SPACING_S = 0.002
#: Reading again takes at most one part in so many of the time.
REREAD_PART = 3.0
#: One refill that took longer than so many times the usual time counts as that: the machine was busy elsewhere.
OUTLIER = 3.0
#: Over so much time the consumers' pace is averaged.
PACE_WINDOW_S = 0.2
#: A refill begins so much before it has to, and brings so much more than it has to.
MARGIN_S = 0.005
MARGIN = 1.25
#: What a re-read brings besides stays within so many bytes.
WORTH_BYTES = 32_000_000
#: What is read beyond the free credit stays within so many bytes.
READ_AHEAD_BYTES = 4_000_000


class Pacing:
    """Times are monotonic seconds; ``taken`` is the number of messages handed out so far.

    ``_took_s`` is what a refill takes of late.  ``refill_at``: not before this may what is held be read again for the
    sake of new messages.
    """

    __slots__ = ("_ahead", "_answered", "_began", "_most_ahead", "_pace", "_taken", "_took_s", "refill_at")

    def __init__(self, most_ahead: int) -> None:
        self._most_ahead = most_ahead
        self._ahead = 1
        self._began = self._answered = self._took_s = self._pace = 0.0
        self._taken = 0
        self.refill_at = 0.0

    def begin(self, now: float, taken: int) -> None:
        """A Get is about to be written."""
        passed_s = now - self._began
        if passed_s > 0.0:
            weight = min(1.0, passed_s / PACE_WINDOW_S)
            self._pace += ((taken - self._taken) / passed_s - self._pace) * weight
            if passed_s < QUICK_S:
                self._ahead = min(self._most_ahead, self._ahead * 2)
            elif passed_s > SLOW_S:
                self._ahead = 1
        self._began, self._taken = now, taken

    def end(self, now: float, again_bytes: int, all_bytes: int) -> None:
        """It has answered: ``again_bytes`` of ``all_bytes`` had been read before."""
        self._answered = now
        took_s, usual_s = now - self._began, self._took_s
        self._took_s = (min(took_s, OUTLIER * usual_s) + usual_s) / 2.0 if usual_s else took_s
        if again_bytes:
            part = REREAD_PART * again_bytes / all_bytes - 1.0
            self.refill_at = now + max(MIN_SPACING_S, self._took_s * part)

    @property
    def ahead(self) -> int:
        """How many times the free credit a Get may bring: more while Gets follow each other closely, 1 at first."""
        return self._ahead

    def acks_at(self, wanted_at: float) -> float:
        """When acknowledgements go out that should at ``wanted_at``."""
        return max(wanted_at, min(self.refill_at, max(self._began + ACK_WINDOW_S, self._answered + self._took_s)))

    def runs_low(self, now: float, taken: int, ready_count: int) -> bool:
        """Whether consumers will have taken what is ready before a refill that begins now has answered."""
        return int(self._pace_at(now, taken) * (self._took_s + MARGIN_S)) > ready_count

    def need(self, now: float, taken: int) -> int:
        """How many messages consumers will take until the refill after the one that begins now has answered."""
        cycle_s = max(self.refill_at - self._answered, ACK_DELAY_S) + 2.0 * self._took_s
        return int(self._pace_at(now, taken) * cycle_s * MARGIN)

    def _pace_at(self, now: float, taken: int) -> float:
        """Messages per second; less when nobody has taken any for a while."""
        passed_s = now - self._began
        if passed_s <= 0.0:
            return self._pace
        return min(self._pace, (taken - self._taken + 1) / passed_s)

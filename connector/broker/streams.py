"""The streams one lease reads on: how much the present one has handed out, and what a lost one may have left behind.

Owns the verdicts whether the present stream is worn, and whether KubeMQ has taken back what a lost one had.  It does so
soon after the stream is gone, but not at once (measured: up to 0.4 s after a Get that was cancelled on its way, while
the machine was busy); what is read meanwhile is newer than what is to come back.  QueuesInfo's Subscribers counts open
transactions, and 1 where there is none, so it tells only beside an open one of ours.

In which order that comes is ``line.py``'s.  Knows no requests: the reader counts while its transaction is open, and
reports (design.md section 3, points 11 and 14).
"""

from __future__ import annotations

#: A stream keeps all it handed out in the server's memory until it is cancelled: renew it after this much.
RECYCLE_BYTES = 8_000_000
RECYCLE_GETS = 1000
#: A server that sees a half-open link only when it gives up on it is not waited for: what is there is read then.
PATIENCE_S = 5.0


class Streams:
    """``has_remains``: the transaction of a lost stream may still be open."""

    __slots__ = ("_bytes", "_gets", "_lost_at", "has_remains")

    def __init__(self) -> None:
        self._bytes = self._gets = 0
        self._lost_at = 0.0
        self.has_remains = False

    def on_get(self, size: int) -> None:
        """A Get has brought so many bytes."""
        self._gets += 1
        self._bytes += size

    @property
    def is_worn(self) -> bool:
        """The stream has handed out enough: renew it before the next Get (point 14)."""
        return self._bytes >= RECYCLE_BYTES or self._gets >= RECYCLE_GETS

    def renew(self) -> None:
        """A new stream is used from now on."""
        self._bytes = self._gets = 0

    def lose(self, now: float) -> None:
        """The stream is gone, whatever was open on it."""
        self.has_remains = True
        self._lost_at = now

    def clear(self) -> None:
        """Nothing of a lost stream is open any more, or it cannot be told."""
        self.has_remains = False

    def on_count(self, subscribers: int, now: float) -> bool:
        """So many transactions are open, that of the last answer among them (0: it is not known).

        Returns whether nothing of a lost stream is open any more.
        """
        if subscribers == 1 or now - self._lost_at >= PATIENCE_S:
            self.has_remains = False
        return not self.has_remains

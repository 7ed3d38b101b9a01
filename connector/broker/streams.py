"""The streams one lease reads on: how much the present one has handed out, and what a lost one may have left behind.

Owns the verdicts whether the present stream is worn, and whether KubeMQ has taken back what a lost one had.  It does so
soon after the stream is gone, but not at once (measured: up to 0.4 s after a Get that was cancelled on its way, while
the machine was busy); what is read meanwhile is newer than what is to come back.  QueuesInfo's Subscribers counts open
transactions, and 1 where there is none, so it tells only beside an open one of ours.

What is back may come out of turn, too: KubeMQ redelivers all of it to the next Get, in order and however little that
asked for; a Get after that which begins meanwhile gets the rest first (read in its server's source, and measured).  So
until all that was there has been read an answer has to go on where reading stopped, or to come twice.  Knows no
requests: the reader counts while its transaction is open, and reports (design.md section 3, points 11 and 14).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.broker.message import Message

#: A stream keeps all it handed out in the server's memory until it is cancelled: renew it after this much.
RECYCLE_BYTES = 8_000_000
RECYCLE_GETS = 1000
#: A server that sees a half-open link only when it gives up on it is not waited for: what is there is read then.
PATIENCE_S = 5.0


class Streams:
    """``has_remains``: the transaction of a lost stream may still be open; ``is_wary``: what it had may come askew."""

    __slots__ = ("_bytes", "_gets", "_lost_at", "_odd", "_wary_since", "_wary_upto", "has_remains", "is_wary")

    def __init__(self) -> None:
        self._bytes = self._gets = 0
        self._lost_at = self._wary_since = 0.0
        self._wary_upto = 0
        self._odd: list[int] = []
        self.has_remains = self.is_wary = False

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

    @property
    def is_in_doubt(self) -> bool:
        """Whether the next answer may lack what comes before it."""
        return self.has_remains or self.is_wary

    def on_count(self, subscribers: int, last_sequence: int, now: float) -> bool:
        """So many transactions are open, that of the last answer among them (0: it is not known).

        Returns whether nothing of a lost stream is open any more; then all up to ``last_sequence`` may come askew.
        """
        if subscribers == 1 or now - self._lost_at >= PATIENCE_S:
            self.has_remains = False
            self.is_wary = True
            self._wary_since = now
            self._wary_upto = last_sequence
            self._odd = []
        return not self.has_remains

    def takes(self, messages: list[Message], is_in_line: bool, now: float) -> bool:
        """Whether an answer is to be taken for what comes next; only asked while wary, which is not for long.

        What is mine may be behind much that is unread, or others may take some: nothing would be in line then.
        """
        if now - self._wary_since >= PATIENCE_S:
            self.is_wary = False
            return True
        sequences = [message.sequence for message in messages]
        if not is_in_line:
            odd, self._odd = self._odd, sequences
            both = min(len(odd), len(sequences))
            if not both or odd[:both] != sequences[:both]:
                return False
        if sequences and sequences[-1] >= self._wary_upto:
            self.is_wary = False
        return True

"""The order in which one channel is read: what an answer has to begin with, and whether it does.

KubeMQ gives answers out of turn where a closed transaction had more than the next Get asks for: it redelivers all of
it to that Get, in order, and what it has not sent when the Get's transaction ends, it sends to the Get after that
before it begins anew (read in its server's source, and measured: 400 x 100 kB came as 1, 106, 107, ...).  Nothing
tells when it is done.  So each answer is compared with what is known to be there; one that lacks something is given
back and asked for again, until it is as it should be, or comes twice: then what is missing has left the queue.

Owns what was read and given back, how much an earlier life may have left behind, and the last answer that was not as
it should be.  Sequences are dense, so above the highest one read nothing may be missing.  Knows no requests: the reader
asks while its transaction is open (``runtime/queue_reader.py``).  Rules: design.md section 3, points 4 and 6.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from connector.broker.backlog import UNBOUNDED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from connector.broker.message import Message

#: So many answers in a row that are not as they should be: the last one is taken, to read nothing would be worse.
MAX_ODD = 8


class Line:
    """What is to be read next.  Up to ``_upto`` an earlier life has read, and left ``_left``: it is unknown which."""

    __slots__ = ("_back", "_left", "_odd", "_odd_count", "_upto")

    def __init__(self) -> None:
        self._back: list[int] = []  # ascending
        self._upto = self._left = UNBOUNDED
        self._odd: list[int] = []
        self._odd_count = 0

    def start(self, upto: int, left: int) -> None:
        """Somebody has read up to this Sequence before, and has left about so many messages; 0, 0: nobody has."""
        self._upto, self._left = upto, max(0, left)
        self._back.clear()

    def give_back(self, sequences: list[int]) -> None:
        """These were read, and are unread again."""
        if sequences:
            self._back = sorted({*self._back, *sequences})

    def has_given_back(self, sequence: int) -> bool:
        """Whether this one was read and is unread again."""
        at = bisect_left(self._back, sequence)
        return at < len(self._back) and self._back[at] == sequence

    def is_next(self, messages: list[Message], mine: Iterable[int], mine_count: int, highest_read: int) -> bool:
        """Whether nothing that is there is missing before the last message of this answer, which has some.

        ``mine`` is what is in the open transaction of before, and not acknowledged.
        """
        last = messages[-1].sequence
        read_upto = max(highest_read, self._upto)
        if not (self._back or self._left) and last - read_upto == len(messages) - mine_count:
            return True
        there = {message.sequence for message in messages}
        return self._has_read(there, last, mine) and self._has_new(there, last, highest_read)

    def _has_read(self, there: set[int], last: int, mine: Iterable[int]) -> bool:
        """What was read before is there, as far as this answer goes."""
        if any(sequence < last and sequence not in there for sequence in mine):
            return False
        return there.issuperset(self._back[: bisect_left(self._back, last)])

    def _has_new(self, there: set[int], last: int, highest_read: int) -> bool:
        """What was not read in this life is there, as far as this answer goes."""
        new = [sequence for sequence in there if sequence > highest_read]
        left = sum(sequence <= self._upto for sequence in new) if self._left else 0
        if left < self._left:  # nothing lies between neighbours; else what lies between is gone, or still to come
            return not new or (highest_read > 0 and last - highest_read == len(new))
        read_upto = max(highest_read, self._upto)
        return last <= read_upto or last - read_upto == sum(sequence > read_upto for sequence in new)

    def is_confirmed(self, messages: list[Message]) -> bool:
        """Whether an answer that is not as it should be is to be taken: it has come twice, or there is no other."""
        sequences = [message.sequence for message in messages]
        odd, self._odd = self._odd, sequences
        self._odd_count += 1
        both = min(len(odd), len(sequences))
        return self._odd_count >= MAX_ODD or (both > 0 and odd[:both] == sequences[:both])

    def on_read(self, messages: list[Message], highest_read: int) -> None:
        """An answer is taken; ``highest_read`` is what it was before."""
        self._odd_count = 0
        self._odd = []
        if not messages:
            return
        last = messages[-1].sequence
        if self._back:
            del self._back[: bisect_right(self._back, last)]
        if self._left:
            self._left -= sum(highest_read < message.sequence <= self._upto for message in messages)
            if self._left <= 0 or last > self._upto:
                self._left = 0

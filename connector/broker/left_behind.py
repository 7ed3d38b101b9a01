"""What is in a KubeMQ channel and is not its queue's: it lives on in a later generation, or was a deleted queue's.

Owns which Sequences those are, and until when that is so: KubeMQ deletes a channel that is idle for a day, and counts
from 1 again when it comes back.  What was stored well after the move or the deletion is of such a channel, whatever its
Sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.broker.generations import Left
    from connector.broker.ports import Answer

#: Both times are the server's, which it tells to the second; no channel goes for being idle so short.
GRACE_S = 30.0


class LeftBehind:
    """Of one channel; ``known_at`` is in seconds since the epoch, 0 when it is not known.

    ``copied``: Sequences that are stored again in a later generation, or acknowledged; ``gone_count`` of them are not
    there any more, as far as can be told, nobody knows which; ``outlived_upto``: up to this one all were a
    deleted queue's, and ``outlived_count`` of those are withheld.
    """

    __slots__ = ("copied", "gone_count", "known_at", "outlived_count", "outlived_upto")

    def __init__(self) -> None:
        self.copied: set[int] = set()
        self.clear()

    def __contains__(self, sequence: int) -> bool:
        return sequence in self.copied or sequence <= self.outlived_upto

    @property
    def upto(self) -> int:
        """The highest Sequence of them."""
        return max(self.outlived_upto, max(self.copied, default=0))

    def note(self, left: Left) -> None:
        """This is what the topology log says."""
        self.copied.update(left.copied)
        self.outlived_upto, self.outlived_count = left.upto, left.outlived
        self.known_at, self.gone_count = left.known_at, left.gone

    def missed_of(self, withheld: int) -> int:
        """How many of so many withheld messages somebody misses."""
        return max(0, withheld - len(self.copied) + self.gone_count - self.outlived_count)

    def is_over(self, answer: Answer) -> bool:
        """Whether the answer comes from a channel that was made anew since."""
        is_later = bool(self.known_at) and answer.oldest_at > self.known_at + GRACE_S
        return is_later and bool(answer.messages) and answer.messages[0].sequence <= self.upto

    def clear(self) -> None:
        """The channel was made anew."""
        self.copied.clear()
        self.outlived_upto = self.outlived_count = self.known_at = self.gone_count = 0

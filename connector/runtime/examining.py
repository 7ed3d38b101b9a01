"""Queues in doubt after a restart of KubeMQ: how many are examined at a time, and whether one takes longer than others.

Owns the limits, and the order of the Gets under way.  A queue that waits for its verdict has one message read, so many
may; a Get that waits for what KubeMQ does not give keeps one of the 200 inner clients that serve everybody, and a move
has a thousand messages in memory, so few may do these.
"""

from __future__ import annotations

import asyncio

#: So many Gets at a time do not slow each other down.
FEW = 4


class Examining:
    """``verdicts``: begun and not decided; ``reads``: reading a first message, or moving."""

    __slots__ = ("_asked", "_served", "_under_way", "reads", "verdicts")

    def __init__(self, verdicts: int = 256, reads: int = 32) -> None:
        self.verdicts = asyncio.Semaphore(verdicts)
        self.reads = asyncio.Semaphore(reads)
        self._asked = self._served = self._under_way = 0

    def ask(self) -> int:
        """A Get begins; returns its number."""
        self._asked += 1
        self._under_way += 1
        return self._asked

    def end(self, number: int, *, is_served: bool) -> None:
        """It has ended, perhaps with a message."""
        self._under_way -= 1
        if is_served:
            self._served = max(self._served, number)

    def is_late(self, number: int) -> bool:
        """Whether the reason is the queue's, not that everything is slow: a later Get was served, or few are there."""
        return self._under_way <= FEW or self._served > number

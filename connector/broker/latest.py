"""What QueuesInfo said last: good for what was idle all the time, and for a queue that is declared just afterwards.

Owns the rows of the last call and the moment it began; without it every declare would be a call of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.broker.backlog import NEVER

if TYPE_CHECKING:
    from connector.broker.ports import ChannelInfo, Clock

#: A count that began so long ago is asked for again (design.md section 3, point 2).
FRESH_S = 1.0


class Latest:
    """The last call's rows by reported name; ``since`` is when it began, the second for which it speaks."""

    def __init__(self, clock: Clock) -> None:
        self.since = NEVER
        self.rows: dict[str, list[ChannelInfo]] = {}
        self._clock = clock
        self._began = NEVER
        self._emptied_at = NEVER

    def begin(self) -> None:
        """A call begins."""
        self._began = self._clock()

    def on_rows(self, rows: dict[str, list[ChannelInfo]]) -> None:
        """It has answered."""
        self.since, self.rows = self._began, rows

    def on_emptied(self) -> None:
        """The channel of a deleted queue is empty: what was said of it before must not be taken for its successor's."""
        self._emptied_at = self._clock()

    def is_fresh(self) -> bool:
        """Whether the rows say how things stand, to the second."""
        return self.since > self._emptied_at and self._clock() - self.since <= FRESH_S

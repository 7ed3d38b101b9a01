"""How long the deliveries of one channel have been waiting for the client's word, and how long they may (CO-35).

Owns marks of (moment, highest delivery tag by then), a few dozen at most: nothing is noted per delivery, so a delivery
is known to be that old only some time later.  A consumer's timeout goes before its queue's, that before the
connector's; 0 is none.  Must not know what happens when one has passed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.session.ports import Queue
    from connector.session.unacked import Entry, Unacked

#: Marks are this far apart, as a part of the shortest timeout.
SPACING = 1 / 64


class AckTimes:
    """Fed from outside, some times per second, while anything is unacknowledged."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def __len__(self) -> int:
        return len(self._marks)

    def clear(self) -> None:
        """Nothing is waited for."""
        self._marks.clear()

    def note(self, now: float, first_tag: int, last_tag: int, timeout_s: float) -> None:
        """The deliveries waited for have these tags at most, the oldest and the newest; ``timeout_s`` as for marks."""
        marks = self._marks
        while marks and marks[0][1] < first_tag:
            marks.popleft()
        if not marks or (marks[-1][1] < last_tag and now - marks[-1][0] >= timeout_s * SPACING):
            marks.append((now, last_tag))

    def delivered_by(self, moment: float) -> int:
        """The highest tag that is known to have been delivered by then, 0 when none is."""
        tag = 0
        for noted, last_tag in self._marks:
            if noted > moment:
                break
            tag = last_tag
        return tag


class AckTimeout:
    """One channel's; ``default_s`` is the connector's timeout, times are monotonic seconds."""

    __slots__ = ("_default_s", "_shortest_s", "_times")

    def __init__(self, default_s: float) -> None:
        self._default_s = default_s
        self._shortest_s = 0.0  # of those in use
        self._times = AckTimes()

    def expect(self, timeout_s: float | None, queue: Queue) -> None:
        """Deliveries of this queue are on their way to somebody with this timeout (None: the queue's)."""
        timeout_s = self._choose(timeout_s, queue)
        if timeout_s and not 0 < self._shortest_s <= timeout_s:
            self._shortest_s = timeout_s

    def look(self, now: float, unacked: Unacked) -> float:
        """Return the timeout that some delivery has passed, 0 for none; to be called several times per second."""
        if not unacked or not self._shortest_s:
            self._times.clear()
            return 0.0
        first_tag, _ = next(iter(unacked))
        self._times.note(now, first_tag, unacked.last_tag, self._shortest_s)
        last_tag = self._times.delivered_by(now - self._shortest_s)
        if last_tag < first_tag:
            return 0.0
        for tag, entry in unacked:
            timeout_s = self._timeout_s(entry)
            if timeout_s and self._times.delivered_by(now - timeout_s) >= tag:
                return timeout_s
            if tag >= last_tag:
                break
        return 0.0

    def _timeout_s(self, entry: Entry) -> float:
        queue, _, consumer = entry
        return self._choose(None if consumer is None else consumer.timeout_s, queue)

    def _choose(self, timeout_s: float | None, queue: Queue) -> float:
        if timeout_s is None:
            timeout_s = queue.consumer_timeout_s
        return self._default_s if timeout_s is None else timeout_s

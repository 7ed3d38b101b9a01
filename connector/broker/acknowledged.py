"""Identities a lease remembers after it is done with them: acknowledged messages, and stores that were repeated.

A crashed server may forget its last acknowledgements, and a store whose result was unknown is sent again with the
same MessageID; both make a message appear twice.  Bounded memory; design.md section 3, points 6, 9 and 12.
"""

from __future__ import annotations

#: How many identities one generation holds; two generations are kept.
CAPACITY = 4096
#: How many MessageIDs are remembered that were stored again.
KNOWN_CAPACITY = 16_384
_UNSEEN = (-1, 0)
#: Stands for the Sequence of a copy that is yet to be seen.
_NEXT = -1


class Acknowledged:
    """The last few thousand acknowledged (Sequence, MessageID) pairs of one KubeMQ channel."""

    __slots__ = ("_before", "_now")

    def __init__(self) -> None:
        self._now: dict[int, str] = {}
        self._before: dict[int, str] = {}

    def add(self, sequence: int, message_id: str) -> None:
        """Remember one acknowledged message."""
        if len(self._now) >= CAPACITY:
            self._before, self._now = self._now, {}
        self._now[sequence] = message_id

    def sequences(self) -> dict[str, int]:
        """Sequence by MessageID of everything remembered."""
        return {message_id: sequence for pile in (self._before, self._now) for sequence, message_id in pile.items()}

    def knows(self, sequence: int, message_id: str) -> bool:
        """True when exactly this message was acknowledged before."""
        return self._now.get(sequence) == message_id or self._before.get(sequence) == message_id


class Repeated:
    """MessageIDs that were stored again after an unknown result: only the first copy seen counts.

    One for all channels of a queue: the second copy may be in another one.  Those that are known to be repeated are
    kept until they are read, however long the queue is.  Of what an earlier life stored any may be, but copies lie
    close together: a window is enough.
    """

    __slots__ = ("_known", "_passing")

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}
        self._passing: dict[str, tuple[int, int]] = {}

    def watch(self, message_id: str, sequence: int = 0, generation: int = 0) -> None:
        """A second copy of this MessageID may turn up; ``sequence`` is the first's, if that was read already."""
        passed = self._passing.pop(message_id, _UNSEEN)
        _add(self._known, KNOWN_CAPACITY, message_id, (generation, sequence) if sequence else passed)

    def watch_passing(self, message_id: str) -> None:
        """The same of a message that is read at this moment, and of which nobody knows."""
        if message_id not in self._known:
            _add(self._passing, CAPACITY, message_id, _UNSEEN)

    def renew(self, message_id: str) -> None:
        """The first copy may have been stored elsewhere: which one is seen first is open again."""
        self._replace(message_id, _UNSEEN)

    def pass_on(self, message_id: str, generation: int) -> None:
        """The first copy has been stored in another generation: the next one seen there is the first."""
        self._replace(message_id, (generation, _NEXT))

    def _replace(self, message_id: str, first: tuple[int, int]) -> None:
        for pile in (self._known, self._passing):
            if message_id in pile:
                pile[message_id] = first

    def settle(self, message_id: str, sequence: int, generation: int) -> None:
        """This one is done with: any other copy is a second one."""
        self.watch(message_id)
        self._known[message_id] = (generation, sequence)

    def is_second(self, sequence: int, message_id: str, generation: int = 0) -> bool:
        """True when another message with this MessageID was seen before; notes the first."""
        pile = self._known if message_id in self._known else self._passing
        first = pile.get(message_id)
        if first is None:
            return False
        if first is _UNSEEN or first == (generation, _NEXT):
            pile[message_id] = (generation, sequence)
            return False
        return first != (generation, sequence)


def _add(pile: dict[str, tuple[int, int]], capacity: int, message_id: str, first: tuple[int, int]) -> None:
    if len(pile) >= capacity:
        del pile[next(iter(pile))]
    pile.setdefault(message_id, first)

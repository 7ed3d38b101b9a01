"""The consumers of one queue: who may attach, and whose turn it is.

Owns the order in which they are served: round robin (CO-03), the full ones skipped (CO-04), higher priorities first
while they have room (CO-33); or only one of them, and who follows it when it goes (CO-34).  Also who excludes whom
(CO-28).  Knows no messages and no queue.  Source: ``rabbit_queue_consumers`` of RabbitMQ 3.10.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connector.broker.ports import Consumer


class Rank:
    """The consumers of one priority, served in turn; who is found full loses its turn, and is last when it has room."""

    __slots__ = ("_full", "_turns", "members", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.members: list[Consumer] = []
        self._turns: deque[Consumer] = deque()
        self._full: list[Consumer] = []

    def begin_round(self) -> None:
        """Look again at the full ones: room comes with what clients send, not while messages are handed out."""
        if self._full:
            self._wake()

    def next(self) -> Consumer | None:
        """The one whose turn it is; a full one is skipped, and passed over until the next round."""
        turns = self._turns
        while turns:
            consumer = turns.popleft()
            if consumer.free_credit() > 0:
                turns.append(consumer)
                return consumer
            self._full.append(consumer)
        return None

    def room(self, enough: int) -> int:
        """How many messages those take now who were not found full; not counted beyond ``enough``."""
        room = 0
        for consumer in self._turns:
            room += max(0, consumer.free_credit())
            if room >= enough:
                break
        return room

    def add(self, consumer: Consumer) -> None:
        """Its turn is after all others'."""
        self._wake()
        self.members.append(consumer)
        self._turns.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Take it out; whose turn it is stays."""
        self.members.remove(consumer)
        (self._full if consumer in self._full else self._turns).remove(consumer)

    def _wake(self) -> None:
        """Who has room again is last."""
        woken = [consumer for consumer in self._full if consumer.free_credit() > 0]
        for consumer in woken:
            self._full.remove(consumer)
            self._turns.append(consumer)


class Consumers:
    """All consumers take part; ``next`` returns the one to serve now, or None when nobody has room."""

    is_single_active = False

    def __init__(self) -> None:
        self._ranks: list[Rank] = []  # highest priority first, none of them empty
        self.next: Callable[[], Consumer | None] = self._nobody

    def __len__(self) -> int:
        return sum([len(rank.members) for rank in self._ranks])

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def __iter__(self) -> Iterator[Consumer]:
        return (consumer for rank in self._ranks for consumer in rank.members)

    def admits(self, consumer: Consumer) -> bool:
        """False when one side wants the queue for itself."""
        return not self._ranks or not (consumer.exclusive or self._ranks[0].members[0].exclusive)

    def add(self, consumer: Consumer) -> None:
        """The last in its rank."""
        ranks = self._ranks
        at = 0
        while at < len(ranks) and ranks[at].priority > consumer.priority:
            at += 1
        if at == len(ranks) or ranks[at].priority != consumer.priority:
            ranks.insert(at, Rank(consumer.priority))
        ranks[at].add(consumer)
        self._choose()

    def remove(self, consumer: Consumer) -> bool:
        """False when it is not there."""
        for rank in self._ranks:
            if rank.priority == consumer.priority and consumer in rank.members:
                rank.remove(consumer)
                if not rank.members:
                    self._ranks.remove(rank)
                self._choose()
                return True
        return False

    def begin_round(self) -> None:
        """Messages are about to be handed out: ``next`` follows for each of them."""
        for rank in self._ranks:
            rank.begin_round()

    def credit(self) -> int:
        """How many messages all of them could take now."""
        return sum([consumer.free_credit() for consumer in self])

    def has_room(self, count: int) -> bool:
        """Whether so many messages could be handed out now, as far as is known without asking the full ones."""
        for rank in self._ranks:
            count -= rank.room(count)
            if count <= 0:
                return True
        return False

    def _choose(self) -> None:
        """Pick how to find the next one: straight from the only rank where there are no priorities."""
        ranks = self._ranks
        self.next = ranks[0].next if len(ranks) == 1 else self._next_by_rank if ranks else self._nobody

    def _next_by_rank(self) -> Consumer | None:
        for rank in self._ranks:
            consumer = rank.next()
            if consumer is not None:
                return consumer
        return None

    def _nobody(self) -> Consumer | None:
        return None


class SingleActive(Consumers):
    """Only one is served; when it goes the next follows, the oldest of the highest priority.

    Not before the client of the one that went has decided about all it still holds: order is what this is for.  (Its
    channel's end decides, too.)
    """

    is_single_active = True

    def __init__(self) -> None:
        super().__init__()
        self._active: Consumer | None = None
        self._leaving: Consumer | None = None

    def admits(self, consumer: Consumer) -> bool:
        """Nobody may want the queue for itself."""
        return not consumer.exclusive

    def add(self, consumer: Consumer) -> None:
        """As above; the first of all is the active one."""
        super().add(consumer)
        self._promoted()

    def remove(self, consumer: Consumer) -> bool:
        """As above."""
        was_there = super().remove(consumer)
        if consumer is self._active:
            self._active = None
            self._leaving = consumer
        return was_there

    def credit(self) -> int:
        """How many messages the active one could take now."""
        active = self._promoted()
        return 0 if active is None else active.free_credit()

    def has_room(self, count: int) -> bool:
        """As above."""
        return self.credit() >= count

    def _choose(self) -> None:
        self.next = self._next_active

    def _next_active(self) -> Consumer | None:
        active = self._promoted()
        return None if active is None or active.free_credit() <= 0 else active

    def _promoted(self) -> Consumer | None:
        """The active one; a new one if it may take over now."""
        if self._active is None and self._ranks and (self._leaving is None or not self._leaving.held_count):
            self._leaving = None
            self._active = self._ranks[0].members[0]
        return self._active

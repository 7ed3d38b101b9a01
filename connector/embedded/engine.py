"""Queues in memory: who holds which message, who gets the next, what comes back; no I/O, no clock, no asyncio.

Owns the queue group of every channel as KubeMQ keeps it: members (one per open transaction), what was handed out and
is unacknowledged, and what was given back.  Bodies and durability are others' business: it works on Sequences, tells
the storage what is settled, and asks ``schedule`` for the one delay there is.  Rule: the queue groups of KubeMQ 2.4.0,
measured by the contract suite; ``Quirks`` says which of its habits are on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from heapq import merge
from typing import Protocol

from connector.embedded.cache import RecordCache
from connector.embedded.quirks import Quirks
from connector.embedded.records import Record


class Storage(Protocol):
    """What the engine tells the disk, without waiting for it."""

    def forget(self, channel_id: int, sequences: Collection[int]) -> None:
        """These are settled: delete them soon."""

    def mark(self, channel_id: int, sequence: int) -> None:
        """The highest Sequence handed out has risen to this."""


Schedule = Callable[[float, Callable[[], object]], object]
"""Call a function after so many seconds."""


class Member:
    """One open subscription to a queue: a transaction, a purge, a peek.

    ``pending`` is what was handed to it and is not settled.  ``on_messages`` gets Sequences as they arrive and must
    not call the engine.  ``fills``: takes more until it is full.  ``satisfied``: takes nothing more (only without the
    quirk ``parks``).
    """

    __slots__ = ("channel", "fills", "last_sent", "max_items", "on_messages", "pending", "satisfied")

    def __init__(
        self, channel: QueueChannel, max_items: int, on_messages: Callable[[Sequence[int]], None], fills: bool = False
    ) -> None:
        self.channel = channel
        self.fills = fills
        self.max_items = max_items
        self.on_messages = on_messages
        self.pending: dict[int, None] = {}
        self.last_sent = 0
        self.satisfied = False

    def room(self) -> int:
        """How many more messages it may be handed."""
        return 0 if self.satisfied else self.max_items - len(self.pending)


class QueueChannel:
    """One queue: Sequences 1..``last_sequence`` are stored, 1..``last_sent`` were handed out at least once.

    ``returned`` (ascending) was handed out and given back, and is held by no member.  A queue without a member
    remembers that it once had one (``was_read``), as KubeMQ counts a subscriber there.
    """

    def __init__(self, name: str, channel_id: int, cache: RecordCache) -> None:
        self.name = name
        self.channel_id = channel_id
        self.last_sequence = 0
        self.last_sent = 0
        self.stored_bytes = 0
        self.members: list[Member] = []
        self.returned: list[int] = []
        self.was_read = False
        self.shelf = cache.shelf()

    def waiting(self) -> int:
        """Stored and not acknowledged: ready, given back, or held."""
        held = sum(len(member.pending) for member in self.members)
        return len(self.returned) + held + self.last_sequence - self.last_sent

    def subscribers(self) -> int:
        """Open members; 1 where there was one and is none now."""
        return len(self.members) or int(self.was_read)

    def delivered(self) -> int:
        """KubeMQ's sum over subscribers of the highest Sequence each was handed, counted from the first kept one."""
        first = min(1, self.last_sequence)
        seen = [member.last_sent for member in self.members] if self.members else [self.last_sent] * self.was_read
        return sum(last_sent - first + 1 for last_sent in seen if last_sent >= first)


def _nobody_reads(_sequences: Sequence[int]) -> None:
    """Whoever it was for is dead."""


class Engine:
    """All queues of the server."""

    def __init__(self, storage: Storage, quirks: Quirks, schedule: Schedule, cache: RecordCache) -> None:
        self.channels: dict[str, QueueChannel] = {}
        self.on_members: Callable[[QueueChannel], object] | None = None  # told when a queue's members change
        self.cache = cache
        self._storage = storage
        self._quirks = quirks
        self._schedule = schedule

    def add(self, channel: QueueChannel) -> None:
        """Take over a new or a recovered channel."""
        self.channels[channel.name] = channel

    def remove(self, channel: QueueChannel) -> None:
        """Forget a channel that has no members."""
        del self.channels[channel.name]
        self.cache.discard(channel.shelf)
        self._storage.mark(channel.channel_id, 0)

    def stored(self, channel: QueueChannel, first_sequence: int, records: Sequence[Record]) -> None:
        """Records are durable from ``first_sequence`` on: show them, and hand them to whoever waits."""
        put, shelf, size = self.cache.put, channel.shelf, 0
        for sequence, record in enumerate(records, first_sequence):
            put(shelf, sequence, record)
            size += len(record.data)
        channel.last_sequence += len(records)
        channel.stored_bytes += size
        if channel.members:
            self._deliver(channel)

    def join(
        self, channel: QueueChannel, max_items: int, on_messages: Callable[[Sequence[int]], None], fills: bool = False
    ) -> Member:
        """Open a member with room for ``max_items`` and hand it what is there at once."""
        member = Member(channel, max_items, on_messages, fills)
        alone = not channel.members
        channel.members.append(member)
        channel.was_read = True
        if alone:
            member.last_sent = channel.last_sent
            if self._quirks.returns_all and channel.returned:
                back, channel.returned = channel.returned, []
                member.pending.update(dict.fromkeys(back))
                on_messages(back)
        self._deliver(channel)
        if self.on_members is not None:
            self.on_members(channel)
        return member

    def satisfy(self, member: Member) -> None:
        """It has waited long enough: it takes nothing more (unless it parks)."""
        member.satisfied = not self._quirks.parks

    def resurrect(self, channel: QueueChannel, max_items: int) -> Member:
        """A member of an earlier life, with what it had unsettled: first of all that was given back by its death."""
        member = Member(channel, max_items, _nobody_reads)
        channel.members.append(member)
        channel.was_read = True
        member.last_sent = channel.last_sent
        member.pending.update(dict.fromkeys(channel.returned[:max_items]))
        del channel.returned[:max_items]
        return member

    def settle(self, member: Member, sequences: Collection[int], *, forget: bool = True) -> None:
        """Acknowledge some of what the member holds, each once; ``forget``: the storage does not know yet."""
        channel, pending = member.channel, member.pending
        if len(sequences) == len(pending) and all(map(pending.__contains__, sequences)):
            pending.clear()
        else:
            for sequence in sequences:
                pending.pop(sequence, None)
        self.cache.forget(channel.shelf, sequences)
        if forget and sequences:
            self._storage.forget(channel.channel_id, sequences)
        if self._quirks.parks:
            self._deliver(channel)

    def give_back(self, channel: QueueChannel, sequences: Iterable[int]) -> None:
        """Undo ``settle`` where the storage never heard of it: the messages are the queue's again, in their place."""
        channel.returned = sorted({*channel.returned, *sequences})
        self._deliver(channel)

    def drop(self, channel: QueueChannel, sequences: Collection[int]) -> None:
        """These do not exist: nobody holds or gets them."""
        channel.returned = [sequence for sequence in channel.returned if sequence not in sequences]
        for member in channel.members:
            for sequence in sequences:
                member.pending.pop(sequence, None)
        self.cache.forget(channel.shelf, sequences)
        self._deliver(channel)

    def leave(self, member: Member) -> None:
        """Close a member; what it holds goes back into its place, or (a quirk) to the other members."""
        channel, members = member.channel, member.channel.members
        members.remove(member)
        orphans = sorted(member.pending)
        if members and member.last_sent == channel.last_sent:
            members[0].last_sent = channel.last_sent
        if not members or not self._quirks.hand_over_ms:
            if orphans:
                channel.returned = list(merge(channel.returned, orphans)) if channel.returned else orphans
        else:
            self._hand_over(channel, orphans)
        if members:
            self._deliver(channel)
        if self.on_members is not None:
            self.on_members(channel)

    def records(self, channel: QueueChannel, sequences: Iterable[int]) -> list[Record | None]:
        """The cached records of these Sequences, None where the body must be read from disk."""
        return list(map(channel.shelf.records.get, sequences))

    def _deliver(self, channel: QueueChannel) -> None:
        """Hand out what is given back, then what is new, while a member has room."""
        before = channel.last_sent
        while channel.returned or channel.last_sent < channel.last_sequence:
            member = self._next_member(channel)
            if member is None:
                break
            share = self._quirks.parks and len(channel.members) > 1
            self._hand_out(channel, member, 1 if share else member.room())
        if channel.last_sent != before:
            self._storage.mark(channel.channel_id, channel.last_sent)

    def _hand_out(self, channel: QueueChannel, member: Member, count: int) -> None:
        batch: Sequence[int]
        if channel.returned:
            batch = channel.returned[:count]
            del channel.returned[:count]
            count -= len(batch)
            member.last_sent = max(member.last_sent, batch[-1])
        else:
            batch = ()
        fresh = range(channel.last_sent + 1, min(channel.last_sent + count, channel.last_sequence) + 1)
        if fresh:
            channel.last_sent = member.last_sent = fresh[-1]
            batch = [*batch, *fresh] if batch else fresh
        member.pending.update(dict.fromkeys(batch))
        if not member.fills or not member.room():
            self.satisfy(member)
        member.on_messages(batch)

    def _next_member(self, channel: QueueChannel) -> Member | None:
        """The member with room and the fewest pending; without the quirk, the one that waits longest."""
        members = channel.members
        open_ones = [member for member in members if member.room() > 0]
        if not open_ones:
            return None
        if not self._quirks.parks:
            return open_ones[0]
        best = min(open_ones, key=lambda member: len(member.pending))
        if best is members[0] and len(members) > 1:
            members.append(members.pop(0))
        return best

    def _hand_over(self, channel: QueueChannel, orphans: list[int]) -> None:
        """Spread what a closed member held over the others; they are told after ``hand_over_ms``."""
        members = channel.members
        heirs: dict[Member, list[int]] = {}
        for turn, sequence in enumerate(orphans):
            heir = members[turn % len(members)]
            heir.pending[sequence] = None
            heir.last_sent = max(heir.last_sent, sequence)
            heirs.setdefault(heir, []).append(sequence)
        for heir, share in heirs.items():
            self._schedule(self._quirks.hand_over_ms / 1000, partial(self._redeliver, channel, heir, share))

    def _redeliver(self, channel: QueueChannel, heir: Member, share: Iterable[int]) -> None:
        """Hand what an heir took over to the member with most room, be it the heir itself; full ones take it too."""
        members = channel.members
        if heir not in members:
            return
        for sequence in share:
            if sequence not in heir.pending:
                continue
            taker = self._next_member(channel) or members[0]
            if taker is not heir:
                del heir.pending[sequence]
                taker.pending[sequence] = None
                taker.last_sent = max(taker.last_sent, sequence)
            taker.on_messages((sequence,))
        self._deliver(channel)

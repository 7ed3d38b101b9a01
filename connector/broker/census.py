"""What is stored in KubeMQ, as far as is known: QueuesInfo's rows, brought to the channels of our queues.

Owns which channels there are by the name that KubeMQ reports, which queues are not idle, and the last rows; counters
are the leases' own (``backlog.py``).  Rules: design.md section 3, point 2, and section 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from connector.broker.backlog import NEVER
from connector.broker.latest import Latest
from connector.broker.ports import ChannelInfo
from mapping import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connector.broker.backlog import Snapshot
    from connector.broker.ports import Clock
    from connector.broker.queue import Queue, StoredQueue
    from connector.broker.recovery import Recovery
    from connector.broker.sources import Source

#: What QueuesInfo would say of a channel that it does not list.
_NO_CHANNEL = ChannelInfo("", 0, 0, 0, 0, 0)


class Looked(NamedTuple):
    """What QueuesInfo says of one channel; ``waiting`` is None where its reported name is shared."""

    waiting: int | None
    subscribers: int
    last_sequence: int


class Census:
    """One replica's; the broker adds what happens then."""

    clock: Clock
    recovery: Recovery

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._latest = Latest(clock)
        self._active: dict[StoredQueue, None] = {}  # all but the idle ones: what QueuesInfo is compared with
        self._by_reported_name: dict[str, list[Source]] = {}
        self.found_more = False  #: the last call had messages that nobody has told us of, and more may come
        self._indexed: tuple[list[ChannelInfo], dict[str, list[ChannelInfo]]] = ([], {})  # of one call, for many queues

    def mark_dirty(self, queue: Queue) -> None:
        """Dispatch this queue at the end of the batch."""
        raise NotImplementedError

    def refresh_counts(self, done: Callable[[], None]) -> None:
        """Call ``done`` after a new call."""
        raise NotImplementedError

    def report(self, what: str, **facts: object) -> None:
        """Tell an operator."""
        raise NotImplementedError

    def needs_poll(self) -> bool:
        """True while a native message could be waited for: a queue has consumers, holds a transaction, or is purged.

        Also before the first count of a queue that is ours since another connector is gone.
        """
        return any(
            queue.consumers
            or source.lease.mine_count
            or source.lease.counts.purge_left
            or source.lease.counts.known_at == NEVER
            for queue in self._active
            if queue.is_owned
            for source in queue.sources
        )

    def sources(self) -> Iterator[Source]:
        """Every channel of every stored queue, of deleted ones that are being emptied too."""
        return iter([source for group in self._by_reported_name.values() for source in group])

    def stored_queues(self) -> Iterator[StoredQueue]:
        """Every queue with a KubeMQ channel, deleted ones that are being emptied too."""
        return (source.queue for source in self.sources() if source.is_current)

    def add_source(self, source: Source) -> None:
        """One more channel is counted."""
        self._by_reported_name.setdefault(names.reported_name(source.kubemq_channel), []).append(source)

    def remove_source(self, source: Source) -> None:
        """A channel is not counted any more."""
        name = names.reported_name(source.kubemq_channel)
        group = self._by_reported_name.get(name, [])
        if source in group:
            group.remove(source)
        if not group:
            self._by_reported_name.pop(name, None)

    def begin_snapshot(self) -> list[tuple[Source, Snapshot]]:
        """Note the counters of every lease that is not idle: a QueuesInfo call begins."""
        self._latest.begin()
        return [(source, source.lease.begin_snapshot()) for queue in self._active for source in queue.sources]

    def on_snapshot(self, began: list[tuple[Source, Snapshot]], rows: list[ChannelInfo]) -> None:
        """QueuesInfo has answered: correct every lease's known backlog.

        KubeMQ trims reported names; where several of our queues share one, only the first sight uses the numbers
        (the largest), afterwards the counters alone are right (design.md section 6).
        """
        found = _by_name(rows)
        self._latest.on_rows(found)
        self.found_more = False
        seen = set()
        for source, mark in began:
            name = names.reported_name(source.kubemq_channel)
            seen.add(name)
            self._count(source, mark, found.get(name, []))
            if not source.is_current:
                self.recovery.retire(source)
            if source.lease.backlog or source.lease.counts.is_unclear:
                self.mark_dirty(source.queue)
            elif source.queue.is_idle:
                self._active.pop(source.queue, None)
        for name in found.keys() - seen:  # what natives have put into queues that were idle
            candidates = found[name]
            for source in self._by_reported_name.get(name, ()):
                if source.queue not in self._active and source.queue.is_owned:
                    self._count(source, self._begun_before(source), candidates)
                    if source.lease.backlog:
                        self._active[source.queue] = None
        self.recovery.log_server()

    def _begun_before(self, source: Source) -> Snapshot:
        """For the last call, of a channel that nobody has touched since that began."""
        return source.lease.begin_snapshot()._replace(began_at=self._latest.since)

    def count_new(self, queue: StoredQueue) -> None:
        """Nobody can have used a queue that was made this moment: its first count may be a second old."""
        latest, source = self._latest, queue.current
        if latest.is_fresh() and not queue.older and not source.generation:
            found = latest.rows.get(names.reported_name(source.kubemq_channel), [])
            self._count(source, self._begun_before(source), found)
            source.lease.counts.known_at = latest.since

    def counted_at(self, queue: StoredQueue) -> float:
        """When the queue was counted last: all that are idle are counted by every call."""
        known_at = queue.lease.counts.known_at
        if queue in self._active or known_at == NEVER:
            return known_at
        return max(known_at, self._latest.since)

    def waiting_in(self, source: Source) -> int | None:
        """What the last call said of a channel that others read, or nobody; None where its reported name is shared."""
        name = names.reported_name(source.kubemq_channel)
        found = self._latest.rows.get(name, [])
        is_shared = len(self._by_reported_name.get(name, ())) > 1 or len(found) > 1
        return None if is_shared else sum([row.waiting for row in found])

    def look(self, source: Source, rows: list[ChannelInfo]) -> Looked:
        """What these rows say of one channel."""
        name = names.reported_name(source.kubemq_channel)
        found = self._index(rows).get(name, [])
        is_shared = len(self._by_reported_name.get(name, ())) > 1 or len(found) > 1
        subscribers = max([row.subscribers for row in found], default=0)
        last_sequence = max([row.last_sequence for row in found], default=0)
        return Looked(None if is_shared else sum(row.waiting for row in found), subscribers, last_sequence)

    def count(self, source: Source, began: Snapshot, rows: list[ChannelInfo]) -> int | None:
        """As ``on_snapshot`` for one channel; returns what is waiting, None when the reported name is shared."""
        return self._count(source, began, self._index(rows).get(names.reported_name(source.kubemq_channel), []))

    def _index(self, rows: list[ChannelInfo]) -> dict[str, list[ChannelInfo]]:
        if rows is not self._indexed[0]:
            self._indexed = (rows, _by_name(rows))
        return self._indexed[1]

    def _count(self, source: Source, mark: Snapshot, candidates: list[ChannelInfo]) -> int | None:
        lease = source.lease
        group = self._by_reported_name.get(names.reported_name(source.kubemq_channel), ())
        is_shared = len(group) > 1 or len(candidates) > 1
        if is_shared and lease.counts.known_at > NEVER:
            lease.counts.on_counted(self.clock(), mark)
            return None  # nor is it known whose subscribers they are
        most = max(candidates, key=lambda info: info.waiting, default=_NO_CHANNEL)
        lease.on_first_sight(most, is_known=not is_shared)
        # while a queue is copied its reader has several transactions open: the count says nothing then
        subscribers = max([info.subscribers for info in candidates], default=0) if source.move is None else 0
        last_sequence = None if is_shared else most.last_sequence
        if lease.on_snapshot(most.waiting, mark, last_sequence, subscribers):
            self._on_sharing(source, subscribers)
        self.found_more = self.found_more or lease.counts.found_more
        if lease.is_doubtful:
            self.recovery.look(source)
        return None if is_shared else max(0, most.waiting - lease.counts.withheld)

    def _on_sharing(self, source: Source, subscribers: int) -> None:
        """Somebody else reads the channel, perhaps, or no longer."""
        sharing = source.lease.sharing
        if sharing.is_on and not sharing.is_certain:
            self.refresh_counts(lambda: None)
        else:
            what = "channel is read by others" if sharing.is_on else "channel is read by us alone"
            self.report(what, kubemq_channel=source.kubemq_channel, subscribers=subscribers)
        self.mark_dirty(source.queue)


def _by_name(rows: list[ChannelInfo]) -> dict[str, list[ChannelInfo]]:
    found: dict[str, list[ChannelInfo]] = {}
    for row in rows:
        found.setdefault(row.name, []).append(row)
    return found

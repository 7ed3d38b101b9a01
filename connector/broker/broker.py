"""The broker: virtual hosts, what is dirty, outboxes, and the topology log's fold.

Owns no task: the runtime sets the hooks (``Hooks``), feeds in what KubeMQ answers, and calls ``dispatch`` once after
every batch.  Everything here is synchronous, so every handler is atomic.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from connector.broker.backlog import NEVER
from connector.broker.counters import Counters
from connector.broker.errors import NotFound
from connector.broker.generations import Generations
from connector.broker.latest import Latest
from connector.broker.outbox import Outbox
from connector.broker.ports import ChannelInfo, TimedOut
from connector.broker.queue import Queue, StoredQueue
from connector.broker.recovery import Recovery
from connector.broker.snapshots import Assembly, is_snapshot, replay, split
from connector.broker.topology import (
    VERSION,
    ExchangeRecord,
    Observer,
    QueueRecord,
    Topology,
    encode_event,
    name_event,
    queue_deleted,
)
from connector.broker.vhost import VirtualHost
from mapping import names
from mapping.message_ids import MessageIds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connector.broker.backlog import Snapshot
    from connector.broker.exchanges.binding import BindingKey
    from connector.broker.ports import Clock, Done
    from connector.broker.sources import Source

#: A snapshot of the topology is written after so many events, or half as many as there are objects if that is more.
SNAPSHOT_EVENTS = 1000
#: A deletion of what an earlier life left over is tried again after this.
LEFTOVER_RETRY_S = 0.5
DEFAULT_VHOST = "default"
#: What QueuesInfo would say of a channel that it does not list.
_NO_CHANNEL = ChannelInfo("", 0, 0, 0, 0, 0)


class Hooks(Protocol):
    """What the runtime does for the broker."""

    def wake_lane(self, lane: int) -> None:
        """The outbox of this lane is no longer empty."""

    def wake_reader(self, queue: StoredQueue) -> None:
        """The queue's lease may have a step to perform."""

    def refresh_counts(self, done: Callable[[], None]) -> None:
        """Call ``done`` after a QueuesInfo call that begins after this, or after a short deadline."""

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run ``action`` later, followed by a dispatch."""

    def append_event(self, event_id: str, data: bytes) -> None:
        """Append to the topology log; on failure ``Broker.on_append_failed`` follows."""

    def report(self, what: str, **facts: object) -> None:
        """Tell an operator, who should know."""


class Settings(Protocol):
    """What of the configuration the broker itself needs."""

    lanes: int
    get_batch: int
    requeues_in_place: bool
    memory_limit_bytes: int
    vhosts: list[str]


class Broker(Observer):
    """One replica's broker; ``replica`` is 12 hexadecimal digits, new at every start."""

    def __init__(self, settings: Settings, clock: Clock, hooks: Hooks, counters: Counters | None = None) -> None:
        self.clock = clock
        self.counters = counters or Counters()
        self.replica = secrets.token_hex(6)
        self.get_batch = settings.get_batch
        self.requeues_in_place = settings.requeues_in_place
        self.memory_bytes = 0
        self.memory_limit_bytes = settings.memory_limit_bytes
        self.is_full = False
        self.hub = self
        self.topology = Topology(self)
        self.outboxes = [Outbox(lambda lane=lane: hooks.wake_lane(lane)) for lane in range(settings.lanes)]  # type: ignore[misc]
        self.is_loaded = False
        self.leftover_count = 0  # non-durable things of an earlier life that are not deleted yet
        self._hooks = hooks
        self._ids = MessageIds(self.replica)
        self.next_message_id = self._ids.next
        self._dirty: deque[Queue] = deque()
        self._event_no = 0
        self._appending: dict[str, tuple[Done, float]] = {}
        self._draining: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._loading: list[tuple[int, dict[str, Any]]] = []
        self._assembly = Assembly(keep=False)
        self.log_start = 0  # who reads the log from this Sequence on knows all; 0 before we know it ourselves
        self._by_reported_name: dict[str, list[Source]] = {}
        self._indexed: tuple[list[ChannelInfo], dict[str, list[ChannelInfo]]] = ([], {})  # of one call, for many queues
        self._latest = Latest(clock)
        self._active: dict[StoredQueue, None] = {}  # all but the idle ones: what QueuesInfo is compared with
        self.recovery = Recovery(self)
        #: by the label of ``mapping.names``: "/", "" and "default" are one
        self.vhosts: dict[str, VirtualHost] = {}
        for name in (DEFAULT_VHOST, *settings.vhosts):
            self._vhost(name)

    def virtual_host(self, name: str) -> VirtualHost:
        """The virtual host a client names; "/", "" and the default's own name are the same (PC-07)."""
        vhost = self.vhosts.get(names.vhost_label(name))
        if vhost is None:
            raise NotFound(f"vhost {name} not found")
        return vhost

    # ------------------------------------------------------------------ batches

    def mark_dirty(self, queue: Queue) -> None:
        """Dispatch this queue at the end of the batch."""
        if not queue.is_dirty:
            queue.is_dirty = True
            self._dirty.append(queue)
            if isinstance(queue, StoredQueue):
                self._active[queue] = None

    def dispatch(self) -> None:
        """Hand out ready messages of every dirty queue; what that makes dirty too."""
        dirty = self._dirty
        while dirty:  # should one fail, the others are still there for the next time
            dirty.popleft().dispatch()

    def wake_reader(self, queue: StoredQueue) -> None:
        """See ``Hooks``."""
        self._hooks.wake_reader(queue)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """See ``Hooks``."""
        self._hooks.call_later(delay_s, action)

    def refresh_counts(self, done: Callable[[], None]) -> None:
        """See ``Hooks``."""
        self._hooks.refresh_counts(done)

    def on_unused(self, queue: Queue) -> None:
        """An auto-delete queue lost its last consumer."""
        self._vhost(queue.record.vhost).on_unused(queue)

    # ------------------------------------------------------------------ counting

    def needs_poll(self) -> bool:
        """True while a native message could be waited for: a queue has consumers, holds a transaction, or is purged."""
        return any(
            queue.consumers or source.lease.mine_count or source.lease.counts.purge_left
            for queue in self._active
            for source in queue.sources
        )

    def sources(self) -> Iterator[Source]:
        """Every channel of every stored queue, of deleted ones that are being emptied too."""
        return (source for group in self._by_reported_name.values() for source in group)

    def stored_queues(self) -> Iterator[StoredQueue]:
        """Every queue with a KubeMQ channel, deleted ones that are being emptied too."""
        return (source.queue for source in self.sources() if source.is_current)

    def add_source(self, source: Source) -> None:
        """One more channel is counted."""
        self._by_reported_name.setdefault(names.reported_name(source.kubemq_channel), []).append(source)

    def remove_source(self, source: Source) -> None:
        """A channel is not counted any more."""
        group = self._by_reported_name.get(names.reported_name(source.kubemq_channel), [])
        if source in group:
            group.remove(source)

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
        seen = set()
        for source, mark in began:
            name = names.reported_name(source.kubemq_channel)
            seen.add(name)
            self._count(source, mark, found.get(name, []))
            if not source.is_current:
                self.recovery.retire(source)
            if source.lease.backlog:
                self.mark_dirty(source.queue)
            elif source.queue.is_idle:
                self._active.pop(source.queue, None)
        for name in found.keys() - seen:  # what natives have put into queues that were idle
            candidates = found[name]
            for source in self._by_reported_name.get(name, ()):
                if source.queue not in self._active:
                    self._count(source, source.lease.begin_snapshot(), candidates)
                    if source.lease.backlog:
                        self._active[source.queue] = None

    def count_new(self, queue: StoredQueue) -> None:
        """Nobody can have used a queue that was made this moment: its first count may be a second old."""
        latest, source = self._latest, queue.current
        if latest.is_fresh() and not queue.older and not source.generation:
            found = latest.rows.get(names.reported_name(source.kubemq_channel), [])
            self._count(source, source.lease.begin_snapshot(), found)
            source.lease.counts.known_at = latest.since

    def counted_at(self, queue: StoredQueue) -> float:
        """When the queue was counted last: all that are idle are counted by every call."""
        known_at = queue.lease.counts.known_at
        if queue in self._active or known_at == NEVER:
            return known_at
        return max(known_at, self._latest.since)

    def look(self, source: Source, rows: list[ChannelInfo]) -> tuple[int | None, int]:
        """What these rows say of one channel: (waiting, None when its reported name is shared; subscribers)."""
        name = names.reported_name(source.kubemq_channel)
        found = [row for row in rows if row.name == name]
        is_shared = len(self._by_reported_name.get(name, ())) > 1 or len(found) > 1
        subscribers = max([row.subscribers for row in found], default=0)
        return (None if is_shared else sum(row.waiting for row in found)), subscribers

    def count(self, source: Source, began: Snapshot, rows: list[ChannelInfo]) -> int | None:
        """As ``on_snapshot`` for one channel; returns what is waiting, None when the reported name is shared."""
        if rows is not self._indexed[0]:
            self._indexed = (rows, _by_name(rows))
        return self._count(source, began, self._indexed[1].get(names.reported_name(source.kubemq_channel), []))

    def _count(self, source: Source, mark: Snapshot, candidates: list[ChannelInfo]) -> int | None:
        lease = source.lease
        group = self._by_reported_name.get(names.reported_name(source.kubemq_channel), ())
        is_shared = len(group) > 1 or len(candidates) > 1
        if is_shared and lease.counts.known_at > NEVER:
            lease.counts.known_at = self.clock()
            return None  # nor is it known whose subscribers they are
        most = max(candidates, key=lambda info: info.waiting, default=_NO_CHANNEL)
        lease.on_first_sight(most.first_sequence, most.last_sequence, most.delivered, most.subscribers)
        subscribers = max([info.subscribers for info in candidates], default=0)
        last_sequence = None if is_shared else most.last_sequence
        if lease.on_snapshot(most.waiting, mark, last_sequence, subscribers):
            self._on_sharing(source, subscribers)
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

    def report(self, what: str, **facts: object) -> None:
        """See ``Hooks``."""
        self._hooks.report(what, **facts)

    def stored_queue(self, record: QueueRecord) -> StoredQueue:
        """A queue object over this record's KubeMQ channels, on the lane its name hashes to."""
        channel = names.kubemq_channel(record.vhost, record.name)
        outbox = self.outboxes[crc32(channel.encode("utf-8")) % len(self.outboxes)]
        queue = StoredQueue(record, self, channel, outbox)
        self._active[queue] = None
        self.add_source(queue.current)
        self.recovery.restore(queue)
        return queue

    # ------------------------------------------------------------------ the topology log

    def append(self, event: dict[str, Any], done: Done) -> None:
        """Write an event; ``done`` follows when it has come back."""
        if not self.is_loaded:
            return
        self._event_no += 1
        event_id = f"{self.replica}.{self._event_no}"
        self._appending[event_id] = (done, self.clock())
        self._hooks.append_event(
            event_id, encode_event({"v": VERSION, "id": event_id, "member": self.replica, **event})
        )

    def on_append_failed(self, event_id: str, error: Exception) -> None:
        """The log did not take the event, or not provably."""
        done, _ = self._appending.pop(event_id, (None, 0.0))
        if done is not None:
            done(error)

    def expire_appends(self, before: float) -> None:
        """Give up on events written before this moment that have not come back; the oldest are first."""
        while self._appending:
            event_id, (_, since) = next(iter(self._appending.items()))
            if since > before:
                return
            self.on_append_failed(event_id, TimedOut("the topology log did not answer in time"))

    def on_event(self, sequence: int, event: dict[str, Any]) -> None:
        """One event of the log, in its order."""
        if not self.is_loaded:
            self._loading.append((sequence, event))
            return
        if sequence <= self.topology.version:
            return
        changed = self._on_snapshot(sequence, event) if is_snapshot(event) else self.topology.apply(sequence, event)
        if event["type"] == "queue.drained":
            self._latest.on_emptied()
        done, _ = self._appending.pop(event.get("id", ""), (None, 0.0))
        if done is not None:
            done(changed)
        if self.topology.events_since_snapshot >= self._snapshot_after():
            self.write_snapshot()

    def _on_snapshot(self, sequence: int, event: dict[str, Any]) -> bool:
        """Whoever wrote it: what comes before it is not needed any more.  Changes nothing."""
        before, self.topology.version = self.topology.version, sequence
        snapshot = self._assembly.add(event)
        if snapshot is not None:
            self.log_start = snapshot["upto"] + 1
            since = max(0, before - snapshot["upto"])
            self.topology.events_since_snapshot = min(self.topology.events_since_snapshot, since)
        return False

    def _snapshot_after(self) -> int:
        """A snapshot is as large as the topology: large ones are rare, so that they cost little for each event."""
        topology = self.topology
        return max(SNAPSHOT_EVENTS, (len(topology.queues) + len(topology.exchanges) + len(topology.bindings)) // 2)

    def on_loaded(self) -> None:
        """Everything the log held has come: fold it, drop what does not survive a restart, empty deleted channels.

        It is folded aside and its result taken over: a queue that came and went long ago must not be emptied again,
        as its channel is that of a later one.
        """
        if self.is_loaded:
            return
        snapshot, events = replay(self._loading)
        self._loading = []
        folded = Topology(Observer())
        if snapshot is not None:
            folded.load_snapshot(snapshot)
        for sequence, event in events:
            folded.apply(sequence, event)
        event_count = folded.events_since_snapshot
        self.topology.load_snapshot(folded.snapshot_event())
        self.topology.events_since_snapshot = event_count
        self.log_start = snapshot["upto"] + 1 if snapshot is not None else 1
        self.is_loaded = True
        for vhost, name in list(self.topology.undrained):
            left = self.topology.left.get((vhost, name)) or Generations()
            self.drain(self.stored_queue(QueueRecord(vhost, name, generations=left)))
        self.recovery.check_server()
        for event in (
            *[queue_deleted(queue) for queue in self.topology.queues.values() if not queue.durable],
            *[
                name_event("exchange.deleted", exchange.vhost, exchange.name)
                for exchange in self.topology.exchanges.values()
                if not exchange.durable
            ],
        ):
            self.leftover_count += 1
            self._drop_leftover(event)
        if self.topology.events_since_snapshot >= SNAPSHOT_EVENTS:
            self.write_snapshot()

    def _drop_leftover(self, event: dict[str, Any]) -> None:
        """Delete what does not survive a restart; nobody may use it before it is gone, so never give up."""

        def answer(result: object) -> None:
            if isinstance(result, Exception):
                self._hooks.call_later(LEFTOVER_RETRY_S, lambda: self._drop_leftover(event))
            else:
                self.leftover_count -= 1

        self.append(event, answer)

    def write_snapshot(self) -> None:
        """Write the whole state into the log, so that its beginning may be forgotten."""
        self._event_no += 1
        self._write_parts(split(self.topology.snapshot_event(), f"{self.replica}.{self._event_no}"))

    def _write_parts(self, parts: Iterator[dict[str, Any]]) -> None:
        """One when the last has come back, so that others get their turn; given up when one is not taken."""
        part = next(parts, None)
        if part is not None:
            self.append(part, lambda result: None if isinstance(result, Exception) else self._write_parts(parts))

    # ------------------------------------------------------------------ deleted queues

    def drain(self, queue: StoredQueue) -> None:
        """Empty the channel of a deleted queue; until then the name cannot be declared again."""
        key = (queue.record.vhost, queue.name)
        self._draining[key] = []
        queue.close(lambda: self._on_drained(key, queue))

    def _on_drained(self, key: tuple[str, str], queue: StoredQueue) -> None:
        for source in queue.sources:
            self.remove_source(source)
        self._active.pop(queue, None)

        def answer(_result: object) -> None:
            for done in self._draining.pop(key, []):
                done()

        self.append(name_event("queue.drained", *key), answer)

    def when_drained(self, vhost: str, name: str, done: Callable[[], None]) -> bool:
        """False when no deleted queue of this name is being emptied; else ``done`` follows when it is empty."""
        waiters = self._draining.get((vhost, name))
        if waiters is None:
            return False
        waiters.append(done)
        return True

    # ------------------------------------------------------------------ observer of the fold

    def on_queue_created(self, record: QueueRecord) -> None:
        """See ``VirtualHost``; a virtual host the settings no longer name keeps its queues."""
        self._vhost(record.vhost).on_queue_created(record)

    def on_queue_deleted(self, record: QueueRecord) -> None:
        """See ``VirtualHost``."""
        self._vhost(record.vhost).on_queue_deleted(record)

    def on_queue_moving(self, record: QueueRecord) -> None:
        """See ``Recovery``."""
        queue = self._vhost(record.vhost).queues.get(record.name)
        if isinstance(queue, StoredQueue):
            self.recovery.on_moving(queue)

    def on_queue_moved(self, record: QueueRecord) -> None:
        """See ``Recovery``."""
        queue = self._vhost(record.vhost).queues.get(record.name)
        if isinstance(queue, StoredQueue):
            self.recovery.on_moved(queue)

    def on_queue_rescued(self, record: QueueRecord) -> None:
        """See ``Recovery``."""
        queue = self._vhost(record.vhost).queues.get(record.name)
        if isinstance(queue, StoredQueue):
            self.recovery.on_rescued(queue)

    def on_exchange_created(self, record: ExchangeRecord) -> None:
        """See ``VirtualHost``."""
        self._vhost(record.vhost).on_exchange_created(record)

    def on_exchange_deleted(self, record: ExchangeRecord) -> None:
        """See ``VirtualHost``."""
        self._vhost(record.vhost).on_exchange_deleted(record)

    def on_bound(self, vhost: str, key: BindingKey) -> None:
        """See ``VirtualHost``."""
        self._vhost(vhost).on_bound(key)

    def on_unbound(self, vhost: str, key: BindingKey) -> None:
        """See ``VirtualHost``."""
        self._vhost(vhost).on_unbound(key)

    def _vhost(self, name: str) -> VirtualHost:
        label = names.vhost_label(name)
        vhost = self.vhosts.get(label)
        if vhost is None:
            vhost = self.vhosts[label] = VirtualHost(DEFAULT_VHOST if label == DEFAULT_VHOST else name, self)
        return vhost


def _by_name(rows: list[ChannelInfo]) -> dict[str, list[ChannelInfo]]:
    found: dict[str, list[ChannelInfo]] = {}
    for row in rows:
        found.setdefault(row.name, []).append(row)
    return found

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
from connector.broker.census import Census
from connector.broker.counters import Counters
from connector.broker.drains import Drains
from connector.broker.errors import Inequivalent, NotFound
from connector.broker.event_shapes import is_well_formed
from connector.broker.group import Group
from connector.broker.outbox import Outbox
from connector.broker.ports import TimedOut
from connector.broker.queue import Queue, StoredQueue
from connector.broker.recovery import Recovery
from connector.broker.snapshots import Assembly, is_snapshot, replay, split
from connector.broker.solo import Solo
from connector.broker.topology import (
    VERSION,
    ExchangeRecord,
    Observer,
    QueueRecord,
    Topology,
    encode_event,
    event_id,
    name_event,
    queue_deleted,
)
from connector.broker.vhost import VirtualHost
from mapping import names
from mapping.message_ids import MessageIds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connector.broker.exchanges.binding import BindingKey
    from connector.broker.group import Identity
    from connector.broker.memory_queue import MemoryQueue
    from connector.broker.ports import Clock, Done, QueueOwner
    from connector.broker.remote_queue import RemoteReply
    from connector.broker.vhost_exchanges import Others

#: A snapshot of the topology is written after so many events, or half as many as there are objects if that is more.
SNAPSHOT_EVENTS = 1000
#: So much of an event that is skipped goes into the log of the process.
SKIPPED_CHARACTERS = 200
#: A deletion of what an earlier life left over is tried again after this.
LEFTOVER_RETRY_S = 0.5
DEFAULT_VHOST = "default"
#: Why something is refused that the log could not be read with.
UNFIT = "a name that is not UTF-8, or arguments nested too deep"


class _Aside(Observer):
    """Looks on while the log is folded aside: hears only of what is skipped."""

    def __init__(self, observer: Observer) -> None:
        self.on_skipped = observer.on_skipped  # type: ignore[method-assign]


class Hooks(Protocol):
    """What the runtime does for the broker."""

    def wake_lane(self, lane: int) -> None:
        """The outbox of this lane is no longer empty."""

    def wake_reader(self, queue: StoredQueue) -> None:
        """The queue's lease may have a step to perform."""

    def stop_readers(self, queue: StoredQueue) -> None:
        """Another connector reads the queue: end the readers of its channels, and their streams, at once."""

    def refresh_counts(self, done: Callable[[], None]) -> None:
        """Call ``done`` after a QueuesInfo call that begins after this, or after a short deadline."""

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run ``action`` later, followed by a dispatch."""

    def append_event(self, event_id: str, data: bytes) -> None:
        """Append to the topology log; on failure ``Broker.on_append_failed`` follows."""

    def report(self, what: str, *, is_error: bool = False, **facts: object) -> None:
        """Tell an operator, who should know; ``exc_info`` is an exception nobody had expected."""


class Settings(Protocol):
    """What of the configuration the broker itself needs."""

    lanes: int
    get_batch: int
    requeues_in_place: bool
    delivers_early: bool
    memory_limit_bytes: int
    vhosts: list[str]


class Broker(Census, Observer):
    """One replica's broker; ``replica`` is 12 hexadecimal digits, new at every start."""

    def __init__(self, settings: Settings, clock: Clock, hooks: Hooks, counters: Counters | None = None) -> None:
        super().__init__(clock)
        self.counters = counters or Counters()
        self.replica = secrets.token_hex(6)
        self.get_batch = settings.get_batch
        self.requeues_in_place = settings.requeues_in_place
        self.delivers_early = settings.delivers_early
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
        self.next_early_id = self._ids.next_early
        self._dirty: deque[Queue] = deque()
        self._event_no = 0
        self.appending: dict[str, tuple[Done, float]] = {}
        self.group: Group | None = None
        self._solo = Solo()
        self._loading: list[tuple[int, dict[str, Any]]] = []
        self._assembly = Assembly(keep=False)
        self.log_start = 0  # who reads the log from this Sequence on knows all; 0 before we know it ourselves
        self.recovery = Recovery(self)
        self.drains = Drains(self)
        #: by the label of ``mapping.names``: "/", "" and "default" are one
        self.vhosts: dict[str, VirtualHost] = {}
        for name in (DEFAULT_VHOST, *settings.vhosts):
            self._vhost(name)

    def virtual_host(self, name: str) -> VirtualHost:
        """The virtual host a client names; "/", "" and the default's own name are the same (PC-07)."""
        try:
            return self.vhosts[names.vhost_label(name)]
        except (KeyError, UnicodeEncodeError):
            raise NotFound(f"vhost {name} not found") from None

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

    # ------------------------------------------------------------------ the other connectors

    def enter(self, identity: Identity, timeout_s: float, wake: Callable[[], None], *, is_alone: bool) -> Group:
        """Be one of several connectors from the end of loading on; without this the broker takes itself for alone."""
        group = self.group = Group(self, wake, identity, timeout_s, is_alone_at_start=is_alone)
        for vhost in self.vhosts.values():
            vhost.replies.place = self.replica
        return group

    @property
    def is_serving(self) -> bool:
        """Whether clients may come: the topology is known, and what does not survive a restart is gone."""
        return self.is_loaded and not self.leftover_count and (self.group is None or self.group.is_ready)

    @property
    def member_count(self) -> int:
        """Living connectors on this KubeMQ."""
        return max(1, len(self.topology.members.living))

    @property
    def others(self) -> Others:
        """See ``vhost.Shared``."""
        return self.group or self._solo

    @property
    def away(self) -> QueueOwner:
        """See ``base_queue.Hub``."""
        return self.group.away if self.group else self._solo

    def when_told(self, done: Callable[[], None]) -> None:
        """See ``base_queue.Hub``."""
        if self.group is None:
            done()
        else:
            self.group.when_told(done)

    def on_consumers_changed(self, queue: Queue) -> None:
        """See ``base_queue.Hub``."""
        if self.group is not None:
            self.group.desk.on_consumers_changed(queue)

    def lend(self, queue: MemoryQueue) -> None:
        """See ``base_queue.Hub``."""
        if self.group is not None:
            self.group.desk.lender.lend(queue)

    def consumers_elsewhere(self, queue: Queue) -> tuple[int, bool]:
        """See ``base_queue.Hub``."""
        return (0, False) if self.group is None else self.group.desk.consumers_elsewhere(queue)

    def needs_poll(self) -> bool:
        """As above; and while there are queues that nobody reads, which are ours to count."""
        return super().needs_poll() or bool(self.unread_queues())

    def unread_queues(self) -> list[StoredQueue]:
        """See ``Group``."""
        return [] if self.group is None else self.group.unread_queues()

    def unread_count(self) -> int:
        """Messages in these."""
        return sum(self.waiting_in(source) or 0 for queue in self.unread_queues() for source in queue.sources)

    def may_read(self) -> bool:
        """Whether messages may be fetched and acknowledged at this moment."""
        return self.group is None or self.group.may_read()

    def host(self, name: str) -> VirtualHost:
        """See ``peer_desk.Around``."""
        return self._vhost(name)

    def hosts(self) -> list[VirtualHost]:
        """See ``peer_desk.Around``."""
        return list(self.vhosts.values())

    def all_stored(self) -> list[StoredQueue]:
        """Every queue with a KubeMQ channel that is not deleted."""
        return [queue for queue in self.stored_queues() if not queue.is_deleted]

    def give(self, queue: StoredQueue, taker: str) -> None:
        """See ``peer_desk.Around``."""
        if self.group is not None:
            self.group.give(queue, taker)

    def start_reading(self, queue: StoredQueue, seen: dict[str, int] | None) -> None:
        """Begin anew with this queue, whose reader we are or are not any more (``is_owned``)."""
        is_fresh = queue.is_owned and queue.lease.counts.known_at == NEVER
        if not is_fresh:  # else nobody has read it here, and it is as at the start
            self._hooks.stop_readers(queue)
            for source in queue.sources:
                self.remove_source(source)
            queue.start_anew(names.kubemq_channel(queue.record.vhost, queue.name))
            self.add_source(queue.current)
            self.recovery.restore(queue)
        elif queue.record.generations.moving:
            self.recovery.resume(queue)
        for source in queue.sources:
            source.lease.handed_out_upto = (seen or {}).get(str(source.generation))
        if queue.is_owned:
            self.recovery.on_owned(queue)
        self.mark_dirty(queue)
        if queue.is_owned and (queue.consumers or seen is not None):
            self.refresh_counts(queue.credit_changed)

    def report(self, what: str, **facts: Any) -> None:
        """See ``Hooks``."""
        self._hooks.report(what, **facts)

    def stored_queue(self, record: QueueRecord) -> StoredQueue:
        """A queue object over this record's KubeMQ channels, on the lane its name hashes to."""
        channel = names.kubemq_channel(record.vhost, record.name)
        outbox = self.outboxes[crc32(channel.encode("utf-8")) % len(self.outboxes)]
        queue = StoredQueue(record, self, channel, outbox)
        queue.is_owned = self.group is None or not record.id or self.group.is_mine(record)
        self._active[queue] = None
        self.add_source(queue.current)
        self.recovery.restore(queue)
        return queue

    # ------------------------------------------------------------------ the topology log

    def append(self, event: dict[str, Any], done: Done) -> None:
        """Write an event; ``done`` follows when it has come back, or at once when no replica could apply it."""
        if not self.is_loaded:
            return
        self._event_no += 1
        number = f"{self.replica}.{self._event_no}"
        written = {"v": VERSION, "id": number, "member": self.member, **event}
        if not is_well_formed(written):
            done(Inequivalent(f"cannot be declared: {UNFIT}"))
            return
        self.appending[number] = (done, self.clock())
        self._hooks.append_event(number, encode_event(written))

    @property
    def member(self) -> str:
        """Who writes our events."""
        return self.group.me if self.group and self.group.me else self.replica

    def on_append_failed(self, event_id: str, error: Exception) -> None:
        """The log did not take the event, or not provably."""
        done, _ = self.appending.pop(event_id, (None, 0.0))
        if done is not None:
            done(error)

    def expire_appends(self, before: float) -> None:
        """Give up on events written before this moment that have not come back; the oldest are first."""
        while self.appending:
            event_id, (_, since) = next(iter(self.appending.items()))
            if since > before:
                return
            self.on_append_failed(event_id, TimedOut("the topology log did not answer in time"))

    def on_malformed(self, data: bytes) -> None:
        """An event of the log that no replica can read: it is skipped; whoever wrote it need not wait."""
        self.counters.topology_events_skipped += 1
        self.on_append_failed(event_id(data), Inequivalent(f"cannot be applied: {UNFIT}"))

    def on_bug(self, error: Exception) -> None:
        """An exception that nobody expected: counted and told, and everything else goes on."""
        self.counters.internal_errors += 1
        self._hooks.report("internal error", is_error=True, exc_info=error)

    def on_skipped(self, sequence: int, what: object, error: Exception | None) -> None:
        """The fold could not apply it; no replica can."""
        self.counters.topology_events_skipped += 1
        self.counters.internal_errors += error is not None
        text = repr(what)[:SKIPPED_CHARACTERS]
        self._hooks.report("topology event skipped", is_error=True, sequence=sequence, data=text, exc_info=error)

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
        done, _ = self.appending.pop(event.get("id", ""), (None, 0.0))
        if done is not None and changed is None:
            done(Inequivalent("cannot be applied"))
        elif done is not None:
            answer = done
            if self.group is None:
                answer(changed)
            else:
                self.group.peers.when_applied(sequence, lambda: answer(changed))
        if self.topology.events_since_snapshot >= self._snapshot_after() and self._is_first:
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
        folded = Topology(_Aside(self))
        if snapshot is not None:
            folded.load_snapshot(snapshot)
        for sequence, event in events:
            folded.apply(sequence, event)
        event_count = folded.events_since_snapshot
        self.topology.load_snapshot(folded.snapshot_event())
        self.topology.events_since_snapshot = event_count
        self.log_start = snapshot["upto"] + 1 if snapshot is not None else 1
        self.is_loaded = True
        self.recovery.check_server(is_first=True)
        if self.group is None:
            self.look_for_drains()
            self.drop_leftovers(self.topology.version + 1)
        else:
            self.group.join()
        if self.topology.events_since_snapshot >= self._snapshot_after() and self._is_first:
            self.write_snapshot()

    @property
    def _is_first(self) -> bool:
        """Whether this connector writes for all."""
        return self.group is None or self.topology.members.oldest == self.group.me

    def drop_leftovers(self, before: int) -> None:
        """Delete what is not durable and was declared before this event: whoever used it is gone."""
        topology = self.topology
        gone = [record for record in topology.exchanges.values() if not record.durable and record.id < before]
        for event in (
            *[queue_deleted(q) for q in topology.queues.values() if not q.durable and q.id < before],
            *[{**name_event("exchange.deleted", e.vhost, e.name), "exchange_id": e.id} for e in gone],
        ):
            self.leftover_count += 1
            self._drop_leftover(event)
        self._check_leftovers()

    def _check_leftovers(self) -> None:
        if not self.leftover_count and self.group is not None:
            self.group.tell_ready()

    def _drop_leftover(self, event: dict[str, Any]) -> None:
        """Delete what does not survive a restart; nobody may use it before it is gone, so never give up."""

        def answer(result: object) -> None:
            if isinstance(result, Exception):
                self._hooks.call_later(LEFTOVER_RETRY_S, lambda: self._drop_leftover(event))
            else:
                self.leftover_count -= 1
                self._check_leftovers()

        self.append(event, answer)

    def write_snapshot(self) -> None:
        """Write the whole state into the log, so that its beginning may be forgotten."""
        if not self._is_first:
            return
        self._event_no += 1
        self._write_parts(split(self.topology.snapshot_event(), f"{self.replica}.{self._event_no}"))

    def _write_parts(self, parts: Iterator[dict[str, Any]]) -> None:
        """One when the last has come back, so that others get their turn; given up when one is not taken."""
        part = next(parts, None)
        if part is not None:
            self.append(part, lambda result: None if isinstance(result, Exception) else self._write_parts(parts))

    # ------------------------------------------------------------------ deleted queues

    def drain(self, queue: StoredQueue) -> None:
        """See ``vhost_exchanges.Shared``."""
        self.drains.begin(queue)

    def look_for_drains(self) -> None:
        """See ``group.Around``."""
        self.drains.look()

    def when_drained(self, vhost: str, name: str, done: Callable[[], None]) -> bool:
        """See ``vhost_exchanges.Shared``."""
        return self.drains.when_drained(vhost, name, done)

    def on_queue_drained(self, vhost: str, name: str) -> None:
        """See ``Observer``."""
        self.drains.on_over((vhost, name))

    def when_others_stored(self, done: Callable[[], None]) -> None:
        """See ``base_queue.Hub``."""
        if self.group is None:
            done()
        else:
            self.group.peers.when_applied(self.topology.version, done)

    def forget(self, queue: StoredQueue) -> None:
        """See ``drains.Around``."""
        self._hooks.stop_readers(queue)
        for source in queue.sources:
            self.remove_source(source)
        self._active.pop(queue, None)

    # ------------------------------------------------------------------ observer of the fold

    def on_queue_created(self, record: QueueRecord) -> None:
        """See ``VirtualHost``; a virtual host the settings no longer name keeps its queues."""
        self._vhost(record.vhost).on_queue_created(record)
        self.drains.on_over((record.vhost, record.name))  # it may come by an event that was on its way for long

    def on_queue_deleted(self, record: QueueRecord) -> None:
        """See ``VirtualHost``."""
        self._vhost(record.vhost).on_queue_deleted(record)

    def on_queue_moving(self, record: QueueRecord, source: int) -> None:
        """See ``Recovery``."""
        queue = self._vhost(record.vhost).queues.get(record.name)
        if isinstance(queue, StoredQueue):
            self.recovery.on_moving(queue, source)

    def on_queue_moved(self, record: QueueRecord, source: int) -> None:
        """See ``Recovery``."""
        queue = self._vhost(record.vhost).queues.get(record.name)
        if isinstance(queue, StoredQueue):
            self.recovery.on_moved(queue, source)

    def on_queue_rescued(self, record: QueueRecord) -> None:
        """See ``Recovery``."""
        queue = self._vhost(record.vhost).queues.get(record.name)
        if isinstance(queue, StoredQueue):
            self.recovery.on_rescued(queue)

    def on_members_changed(self) -> None:
        """See ``Group``."""
        if self.group is not None:
            self.group.on_members_changed()
            self.recovery.check_server()

    def on_owner_changed(self, record: QueueRecord, seen: dict[str, int]) -> None:
        """See ``Group``."""
        queue = self._vhost(record.vhost).queues.get(record.name)
        if self.group is not None and isinstance(queue, StoredQueue):
            self.group.update(queue, seen)

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

    def _reply_elsewhere(self, vhost: str, name: str) -> RemoteReply | None:
        return None if self.group is None else self.group.desk.reply_queue(vhost, name)

    def _vhost(self, name: str) -> VirtualHost:
        label = names.vhost_label(name)
        vhost = self.vhosts.get(label)
        if vhost is None:
            vhost = self.vhosts[label] = VirtualHost(DEFAULT_VHOST if label == DEFAULT_VHOST else name, self)
            vhost.replies.elsewhere = self._reply_elsewhere
            vhost.replies.place = "" if self.group is None else self.replica
        return vhost

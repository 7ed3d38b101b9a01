"""The runtime's centre: wakes lanes and readers for the broker, and ends every batch with dispatch and flush.

Owns the set of connections with output to write, the readers of active queues, the writer lanes and the shared
counts.  Implements ``broker.Hooks``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

import structlog

from connector.broker.broker import Broker
from connector.runtime.counts import Counts, SharedSnapshot
from connector.runtime.departed import Departed
from connector.runtime.examining import Examining
from connector.runtime.gate import Gate
from connector.runtime.identity import ProcessIdentity
from connector.runtime.outage import Outage
from connector.runtime.peers import PeerTasks
from connector.runtime.queue_reader import QueueReader
from connector.runtime.queue_writer import QueueWriter
from connector.runtime.renewal import Renewal
from connector.runtime.topology_sync import TopologySync

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.broker import Settings
    from connector.broker.counters import Counters
    from connector.broker.outbox import Outbox
    from connector.broker.ports import PeerBus, QueueStore, ServerInfo, TopologyLog
    from connector.broker.queue import StoredQueue
    from connector.broker.sources import Source
    from connector.runtime.tasks import Tasks
    from connector.session.arriving import Arriving
    from connector.session.connection import Connection

#: Why publishers are blocked.
CONGESTED = "messages wait to be stored in KubeMQ"
UNREACHABLE = "KubeMQ does not answer"
MEMORY_FULL = "queues kept in memory are full"
#: Coarse timer: heartbeats, deadlines.
TICK_S = 0.25
#: To say in the log that we go takes at most this long.
LEAVE_S = 1.0

#: So many queues at a time read what their consumers have already.
READ_AT_ONCE = 4

log = structlog.get_logger(__name__)


class Hub:
    """One replica's runtime."""

    is_reachable = True
    peers: PeerTasks | None = None  #: one of several connectors, perhaps
    _is_stopped = False

    def __init__(
        self,
        settings: Settings,
        store: QueueStore,
        topology_log: TopologyLog,
        tasks: Tasks,
        counters: Counters,
        *,
        publish_deadline_s: float,
        declare_deadline_s: float,
        outbox_high_bytes: int,
        outbox_high_count: int,
        memory_high_bytes: int,
        arriving: Arriving,
        held_high_bytes: int,
        store_retention_s: float = 0.0,
    ) -> None:
        self.broker = Broker(settings, time.monotonic, self, counters)
        self.store = store
        self.connections: set[Connection] = set()
        self.arriving = arriving
        self.departed = Departed(publish_deadline_s)
        self._held_high_bytes = held_high_bytes
        self._tasks = tasks
        self._readers: dict[Source, QueueReader] = {}
        self._reading: dict[Source, asyncio.Task[None]] = {}
        self._examining = Examining()
        self._gate = Gate(READ_AT_ONCE)
        self._flushing: list[Connection] = []
        self._unread: dict[Connection, None] = {}  # what was read of these is kept; the next first
        self._declare_deadline_s = declare_deadline_s
        self._outbox_high = (outbox_high_bytes, outbox_high_count)
        self._memory_high_bytes = memory_high_bytes
        self._alarms: set[str] = set()
        self.outage = Outage(counters, time.monotonic)
        self.snapshot = SharedSnapshot(store)
        self.counts = Counts(self.snapshot, self.broker, self.settle)
        self.sync = TopologySync(topology_log, self.broker, self.settle, self.outage)
        self.renewal = Renewal(self.broker, self.settle, store_retention_s)
        self.writers = [self._make_writer(outbox, publish_deadline_s) for outbox in self.broker.outboxes]

    def _make_writer(self, outbox: Outbox, deadline_s: float) -> QueueWriter:
        return QueueWriter(
            outbox,
            self.store,
            self.broker.counters,
            self.settle,
            self.check_link,
            deadline_s,
            self.on_server,
            self.outage,
            self.broker.may_read,
        )

    def enter(self, bus: PeerBus, timeout_s: float, name: str, *, is_alone: bool) -> None:
        """Before the start: be one of several connectors, perhaps."""
        peers = PeerTasks(bus, self.broker, self._settle_peers, ProcessIdentity(name), timeout_s, is_alone=is_alone)
        self.peers = peers
        self.sync.on_applied = peers.on_applied

    def _settle_peers(self) -> None:
        """What others have told may be what the start waits for."""
        self.settle()
        self.sync.check_loaded()

    def start(self) -> None:
        """Start the tasks that always run."""
        tasks = self._tasks
        for number, writer in enumerate(self.writers):
            tasks.keep(f"queue_writer {number}", writer.run)
        tasks.keep("snapshot", self.snapshot.run)
        tasks.keep("counts", self.counts.run)
        tasks.keep("topology appends", self.sync.appends.run)
        tasks.keep("topology follow", self.sync.run_follow)
        tasks.keep("topology snapshots", self.sync.run_snapshots)
        tasks.keep("ticks", self._tick)
        tasks.keep("renewal", self.renewal.run)
        if self.peers is not None:
            self.peers.start(tasks)

    # ------------------------------------------------------------------ broker.Hooks

    def wake_lane(self, lane: int) -> None:
        """The outbox of this lane is no longer empty."""
        self.writers[lane].wake()

    def wake_reader(self, queue: StoredQueue) -> None:
        """Start the queue's reader, or let it look again."""
        if self._is_stopped:
            return
        for source in queue.older:
            if source.lease.wants_reader():
                self._wake_reader(source)
        self._wake_reader(queue.current)

    def _wake_reader(self, source: Source) -> None:
        reader = self._readers.get(source)
        if reader is None:
            reader = self._readers[source] = QueueReader(
                source,
                self.store,
                self.snapshot.rows,
                self.broker,
                self.settle,
                self._examining,
                self.outage,
                self._gate,
            )
            self._reading[source] = self._tasks.start(
                f"queue_reader {source.kubemq_channel}", reader.run(), lambda: self._on_reader_end(source)
            )
        else:
            reader.wake()

    def stop_readers(self, queue: StoredQueue) -> None:
        """End the readers of a queue that another connector reads, and their streams, at once."""
        for source in queue.sources:
            task = self._reading.pop(source, None)
            if task is not None:
                task.cancel()

    def _on_reader_end(self, source: Source) -> None:
        del self._readers[source]
        self._reading.pop(source, None)
        if source.lease.wants_reader():
            self.broker.mark_dirty(source.queue)
            asyncio.get_running_loop().call_later(TICK_S, self.settle)

    def refresh_counts(self, done: Callable[[], None]) -> None:
        """Through the shared QueuesInfo call."""
        self.counts.refresh(done)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run ``action`` later as a batch of its own."""
        asyncio.get_running_loop().call_later(delay_s, self._run_batch, action)

    def _run_batch(self, action: Callable[[], None]) -> None:
        action()
        self.settle()

    def append_event(self, event_id: str, data: bytes) -> None:
        """To the topology log."""
        self.sync.appends.add(event_id, data)

    def report(self, what: str, *, is_error: bool = False, **facts: object) -> None:
        """Into the log."""
        (log.error if is_error else log.warning)(what, **facts)

    # ------------------------------------------------------------------ back-pressure

    def add_connection(self, connection: Connection) -> None:
        """A client has connected."""
        self.connections.add(connection)
        for reason in self._alarms:
            connection.block(reason, is_strict=reason == CONGESTED)

    def remove_connection(self, connection: Connection) -> None:
        """A client is gone."""
        self.connections.discard(connection)
        self._unread.pop(connection, None)

    def wants_read(self, connection: Connection) -> None:
        """What was read of the connection is kept; its turn comes when there is room."""
        self._unread.setdefault(connection)

    def _read_on(self) -> None:
        """There is room: those that have waited go on in their order, until there is none again."""
        while self._unread and CONGESTED not in self._alarms:
            connection = next(iter(self._unread))
            del self._unread[connection]
            self._do(connection, "reading on failed", connection.read_on)
            self.settle()

    def set_alarm(self, reason: str, *, is_on: bool) -> None:
        """Block publishers, or let them go on when this was the last reason (PC-19)."""
        if is_on == (reason in self._alarms):
            return
        if is_on:
            self._alarms.add(reason)
            log.warning("publishers blocked", reason=reason)
        else:
            self._alarms.discard(reason)
            log.info("publishers unblocked", reason=reason)
        for connection in list(self.connections):
            if is_on:
                connection.block(reason, is_strict=reason == CONGESTED)
            else:
                connection.unblock(reason)
        if not is_on and self._unread:
            asyncio.get_running_loop().call_soon(self._read_on)

    def _check_congestion(self) -> None:
        """Outboxes or memory queues over a high mark block publishers; under half of it they go on (PU-09)."""
        kept_bytes = self.broker.memory_bytes
        if MEMORY_FULL in self._alarms:
            if kept_bytes <= self._memory_high_bytes // 2:
                self.set_alarm(MEMORY_FULL, is_on=False)
        elif kept_bytes > self._memory_high_bytes:
            self.set_alarm(MEMORY_FULL, is_on=True)
        size = count = 0
        for outbox in self.broker.outboxes:
            size += outbox.size_bytes
            count += len(outbox) + outbox.aside_count
        high_bytes, high_count = self._outbox_high
        if CONGESTED in self._alarms:
            if size <= high_bytes // 2 and count <= high_count // 2:
                self.set_alarm(CONGESTED, is_on=False)
        elif size > high_bytes or count > high_count:
            self.set_alarm(CONGESTED, is_on=True)

    @property
    def held_bytes(self) -> int:
        """What has been read from KubeMQ and is not acknowledged, of all queues."""
        return sum([reader.held_bytes for reader in self._readers.values()])

    def _check_held(self) -> None:
        """Above the mark queues are read one message at a time, and only by those that have none (CO-23)."""
        broker = self.broker
        high = self._held_high_bytes // 2 if broker.is_full else self._held_high_bytes
        is_full = self.held_bytes > high
        if is_full == broker.is_full:
            return
        broker.is_full = is_full
        log.warning("clients hold as much as they may" if is_full else "clients hold less again", bytes=self.held_bytes)
        for source in self._readers:
            broker.mark_dirty(source.queue)

    def on_ping(self, server: ServerInfo | None) -> None:
        """KubeMQ has answered a Ping, or has not (None)."""
        was_reachable, self.is_reachable = self.is_reachable, server is not None
        if server is None:
            for writer in self.writers:
                writer.ask_first()
        else:
            self.on_server(server)
            self.outage.on_answer()
            if not was_reachable:
                self.sync.try_again()
                for writer in self.writers:
                    writer.try_again()
        self.check_link()

    def on_server(self, server: ServerInfo) -> None:
        """KubeMQ has answered: it may be another one than before."""
        self.broker.recovery.on_server(server)
        self.sync.appends.on_server(server)

    @property
    def is_down(self) -> bool:
        """KubeMQ does not answer, or does not store."""
        return not self.is_reachable or any(writer.is_failing for writer in self.writers)

    def check_link(self) -> None:
        """Publishers wait while KubeMQ does not answer (HA-07)."""
        self.set_alarm(UNREACHABLE, is_on=self.is_down)

    # ------------------------------------------------------------------ batches

    def wants_flush(self, connection: Connection) -> None:
        """The connection has output to write at the end of the batch."""
        self._flushing.append(connection)

    def settle(self) -> None:
        """The end of every batch: deliver what is ready, write what has gathered."""
        broker = self.broker
        self._check_congestion()
        while True:
            broker.dispatch()
            flushing, self._flushing = self._flushing, []
            if not flushing:
                break
            for connection in flushing:
                connection.flush()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = self.broker.clock()
            for connection in list(self.connections):
                self._do(connection, "timer failed", partial(connection.on_tick, now, is_cut_off=self.is_down))
            self.arriving.on_tick(now)
            self.departed.on_tick(now)
            self._check_held()
            for writer in self.writers:
                writer.check_deadlines(now)
            self.broker.expire_appends(now - self._declare_deadline_s)
            self.sync.appends.forget()
            self.settle()
            self._read_on()

    def _do(self, connection: Connection, what: str, part: Callable[[], None]) -> None:
        """What is done for one connection among others; a bug there ends that connection alone."""
        try:
            part()
        except Exception:
            self.broker.counters.internal_errors += 1
            log.exception(what, **connection.info.context())
            self.remove_connection(connection)
            connection.lost()

    # ------------------------------------------------------------------ going down

    async def leave(self) -> None:
        """The other connectors need not wait until they miss us."""
        if self.peers is None:
            return
        left = asyncio.Event()
        self.peers.group.leave(left.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await left.wait()

    def stop(self) -> None:
        """The tasks are about to end: no reader is started any more."""
        self._is_stopped = True

    def ask_for_proof(self) -> None:
        """What was acknowledged is to be proven at once; asking again changes nothing."""
        for source in self.broker.sources():
            if source.lease.sent and not source.lease.is_waited_for:
                source.lease.when_flushed(lambda: None)
                self.wake_reader(source.queue)

    def has_work(self) -> bool:
        """True while something accepted is not stored, or an acknowledgement has not provably arrived."""
        if any(writer.is_busy for writer in self.writers):
            return True
        if any(len(outbox) or outbox.aside_count for outbox in self.broker.outboxes):
            return True
        return any(
            source.lease.settled or source.lease.sent or source.lease.moving or source.lease.has_unread_settled
            for source in self.broker.sources()
        )

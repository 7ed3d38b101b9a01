"""After a restart of KubeMQ: which queues are in doubt, which have to move, and what that leaves behind.

Owns the server's start time as last seen, the moves under way, and what operators are told of them.  A restarted server
may withhold messages in subscriptions of its dead self; a queue in doubt is examined by its reader before anything else
is read from it or stored in it (``runtime/queue_mover.py``).  Rules: design.md section 3, points 12 and 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from connector.broker.backlog import NEVER
from connector.broker.generations import Left, queue_moved, queue_moving, queue_retired, server_started
from connector.broker.move import Move
from mapping import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connector.broker.ports import Done, ServerInfo
    from connector.broker.queue import Queue, StoredQueue
    from connector.broker.sources import Source
    from connector.broker.topology import Topology

#: Why a queue moves.
WITHHELD = "withheld"
RETENTION = "retention"
#: How long another connector that reads a queue may take to find that it moves; then what was published here is stored.
VERDICT_S = 1.0
#: What could not be logged is tried again after this.
RETIRED_RETRY_S = 0.5


class Around(Protocol):
    """What recovery needs of the broker."""

    topology: Topology
    is_loaded: bool
    clock: Callable[[], float]

    def append(self, event: dict[str, Any], done: Done) -> None:
        """Write to the topology log."""

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do it then."""

    def mark_dirty(self, queue: Queue) -> None:
        """Dispatch this queue at the end of the batch."""

    def report(self, what: str, **facts: object) -> None:
        """Tell an operator."""

    def sources(self) -> Iterator[Source]:
        """Every channel of every stored queue."""

    def add_source(self, source: Source) -> None:
        """One more channel is counted."""

    def remove_source(self, source: Source) -> None:
        """A channel is not counted any more."""


class Recovery:
    """One replica's view."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._server_start = 0
        self._clock_offset_s = 0.0
        self._is_embedded = False
        self._is_logging = False
        self._blocking: Source | None = None
        self.move_count = 0

    # ------------------------------------------------------------------ doubt

    def on_server(self, server: ServerInfo) -> None:
        """KubeMQ has answered a Ping."""
        self._clock_offset_s = server.now - self._around.clock() if server.now else 0.0
        if server.start_time != self._server_start:
            self._server_start = server.start_time
            self._is_embedded = server.is_embedded
            if self._around.is_loaded:
                self.check_server()

    @property
    def server_time(self) -> int:
        """What KubeMQ's clock says, in seconds since the epoch; 0 when that is not known."""
        return int(self._clock_offset_s + self._around.clock()) if self._clock_offset_s else 0

    def check_server(self, *, is_first: bool = False) -> None:
        """Doubt every queue when the server is not the one that all queues were last looked at on.

        ``is_first``: it was restarted in an earlier life of ours, or between the two.
        """
        known = self._around.topology.server_start
        if self._server_start in (0, known):
            return
        if known:
            self._around.report("KubeMQ was restarted: its queues are examined", start_time=self._server_start)
            for source in self._around.sources():
                if source.queue.is_deleted:
                    source.lease.was_in_doubt = True
                elif source.queue.is_owned:
                    self._doubt(source, is_unsure=is_first)
                elif source.is_current:
                    self._await_verdict(source.queue)
        self.log_server()

    def _await_verdict(self, queue: StoredQueue) -> None:
        """Another connector examines it: what is stored before it moves may go where nobody can read it."""
        queue.hold()

        def go_on() -> None:
            if not (queue.is_owned and queue.lease.is_doubtful):
                queue.release()

        self._around.call_later(VERDICT_S, go_on)

    def on_owned(self, queue: StoredQueue) -> None:
        """We read the queue from now on: it is in doubt too, when its last reader may not have examined it."""
        if self._around.topology.server_start and self._server_start not in {0, self._around.topology.server_start}:
            for source in queue.sources:
                self._doubt(source, is_unsure=True)

    def _doubt(self, source: Source, *, is_unsure: bool) -> None:
        if source.queue.record.generations.is_target(source.generation):
            return  # a target has never been read: nothing of it was open
        lease = source.lease
        lease.is_unsure = lease.is_unsure or (is_unsure and not self._is_embedded)
        lease.doubt()
        if lease.counts.withheld:  # the restart may have freed it: looked at, but nobody waits for that
            lease.is_doubtful = True
        self.look(source)

    def look(self, source: Source) -> None:
        """The lease may have come into doubt: then nothing is stored before it is examined."""
        queue = source.queue
        if source.lease.is_doubtful:
            if queue.is_deleted and source.move is None:
                source.lease.drop_doubt()
                return
            if source.is_current:
                queue.hold()
            self._around.mark_dirty(queue)

    def trust(self, source: Source) -> None:
        """Nothing of it is withheld."""
        source.lease.trust()
        source.lease.may_withhold = source.lease.counts.withheld > 0
        if source.is_current and not source.queue.is_deleted:
            source.queue.release()
        self._around.mark_dirty(source.queue)
        self.log_server()

    def log_server(self) -> None:
        """Once no queue is in doubt any more, note the server's start: a later start of ours need not look again.

        A queue that was never counted is in doubt as well, and one that another connector reads, or a dead one read:
        only its reader knows.
        """
        around = self._around
        if self._is_logging or self._server_start in (0, around.topology.server_start) or not around.is_loaded:
            return
        blocking = self._blocking
        if blocking and blocking in blocking.queue.sources and not blocking.queue.is_deleted and self._blocks(blocking):
            return  # seldom another than at the last verdict: not all need to be looked at
        self._blocking = next((source for source in reversed(list(around.sources())) if self._blocks(source)), None)
        if self._blocking is not None:
            return
        self._is_logging = True
        around.append(server_started(self._server_start), self._on_logged)

    def _blocks(self, source: Source) -> bool:
        """Whether it is not known yet what the present server withholds of this channel."""
        queue, lease = source.queue, source.lease
        is_others = bool(self._around.topology.server_start) and not (queue.is_owned or queue.is_deleted)
        return is_others or lease.is_doubtful or (lease.may_withhold and lease.counts.known_at == NEVER)

    def _on_logged(self, _result: object) -> None:
        self._is_logging = False
        if not isinstance(_result, Exception):
            self.log_server()

    # ------------------------------------------------------------------ moving

    def renew(self, source: Source) -> None:
        """The oldest message nears the server's retention: the queue moves, and all of it is stored anew."""
        lease = source.lease
        lease.may_withhold = lease.is_doubtful = lease.is_due = True
        self._around.report("queue is renewed before the server's retention", kubemq_channel=source.kubemq_channel)
        self.look(source)

    def moving_event(self, source: Source, reason: str) -> dict[str, Any]:
        """The event that begins a move out of this source."""
        record = source.queue.record
        return queue_moving(record.vhost, record.name, source.generation, record.generations.last + 1, reason)

    def moved_event(self, move: Move, waiting: int, gone_count: int = 0) -> dict[str, Any]:
        """The event that ends it; so many messages are still in the old channel.

        ``gone_count`` of what the move leaves behind are not there any more.
        """
        record, source = move.old.queue.record, move.old
        before = source.lease.left
        copied = sorted(before.copied.union(move.left_behind()))
        gone_count += before.gone_count
        left = Left(waiting, copied, before.outlived_upto, known_at=self.server_time, gone=gone_count)
        return queue_moved(record.vhost, record.name, source.generation, move.target.generation, left)

    def on_moving(self, queue: StoredQueue, number: int) -> None:
        """A move has begun, here or elsewhere: what is published goes behind the copies from here on."""
        source = queue.source_of(number)
        if source is None:
            return
        generations = queue.record.generations
        if source.is_current:
            queue.use(self._make(queue, generations.moving[number].target))
            queue.use(self._make(queue, generations.current))
        else:
            queue.older.insert(queue.older.index(source) + 1, self._make(queue, generations.moving[number].target))
        self._start(queue, source)
        self._around.report(
            "messages of a queue are copied to a new channel",
            queue=queue.name,
            vhost=queue.record.vhost,
            copied_from=source.kubemq_channel,
            kubemq_channel=queue.kubemq_channel,
            reason=generations.moving[number].reason,
        )
        queue.hold()  # what waits goes to the new channel, whether it was held or not
        queue.release()

    def _make(self, queue: StoredQueue, number: int) -> Source:
        source = queue.make_source(names.kubemq_channel(queue.record.vhost, queue.name, number), number)
        self._around.add_source(source)
        return source

    def _start(self, queue: StoredQueue, source: Source) -> None:
        """Let the source's reader copy, if it is ours."""
        if not queue.is_owned:
            return
        moving = queue.record.generations.moving[source.generation]
        target = queue.source_of(moving.target)
        if target is not None:
            source.move = Move(source, target, moving.reason)
            source.lease.may_withhold = source.lease.is_doubtful = True
            self._around.mark_dirty(queue)

    def on_moved(self, queue: StoredQueue, number: int) -> None:
        """Everything is in the new channel from now on."""
        source = queue.source_of(number)
        if source is None:
            return
        move, source.move = source.move, None
        self._leave(queue, source)
        if move is None:
            return
        move.hand_over()
        self._leave(queue, source)
        left = queue.record.generations.left[number]
        self.move_count += 1
        self._around.report(
            "queue has moved to a new channel",
            queue=queue.name,
            vhost=queue.record.vhost,
            kubemq_channel=move.target.kubemq_channel,
            moved=move.stored_count,
            withheld=left.unreadable,
            withheld_in=source.kubemq_channel,
            advice="kubemq-amqp rescue frees what is withheld" if left.unreadable else "",
        )
        self._around.mark_dirty(queue)
        self.log_server()

    def _leave(self, queue: StoredQueue, source: Source) -> None:
        """What a move has left there, if one has."""
        left = queue.record.generations.left.get(source.generation)
        if left is not None:
            source.lease.counts.withheld = left.withheld
            source.lease.left.note(left)
            source.lease.may_withhold = left.withheld > 0 or not left.upto  # should a Get be short, it is looked at

    def abandon(self, source: Source) -> None:
        """Its queue is deleted: there is nothing to examine or to copy any more."""
        source.move = None
        source.lease.drop_doubt()
        self._around.mark_dirty(source.queue)
        self.log_server()

    def on_rescued(self, queue: StoredQueue) -> None:
        """What was withheld may be read now."""
        for source in queue.sources:
            source.lease.counts.withheld = source.lease.left.outlived_count = 0
            source.rescue_count += 1
        self._around.report("withheld messages are free again", queue=queue.name, vhost=queue.record.vhost)
        self._around.mark_dirty(queue)

    def restore(self, queue: StoredQueue) -> None:
        """Make the sources that the record tells of (the queue has the first one)."""
        generations = queue.record.generations
        for number in generations.order[1:]:
            queue.use(self._make(queue, number))
        for source in queue.sources:
            self._leave(queue, source)
        self.resume(queue)
        if queue.is_held:  # in doubt when its reader changed: whoever reads it now examines it
            self._await_verdict(queue)

    def resume(self, queue: StoredQueue) -> None:
        """Go on with the moves that an earlier reader has begun."""
        for number in queue.record.generations.moving:
            source = queue.source_of(number)
            if source is not None:
                self._start(queue, source)

    def retire(self, source: Source) -> None:
        """An older generation was counted: when it is empty it is looked at no more, but for the first."""
        queue, lease = source.queue, source.lease
        is_empty = not (lease.mine_count or lease.sent or lease.ready_count or lease.counts.withheld or lease.adopted)
        if not queue.is_owned:
            return
        generations = queue.record.generations
        if generations.is_target(source.generation) or source.generation in generations.moving:
            return
        if source.generation and is_empty and source in queue.older and lease.counts.is_empty:
            queue.older.remove(source)
            self._around.remove_source(source)
            self._log_retired(queue, source.generation)

    def _log_retired(self, queue: StoredQueue, number: int) -> None:
        """Try until it is known, or somebody looks at that generation again; to tell it twice changes nothing."""

        def answer(result: object) -> None:
            if isinstance(result, Exception):
                self._around.call_later(RETIRED_RETRY_S, again)

        def again() -> None:
            is_known = number not in queue.record.generations.order
            if not (is_known or queue.is_deleted) and queue.is_owned and queue.source_of(number) is None:
                self._log_retired(queue, number)

        self._around.append(queue_retired(queue.record.vhost, queue.name, number), answer)

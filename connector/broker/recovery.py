"""After a restart of KubeMQ: which queues are in doubt, which have to move, and what that leaves behind.

Owns the server's start time as last seen, the moves under way, and what operators are told of them.  A restarted server
may withhold messages in subscriptions of its dead self; a queue in doubt is examined by its reader before anything else
is read from it or stored in it (``runtime/queue_mover.py``).  Rules: design.md section 3, points 12 and 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from connector.broker.generations import queue_moved, queue_moving, queue_retired, server_started
from connector.broker.move import Move
from mapping import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.broker.ports import Done
    from connector.broker.queue import Queue, StoredQueue
    from connector.broker.sources import Source
    from connector.broker.topology import Topology

#: Why a queue moves.
WITHHELD = "withheld"
RETENTION = "retention"


class Around(Protocol):
    """What recovery needs of the broker."""

    topology: Topology
    is_loaded: bool

    def append(self, event: dict[str, Any], done: Done) -> None:
        """Write to the topology log."""

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
        self._is_logging = False
        self.move_count = 0

    # ------------------------------------------------------------------ doubt

    def on_server(self, start_time: int) -> None:
        """KubeMQ has answered a Ping; this is when it started (seconds since the epoch)."""
        if start_time != self._server_start:
            self._server_start = start_time
            if self._around.is_loaded:
                self.check_server()

    def check_server(self) -> None:
        """Doubt every queue when the server is not the one that all queues were last looked at on."""
        known = self._around.topology.server_start
        if self._server_start in (0, known):
            return
        if known:
            self._around.report("KubeMQ was restarted: its queues are examined", start_time=self._server_start)
            for source in self._around.sources():
                if not source.queue.is_deleted and source.queue.is_owned:
                    source.lease.doubt()
                    if source.lease.counts.withheld:  # the restart may have freed it
                        source.lease.counts.withheld = 0
                        source.lease.is_doubtful = True
                    self.look(source)
        self.log_server()

    def look(self, source: Source) -> None:
        """The lease may have come into doubt: then nothing is stored before it is examined."""
        queue = source.queue
        if source.lease.is_doubtful:
            if queue.is_deleted:
                source.lease.trust()
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
        """Once no queue is in doubt any more, note the server's start: a later start of ours need not look again."""
        around = self._around
        if self._is_logging or self._server_start in (0, around.topology.server_start) or not around.is_loaded:
            return
        if any(source.lease.is_doubtful for source in around.sources()):
            return
        self._is_logging = True
        around.append(server_started(self._server_start), self._on_logged)

    def _on_logged(self, _result: object) -> None:
        self._is_logging = False
        if not isinstance(_result, Exception):
            self.log_server()

    # ------------------------------------------------------------------ moving

    def begin(self, source: Source, reason: str) -> Move:
        """The move of this queue to its next generation, the one under way if there is one."""
        queue = source.queue
        if queue.move is None:
            generation = source.generation + 1
            channel = names.kubemq_channel(queue.record.vhost, queue.name, generation)
            queue.move = Move(source, queue.make_source(channel, generation), reason)
        queue.hold()
        return queue.move

    def renew(self, source: Source) -> None:
        """The oldest message nears the server's retention: the queue moves, and all of it is stored anew."""
        lease = source.lease
        lease.may_withhold = lease.is_doubtful = lease.is_due = True
        self._around.report("queue is renewed before the server's retention", kubemq_channel=source.kubemq_channel)
        self.look(source)

    def moving_event(self, move: Move) -> dict[str, Any] | None:
        """The event that begins it, or None when it has come back already."""
        record, generation = move.old.queue.record, move.target.generation
        if record.generations.moving == generation:
            return None
        return queue_moving(record.vhost, record.name, generation, move.reason)

    def moved_event(self, move: Move, waiting: int) -> dict[str, Any]:
        """The event that ends it; so many messages are still in the old channel."""
        record = move.old.queue.record
        return queue_moved(record.vhost, record.name, move.target.generation, waiting, move.left_behind())

    def on_moving(self, queue: StoredQueue) -> None:
        """A move has begun, here or elsewhere, or in an earlier life."""
        queue.hold()
        if queue.is_owned:
            queue.current.lease.may_withhold = queue.current.lease.is_doubtful = True
        self._around.mark_dirty(queue)

    def on_moved(self, queue: StoredQueue) -> None:
        """The new generation is current from now on."""
        generations = queue.record.generations
        move, queue.move = queue.move, None
        old = queue.current
        if move is None or move.target.generation != generations.current:
            channel = names.kubemq_channel(queue.record.vhost, queue.name, generations.current)
            target = queue.make_source(channel, generations.current)
            old.lease.leave()
        else:
            target = move.target
            move.hand_over()
        self._around.add_source(target)
        queue.use(target)
        left = generations.older[old.generation]
        old.lease.counts.withheld = left.withheld
        old.lease.copied.update(left.copied)
        old.lease.may_withhold = left.withheld > 0
        self.move_count += 1
        self._around.report(
            "queue has moved to a new channel",
            queue=queue.name,
            vhost=queue.record.vhost,
            kubemq_channel=target.kubemq_channel,
            moved=move.stored_count if move else 0,
            withheld=left.unreadable,
            withheld_in=old.kubemq_channel,
            advice="kubemq-amqp rescue frees what is withheld" if left.unreadable else "",
        )
        queue.release()
        self._around.mark_dirty(queue)
        self.log_server()

    def on_rescued(self, queue: StoredQueue) -> None:
        """What was withheld may be read now."""
        for source in queue.older:
            source.lease.counts.withheld = 0
        self._around.report("withheld messages are free again", queue=queue.name, vhost=queue.record.vhost)
        self._around.mark_dirty(queue)

    def restore(self, queue: StoredQueue) -> None:
        """Make the sources that the record tells of (the queue has the first one)."""
        generations = queue.record.generations
        for number in sorted([*generations.older, generations.current]):
            if number:
                source = queue.make_source(names.kubemq_channel(queue.record.vhost, queue.name, number), number)
                queue.use(source)
                self._around.add_source(source)
        for source in queue.older:
            left = generations.older[source.generation]
            source.lease.counts.withheld = left.withheld
            source.lease.copied.update(left.copied)
            source.lease.may_withhold = left.withheld > 0
        if generations.moving:
            self.on_moving(queue)

    def retire(self, source: Source) -> None:
        """An older generation was counted: when it is empty it is looked at no more, but for the first."""
        queue, lease = source.queue, source.lease
        is_empty = not (lease.mine_count or lease.sent or lease.ready_count or lease.counts.withheld)
        if queue.is_owned and source.generation and is_empty and source in queue.older and lease.counts.is_empty:
            queue.older.remove(source)
            self._around.remove_source(source)
            self._around.append(queue_retired(queue.record.vhost, queue.name, source.generation), lambda _result: None)

"""Deleted queues: who empties their channels, who waits for that, and when it may begin.

Owns one drain per deletion, from its event in the topology log to the one which says that nothing is left.  One
connector empties the channel; it waits until nothing that the others have accepted for the queue is on its way,
which each of them tells with how far it has applied the log (``applied_upto``).  A drain that another connector has
taken over, or finished, ends here at once: the channel is that of the next queue by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from connector.broker.errors import Inequivalent
from connector.broker.generations import Generations, queue_drained
from connector.broker.topology import QueueRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.group import Group
    from connector.broker.ports import Done
    from connector.broker.queue import StoredQueue
    from connector.broker.recovery import Recovery
    from connector.broker.topology import Topology

#: What could not be logged is tried again after this.
RETRY_S = 0.5


class Around(Protocol):
    """What drains need of the broker."""

    topology: Topology
    recovery: Recovery
    group: Group | None

    def append(self, event: dict[str, Any], done: Done) -> None:
        """Write to the topology log."""

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do it then."""

    def report(self, what: str, *, is_error: bool = False, **facts: object) -> None:
        """Tell an operator."""

    def stored_queue(self, record: QueueRecord) -> StoredQueue:
        """A queue object over this record's KubeMQ channels."""

    def forget(self, queue: StoredQueue) -> None:
        """Neither read nor count its channels any more."""


class Drain:
    """One deletion's: who waits for its end, and the queue that is emptied here, or was.

    ``before``: the queue as it was used here, while another connector emptied its channel.
    """

    __slots__ = ("before", "is_emptied", "queue", "waiters")

    def __init__(self) -> None:
        self.waiters: list[Callable[[], None]] = []
        self.queue: StoredQueue | None = None
        self.before: StoredQueue | None = None
        self.is_emptied = False


class Drains:
    """One replica's; names are (vhost, name)."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._drains: dict[tuple[str, str], Drain] = {}
        self._unstored: dict[int, None] = {}  # deletions since which something is still on its way to KubeMQ

    @property
    def applied_upto(self) -> int:
        """Up to which event of the log everything that follows from it is done here."""
        first = next(iter(self._unstored), None)
        return self._around.topology.version if first is None else first - 1

    def begin(self, queue: StoredQueue) -> None:
        """The log says that it is deleted: empty its channel, or leave that to whoever does."""
        key = (queue.record.vhost, queue.name)
        drain = self._drains.setdefault(key, Drain())
        if self._is_ours(key):
            self._empty(key, drain, queue)
            return
        sequence = self._around.topology.version
        self._unstored[sequence] = None
        drain.before = queue
        self._leave(queue)
        queue.when_stored(lambda: self._on_stored(sequence))

    def look(self) -> None:
        """Who is a member has changed: deleted queues may be ours to empty now, or not any more."""
        topology = self._around.topology
        for key in list(topology.undrained):
            drain = self._drains.setdefault(key, Drain())
            is_ours = self._is_ours(key)
            if is_ours and drain.queue is None:
                record = QueueRecord(*key, generations=topology.left.get(key) or Generations())
                queue = self._around.stored_queue(record)
                queue.lease.was_in_doubt = True  # an earlier life may have known more
                self._empty(key, drain, queue)
            elif not is_ours and drain.queue is not None:
                self._stop(drain)

    def on_over(self, key: tuple[str, str]) -> None:
        """The log says that nothing is left, or that the next queue is there: who waits for the name may have it."""
        drain = self._drains.pop(key, None)
        if drain is None:
            return
        if drain.queue is not None and not drain.is_emptied:
            self._stop(drain)
        for done in drain.waiters:
            done()

    def when_drained(self, vhost: str, name: str, done: Callable[[], None]) -> bool:
        """False when no deleted queue of this name is being emptied; else ``done`` follows when it is empty."""
        drain = self._drains.get((vhost, name))
        if drain is None:
            return False
        drain.waiters.append(done)
        return True

    def _is_ours(self, key: tuple[str, str]) -> bool:
        group = self._around.group
        return group is None or self._around.topology.drainer_of(key) == group.me

    def _empty(self, key: tuple[str, str], drain: Drain, queue: StoredQueue) -> None:
        """Once nothing that was accepted here is on its way; the queue waits for what the others have."""
        drain.queue = queue
        queue.is_owned = True

        def close() -> None:
            if drain.queue is queue:  # not stopped meanwhile
                queue.close(lambda: self._on_emptied(key, drain, queue))

        if drain.before is None:
            close()
        else:
            drain.before.when_stored(close)

    def _stop(self, drain: Drain) -> None:
        """Another connector goes on with it, or has finished it."""
        queue, drain.queue = drain.queue, None
        drain.is_emptied = False
        if queue is not None:
            self._leave(queue)

    def _leave(self, queue: StoredQueue) -> None:
        self._around.forget(queue)
        queue.is_owned = False
        queue.start_anew(queue.kubemq_channel)
        queue.abandon()

    def _on_stored(self, sequence: int) -> None:
        """Nothing for that queue is on its way from here: whoever empties its channel may begin."""
        del self._unstored[sequence]
        if self._around.group is not None:
            self._around.group.peers.wake()

    def _on_emptied(self, key: tuple[str, str], drain: Drain, queue: StoredQueue) -> None:
        if drain.queue is not queue:  # stopped meanwhile
            return
        around, left = self._around, queue.remainder()
        if left:
            around.report("a deleted queue could not be emptied", queue=queue.name, vhost=key[0], left=left)
            for source in queue.sources:
                source.lease.leave()
        drain.is_emptied = True
        around.forget(queue)
        event = queue_drained(*key, around.topology.deletions.get(key, 0), left, around.recovery.server_time)

        def answer(result: object) -> None:
            if isinstance(result, Inequivalent):  # a bug: nobody is to wait for ever for what cannot be written
                around.report("what is left of a deleted queue cannot be noted", is_error=True, event=event)
                event.pop("left", None)
            if isinstance(result, Exception):
                around.call_later(RETRY_S, log)

        def log() -> None:
            if self._drains.get(key) is drain:
                around.append(event, answer)

        log()

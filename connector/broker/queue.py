"""A queue whose messages live in KubeMQ: in one channel, read through a lease, or after a move in several.

Owns what is on its way to KubeMQ, and which lease a message belongs to; consumers, gets and turns are
``base_queue.py``'s.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from connector.broker.backlog import NEVER
from connector.broker.base_queue import Hub, Queue
from connector.broker.early import MOST_UNREAD, Early
from connector.broker.errors import Locked, NotFound
from connector.broker.latest import FRESH_S
from connector.broker.lease import Lease
from connector.broker.message import Message
from connector.broker.move_receipt import MoveReceipt
from connector.broker.outbox import LateSubmission, Outbox, Submission
from connector.broker.sources import Source, credit_after, lease_of, when_all
from mapping.message_ids import is_early

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.backlog import Backlog
    from connector.broker.ports import Consumer, Done, Receipt
    from connector.broker.topology import QueueRecord

__all__ = ["DRAIN_ROUNDS", "FRESH_S", "READ_AHEAD", "RETRY_S", "Hub", "Queue", "StoredQueue"]

#: A Get brings so many times what consumers can take at once (measured: docs/performance.md).
READ_AHEAD = 4
#: How often a deleted queue is emptied: once, and for what native producers may add meanwhile.
DRAIN_ROUNDS = 3
#: So often is a queue counted again that may have acknowledged messages in its count.
CLEAR_TRIES = 3
#: Pause before a refused copy is stored again.
RETRY_S = 0.1


class StoredQueue(Queue):
    """A queue whose messages live in KubeMQ: in one channel, or after a move in several (``sources.py``).

    ``is_held``: what is published to it waits, until it is known that KubeMQ withholds nothing, or it has moved.
    ``is_leaving``: it is being deleted, and may stay; what is published waits for that as well.
    """

    is_stored = True

    def __init__(self, record: QueueRecord, hub: Hub, kubemq_channel: str, outbox: Outbox) -> None:
        super().__init__(record, hub)
        self.kubemq_channel = kubemq_channel
        self.current = Source(self, kubemq_channel, 0, self._new_lease(self.credit))
        self.older: list[Source] = []
        self.lease = self.current.lease
        self._taking: Lease | Early = self.lease
        self.ready = self.lease.ready
        self.is_held = self.is_leaving = False
        self.is_owned = True
        self._is_drained_elsewhere = False
        self._count_awaited = 0  # by so many
        self._outbox = outbox
        self._moves = MoveReceipt(self)
        self._submitted = 0
        self._resolved = 0
        self._store_waiters: deque[tuple[int, Callable[[], None]]] = deque()

    def _new_lease(self, credit: Callable[[], int]) -> Lease:
        hub = self._hub
        return Lease(credit, hub.clock, READ_AHEAD, lambda: hub.is_full)

    def credit(self) -> int:
        """As above; none where another connector reads.

        Above the process's mark one message at a time, and none to consumers that have some (CO-23).
        """
        if not self.is_owned:
            return 0
        credit = super().credit()
        if not self._hub.is_full:
            return credit
        has_some = any(source.lease.mine_count for source in self.sources)
        return 0 if has_some and not self._gets else min(credit, 1)

    @property
    def is_idle(self) -> bool:
        """True when nothing is known to be in the channel and nobody waits: only a native producer can change that."""
        if not self.is_owned:
            return not self.is_dirty
        if self.consumers or self._gets or self.is_deleted or self.is_dirty or self.older or self._count_awaited:
            return False
        return self.lease.is_idle

    @property
    def ready_count(self) -> int:
        """Read and undelivered, plus the known backlog."""
        return self.lease.ready_count + sum([source.lease.ready_count for source in self.older])

    @property
    def unacked_count(self) -> int:
        """Delivered and unsettled."""
        return sum([len(source.lease.held) + len(source.lease.adopted.held) for source in self.sources])

    @property
    def unreadable_count(self) -> int:
        """As above: the server withholds them."""
        return sum([source.lease.unreadable_count for source in self.sources])

    @property
    def is_unused(self) -> bool:
        """True when nobody here takes or holds anything of it, and nothing is under way: another may read it."""
        if self.consumers or self._gets or self.is_dirty or self.is_held or self.is_moving or self.unacked_count:
            return False
        return all(source.lease.is_unused for source in self.sources)

    def count(self, done: Callable[[int, int], None], failed: Done) -> None:
        """As above; where another connector reads, by that one."""
        if not self.is_owned:
            self._hub.away.count(self, done, failed)
            return

        def count() -> None:
            done(self.ready_count, self.consumer_count)

        self.when_counted(self._while_ours(count, lambda: self.count(done, failed)))

    def watch_repeated(self, message_ids: list[str]) -> None:
        """These are stored a second time: whoever reads the queue drops second copies."""
        if self.is_owned:
            self.lease.watch_repeated(message_ids)
        else:
            self._hub.away.watch_repeated(self, message_ids)

    def note_unknown(self, message_ids: list[str]) -> None:
        """These were refused, but may be stored: whoever reads the queue has not counted them."""
        if self.is_owned:
            self.lease.counts.note_unknown(message_ids)
        else:
            self._hub.away.note_unknown(self, message_ids)

    def on_grown(self, count: int) -> None:
        """Another connector has stored so many messages."""
        if self.lease.counts.known_at > NEVER:
            self.lease.counts.on_announced(count, self._hub.clock())
            self._hub.mark_dirty(self)

    # ------------------------------------------------------------------ sources

    def start_anew(self, kubemq_channel: str) -> None:
        """Its first channel is read from scratch, or no longer, by us: what was read before is another's by now.

        What clients still hold is known no more: what they decide about it changes nothing.
        """
        pending_count = self.lease.counts.pending_count
        for source in self.sources:
            source.lease.leave()
        self.older.clear()
        self.kubemq_channel = kubemq_channel
        self.current = self.make_source(kubemq_channel, 0)
        self.lease = self._taking = self.current.lease
        self.lease.counts.pending_count = pending_count
        self.ready = self.lease.ready
        gets, self._gets = self._gets, deque()
        for get in gets:
            self._look(get)

    @property
    def sources(self) -> list[Source]:
        """Its channels, oldest first."""
        return [*self.older, self.current]

    def make_source(self, kubemq_channel: str, generation: int) -> Source:
        """A channel that is to be one of its sources."""
        lease = self._new_lease(lambda: credit_after(self, generation))
        lease.generation, lease.repeated = generation, self.lease.repeated
        return Source(self, kubemq_channel, generation, lease)

    def source_of(self, generation: int) -> Source | None:
        """The source with this number."""
        return next((source for source in self.sources if source.generation == generation), None)

    @property
    def is_moving(self) -> bool:
        """Whether messages are being copied from one of its channels to another."""
        return any(source.move is not None for source in self.sources)

    def use(self, source: Source) -> None:
        """Write to this source from now on; the one before stays to be read."""
        before = self.current
        self.older.append(before)
        source.lease.counts.pending_count, before.lease.counts.pending_count = before.lease.counts.pending_count, 0
        self.current = source
        self.lease = self._taking = source.lease
        self.ready = self.lease.ready
        self.kubemq_channel = source.kubemq_channel

    def hold(self) -> None:
        """What is published waits."""
        self.is_held = True

    def release(self) -> None:
        """What waited is stored, where the queue is written to now."""
        if self.is_held and not self.is_leaving:
            self.is_held = False
            self._outbox.release(self)
            self._hub.mark_dirty(self)

    def begin_leaving(self) -> None:
        """Its deletion is on the way."""
        self.is_leaving = True
        self.hold()

    def end_leaving(self) -> None:
        """It stays, or is gone; only doubt about the channel it is written to holds what is published any longer."""
        self.is_leaving = False
        if self.is_deleted or not self.current.lease.is_doubtful:
            self.release()

    @property
    def in_flight_count(self) -> int:
        """Copies on their way to KubeMQ at this moment."""
        return self.lease.counts.pending_count - self._outbox.waiting_of(self)

    def _dispatch_all(self) -> None:
        """Hand out the oldest first."""
        for source in self.sources:
            self._taking = source.lease
            self.ready = source.lease.ready
            super().dispatch()
            if source.has_messages:
                break
        self._taking = self.lease
        self.ready = self.lease.ready

    def add_consumer(self, consumer: Consumer) -> None:
        """As above; the first one makes the reader look at the channel."""
        super().add_consumer(consumer)
        if self.is_owned and self._hub.clock() - self.lease.counts.known_at > FRESH_S:
            self._hub.refresh_counts(self.credit_changed)

    def dispatch(self) -> None:
        """As above; then the reader may have acks to send or messages to fetch."""
        if not self.is_owned:
            self.is_dirty = False
            return
        lease = self.lease
        if self.older:
            self._dispatch_all()
        else:
            super().dispatch()
            if lease.early.offered:
                self._dispatch_early()
        if self._gets and all(source.lease.has_nothing for source in self.sources):
            gets, self._gets = self._gets, deque()
            for get in gets:
                get(None)
        if lease.wants_reader() or (self.older and any(source.lease.wants_reader() for source in self.older)):
            self._hub.wake_reader(self)

    def _dispatch_early(self) -> None:
        """Hand out what was stored just now to the consumers that have room."""
        lease, early, hub = self.lease, self.lease.early, self._hub
        if not (self._gets or lease.ready or self.older or self.is_deleted or hub.is_full) and hub.may_read():
            offered_count = len(early.offered)
            self.ready = early.offered
            self._taking = early
            super().dispatch()
            self.ready = lease.ready
            self._taking = lease
            lease.taken_count += offered_count - len(early.offered)
        early.withdraw()

    def publish(self, message: Message, receipt: Receipt, token: int) -> None:
        """Into the lane's outbox; one confirm follows."""
        hub = self._hub
        message.message_id = hub.next_early_id() if self._has_room() else hub.next_message_id()
        kind = Submission
        if self.is_leaving:
            kind = LateSubmission
            receipt.on_doubt(token)
        self._accept(kind(self, message, receipt, token))

    def _has_room(self) -> bool:
        """Whether consumers have room for what is published now, after all that is to be handed out before it."""
        if not self._hub.delivers_early:
            return False
        counts = self.lease.counts
        ahead = self.lease.undelivered_count + counts.pending_count
        is_known = self.is_owned and not self.older and counts.known_at > NEVER
        return is_known and ahead < MOST_UNREAD and self.consumers.has_room(ahead + 1)

    def _submit(self, message: Message, receipt: Receipt, token: int) -> None:
        self._accept(Submission(self, message, receipt, token))

    def _accept(self, submission: Submission) -> None:
        self._submitted += 1
        self.lease.counts.pending_count += 1
        self._outbox.append(submission)

    def _return(self, message: Message) -> bool:
        return lease_of(self, message).put_back(message)

    def _append_again(self, messages: list[Message]) -> None:
        """Store a copy at the tail, then acknowledge the original (design.md section 3, point 9)."""
        lease, moves = self.lease, self._moves
        if self.is_deleted:
            return
        for message in messages:
            if self.older:
                lease = lease_of(self, message)
            if lease.start_move(message):
                copy = Message(
                    message.exchange,
                    message.routing_key,
                    message.header,
                    message.body,
                    self._hub.next_message_id(),
                    redelivered=True,
                    delivery_count=message.delivery_count + 1,
                )
                self._submit(copy, moves, moves.start(message, copy))

    def repeat(self, copy: Message, receipt: Receipt, token: int) -> None:
        """A refused copy is stored again after a pause, unless the queue is gone."""
        self._hub.call_later(RETRY_S, lambda: None if self.is_deleted else self._submit(copy, receipt, token))

    def on_stored(self, message: Message) -> None:
        """The oldest unresolved submission is stored."""
        lease = self.lease
        lease.counts.on_stored()
        self._resolve()
        if not self.is_owned:
            self._hub.away.on_grown(self)
            return
        if self._hub.delivers_early:
            is_sure = not (self.older or self.is_held or message.redelivered)
            may_offer = is_sure and is_early(message.message_id) and lease.takes_early()
            if may_offer:
                message.kubemq_channel = self.kubemq_channel
            lease.early.on_stored(message, may_offer)
        if not self.is_dirty:
            self._hub.mark_dirty(self)

    def on_coming(self, count: int) -> Backlog | None:
        """KubeMQ is about to store so many; where that is noted, if they may be read here and probably are there."""
        counts = self.lease.counts
        if not self.is_owned or self.is_held or counts.is_refused:
            return None
        counts.coming_count = count
        if self.lease.wants_reader():
            self._hub.wake_reader(self)
        return counts

    def on_refused(self) -> None:
        """The oldest unresolved submission is not stored."""
        self.lease.counts.on_refused()
        self.lease.early.on_unknown()
        self._resolve()

    on_dropped = on_refused

    def _resolve(self) -> None:
        self._resolved += 1
        waiters = self._store_waiters
        while waiters and waiters[0][0] <= self._resolved:
            waiters.popleft()[1]()

    def when_stored(self, done: Callable[[], None]) -> None:
        """Call ``done`` when everything submitted so far is stored or refused."""
        if self._submitted == self._resolved:
            done()
        else:
            self._store_waiters.append((self._submitted, done))

    def when_counted(self, done: Callable[[], None]) -> None:
        """After earlier publishes are stored, and a fresh snapshot when the counter is old (30 ms at most)."""
        self.when_stored(lambda: self._when_fresh(done))

    def when_counted_anew(self, done: Callable[[], None]) -> None:
        """The same with a snapshot that begins after them, however long it takes."""

        def count() -> None:
            self._when_counted_since(self._hub.clock(), done)

        self.when_stored(lambda: self._hub.when_told(count))

    def when_acknowledged(self, done: Callable[[], None]) -> None:
        """After the copies of what was requeued are stored: the acknowledgements of all, in KubeMQ."""

        def prove() -> None:
            when_all(self, Lease.when_flushed, done)
            self._hub.mark_dirty(self)

        self.when_stored(prove)

    def _look(self, done: Done) -> None:
        """As above; what is known to be there is read without asking for fresh counts."""
        if not self.is_owned:
            self._hub.away.acquire(self, lambda is_ours: self._look(done) if is_ours else done(self._read_elsewhere()))
            return

        def look() -> None:
            if self.ready_count:
                self._get_now(done)
            else:
                self._when_fresh(lambda: self._get_now(done))

        self.when_stored(look)

    def _get_now(self, done: Done) -> None:
        get = super()._get_now
        self._while_ours(lambda: get(done), lambda: self._look(done))()

    def _while_ours(self, action: Callable[[], None], again: Callable[[], None]) -> Callable[[], None]:
        """What to call after a wait: ``again`` begins anew, when another connector reads the queue by then."""
        return lambda: action() if self.is_owned or self.is_deleted else again()

    def _when_fresh(self, done: Callable[[], None]) -> None:
        """After what others have stored is known, and what natives have, if that was not asked for a second."""
        self._hub.when_told(lambda: self._when_fresh_here(done))

    def _when_fresh_here(self, done: Callable[[], None]) -> None:
        counted_at = self._hub.counted_at(self)
        if self._hub.clock() - counted_at <= FRESH_S:
            done()
        elif counted_at > NEVER:
            self._hub.refresh_counts(done)
        else:
            self._when_counted_since(NEVER, done)

    def _when_counted_since(self, moment: float, done: Callable[[], None], tries: int = CLEAR_TRIES) -> None:
        """Call ``done`` after a snapshot that began later than that moment, however long it takes.

        One that may have acknowledged messages in it is followed by another one, some times at most.
        """

        def ask() -> None:
            self._hub.mark_dirty(self)  # idle queues are not counted
            self._hub.refresh_counts(check)

        def check() -> None:
            counts = self.lease.counts
            if counts.counted_from <= moment:
                ask()
                return
            self._count_awaited -= 1
            if counts.is_unclear and tries:
                self._when_counted_since(counts.counted_from, done, tries - 1)
            else:
                done()

        self._count_awaited += 1
        ask()

    def _read_elsewhere(self) -> Exception:
        if self.is_deleted:
            return NotFound(f"no {self.label}")
        reader = self._hub.away.owner_of(self)
        return Locked(f"cannot obtain access to {self.label}: it is in use on connector {reader or 'unknown'}")

    def purge(self, done: Done) -> None:
        """Through the lease: read and acknowledge up to the backlog of this moment (KI-13).

        Never by an old count: what it does not know of would stay.  Where another connector reads, by that one.
        """
        if not self.is_owned and not self.is_deleted:
            self._hub.away.purge(self, done)
            return

        def start() -> None:
            count = self.ready_count
            if self.older:
                when_all(self, Lease.purge, lambda: done(count))
            else:
                self.lease.purge(lambda: done(count))
            self._hub.mark_dirty(self)

        def count() -> None:
            after = self._while_ours(start, lambda: self.purge(done))
            self.when_counted_anew(after)

        self._when_still(count)

    def _when_still(self, action: Callable[[], None]) -> None:
        """Do it while no messages are being copied: one may be in two channels then, or in none that is read."""
        if self.is_moving:
            self._hub.call_later(RETRY_S, lambda: self._when_still(action))
        else:
            action()

    def abandon(self) -> None:
        """The queue is deleted, and another connector empties its channel."""
        self._is_drained_elsewhere = True
        self.close(lambda: None)

    def _drain(self, done: Callable[[], None]) -> None:
        self.end_leaving()
        if self._is_drained_elsewhere:
            done()
            return

        def drop() -> None:
            for source in self.sources:
                source.lease.drop_doubt()
                source.lease.settle_everything()
            self._purge_all(DRAIN_ROUNDS, done)
            self._hub.mark_dirty(self)

        self._hub.when_others_stored(lambda: self._when_still(drop))

    def _purge_all(self, rounds: int, done: Callable[[], None]) -> None:
        """Purge until a count finds nothing: the first may be low, as acknowledgements are on their way.

        What others hold stays (``remainder``).
        """

        def check() -> None:
            is_all = not any(source.lease.counts.unpurged_count for source in self.sources)
            if self.ready_count and rounds > 1 and is_all:
                self._purge_all(rounds - 1, done)
            else:
                done()

        self.purge(lambda _count: self._when_counted_since(self._hub.clock(), check))

    def remainder(self) -> dict[str, list[int]]:
        """What could not be had of a deleted queue, by generation: (withheld, last Sequence).

        What remains of a channel in doubt counts as withheld.
        """
        left: dict[str, list[int]] = {}
        for source in self.sources:
            lease, counts = source.lease, source.lease.counts
            if counts.count or counts.withheld:
                withheld = counts.withheld + (counts.count if lease.was_in_doubt else 0)
                left[str(source.generation)] = [withheld, counts.last_sequence or counts.highest_read]
        return left

    def _take(self) -> Message:
        return self._taking.take()

    def _settle(self, message: Message) -> None:
        lease: Lease = lease_of(self, message) if self.older else self.lease
        lease.settle(message)

    def _put_back(self, message: Message) -> None:
        lease_of(self, message).give_back(message)

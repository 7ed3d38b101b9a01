"""A queue: its consumers, waiting gets, one settlement path, and where its messages live.

``Queue`` is what all queues share; ``StoredQueue`` (a KubeMQ channel read through a lease) and ``MemoryQueue``
(``memory_queue.py``) say where messages come from.  Knows no frames, reply codes or tasks; the
``Hub`` is its only way out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from connector.broker.arguments import acknowledgement_timeout_s
from connector.broker.backlog import NEVER
from connector.broker.consumers import Consumers, SingleActive
from connector.broker.errors import AccessRefused, Locked
from connector.broker.latest import FRESH_S
from connector.broker.lease import Lease
from connector.broker.message import Message
from connector.broker.move_receipt import MoveReceipt
from connector.broker.outbox import Outbox, Submission
from connector.broker.sources import Source, credit_after, lease_of, when_all
from mapping import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.counters import Counters
    from connector.broker.move import Move
    from connector.broker.ports import Clock, Consumer, Done, Receipt
    from connector.broker.topology import QueueRecord

#: A Get brings so many times what consumers can take at once (measured: docs/performance.md).
READ_AHEAD = 4
#: How often a deleted queue is emptied: once, and for what native producers may add meanwhile.
DRAIN_ROUNDS = 3
#: Pause before a refused copy is stored again.
RETRY_S = 0.1


class Hub(Protocol):
    """What a queue needs from the broker around it."""

    clock: Clock
    counters: Counters
    memory_bytes: int
    memory_limit_bytes: int
    is_full: bool  #: messages read from KubeMQ take up as much memory as they may
    requeues_in_place: bool  #: a requeued message goes back to its old place, else to the tail
    get_batch: int  #: credit of a waiting ``basic.get``: it reads a little ahead, for the gets that follow

    def mark_dirty(self, queue: Queue) -> None:
        """Dispatch this queue at the end of the batch."""

    def wake_reader(self, queue: StoredQueue) -> None:
        """Its lease may have something to do."""

    def refresh_counts(self, done: Callable[[], None]) -> None:
        """Call ``done`` after a QueuesInfo call that begins now or later, or after a short deadline without it."""

    def counted_at(self, queue: StoredQueue) -> float:
        """When KubeMQ was last asked what is in the queue, ``NEVER`` before the first time."""

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run ``action`` after a while."""

    def add_source(self, source: Source) -> None:
        """One more channel is counted."""

    def next_message_id(self) -> str:
        """A new MessageID, unique among all stored copies."""

    def on_unused(self, queue: Queue) -> None:
        """The last consumer of an auto-delete queue is gone."""


class Queue:
    """One queue as the session sees it."""

    is_stored = False

    def __init__(self, record: QueueRecord, hub: Hub, owner: object = None) -> None:
        self.record = record
        self.name = record.name
        self.owner = owner
        self.is_deleted = False
        is_single_active = record.arguments.get("x-single-active-consumer") == ("t", True)
        self.consumers: Consumers = SingleActive() if is_single_active else Consumers()
        self.consumer_timeout_s = acknowledgement_timeout_s(record.arguments)
        self._hub = hub
        self._gets: deque[Done] = deque()
        self.is_dirty = False
        self.ready: deque[Message] = deque()

    @property
    def label(self) -> str:
        """What texts call the queue."""
        vhost = self.record.vhost
        return f"queue '{self.name}' in vhost '{'/' if vhost == 'default' else vhost}'"

    # ------------------------------------------------------------------ consumers

    def add_consumer(self, consumer: Consumer) -> None:
        """Attach a consumer; raises AccessRefused when one side wants the queue for itself (CO-28)."""
        if not self.consumers.admits(consumer):
            raise AccessRefused(f"{self.label} in exclusive use")
        self.consumers.add(consumer)
        self._hub.mark_dirty(self)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer: nothing is delivered to it any more; an auto-delete queue may go (QU-06)."""
        consumers = self.consumers
        if not consumers.remove(consumer):
            return
        self._hub.mark_dirty(self)
        if not consumers and self.record.auto_delete and not self.is_deleted:
            self._hub.on_unused(self)

    def credit_changed(self) -> None:
        """A consumer has room again, or has lost it."""
        self._hub.mark_dirty(self)

    def credit(self) -> int:
        """How many messages could be handed out right now."""
        free = self.consumers.credit()
        return free + self._hub.get_batch if self._gets else free

    # ------------------------------------------------------------------ handing out

    def dispatch(self) -> None:
        """Hand out ready messages: waiting gets first, then consumers in turn."""
        self.is_dirty = False
        ready = self.ready
        consumers = self.consumers
        consumers.begin_round()
        while ready:
            if self._gets:
                message = self._take()
                self._gets.popleft()((message, self.ready_count))
                continue
            consumer = consumers.next()
            if consumer is None:
                break
            message = self._take()
            if consumer.no_ack:
                self._settle(message)
            consumer.deliver(message)

    def get(self, done: Done) -> None:
        """``basic.get``: ``done`` is called with (message, ready messages left), or with None when empty (CO-09)."""
        if self.consumers.is_single_active:
            reason = "basic.get operations are not supported by queues with single active consumer"
            done(Locked(f"cannot obtain access to locked {self.label}. {reason}"))
        else:
            self._look(done)

    def _look(self, done: Done) -> None:
        """Get when it is known what there is."""
        self.when_counted(lambda: self._get_now(done))

    def _get_now(self, done: Done) -> None:
        if self.is_deleted or self.ready_count == 0:
            done(None)
            return
        self._gets.append(done)
        self._hub.mark_dirty(self)

    def settle(self, message: Message) -> None:
        """Acknowledged, or rejected without requeue: the message is done with."""
        self._settle(message)
        if not self.is_dirty:
            self._hub.mark_dirty(self)

    def requeue(self, messages: list[Message]) -> None:
        """Refused by their client, or lost with its channel: redelivered, in the order given (CO-15, CO-17)."""
        if self._hub.requeues_in_place:
            messages = [message for message in reversed(messages) if not self._return(message)][::-1]
        self._append_again(messages)
        self._hub.mark_dirty(self)

    def give_back(self, message: Message) -> None:
        """The client never saw it: back in its place, its redelivered mark unchanged."""
        self._put_back(message)
        self._hub.mark_dirty(self)

    # ------------------------------------------------------------------ what the two kinds say

    @property
    def ready_count(self) -> int:
        """Ready messages (QU-01)."""
        return len(self.ready)

    @property
    def unacked_count(self) -> int:
        """Delivered and unsettled."""
        raise NotImplementedError

    def publish(self, message: Message, receipt: Receipt, token: int) -> None:
        """Accept one copy of its own; the receipt is told once whether it is stored."""
        raise NotImplementedError

    def when_counted(self, done: Callable[[], None]) -> None:
        """Call ``done`` when the counts are fresh and every publish accepted before is stored."""
        raise NotImplementedError

    def when_acknowledged(self, done: Callable[[], None]) -> None:
        """Call ``done`` when what was settled and requeued so far has provably arrived where messages are kept."""
        raise NotImplementedError

    def purge(self, done: Callable[[int], None]) -> None:
        """Drop what is ready; ``done`` is told how many."""
        raise NotImplementedError

    def close(self, done: Callable[[], None]) -> None:
        """The queue is deleted: consumers go, what is left is dropped; ``done`` when nothing of it remains."""
        self.is_deleted = True
        consumers, self.consumers = self.consumers, Consumers()
        for consumer in consumers:
            consumer.on_queue_gone()
        gets, self._gets = self._gets, deque()
        for get in gets:
            get(None)
        self._drain(done)

    def _take(self) -> Message:
        raise NotImplementedError

    def _settle(self, message: Message) -> None:
        raise NotImplementedError

    def _put_back(self, message: Message) -> None:
        raise NotImplementedError

    def _return(self, message: Message) -> bool:
        """Into its old place, redelivered; False when it is not there any more."""
        raise NotImplementedError

    def _append_again(self, messages: list[Message]) -> None:
        """To the tail, redelivered."""
        raise NotImplementedError

    def _drain(self, done: Callable[[], None]) -> None:
        raise NotImplementedError


class StoredQueue(Queue):
    """A queue whose messages live in KubeMQ: in one channel, or after a move in several (``sources.py``).

    ``is_held``: what is published to it waits, until it is known that KubeMQ withholds nothing, or it has moved.
    """

    is_stored = True

    def __init__(self, record: QueueRecord, hub: Hub, kubemq_channel: str, outbox: Outbox) -> None:
        super().__init__(record, hub)
        self.kubemq_channel = kubemq_channel
        self.current = Source(self, kubemq_channel, 0, self._new_lease(self.credit))
        self.older: list[Source] = []
        self.lease = self._taking = self.current.lease
        self.ready = self.lease.ready
        self.is_held = False
        self.move: Move | None = None
        self._outbox = outbox
        self._moves = MoveReceipt(self)
        self._submitted = 0
        self._resolved = 0
        self._store_waiters: deque[tuple[int, Callable[[], None]]] = deque()

    def _new_lease(self, credit: Callable[[], int]) -> Lease:
        hub = self._hub
        return Lease(credit, hub.clock, READ_AHEAD, lambda: hub.is_full)

    def credit(self) -> int:
        """As above; above the process's mark one message at a time, and none to consumers that have some (CO-23)."""
        credit = super().credit()
        if not self._hub.is_full:
            return credit
        has_some = any(source.lease.mine_count for source in self.sources)
        return 0 if has_some and not self._gets else min(credit, 1)

    @property
    def is_idle(self) -> bool:
        """True when nothing is known to be in the channel and nobody waits: only a native producer can change that."""
        if self.consumers or self._gets or self.is_deleted or self.is_dirty or self.older:
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

    # ------------------------------------------------------------------ sources

    @property
    def sources(self) -> list[Source]:
        """Its channels, oldest first."""
        return [*self.older, self.current]

    def make_source(self, kubemq_channel: str, generation: int) -> Source:
        """A channel that is to be one of its sources."""
        lease = self._new_lease(lambda: credit_after(self, generation))
        return Source(self, kubemq_channel, generation, lease)

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
        if self.is_held:
            self.is_held = False
            self._outbox.release(self)
            self._hub.mark_dirty(self)

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
        if self._hub.clock() - self.lease.counts.known_at > FRESH_S:
            self._hub.refresh_counts(self.credit_changed)

    def dispatch(self) -> None:
        """As above; then the reader may have acks to send or messages to fetch."""
        lease = self.lease
        if self.older:
            self._dispatch_all()
        else:
            super().dispatch()
        if self._gets and not lease.ready and self._has_nothing():
            gets, self._gets = self._gets, deque()
            for get in gets:
                get(None)
        if lease.wants_reader() or (self.older and any(source.lease.wants_reader() for source in self.older)):
            self._hub.wake_reader(self)

    def _has_nothing(self) -> bool:
        """Whether a get need not wait any longer."""
        for source in self.sources:
            lease = source.lease
            if not lease.must_keep and (
                lease.is_doubtful or lease.ready or not (lease.is_at_rest and (lease.backlog == 0 or lease.is_full))
            ):
                return False
        return True

    def publish(self, message: Message, receipt: Receipt, token: int) -> None:
        """Into the lane's outbox; one confirm follows."""
        message.message_id = self._hub.next_message_id()
        self._submit(message, receipt, token)

    def _submit(self, message: Message, receipt: Receipt, token: int) -> None:
        self._submitted += 1
        self.lease.counts.pending_count += 1
        self._outbox.append(Submission(self, message, receipt, token))

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

    def on_stored(self) -> None:
        """The oldest unresolved submission is stored."""
        self.lease.counts.on_stored()
        self._resolve()
        if not self.is_dirty:
            self._hub.mark_dirty(self)

    def on_refused(self) -> None:
        """The oldest unresolved submission is not stored."""
        self.lease.counts.on_refused()
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

    def when_acknowledged(self, done: Callable[[], None]) -> None:
        """After the copies of what was requeued are stored: the acknowledgements of all, in KubeMQ."""

        def prove() -> None:
            when_all(self, Lease.when_flushed, done)
            self._hub.mark_dirty(self)

        self.when_stored(prove)

    def _look(self, done: Done) -> None:
        """As above; what is known to be there is read without asking for fresh counts."""

        def look() -> None:
            if self.ready_count:
                self._get_now(done)
            else:
                self._when_fresh(lambda: self._get_now(done))

        self.when_stored(look)

    def _when_fresh(self, done: Callable[[], None]) -> None:
        counted_at = self._hub.counted_at(self)
        if self._hub.clock() - counted_at <= FRESH_S:
            done()
        elif counted_at > NEVER:
            self._hub.refresh_counts(done)
        else:
            self._when_counted_since(NEVER, done)

    def _when_counted_since(self, moment: float, done: Callable[[], None]) -> None:
        """Call ``done`` after a snapshot later than that moment, however long it takes."""

        def ask() -> None:
            self._hub.mark_dirty(self)  # idle queues are not counted
            self._hub.refresh_counts(check)

        def check() -> None:
            if self.lease.counts.known_at > moment:
                done()
            else:
                ask()

        ask()

    def purge(self, done: Callable[[int], None]) -> None:
        """Through the lease: read and acknowledge up to the backlog of this moment (KI-13).

        Never by an old count: what it does not know of would stay.
        """

        def start() -> None:
            count = self.ready_count
            if self.older:
                when_all(self, Lease.purge, lambda: done(count))
            else:
                self.lease.purge(lambda: done(count))
            self._hub.mark_dirty(self)

        self.when_stored(lambda: self._when_counted_since(self._hub.clock(), start))

    def _drain(self, done: Callable[[], None]) -> None:
        """As above; what a move that was not finished has stored in its new channel goes too."""
        self.release()
        move, generation = self.move, self.record.generations.moving
        if move is not None and move.is_running:
            move.on_end = lambda: self._drain(done)
            return
        if generation and generation != self.current.generation:
            channel = names.kubemq_channel(self.record.vhost, self.name, generation)
            target = move.target if move is not None else self.make_source(channel, generation)
            self.use(target)
            self._hub.add_source(target)
        for source in self.sources:
            source.lease.trust()
            source.lease.settle_everything()
        self._purge_all(DRAIN_ROUNDS, done)
        self._hub.mark_dirty(self)

    def _purge_all(self, rounds: int, done: Callable[[], None]) -> None:
        """Purge until a count finds nothing: the first may be low, as acknowledgements are on their way."""

        def check() -> None:
            if self.ready_count and rounds > 1:
                self._purge_all(rounds - 1, done)
            else:
                done()

        self.purge(lambda _count: self._when_counted_since(self._hub.clock(), check))

    def _take(self) -> Message:
        return self._taking.take()

    def _settle(self, message: Message) -> None:
        lease: Lease = lease_of(self, message) if self.older else self.lease
        lease.settle(message)

    def _put_back(self, message: Message) -> None:
        lease_of(self, message).give_back(message)

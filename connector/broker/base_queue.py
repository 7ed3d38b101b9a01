"""What all queues share: consumers, waiting gets, one settlement path, and what they need around them.

Where messages come from is said by ``StoredQueue`` (``queue.py``), ``MemoryQueue`` and ``RemoteQueue``.  Knows no
frames, reply codes or tasks; the ``Hub`` is its only way out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from connector.broker.arguments import acknowledgement_timeout_s
from connector.broker.consumers import Consumers, SingleActive
from connector.broker.errors import AccessRefused, Locked

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.counters import Counters
    from connector.broker.message import Message
    from connector.broker.ports import Clock, Consumer, Done, QueueOwner, Receipt
    from connector.broker.topology import QueueRecord


class Hub(Protocol):
    """What a queue needs from the broker around it."""

    clock: Clock
    counters: Counters
    memory_bytes: int
    memory_limit_bytes: int
    is_full: bool  #: messages read from KubeMQ take up as much memory as they may
    requeues_in_place: bool  #: a requeued message goes back to its old place, else to the tail
    delivers_early: bool  #: a consumer gets a message when it is stored, before it is read (``early.py``)
    get_batch: int  #: credit of a waiting ``basic.get``: it reads a little ahead, for the gets that follow

    def mark_dirty(self, queue: Queue) -> None:
        """Dispatch this queue at the end of the batch."""

    def wake_reader(self, queue: Any) -> None:
        """Its lease may have something to do."""

    def refresh_counts(self, done: Callable[[], None]) -> None:
        """Call ``done`` after a QueuesInfo call that begins now or later, or after a short deadline without it."""

    def counted_at(self, queue: Any) -> float:
        """When KubeMQ was last asked what is in the queue, ``NEVER`` before the first time."""

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run ``action`` after a while."""

    def add_source(self, source: Any) -> None:
        """One more channel is counted."""

    def next_message_id(self) -> str:
        """A new MessageID, unique among all stored copies."""

    def next_early_id(self) -> str:
        """The same for a copy that may be handed out before it is read."""

    def may_read(self) -> bool:
        """Whether messages may be handed out at this moment; the others may think us dead."""

    def on_unused(self, queue: Queue) -> None:
        """The last consumer of an auto-delete queue is gone."""

    @property
    def away(self) -> QueueOwner:
        """The way to a queue's owner, where that is another connector."""

    def when_told(self, done: Callable[[], None]) -> None:
        """Call ``done`` when the other connectors have told what they had stored until now, or after a short while."""

    def when_others_stored(self, done: Callable[[], None]) -> None:
        """Call ``done`` when nothing that the other connectors have accepted for a deleted queue is on its way."""

    def on_consumers_changed(self, queue: Queue) -> None:
        """The queue has one consumer more here, or one less."""

    def lend(self, queue: Any) -> None:
        """A queue in memory has messages that nobody here has room for."""

    def consumers_elsewhere(self, queue: Queue) -> tuple[int, bool]:
        """Consumers on other connectors, and whether one of them wants the queue for itself."""


class Queue:
    """One queue as the session sees it."""

    is_stored = False
    is_owned = True  #: messages are handed out here; False: another connector reads the queue, or has it in its memory

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

    def needs_admission(self, consumer: Consumer) -> bool:
        """Whether only the owner can say if this one may attach: an exclusive consumer is the only one anywhere."""
        return not self.is_owned and (consumer.exclusive or self._hub.consumers_elsewhere(self)[1])

    def admit(self, consumer: Consumer, done: Done) -> None:
        """``done`` gets None when the owner admits it: then attach it, or ``decline``; else an exception."""
        if self.needs_admission(consumer):
            self._hub.away.admit(self, consumer.exclusive, done, lambda: self.admit(consumer, done))
        else:
            done(None)

    def decline(self) -> None:
        """Whoever was admitted does not come."""
        self._hub.on_consumers_changed(self)

    def add_consumer(self, consumer: Consumer) -> None:
        """Attach a consumer; raises AccessRefused when one side wants the queue for itself (CO-28)."""
        hub = self._hub
        count, is_exclusive = hub.consumers_elsewhere(self)
        if is_exclusive or (count and consumer.exclusive) or not self.consumers.admits(consumer):
            if self.needs_admission(consumer):
                self.decline()
            raise AccessRefused(f"{self.label} in exclusive use")
        self.consumers.add(consumer)
        hub.on_consumers_changed(self)
        hub.mark_dirty(self)
        if not self.is_owned:
            hub.away.want(self)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer: nothing is delivered to it any more; an auto-delete queue may go (QU-06)."""
        consumers = self.consumers
        if not consumers.remove(consumer):
            return
        self._hub.mark_dirty(self)
        self._hub.on_consumers_changed(self)
        if not consumers and self.record.auto_delete and not self.is_deleted:
            self._hub.on_unused(self)

    @property
    def waiting_count(self) -> int:
        """Consumers here that get nothing, as another connector reads the queue."""
        return 0 if self.is_owned else len(self.consumers)

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

    def count(self, done: Callable[[int, int], None], failed: Done) -> None:
        """``done`` gets ready messages and consumers, of all connectors (QU-01); ``failed`` an exception."""
        del failed
        self.when_counted(lambda: done(self.ready_count, self.consumer_count))

    @property
    def consumer_count(self) -> int:
        """Consumers on all connectors."""
        return len(self.consumers) + self._hub.consumers_elsewhere(self)[0]

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
    def unreadable_count(self) -> int:
        """Messages that are there, and that nobody can read at the moment."""
        return 0

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

    def when_counted_anew(self, done: Callable[[], None]) -> None:
        """Call ``done`` when every publish accepted before is stored and then everything was counted."""
        self.when_counted(done)

    def when_acknowledged(self, done: Callable[[], None]) -> None:
        """Call ``done`` when what was settled and requeued so far has provably arrived where messages are kept."""
        raise NotImplementedError

    def purge(self, done: Done) -> None:
        """Drop what is ready; ``done`` is told how many."""
        raise NotImplementedError

    def close(self, done: Callable[[], None]) -> None:
        """The queue is deleted: consumers go, what is left is dropped; ``done`` when nothing of it remains."""
        self.is_deleted = True
        consumers, self.consumers = self.consumers, Consumers()
        for consumer in consumers:
            consumer.on_queue_gone()
        if consumers:
            self._hub.on_consumers_changed(self)
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

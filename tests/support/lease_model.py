"""One stored queue with its lease, reader, lane and counts on a fake KubeMQ, every await driven by hand.

Owns the ledger of what each published body may and must still experience (``Item``) and the comparison of the lease
with the fake.  The code under test is all real: ``StoredQueue``, ``Lease``, ``QueueReader.run``, ``Outbox`` with its
results, ``Broker``'s counting.  Only the event loop is replaced: a coroutine stops at every *pause* of the fake and
goes on when the test says so, so that anything can happen between any two actions of a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from connector.broker.backlog import NEVER, Backlog
from connector.broker.broker import Broker
from connector.broker.lease import Lease, State
from connector.broker.message import Message
from connector.broker.outbox import Submission, announce, end_coming, on_results, on_unknown
from connector.broker.ports import StoreError
from connector.broker.streams import RECYCLE_GETS
from connector.broker.topology import QueueRecord
from tests.support.broker_model import Publisher, Settings
from tests.support.driven import Driven, DrivenReader, pause
from tests.support.fake_kubemq import FakeChannel, FakeKubeMQ, FakeTransaction, Stored
from tests.support.lease_ledger import Item

UNLIMITED = 1_000_000


class Receipt(Publisher):
    """A publisher, with or without confirms."""

    def __init__(self, model: LeaseModel, retry: bool) -> None:
        super().__init__(retry=retry)
        self._model = model

    def on_stored(self, token: int) -> None:
        """See ``ports``."""
        self._model.items[token].is_confirmed = True

    def on_refused(self, token: int, reason: str) -> None:
        """See ``ports``."""
        self._model.items[token].may_vanish = True
        self._model.is_exact = False  # perhaps it is stored, unknown to us


class Consumer:
    """A consumer that remembers what it has."""

    exclusive = False
    priority = 0

    def __init__(self, model: LeaseModel, prefetch: int, no_ack: bool = False) -> None:
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.unacked: list[Message] = []
        self._last_sequences = {False: 0, True: 0}  # of ours, of natives: order holds from one publisher
        self._model = model

    @property
    def held_count(self) -> int:
        """See ``ports``."""
        return len(self.unacked)

    def free_credit(self) -> int:
        """See ``ports``."""
        return UNLIMITED if self.no_ack or not self.prefetch else max(0, self.prefetch - len(self.unacked))

    def deliver(self, message: Message) -> None:
        """See ``ports``."""
        if not self.no_ack:
            self.unacked.append(message)
        publisher = message.message_id.startswith("native")
        last = self._last_sequences[publisher]
        sequence = message.sequence or self._model.sequence_of(message, last)
        if self._model.is_ordered:
            assert sequence > last, "out of order"
        self._last_sequences[publisher] = sequence
        self._model.on_delivered(message, settled=self.no_ack)

    def on_queue_gone(self) -> None:
        """See ``ports``."""
        self._model.consumers.remove(self)
        self._model.gone.append(self)


class LeaseModel:
    """The queue, everything around it, and the ledger.

    ``is_exact``: nothing happened that could make counts wrong for a while (natives expired, foreign removal, unknown
    stores); ``is_ordered``: nothing was put back in place after later ones were delivered.
    """

    def __init__(
        self, *, is_shared: bool = False, in_place: bool = False, delivers_early: bool = False, **server: bool
    ) -> None:
        self.now = 1000.0
        self.store = FakeKubeMQ(pause, **server)
        self.items: dict[int, Item] = {}
        self.consumers: list[Consumer] = []
        self.gone: list[Consumer] = []
        self.is_exact = self.is_ordered = True
        self.has_natives = False
        self.fault_count = 0
        self.life = 1
        self.may_flag = False
        self.lane: Driven | None = None
        self.batch: list[Submission] = []
        self.coming: list[Backlog] = []
        self.purges: list[tuple[int, list[Stored]]] = []
        self.purging = 0
        self.reported: list[tuple[str, dict[str, object]]] = []
        self.is_drained = self.is_drained_well = True
        self._is_shared = is_shared
        self._settings = settings = Settings()
        settings.lanes, settings.requeues_in_place, settings.delivers_early = 1, in_place, delivers_early
        self._start()

    def _start(self) -> None:
        self.asked: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.began: list[Any] = []
        self.broker = Broker(self._settings, self._clock, self)
        self.queue = self.broker.stored_queue(QueueRecord("default", "q", durable=True))
        if self._is_shared:  # QueuesInfo reports both under one name
            self.broker.stored_queue(QueueRecord("default", "q_", durable=True))
        self.outbox = self.broker.outboxes[0]
        self.reader = DrivenReader(self.queue.current, self.store, self.store.snapshot, self.broker, self.settle)
        self.run = Driven(self.reader.run())
        self.lease.purge = self._on_purge  # type: ignore[method-assign]

    def _clock(self) -> float:
        return self.now

    @property
    def has_faults(self) -> bool:
        """True when a count may have been low or high at some time."""
        return self.fault_count > 0 or self.has_natives or not self.is_exact

    @property
    def lease(self) -> Lease:
        """The lease under test."""
        return self.queue.lease

    @property
    def channel(self) -> FakeChannel:
        """The fake's channel of the queue."""
        return self.store.channel(self.queue.kubemq_channel)

    @property
    def is_waiting(self) -> bool:
        return self.run.point == "wait"

    # ------------------------------------------------------------------ broker.Hooks

    def wake_lane(self, lane: object) -> None:
        """See ``Hooks``; the test drives lane and reader."""

    wake_reader = stop_readers = wake_lane

    def refresh_counts(self, done: Callable[[], None]) -> None:
        """See ``Hooks``; answered by ``count`` or ``deadline``."""
        self.asked.append(done)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """See ``Hooks``; done by ``tick``."""
        self.timers.append((self.now + delay_s, action))

    def append_event(self, event_id: str, data: bytes) -> None:
        """See ``Hooks``; there is no topology here."""

    def report(self, what: str, **facts: object) -> None:
        """See ``Hooks``."""
        self.reported.append((what, facts))

    def settle(self) -> None:
        """The end of a batch."""
        self.broker.dispatch()

    # ------------------------------------------------------------------ what clients do

    def publish(self, count: int, *, retry: bool) -> None:
        """Hand in messages, with confirms or without."""
        receipt = Receipt(self, retry)
        for _ in range(count):
            token = len(self.items) + 1
            item = self.items[token] = Item(b"%d" % token)
            item.is_purgeable = self.purging > 0
            self.queue.publish(Message("", "q", b"\0\0", item.body), receipt, token)
        self.settle()

    def publish_native(self, count: int) -> None:
        """A native client stores messages in the channel."""
        self.has_natives = True
        for _ in range(count):
            token = len(self.items) + 1
            self.items[token] = Item(b"%d" % token)
            self.store.publish_native(self.queue.kubemq_channel, b"%d" % token)

    def item(self, message: Message) -> Item:
        """The ledger's entry of a message."""
        return self.items[int(message.body)]

    def sequence_of(self, message: Message, after: int) -> int:
        """Of one that was handed out before it was read; the next where it was taken away meanwhile."""
        ids = ((sequence, stored.message.message_id) for sequence, stored in self.channel.stored.items())
        found = (sequence for sequence, message_id in ids if message_id == message.message_id)
        return next(found, after if self.is_exact else after + 1)

    def on_delivered(self, message: Message, *, settled: bool) -> None:
        """A client has got it."""
        item = self.item(message)
        item.deliveries += 1
        assert item.deliveries <= item.allowed, f"{item.body!r} delivered {item.deliveries} of {item.allowed} times"
        assert not item.is_purged, f"{item.body!r} was purged"
        if item.is_seen and not item.is_doubled:
            assert message.redelivered, f"{item.body!r} was delivered before"
        elif not self.may_flag and not item.may_flag:
            assert not message.redelivered, f"{item.body!r} was never delivered before"
        item.is_seen = True
        item.is_settled = settled
        item.life = self.life

    def add_consumer(self, prefetch: int, *, no_ack: bool = False) -> Consumer:
        """Attach a consumer."""
        consumer = Consumer(self, prefetch, no_ack)
        self.queue.add_consumer(consumer)
        self.consumers.append(consumer)
        self.settle()
        return consumer

    def cancel(self, consumer: Consumer) -> None:
        """Detach a consumer; what it has stays with the client."""
        self.queue.remove_consumer(consumer)
        self.consumers.remove(consumer)
        self.gone.append(consumer)
        self.settle()

    def ack(self, consumer: Consumer, message: Message) -> None:
        """Acknowledge one."""
        consumer.unacked.remove(message)
        self.item(message).is_settled = True
        self.queue.settle(message)
        self.settle()

    def requeue(self, consumer: Consumer, messages: list[Message]) -> None:
        """Refuse some, back into the queue."""
        for message in messages:
            consumer.unacked.remove(message)
            self.item(message).allowed += 1
            self.item(message).is_purgeable = self.purging > 0
        if self._settings.requeues_in_place:
            self.is_ordered = False
        self.queue.requeue(messages)
        self.settle()

    def get(self, *, answered: bool) -> None:
        """``basic.get``; when its channel is closed before the answer, the message is given back."""
        consumer = Consumer(self, 1)
        self.gone.append(consumer)

        def done(result: object) -> None:
            if result is None:
                return
            message, ready_count = cast("tuple[Message, int]", result)
            assert ready_count >= 0
            if answered:
                consumer.deliver(message)
            else:
                self.is_ordered = False
                self.queue.give_back(message)

        self.queue.get(done)
        self.settle()

    def purge(self) -> None:
        """``queue.purge``: what is in the queue when it starts is gone when it is answered."""
        self.purging += 1

        def after(count: object) -> None:
            self.purging -= 1
            if self.queue.is_deleted:
                return
            started, candidates = self.purges.pop(0)
            assert count == started
            for stored in candidates:
                is_there = self.channel.stored.get(stored.message.sequence) is stored
                assert not (self.is_exact and is_there), "not provably acknowledged"
                item = self.item(stored.message)
                item.is_purged = item.is_purged or (not self.has_faults and not item.is_seen)

        self.queue.purge(after)
        self.settle()

    def _on_purge(self, done: Callable[[], None]) -> None:
        """The lease starts a purge: note what it is about."""
        lease = self.lease
        piles = (lease.held, lease.moving, lease.settled, *(batch for _, _, batch in lease.sent))
        known = {(sequence, message.message_id) for pile in piles for sequence, message in pile.items()}
        out_early = {*lease.adopted.held, *lease.adopted.moving, *lease.adopted.settled}
        on_the_way = {submission.message.message_id for submission in self.batch} if self.lane is not None else set()
        candidates = [
            stored
            for sequence, stored in self.channel.stored.items()
            if (sequence, stored.message.message_id) not in known
            and stored.message.message_id not in on_the_way | out_early
        ]
        for stored in candidates:
            self.item(stored.message).may_vanish = True
        if not self.has_faults:
            assert len(candidates) == lease.ready_count
        if not self.queue.is_deleted:
            is_certain = self.is_exact and not self.has_natives and len(candidates) == lease.ready_count
            self.purges.append((lease.ready_count, candidates if is_certain else []))
        Lease.purge(lease, done)

    def delete(self) -> None:
        """``queue.delete``, as the broker does it when its event has come back."""
        for item in self.items.values():
            item.may_vanish = True
        for consumer in (*self.consumers, *self.gone):
            consumer.unacked = []
        self.is_drained = False
        self.purges = []

        def drained() -> None:
            self.is_drained = True

        self.queue.close(drained)
        self.settle()

    # ------------------------------------------------------------------ lane, counts, time

    def send(self) -> None:
        """Let the lane go on by one pause: take a batch, store it, report."""
        if self.lane is None:
            self.batch = self.outbox.take()
            if self.batch:
                self.coming = announce(self.batch)
                self.lane = Driven(self.store.open_lane().send(self.batch))
            self.settle()
            return
        try:
            self.lane.resume()
        except StoreError as error:
            self.lane = None
            for submission in self.batch:
                self.item(submission.message).may_flag = True
            end_coming(self.coming)
            on_unknown(self.outbox, self.batch, str(error))
        else:
            if self.lane.point is None:
                results, self.lane = self.lane.result, None
                end_coming(self.coming)
                on_results(self.batch, results)
        self.settle()

    def lose_lane(self) -> None:
        """The lane's link is gone."""
        if self.lane is not None:
            self.is_exact = False
            for lane in self.store.lanes:
                lane.lose()
            self.send()

    def age_stream(self) -> None:
        """The stream has served so much that it is to be renewed."""
        self.lease.streams._gets = RECYCLE_GETS

    def begin_count(self) -> None:
        """A shared QueuesInfo call begins; its numbers are of this moment."""
        asked, self.asked = self.asked, []
        self.began.append((asked, self.broker.begin_snapshot(), self.store.rows()))

    def end_count(self) -> None:
        """The oldest call is answered."""
        asked, began, rows = self.began.pop(0)
        self.broker.on_snapshot(began, rows)
        self.deadline(asked)

    def deadline(self, asked: list[Callable[[], None]] | None = None) -> None:
        """Who asked for counts goes on without; or these."""
        if asked is None:
            asked, self.asked = self.asked, []
        for done in asked:
            done()
        self.settle()

    def tick(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        if seconds >= 0.2:  # a slow server is through with what it had to do
            self.store.take_back()
        due = [action for at, action in self.timers if at <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for action in due:
            action()
        self.settle()

    def read(self) -> str | None:
        """Let the reader go on by one pause."""
        return self.run.resume()

    def holders(self) -> list[Consumer]:
        """Consumers, gone ones too, that have something unacknowledged."""
        return [consumer for consumer in (*self.consumers, *self.gone) if consumer.unacked]

    # ------------------------------------------------------------------ what goes wrong

    def refuse_every(self, every: int) -> None:
        """The server refuses every so many-th store from now on (1: none)."""
        count = 0

        def refuse(_outgoing: object) -> str:
            nonlocal count
            count += 1
            return "refused" if every > 1 and count % every == 0 else ""

        self.store.refuse = refuse

    def refuse_get(self) -> None:
        """The server refuses the next Get."""
        self.fault_count += 1
        self.store.get_error = "refused"

    def shrink_answers(self, limit_bytes: int) -> None:
        """An answer over so many bytes of bodies fails from now on."""
        self.fault_count += 1
        self.store.limit_bytes = limit_bytes

    def lose_stream(self, *, lingers: bool = False) -> None:
        """The reading link breaks; the server may notice later."""
        self.fault_count += 1
        for stream in list(self.store.streams):
            stream.lose(lingers)
        if lingers:
            self.is_exact = self.is_ordered = False
            self.may_flag = True

    def crash_server(self, forget: int) -> None:
        """The server dies and forgets its last acknowledgements."""
        self.fault_count += 1
        self.store.break_links()
        self.is_drained_well = not self.queue.is_deleted
        for message in self.channel.forget_acks(forget):
            item = self.item(message)
            if item.life < self.life:  # nobody remembers
                item.is_purged = False
                item.allowed += 1
                item.is_settled = False
        self.is_exact = False

    def remove(self, sequence: int) -> None:
        """Retention, or a foreign reader, takes a message."""
        stored = self.channel.stored.get(sequence)
        if stored is not None:
            self.item(stored.message).may_vanish = True
            self.channel.remove(sequence)
            self.is_exact = False

    def expire(self, sequence: int) -> None:
        """A native message's time is over."""
        stored = self.channel.stored.get(sequence)
        if stored is not None and stored.message.message_id.startswith("native"):
            stored.expired = True
            self.item(stored.message).may_vanish = True
            self.is_exact = False

    def start_channel_over(self) -> None:
        """The channel is deleted with all that is in it, and Sequences start again."""
        for stored in self.channel.stored.values():
            self.item(stored.message).may_vanish = True
        self.channel.start_over()
        self.is_exact = self.is_ordered = False
        self.may_flag = True

    def restart(self) -> None:
        """The connector dies and starts again; clients' deliveries are void."""
        self.run.close()
        for stream in list(self.store.streams):
            stream.cancel()
        self.store.take_back()
        self.lane, self.batch = None, []
        copies = Counter(stored.message.body for stored in self.channel.stored.values())
        for item in self.items.values():
            if item.body in copies:  # nobody remembers which are second copies
                item.allowed += copies[item.body]
                item.is_doubled = copies[item.body] > 1
                item.is_settled = False
            elif not item.is_settled:
                item.may_vanish = True
        self.consumers, self.gone, self.purges, self.purging = [], [], [], 0
        self.may_flag = self.has_natives = True
        self.life += 1
        self._start()

    # ------------------------------------------------------------------ comparing

    def transaction(self) -> FakeTransaction | None:
        """The fake's transaction that the lease believes to be open."""
        return self.store.transaction(self.lease.transaction_id)

    def mine(self) -> dict[int, str]:
        """Identities of everything the lease holds of the open transaction."""
        lease = self.lease
        piles = (lease.held, lease.moving, lease.settled)
        mine = {sequence: message.message_id for pile in piles for sequence, message in pile.items()}
        return mine | {message.sequence: message.message_id for message in lease.ready}

    def check(self) -> None:
        """What must hold between two steps."""
        lease = self.lease
        mine = self.mine()
        assert len(mine) == lease.mine_count, "a message is in two places"
        sequences = [message.sequence for message in lease.ready]
        assert sequences == sorted(sequences), "the ready list is out of order"
        assert lease.backlog >= 0
        assert lease.counts.pending_count >= 0
        if not self.is_waiting or any(stream.has_unserved for stream in self.store.streams):
            return
        transaction = self.transaction()
        if lease.state is State.OPEN and transaction is not None:
            assert transaction.unacked == mine
        elif lease.state is State.IDLE:
            assert not mine, "held without a transaction"
            assert not self.channel.open or self.store.lingering or self.store.closing, "a transaction was left open"
        elif transaction is not None:
            assert not transaction.unacked.items() - mine.items(), "handed out and forgotten"
        if self.is_exact and lease.state is not State.RECOVERING and self.lane is None and self._has_link():
            own = transaction.unacked if transaction is not None else {}
            in_sent = {sequence for _, _, batch in lease.sent for sequence in batch}
            unread = [sequence for sequence in self.channel.stored if sequence not in own and sequence not in in_sent]
            assert lease.backlog <= len(unread), f"{lease.backlog} counted, {len(unread)} there"
            if lease.counts.known_at > NEVER and not self.has_natives:
                assert lease.backlog == len(unread), f"{lease.backlog} counted, {len(unread)} there"

    def _has_link(self) -> bool:
        """False while the lease has not noticed that its transaction is gone."""
        return self.lease.state is not State.OPEN or self.transaction() is not None

    # ------------------------------------------------------------------ the end

    def finish(self) -> None:
        """No more faults: everything is delivered and acknowledged, and nothing is left anywhere."""
        self.store.refuse = lambda _outgoing: ""
        self.store.get_error = ""
        self.store.limit_bytes = max(self.store.limit_bytes, 4)
        consumer = None
        if not self.queue.is_deleted:
            consumer = self.add_consumer(0)
        calm = 0
        for _ in range(2000):
            before = self._progress()
            self.store.notice()
            self._step()
            if consumer is not None:
                for holder in (*self.consumers, *self.gone):
                    for message in list(holder.unacked):
                        self.ack(holder, message)
            calm = calm + 1 if self._progress() == before else 0
            if calm > 40 and self.is_waiting:
                break
            self.tick(0.05 if calm < 20 else 1.0)
        self.check()
        self._check_end()

    def _step(self) -> None:
        for _ in range(6):
            self.send()
            self.read()
        while self.began:
            self.end_count()
        self.begin_count()
        self.end_count()

    def _progress(self) -> object:
        lease = self.lease
        return (
            len(self.channel.stored), len(lease.sent), lease.mine_count, lease.backlog, lease.state, len(self.outbox),
            self.lane is None, sum(item.deliveries for item in self.items.values()), len(self.timers),
        )  # fmt: skip

    def _check_end(self) -> None:
        lease = self.lease
        left = sorted(self.channel.stored) if self.is_drained_well else []
        assert not left, f"left in KubeMQ: {left}, lease {lease.state}, backlog {lease.backlog}, {lease.next_step()}"
        assert lease.state is State.IDLE
        assert lease.mine_count == lease.counts.pending_count == len(lease.sent) == 0
        assert lease.backlog == 0 or not self.is_drained_well
        assert lease._mine_bytes == 0, f"{lease._mine_bytes} bytes leaked"
        assert not lease.departed
        assert self.is_drained
        assert not self.purges
        assert not lease._proofs.has_waiters
        assert not lease._purge_waiters
        assert not self.queue._moves._copies or self.queue.is_deleted
        for item in self.items.values():
            if not item.may_vanish and not (self.has_faults and item.is_purgeable):
                assert item.is_settled, f"{item.body!r} is lost"

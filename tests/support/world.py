"""One replica without sockets, tasks or KubeMQ: the real broker, and everything around it played by hand.

``World`` does the runtime's part.  What would wait for KubeMQ (stores, topology events) is answered at once, or held
until the test says so; ``KubeMQ`` keeps stored messages, and a queue's lease is served without waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connector.amqp.errors import AmqpError
from connector.amqp.handshake import server_properties
from connector.broker.broker import Broker
from connector.broker.counters import Counters
from connector.broker.lease import Event, Lease
from connector.broker.message import Message
from connector.broker.outbox import on_results
from connector.broker.ports import Answer
from connector.broker.queue import StoredQueue
from connector.broker.steps import StepKind
from connector.broker.topology import decode_event
from connector.session.arriving import Arriving
from connector.session.connection import Connection
from connector.session.policy import SessionPolicy
from connector.session.users import Users


class KubeMQ:
    """What is stored, per KubeMQ channel: ascending (Sequence, message), until acknowledged."""

    def __init__(self) -> None:
        self.channels: dict[str, dict[int, Message]] = {}
        self.is_away = False  # readers get no answer
        self._last: dict[str, int] = {}

    def store(self, channel: str, message: Message) -> None:
        """Append."""
        self._last[channel] = sequence = self._last.get(channel, 0) + 1
        self.channels.setdefault(channel, {})[sequence] = message

    def read(self, channel: str, count: int) -> list[Message]:
        """The first so many, fresh objects as from the wire."""
        rows = list(self.channels.get(channel, {}).items())[:count]
        return [
            Message(
                message.exchange,
                message.routing_key,
                message.header,
                message.body,
                message.message_id,
                sequence,
                channel,
                message.redelivered,
                message.delivery_count,
            )
            for sequence, message in rows
        ]

    def serve(self, queue: StoredQueue) -> bool:
        """Perform the lease's next step as a reader does; False when it waits."""
        lease = queue.lease
        step = lease.next_step()
        if step.kind is StepKind.WAIT or self.is_away:
            return False
        if step.kind is StepKind.BARRIER:
            lease.on_proof(())
            return True
        stored = self.channels.setdefault(queue.kubemq_channel, {})
        if lease.transaction_id and (sequences := lease.acks_due()):
            for sequence in sequences:
                stored.pop(sequence, None)
            lease.acks_sent(1, sequences)
        lease.on_event(Event.CLOSED)
        if step.kind is StepKind.REFILL:
            self._get(queue, lease, lease.get_size())
        elif step.kind is StepKind.RECOVER:
            lease.on_snapshot(len(stored), lease.begin_snapshot())
            self._get(queue, lease, lease.recover_size(len(stored)))
        else:
            lease.on_event(Event.REST)
        return True

    def _get(self, queue: StoredQueue, lease: Lease, size: int) -> None:
        if size:
            lease.on_event(Event.GET_SENT)
            lease.on_answer(Answer("transaction", self.read(queue.kubemq_channel, size)))
        else:
            lease.on_event(Event.REST)


class FakeClock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class _Settings:
    lanes = 2
    get_batch = 32
    delivers_early = False
    memory_limit_bytes = 64 * 1024 * 1024

    def __init__(self, requeues_in_place: bool) -> None:
        self.requeues_in_place = requeues_in_place
        self.vhosts = ["/", "other"]


def policy(**changes: Any) -> SessionPolicy:
    """The defaults, with guest and one more user."""
    values: dict[str, Any] = {
        "authenticate": Users({"guest": "guest", "app": "secret"}),
        "server_properties": server_properties("test", "1.2.3", "Python"),
    }
    return SessionPolicy(**(values | changes))


class World:
    """One replica; implements ``broker.Hooks``."""

    def __init__(
        self, *, requeues_in_place: bool = False, partial_high_bytes: int = 2**28, **policy_changes: Any
    ) -> None:
        self.clock = FakeClock()
        self.counters = Counters()
        self.arriving = Arriving(partial_high_bytes, policy_changes.get("client_bodies_bytes", 0))
        self.policy = policy(**policy_changes)
        self.hold_stores = False  # publishes to stored queues wait for ``answer_stores``
        self.hold_events = False  # declarations of stored queues wait for ``answer_events``
        self.is_cut_off = False  # KubeMQ does not answer
        self.errors: list[tuple[int, AmqpError, BaseException]] = []
        self.opened: list[Connection] = []
        self.reported: list[tuple[str, dict[str, object]]] = []
        self.unread: dict[Connection, None] = {}
        self._flushing: list[Connection] = []
        self._events: list[tuple[str, bytes]] = []
        self._sequence = 0
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._read: dict[StoredQueue, None] = {}
        self.kubemq = KubeMQ()
        self.broker = Broker(_Settings(requeues_in_place), self.clock, self, self.counters)
        self.broker.on_loaded()

    # ------------------------------------------------------------------ broker.Hooks

    def wake_lane(self, lane: int) -> None:
        pass  # settle looks at all of them

    def wake_reader(self, queue: StoredQueue) -> None:
        self._read[queue] = None

    def refresh_counts(self, done: Callable[[], None]) -> None:
        self.clock.now += 1e-6  # a call takes time
        for queue in self.broker.stored_queues():
            lease = queue.lease
            stored = self.kubemq.channels.get(queue.kubemq_channel, {})
            lease.on_snapshot(len(stored), lease.begin_snapshot())
        done()

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._later.append((self.clock() + delay_s, action))

    def stop_readers(self, queue: StoredQueue) -> None:
        """See ``Hooks``; nobody else reads."""

    def append_event(self, event_id: str, data: bytes) -> None:
        self._events.append((event_id, data))
        if not self.hold_events:
            self.answer_events()

    def report(self, what: str, **facts: object) -> None:
        self.reported.append((what, facts))

    # ------------------------------------------------------------------ the runtime's part

    def wants_flush(self, connection: Connection) -> None:
        self._flushing.append(connection)

    def wants_read(self, connection: Connection) -> None:
        self.unread[connection] = None

    def read_on(self) -> None:
        """There is room again."""
        waiting, self.unread = self.unread, {}
        for connection in waiting:
            connection.read_on()
        self.settle()

    def settle(self) -> None:
        """The end of a batch, and whatever KubeMQ answers to it."""
        while True:
            if not self.hold_stores:
                self._store("")
            self.broker.dispatch()
            flushing, self._flushing = self._flushing, []
            for connection in flushing:
                connection.flush()
            if not self._serve() and not flushing:
                return

    def _serve(self) -> bool:
        """Let the readers do what they can; True when there was something."""
        served = False
        for queue in list(self._read):
            while self.kubemq.serve(queue):
                self.broker.mark_dirty(queue)
                served = True
        return served

    def _store(self, error: str) -> int:
        count = 0
        for outbox in self.broker.outboxes:
            while batch := outbox.take():
                count += len(batch)
                if not error:
                    for submission in batch:
                        self.kubemq.store(submission.kubemq_channel, submission.message)
                on_results(batch, [error] * len(batch))
        return count

    def answer_stores(self, error: str = "") -> int:
        """KubeMQ stores, or refuses, what waits; returns how many."""
        count = self._store(error)
        self.settle()
        return count

    def answer_events(self, error: Exception | None = None) -> None:
        """The topology log takes, or refuses, what waits."""
        events, self._events = self._events, []
        for event_id, data in events:
            event = decode_event(data)
            assert event is not None
            self._sequence += 1
            if error is None:
                self.broker.on_event(self._sequence, event)
            else:
                self.broker.on_append_failed(event_id, error)

    def advance(self, seconds: float, *connections: Connection) -> None:
        """Let time pass in steps of a quarter second, as the runtime's timer does."""
        steps = max(1, round(seconds / 0.25))
        for _ in range(steps):
            self.clock.now += seconds / steps
            due = [action for when, action in self._later if when <= self.clock()]
            self._later = [later for later in self._later if later[0] > self.clock()]
            for action in due:
                action()
            for connection in connections:
                connection.on_tick(self.clock.now, is_cut_off=self.is_cut_off)
            self.arriving.on_tick(self.clock.now)
            self.settle()

"""A whole broker on the fake KubeMQ and a list for a topology log, everything driven by hand.

Owns the runtime's part (``broker.Hooks``): by default every request is answered before ``settle`` returns; with
``hold_log`` events wait until ``answer_log``.  A second ``BrokerModel`` on the same store and log is a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connector.broker.broker import Broker
from connector.broker.message import Message
from connector.broker.outbox import on_results
from connector.broker.queue import StoredQueue
from connector.broker.requests import ExchangeDeclare, QueueDeclare
from connector.broker.sources import Source
from connector.broker.topology import VERSION, decode_event, encode_event
from connector.broker.vhost import VirtualHost
from tests.support.driven import Driven, DrivenReader, pause
from tests.support.fake_kubemq import FakeKubeMQ

NOTHING = object()


class Settings:
    """The broker's part of the configuration."""

    lanes = 2
    get_batch = 4
    requeues_in_place = False
    delivers_early = True

    def __init__(self, memory_limit_bytes: int = 1_000_000, vhosts: tuple[str, ...] = ()) -> None:
        self.memory_limit_bytes = memory_limit_bytes
        self.vhosts = list(vhosts)


class Answer:
    """A ``Done`` that keeps what it was told, exactly once."""

    def __init__(self) -> None:
        self.value: Any = NOTHING

    def __call__(self, result: object) -> None:
        assert self.value is NOTHING, "answered twice"
        self.value = result

    @property
    def is_there(self) -> bool:
        """Whether it was called."""
        return self.value is not NOTHING

    @property
    def error(self) -> tuple[str, str]:
        """Class and text of the exception it was called with."""
        assert isinstance(self.value, Exception), self.value
        return type(self.value).__name__, str(self.value)


class Publisher:
    """A receipt that remembers what became of every token."""

    def __init__(self, *, retry: bool = False) -> None:
        self.retry = retry
        self.stored: list[int] = []
        self.refused: list[tuple[int, str]] = []
        self.doubted: list[int] = []
        self.unrouted: list[tuple[int, bytes]] = []
        self.flush_count = 0

    def on_stored(self, token: int) -> None:
        """See ``ports``."""
        self.stored.append(token)

    def on_refused(self, token: int, reason: str) -> None:
        """See ``ports``."""
        self.refused.append((token, reason))

    def on_doubt(self, token: int) -> None:
        """See ``ports``."""
        self.doubted.append(token)

    def on_unrouted(self, token: int, message: Message) -> None:
        """See ``ports``."""
        self.unrouted.append((token, message.body))

    def flush(self) -> None:
        """See ``ports``."""
        self.flush_count += 1


class Consumer:
    """A consumer with a limit; what it got stays until taken out of ``got``."""

    def __init__(self, limit: int = 1000, *, no_ack: bool = False, exclusive: bool = False, priority: int = 0) -> None:
        self.limit = limit
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.got: list[Message] = []
        self.is_cancelled = False

    @property
    def held_count(self) -> int:
        """See ``ports``."""
        return 0 if self.no_ack else len(self.got)

    @property
    def bodies(self) -> list[bytes]:
        """What it got."""
        return [message.body for message in self.got]

    def free_credit(self) -> int:
        """See ``ports``."""
        return max(0, self.limit - len(self.got))

    def deliver(self, message: Message) -> None:
        """See ``ports``."""
        self.got.append(message)

    def on_queue_gone(self) -> None:
        """See ``ports``."""
        self.is_cancelled = True


class BrokerModel:
    """One life of one replica."""

    def __init__(
        self,
        before: BrokerModel | None = None,
        *,
        memory_limit_bytes: int = 1_000_000,
        vhosts: tuple[str, ...] = (),
        count_is_late: bool = False,
    ) -> None:
        self.now: float = before.now if before else 1000.0
        self.store: FakeKubeMQ = before.store if before else FakeKubeMQ(pause)
        self.log: list[bytes] = before.log if before else []
        self.hold_log = self.hold_lanes = False
        self.count_is_late = count_is_late
        self.waiting_log: list[tuple[str, bytes]] = []
        self.ask_count = 0  # how often somebody wanted fresh counts
        self._asked: list[Callable[[], None]] = []
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.readers: dict[Source, Driven] = {}
        if before is not None:
            for stream in list(self.store.streams):
                stream.cancel()
        self.broker = Broker(Settings(memory_limit_bytes, vhosts), lambda: self.now, self)
        if self.store.now:
            self.broker.recovery.on_server(self.store.server)
        for sequence, data in enumerate(self.log, 1):
            self._apply(sequence, data)
        self.broker.on_loaded()
        self.settle()

    @property
    def vhost(self) -> VirtualHost:
        """The default virtual host."""
        return self.broker.virtual_host("/")

    # ------------------------------------------------------------------ broker.Hooks

    def wake_lane(self, lane: int) -> None:
        """See ``Hooks``."""

    def wake_reader(self, queue: StoredQueue) -> None:
        """See ``Hooks``."""
        for source in queue.sources:
            if source not in self.readers:
                reader = DrivenReader(source, self.store, self.store.snapshot, self.broker, self.broker.dispatch)
                self.readers[source] = Driven(reader.run())

    def refresh_counts(self, done: Callable[[], None]) -> None:
        """See ``Hooks``."""
        self.ask_count += 1
        self._asked.append(done)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """See ``Hooks``."""
        self._timers.append((self.now + delay_s, action))

    def stop_readers(self, queue: StoredQueue) -> None:
        """See ``Hooks``."""
        for source in queue.sources:
            if source in self.readers:
                self.readers.pop(source).close()

    def append_event(self, event_id: str, data: bytes) -> None:
        """See ``Hooks``."""
        self.waiting_log.append((event_id, data))

    def report(self, what: str, **facts: object) -> None:
        """See ``Hooks``; what nobody had expected fails the test."""
        error = facts.get("exc_info")
        if isinstance(error, Exception):
            raise error

    # ------------------------------------------------------------------ the runtime's part

    def _apply(self, sequence: int, data: bytes) -> None:
        event = decode_event(data)
        assert event is not None
        self.broker.on_event(sequence, event)

    def answer_log(self, count: int = 1_000) -> None:
        """The log takes the first of what waits, and it comes back."""
        for _ in range(count):
            if not self.waiting_log:
                return
            _, data = self.waiting_log.pop(0)
            self.log.append(data)
            self._apply(len(self.log), data)

    @property
    def told(self) -> list[str]:
        """Types of the events that wait for the log."""
        return [event["type"] for _, data in self.waiting_log if (event := decode_event(data))]

    def refuse_log(self, error: Exception) -> None:
        """The log does not take what waits."""
        waiting, self.waiting_log = self.waiting_log, []
        for event_id, _ in waiting:
            self.broker.on_append_failed(event_id, error)

    def settle(self, seconds: float = 0.3) -> None:
        """Let everything happen that can, and some time pass."""
        for _ in range(40):
            self.broker.dispatch()
            if not self.hold_log:
                self.answer_log()
            if not self.hold_lanes:
                self.store_all()
            self._count()
            for reader in list(self.readers.values()):
                for _ in range(4):
                    reader.resume()
            self.tick(seconds / 40)

    def store_all(self, error: str = "") -> None:
        """Every lane stores what waits, or refuses it."""
        for outbox in self.broker.outboxes:
            while batch := outbox.take():
                if not error:
                    for submission in batch:
                        self.store.channel(submission.kubemq_channel).append(submission.message, self.store.now)
                on_results(batch, [error] * len(batch))

    def _count(self) -> None:
        asked, self._asked = self._asked, []
        if not self.count_is_late:
            self.broker.on_snapshot(self.broker.begin_snapshot(), self.store.rows())
        for done in asked:
            done()

    def tick(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        due = [action for at, action in self._timers if at <= self.now]
        self._timers = [timer for timer in self._timers if timer[0] > self.now]
        for action in due:
            action()

    # ------------------------------------------------------------------ what clients do

    def start(self, operation: Callable[..., None], *arguments: Any) -> Answer:
        """Begin an operation that calls ``done``; nothing else happens yet."""
        answer = Answer()
        operation(*arguments, answer)
        return answer

    def apply_foreign(self, event: dict[str, Any]) -> None:
        """Another replica's event comes next in the log."""
        self.log.append(encode_event({"v": VERSION, "id": f"other.{len(self.log)}", "member": "other", **event}))
        self._apply(len(self.log), self.log[-1])

    def call(self, operation: Callable[..., None], *arguments: Any) -> Answer:
        """An operation that calls ``done``; everything it needs happens before this returns (unless held)."""
        answer = self.start(operation, *arguments)
        self.settle()
        return answer

    def declare(self, name: str, *, owner: object = None, **flags: Any) -> Answer:
        """``queue.declare``."""
        return self.call(self.vhost.declare_queue, QueueDeclare(name, **flags), owner)

    def declare_exchange(self, name: str, type: str = "direct", **flags: Any) -> Answer:
        """``exchange.declare``."""
        return self.call(self.vhost.declare_exchange, ExchangeDeclare(name, type, **flags))

    def bind(self, queue: str, exchange: str, key: str = "k", *, owner: object = None) -> Answer:
        """``queue.bind``."""
        return self.call(self.vhost.bind_queue, queue, exchange, key, {}, owner)

    def unbind(self, queue: str, exchange: str, key: str = "k", *, owner: object = None) -> Answer:
        """``queue.unbind``."""
        return self.call(self.vhost.unbind_queue, queue, exchange, key, {}, owner)

    def delete(self, name: str, *, owner: object = None, if_unused: bool = False, if_empty: bool = False) -> Answer:
        """``queue.delete``."""
        return self.call(self.vhost.delete_queue, name, owner, if_unused, if_empty)

    def publish(self, exchange: str, key: str, *bodies: bytes, receipt: Publisher | None = None) -> int:
        """``basic.publish``; returns how many queues each was routed to."""
        routed = 0
        receipt = receipt or Publisher()
        for token, body in enumerate(bodies, 1):
            routed = self.vhost.publish(exchange, key, b"\0\0", body, receipt, token)
        self.settle()
        return routed

    def consume(self, name: str, consumer: Consumer | None = None) -> Consumer:
        """``basic.consume``."""
        consumer = consumer or Consumer()
        self.vhost.find_queue(name, None).add_consumer(consumer)
        self.settle()
        return consumer

    def stored_queue(self, name: str) -> StoredQueue:
        """A queue whose messages live in KubeMQ."""
        queue = self.vhost.find_queue(name, None)
        assert isinstance(queue, StoredQueue)
        return queue

    def stored(self, name: str) -> list[bytes]:
        """The bodies in a queue's KubeMQ channel."""
        channel = self.store.channel(f"amqp.default.{name}")
        return [channel.stored[sequence].message.body for sequence in sorted(channel.stored)]


def held_queue() -> StoredQueue:
    """A stored queue whose lane sends nothing by itself."""
    model = BrokerModel()
    model.hold_lanes = True
    model.declare("q", durable=True)
    found = model.vhost.find_queue("q", None)
    assert isinstance(found, StoredQueue)
    return found

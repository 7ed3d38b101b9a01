"""What the broker needs from outside, as protocols and plain value types; no code.

The adapters live in ``connector.backend``; consumers and receipts are implemented by ``connector.session`` and, for
requeued copies, by the lease.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from connector.broker.message import Message


class StoreError(Exception):
    """Base of what a backend raises."""


class Unavailable(StoreError):
    """The link to KubeMQ is down; for a store request in flight: its result is unknown."""


class NotSent(Unavailable):
    """The same, and nothing of the request has been sent: its result is known."""


class TimedOut(StoreError):
    """KubeMQ did not answer within the deadline; the result is unknown."""


class Rejected(StoreError):
    """KubeMQ answered and refused (the text is KubeMQ's)."""


class TooMuch(Rejected):
    """A Get's answer was larger than one gRPC message may be (RESOURCE_EXHAUSTED)."""


class Answer:
    """The answer to one Get: its transaction, its messages in Sequence order, and late news of earlier acks.

    ``error`` is KubeMQ's text when the Get itself was refused, else "".  ``failed_acks`` holds the tokens of
    AckRange requests of this stream that KubeMQ answered with an error since the last answer (success is silent).
    ``oldest_at``: when the first message was stored, in seconds since the epoch; 0 where that is not known.
    """

    __slots__ = ("error", "failed_acks", "messages", "oldest_at", "transaction_id")

    def __init__(
        self,
        transaction_id: str,
        messages: list[Message],
        error: str = "",
        failed_acks: Sequence[int] = (),
        oldest_at: float = 0.0,
    ) -> None:
        self.oldest_at = oldest_at
        self.transaction_id = transaction_id
        self.messages = messages
        self.error = error
        self.failed_acks = failed_acks


class ChannelInfo:
    """One row of QueuesInfo (counts of messages; see kubemq.md): ``name`` is what KubeMQ reports, trimmed."""

    __slots__ = ("delivered", "first_sequence", "last_sequence", "name", "subscribers", "waiting")

    def __init__(
        self, name: str, waiting: int, first_sequence: int, last_sequence: int, delivered: int, subscribers: int
    ) -> None:
        self.name = name
        self.waiting = waiting
        self.first_sequence = first_sequence
        self.last_sequence = last_sequence
        self.delivered = delivered
        self.subscribers = subscribers


#: How the embedded server's version ends.
EMBEDDED = "-embedded"


class ServerInfo:
    """What Ping says: host, version, the server's start time and its clock (seconds since the epoch; 0: not told)."""

    __slots__ = ("host", "now", "start_time", "version")

    def __init__(self, host: str, version: str, start_time: int, now: int = 0) -> None:
        self.host = host
        self.version = version
        self.start_time = start_time
        self.now = now

    @property
    def is_embedded(self) -> bool:
        """Whether it is ours: it withholds nothing after a crash, and forgets nothing of what it handed out."""
        return self.version.endswith(EMBEDDED)


class Receipt(Protocol):
    """Who is told what became of a stored message; called in batches, ``flush`` once at the batch's end.

    ``retry``: after an unknown result send again with the same MessageID (publishes without confirms, requeued
    copies) instead of refusing.
    """

    retry: bool

    def on_stored(self, token: int) -> None:
        """KubeMQ has stored the copy with this token."""

    def on_refused(self, token: int, reason: str) -> None:
        """The copy with this token is not stored (or its result is unknown)."""

    def on_doubt(self, token: int) -> None:
        """During the publish: this copy's queue or reader may be gone, which is known later."""

    def on_unrouted(self, token: int, message: Message) -> None:
        """It was gone, instead of ``on_stored``: the copy had no route."""

    def flush(self) -> None:
        """The batch is over: write what has gathered."""


class Outgoing(Protocol):
    """What a writer lane takes from the outbox: the message and the KubeMQ channel it goes to."""

    message: Message
    kubemq_channel: str


class QueueStream(Protocol):
    """One QueuesDownstream stream; requests are served strictly in order, at most one Get at a time."""

    async def get(self, kubemq_channel: str, max_items: int) -> Answer:
        """Read ``max_items`` in a new transaction; raises Unavailable, TimedOut or TooMuch (stream is then gone)."""

    async def ack_range(self, transaction_id: str, sequences: list[int]) -> int:
        """Acknowledge exactly these Sequences; returns a token (see ``Answer.failed_acks``); silent on success."""

    async def close_transaction(self, transaction_id: str) -> None:
        """CloseByClient: everything unacknowledged of this transaction goes back in its place."""

    async def barrier(self) -> Sequence[int]:
        """Return when all earlier requests were served: the tokens of the acks that failed since the last answer."""

    def cancel(self) -> None:
        """Drop the stream; KubeMQ returns what is unacknowledged."""


class StoreLane(Protocol):
    """One QueuesUpstream stream with one request in flight."""

    async def send(self, batch: Sequence[Outgoing]) -> list[str]:
        """Store the batch; per message "" or KubeMQ's error text.

        NotSent: nothing is stored.  Else Unavailable/TimedOut: all results unknown.
        """

    def cancel(self) -> None:
        """Drop the stream."""


class QueueStore(Protocol):
    """KubeMQ queues."""

    def open_stream(self) -> QueueStream:
        """A new reading stream."""

    def open_lane(self) -> StoreLane:
        """A new writing stream."""

    async def snapshot(self) -> list[ChannelInfo]:
        """QueuesInfo of all channels in one call; raises Unavailable or TimedOut."""

    async def ping(self) -> ServerInfo:
        """Ping; raises Unavailable or TimedOut."""


class TopologyLog(Protocol):
    """The declarations' log in KubeMQ's Events Store: one total order."""

    async def append(self, event: bytes, start: int = 0) -> None:
        """Append one event; it comes back through ``follow``.  Raises Unavailable, NotSent, TimedOut or Rejected.

        ``start``: whoever reads the log from this Sequence on knows all that is in it (0: not known).
        """

    def follow(self) -> AsyncIterator[tuple[int, bytes]]:
        """Every event as (Sequence, bytes): from the last ``start`` in the log or an earlier one, then live.

        Yields ``(0, b"")`` once when everything that existed at the call has been yielded.  Raises Unavailable
        when the link breaks; call again to start over.
        """


#: The event of a Sequence in some topology log, None when it has none; raises StoreError.
ReadEvent: TypeAlias = Callable[[int], Awaitable[bytes | None]]


class Clock(Protocol):
    """Monotonic time in seconds."""

    def __call__(self) -> float:
        """Now."""


class Consumer(Protocol):
    """A consumer as its queue sees it; implemented by the session."""

    no_ack: bool
    exclusive: bool
    priority: int  #: higher ones are served first

    @property
    def held_count(self) -> int:
        """Delivered to it, and its client has not decided yet."""

    def free_credit(self) -> int:
        """How many more messages may be delivered right now; 0 when full, blocked or gone.

        Unlimited consumers answer a large number.
        """

    def deliver(self, message: Message) -> None:
        """Write basic.deliver and, unless ``no_ack``, count and remember the message as unacked."""

    def on_queue_gone(self) -> None:
        """The queue was deleted: forget the consumer and tell the client if it can be told (CO-26)."""


class QueueOwner(Protocol):
    """The owner of a queue, wherever it is, as a connector that does not read the queue itself uses it.

    ``done`` gets the result or the exception that ended the operation, as with the queue's own methods.
    """

    def publish(self, queue: Any, message: Message, receipt: Receipt, token: int) -> None:
        """Store a copy in a queue in the owner's memory; the receipt is told."""

    def look_for(self, queue: Any, done: Callable[[bool], None]) -> None:
        """Whether there is a reader behind an address for direct replies."""

    def count(self, queue: Any, done: Callable[[int, int], None], failed: Callable[[object], None]) -> None:
        """``done`` gets ready messages and consumers, everywhere."""

    def purge(self, queue: Any, done: Callable[[object], None]) -> None:
        """Drop what is ready; the number."""

    def admit(self, queue: Any, is_exclusive: bool, done: Callable[[object], None], again: Callable[[], None]) -> None:
        """None when a consumer may attach here; ``again`` when the owner has changed meanwhile."""

    def tell_room(self, queue: Any, limit: int) -> None:
        """Consumers here take so many messages of a queue in the owner's memory, counted from the first one on."""

    def tell_settled(self, queue: Any, op: str, sequences: list[int]) -> None:
        """They are ``done`` with, go back (``requeue``), or were seen by nobody (``back``)."""

    def acquire(self, queue: Any, done: Callable[[bool], None]) -> None:
        """Read the queue here from now on, if nobody else does: False when its owner uses it."""

    def want(self, queue: Any) -> None:
        """Somebody consumes here: read the queue here as soon as its owner lets go."""

    def on_grown(self, queue: Any) -> None:
        """A message was stored in a queue that the owner reads."""

    def when_sure(self, queue: Any, done: Callable[[], None]) -> None:
        """``done`` when a queue in the owner's memory is known to be there still, or gone."""

    def watch_repeated(self, queue: Any, message_ids: list[str]) -> None:
        """These are stored a second time."""

    def note_unknown(self, queue: Any, message_ids: list[str]) -> None:
        """These may be stored, although they were refused."""

    def owner_of(self, queue: Any) -> str:
        """The member that has it; "" for nobody."""


class PeerBus(Protocol):
    """What connectors on one KubeMQ tell each other: transient, it may be lost, doubled or swapped."""

    async def send(self, to: str, data: bytes) -> None:
        """To one connector, or to all with ""; raises StoreError when the link is down."""

    def listen(self, to: str) -> AsyncIterator[bytes]:
        """What comes for this connector, or for all with "", from now on; raises StoreError when the link breaks."""


#: Called once with the result of a slow operation, or with the exception that ended it.
Done = Callable[[object], None]

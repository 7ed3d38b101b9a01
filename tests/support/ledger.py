"""What was promised and what came of it: every publish, confirm, delivery and settlement of one run.

Owns the records only; ``verdict.py`` of the fault runner reads them at the end.  Must not know sockets or AMQP frames.
A *copy* is one message in one queue.  Times are monotonic seconds.

An acknowledgement is *written* when it left the client and *certain* when a later synchronous method on the same
channel was answered: AMQP handles a channel's methods in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from enum import Enum


class Fate(Enum):
    """What became of a publish, as its publisher knows."""

    UNKNOWN = "no result"
    CONFIRMED = "confirmed"
    REFUSED = "nacked"


class Settlement(Enum):
    """How a delivery was settled by its consumer."""

    NONE = "held"
    DONE = "acknowledged, rejected for good, or never to be acknowledged"
    REQUEUED = "given back to the queue"


class Session:
    """One channel of one client, from open to end.

    ``proof_at`` is when the last answered synchronous method was sent: until then the channel certainly lived.
    ``leaving_at`` is when the client began to close, ``ended_at`` when that was over.
    """

    __slots__ = ("client", "ended_at", "leaving_at", "number", "opened_at", "proof_at", "reason")

    def __init__(self, client: str, number: int, opened_at: float) -> None:
        self.client = client
        self.number = number
        self.opened_at = opened_at
        self.proof_at = opened_at
        self.leaving_at: float | None = None
        self.ended_at: float | None = None
        self.reason = ""

    @property
    def name(self) -> str:
        """Client and incarnation."""
        return f"{self.client}#{self.number}"


class Delivery:
    """One delivery of a copy; ``consumer`` is the consumer's tag, "" for a get."""

    __slots__ = ("at", "certain_at", "consumer", "copy", "redelivered", "session", "settled_at", "settlement")

    def __init__(self, copy: Copy, session: Session, consumer: str, at: float, *, redelivered: bool) -> None:
        self.copy = copy
        self.session = session
        self.consumer = consumer
        self.at = at
        self.redelivered = redelivered
        self.settlement = Settlement.NONE
        self.settled_at: float | None = None
        self.certain_at: float | None = None


class Publish:
    """One message: ``session`` and ``number`` are its publisher's channel and place there, from 1."""

    __slots__ = ("at", "confirming", "digest", "fate", "fate_at", "message_id", "number", "queues", "session")

    def __init__(
        self, message_id: str, session: Session, number: int, queues: tuple[str, ...], at: float, *, confirming: bool
    ) -> None:
        self.message_id = message_id
        self.session = session
        self.number = number
        self.queues = queues
        self.at = at
        self.confirming = confirming
        self.digest = 0
        self.fate = Fate.UNKNOWN
        self.fate_at: float | None = None


class Copy:
    """One message in one queue, and its deliveries in the order of their arrival."""

    __slots__ = ("deliveries", "publish", "queue")

    def __init__(self, publish: Publish, queue: str) -> None:
        self.publish = publish
        self.queue = queue
        self.deliveries: list[Delivery] = []

    @property
    def is_done(self) -> bool:
        """Whether some delivery of it was settled for good."""
        return any(delivery.settlement is Settlement.DONE for delivery in self.deliveries)


class Disturbance:
    """One fault while it lasts: ``what`` is ``connector``, ``backend`` or ``client NAME``.

    A *crash* loses what is in memory.
    """

    __slots__ = ("began_at", "ended_at", "is_crash", "kind", "what")

    def __init__(self, what: str, kind: str, began_at: float, *, is_crash: bool) -> None:
        self.what = what
        self.kind = kind
        self.began_at = began_at
        self.ended_at: float | None = None
        self.is_crash = is_crash


class Ledger:
    """All records of one run."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.began_at = now()
        self.publishes: dict[str, Publish] = {}
        self.copies: dict[tuple[str, str], Copy] = {}
        self.sessions: list[Session] = []
        self.deliveries: list[Delivery] = []
        self.disturbances: list[Disturbance] = []
        self.notes: dict[str, list[str]] = {}
        self.auto_ack_queues: set[str] = set()
        self.rescued_at: float | None = None
        self._owed: set[tuple[str, str]] = set()
        self._uncertain: dict[Session, list[Delivery]] = {}

    # ------------------------------------------------------------------ clients

    def open_session(self, client: str) -> Session:
        """A client has a new channel."""
        number = 1 + sum(session.client == client for session in self.sessions)
        session = Session(client, number, self.now())
        self.sessions.append(session)
        return session

    def end_session(self, session: Session, reason: str) -> None:
        """The channel is over, or the client gave it up; the first reason stays."""
        if session.ended_at is None:
            session.ended_at = self.now()
            session.reason = reason

    def leave(self, session: Session) -> None:
        """The client is about to close: what it has may go back from now on."""
        session.leaving_at = self.now()

    def prove(self, session: Session, sent_at: float) -> None:
        """A synchronous method sent at ``sent_at`` was answered: what was settled before it is certain."""
        session.proof_at = max(session.proof_at, sent_at)
        waiting = self._uncertain.pop(session, [])
        later: list[Delivery] = []
        for delivery in waiting:
            if delivery.settled_at is not None and delivery.settled_at <= sent_at:
                delivery.certain_at = self.now()
            else:
                later.append(delivery)
        if later:
            self._uncertain[session] = later

    # ------------------------------------------------------------------ publishing

    def publish(
        self, message_id: str, session: Session, number: int, queues: Iterable[str], *, confirming: bool
    ) -> Publish:
        """A message is about to be written."""
        publish = Publish(message_id, session, number, tuple(queues), self.now(), confirming=confirming)
        self.publishes[message_id] = publish
        for queue in publish.queues:
            self.copies[message_id, queue] = Copy(publish, queue)
        return publish

    def confirm(self, publish: Publish) -> None:
        """The server has taken responsibility for it."""
        publish.fate = Fate.CONFIRMED
        publish.fate_at = self.now()
        for queue in publish.queues:
            if queue not in self.auto_ack_queues and not self.copies[publish.message_id, queue].is_done:
                self._owed.add((publish.message_id, queue))

    def refuse(self, publish: Publish) -> None:
        """The server has not, or does not know."""
        publish.fate = Fate.REFUSED
        publish.fate_at = self.now()

    # ------------------------------------------------------------------ consuming

    def deliver(
        self, queue: str, message_id: str, session: Session, consumer: str, *, redelivered: bool
    ) -> Delivery | None:
        """A message has arrived; None when nobody published it to this queue."""
        copy = self.copies.get((message_id, queue))
        if copy is None:
            self.note("unexpected", f"{message_id!r} was never published to {queue}; {session.name} got it")
            return None
        delivery = Delivery(copy, session, consumer, self.now(), redelivered=redelivered)
        copy.deliveries.append(delivery)
        self.deliveries.append(delivery)
        return delivery

    def settle(self, delivery: Delivery, settlement: Settlement, *, is_certain: bool = False) -> None:
        """A settlement was written (``is_certain``: the server settled it by itself, before sending)."""
        delivery.settlement = settlement
        delivery.settled_at = self.now()
        if is_certain:
            delivery.certain_at = delivery.settled_at
        else:
            self._uncertain.setdefault(delivery.session, []).append(delivery)
        if settlement is Settlement.DONE:
            self._owed.discard((delivery.copy.publish.message_id, delivery.copy.queue))

    @property
    def owed_count(self) -> int:
        """Confirmed copies that no consumer is done with."""
        return len(self._owed)

    def owed(self, queue: str) -> int:
        """The same for one queue."""
        return sum(name == queue for _, name in self._owed)

    def rescue(self) -> None:
        """What was withheld comes from now on, out of order."""
        self.rescued_at = self.now()

    def note(self, problem: str, text: str) -> None:
        """Something is wrong that shows at once, without the whole story."""
        self.notes.setdefault(problem, []).append(f"{self.now() - self.began_at:.3f} s: {text}")

    # ------------------------------------------------------------------ faults

    def disturb(self, what: str, kind: str, *, is_crash: bool = False) -> Disturbance:
        """A fault begins."""
        disturbance = Disturbance(what, kind, self.now(), is_crash=is_crash)
        self.disturbances.append(disturbance)
        return disturbance

    def heal(self, disturbance: Disturbance) -> None:
        """It is over."""
        disturbance.ended_at = self.now()

"""The KubeMQ channels of one stored queue: the current one, which is written to, and older generations, read first.

Owns which lease a message belongs to, what of the queue's counts is in older channels, and the switch to a new
generation when the event of a move has come back.  While messages of a source are being copied, nothing behind it is
read.  The common case is one source, and costs nothing more.  Rules: design.md section 3, point 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.lease import Lease
    from connector.broker.message import Message
    from connector.broker.move import Move
    from connector.broker.queue import StoredQueue


class Source:
    """One channel of a queue, with its lease; ``move``: its messages are being copied to the next source."""

    __slots__ = ("generation", "kubemq_channel", "lease", "move", "queue", "rescue_count")

    def __init__(self, queue: StoredQueue, kubemq_channel: str, generation: int, lease: Lease) -> None:
        self.queue = queue
        self.kubemq_channel = kubemq_channel
        self.generation = generation
        self.lease = lease
        self.move: Move | None = None
        self.rescue_count = 0  #: how often an operator has freed what was withheld

    @property
    def is_current(self) -> bool:
        """Whether the queue's messages are stored here."""
        return self.queue.current is self

    def watch_repeated(self, message_ids: list[str]) -> None:
        """These are stored here a second time."""
        self.lease.watch_repeated(message_ids)

    def note_unknown(self, message_ids: list[str]) -> None:
        """These may be stored here, although they were refused."""
        self.lease.counts.note_unknown(message_ids)

    @property
    def has_messages(self) -> bool:
        """Whether something of it is to be delivered before anything newer."""
        return self.move is not None or self.lease.ready_count > 0


def lease_of(queue: StoredQueue, message: Message) -> Lease:
    """The lease that has this message; the current one's where nobody knows it any more."""
    for source in queue.older:
        if source.kubemq_channel == message.kubemq_channel:
            return source.lease
    return queue.lease


def credit_after(queue: StoredQueue, generation: int) -> int:
    """The queue's credit for this generation: none while one before it has messages."""
    for source in queue.older:
        if source.generation == generation:
            break
        if source.has_messages:
            return 0
    return queue.credit()


def when_all(queue: StoredQueue, begin: Callable[[Lease, Callable[[], None]], None], done: Callable[[], None]) -> None:
    """Begin something with every source's lease; ``done`` when all of them say so."""
    sources = queue.sources
    left = len(sources)

    def one_is_done() -> None:
        nonlocal left
        left -= 1
        if not left:
            done()

    for source in sources:
        begin(source.lease, one_is_done)

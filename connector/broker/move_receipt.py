"""Told when the copies of requeued messages are stored: only then are the originals done with.

Owns which copy belongs to which original, and that a refused one is stored again.  Rule: design.md section 3, point 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.broker.sources import lease_of

if TYPE_CHECKING:
    from connector.broker.message import Message
    from connector.broker.queue import StoredQueue


class MoveReceipt:
    """Told when the copies of a queue's requeued messages are stored; a refused copy is stored again later."""

    retry = True
    __slots__ = ("_copies", "_last", "_queue")

    def __init__(self, queue: StoredQueue) -> None:
        self._queue = queue
        self._copies: dict[int, tuple[Message, Message]] = {}
        self._last = 0

    def start(self, original: Message, copy: Message) -> int:
        """A token for one copy."""
        self._last += 1
        self._copies[self._last] = (original, copy)
        return self._last

    def on_stored(self, token: int) -> None:
        """The copy is stored: the original is done with."""
        original, _ = self._copies.pop(token)
        lease_of(self._queue, original).finish_move(original)

    def on_refused(self, token: int, reason: str) -> None:
        """Not stored: again, under the same MessageID."""
        del reason
        _, copy = self._copies[token]
        self._queue.repeat(copy, self, token)

    def on_doubt(self, token: int) -> None:
        """See ``ports.Receipt``; copies go to queues in KubeMQ, which are there."""

    def on_unrouted(self, token: int, message: Message) -> None:
        """See ``ports.Receipt``."""

    def flush(self) -> None:
        """The reader may have acknowledgements to send now."""
        self._queue.credit_changed()

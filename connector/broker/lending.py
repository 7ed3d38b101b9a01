"""Messages of queues in this connector's memory that consumers on other connectors have in hand.

Owns how many messages each of the others may still be sent, and which ones it has.  Consumers here come first: lent is
what they have no room for.  The other side is ``remote_queue.py``: it says up to which count it takes messages (its
*limit*, counted from the first one, so that what is under way is not counted twice), and what became of them.  When
the other one is gone, what it had goes back, redelivered.  Rules: docs/adr/0007-replicas.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from connector.broker.memory_queue import MemoryQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.message import Message
    from connector.broker.peers import Facts, Peers
    from connector.broker.queue import Queue


class Borrower:
    """A connector with consumers of one queue."""

    __slots__ = ("lent", "limit", "sent_count")

    def __init__(self) -> None:
        self.limit = 0
        self.sent_count = 0
        self.lent: dict[int, Message] = {}


class Lender:
    """``find`` gives the queue a member means; ``key_of`` names ours to the others."""

    def __init__(
        self, peers: Peers, find: Callable[[list[Any]], Queue | None], key_of: Callable[[Queue], list[Any]]
    ) -> None:
        self._peers = peers
        self._find = find
        self._key_of = key_of
        self._borrowers: dict[MemoryQueue, dict[str, Borrower]] = {}
        peers.handlers["room"] = self._on_room
        peers.handlers["settled"] = self._on_settled

    def lend(self, queue: MemoryQueue) -> None:
        """Hand out what the consumers here have no room for, to the others in turn."""
        borrowers = self._borrowers.get(queue, {})
        while queue.ready:
            member = next((m for m, borrower in borrowers.items() if borrower.sent_count < borrower.limit), None)
            if member is None:
                return
            borrower = borrowers[member] = borrowers.pop(member)  # the last one from now on
            message = queue.take()
            borrower.sent_count += 1
            borrower.lent[message.sequence] = message
            facts = {
                "t": "lent",
                "q": self._key_of(queue),
                "s": message.sequence,
                "x": message.exchange,
                "k": message.routing_key,
                "again": message.redelivered,
                "count": message.delivery_count,
            }
            self._peers.tell(member, facts, message.header, message.body)

    def on_gone(self, member: str) -> None:
        """What it had goes back."""
        for queue, borrowers in list(self._borrowers.items()):
            borrower = borrowers.pop(member, None)
            if borrower is not None and borrower.lent:
                queue.requeue(list(borrower.lent.values()))

    def forget(self, queue: Queue) -> None:
        """The queue is deleted."""
        if isinstance(queue, MemoryQueue):
            self._borrowers.pop(queue, None)

    def _on_room(self, member: str, facts: Facts, _blobs: list[bytes]) -> None:
        queue = self._find(facts["q"])
        if isinstance(queue, MemoryQueue) and not queue.consumers.is_single_active:
            borrower = self._borrowers.setdefault(queue, {}).setdefault(member, Borrower())
            borrower.limit = facts["limit"]
            queue.credit_changed()

    def _on_settled(self, member: str, facts: Facts, _blobs: list[bytes]) -> None:
        """It is done with these; or they go back, or were never seen by a client."""
        queue = self._find(facts["q"])
        borrower = self._borrowers.get(queue, {}).get(member) if isinstance(queue, MemoryQueue) else None
        if queue is None or borrower is None:
            return
        messages = [borrower.lent.pop(sequence) for sequence in facts["s"] if sequence in borrower.lent]
        if facts["op"] == "requeue":
            queue.requeue(messages)
            return
        end = queue.settle if facts["op"] == "done" else queue.give_back
        for message in messages:
            end(message)

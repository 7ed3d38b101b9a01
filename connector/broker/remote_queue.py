"""A throw-away queue that lives in another connector's memory, as this one sees it.

Owns the way there: what is published goes to its owner, and is stored when the owner says so; counts, purge and delete
are the owner's.  Consumers here are sent what the owner's have no room for, as much as they have room for, and what
they decide is told to the owner (``lending.py``).  It goes with its owner.  Rules: docs/adr/0007-replicas.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.broker.base_queue import Queue
from connector.broker.errors import Locked
from connector.broker.outbox import OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.base_queue import Hub
    from connector.broker.exchanges.binding import BindingKey
    from connector.broker.message import Message
    from connector.broker.ports import Done, QueueOwner, Receipt
    from connector.broker.topology import QueueRecord


#: The owner sends at most so many messages more than clients have got.
MOST_AHEAD = 100


class RemoteQueue(Queue):
    """``number`` is the owner's for this queue; ``bindings`` have the ids of their exchanges."""

    is_owned = False

    def __init__(self, record: QueueRecord, hub: Hub, away: QueueOwner, member_id: str, number: int) -> None:
        super().__init__(record, hub, owner=away if record.exclusive else None)
        self.member_id = member_id
        self.number = number
        self.bindings: dict[BindingKey, int] = {}
        self._away = away
        self._held: dict[int, Message] = {}
        self._got_count = 0
        self._limit = 0

    @property
    def unacked_count(self) -> int:
        """They are the owner's to count."""
        return 0

    def when_sure(self, done: Callable[[], None]) -> None:
        """Call ``done`` when it is known whether the queue still exists: its deletion may be on the way."""
        self._away.when_sure(self, done)

    def publish(self, message: Message, receipt: Receipt, token: int) -> None:
        """To its owner; the receipt is told when it has answered."""
        self._away.publish(self, message, receipt, token)

    def count(self, done: Callable[[int, int], None], failed: Done) -> None:
        """The owner's numbers."""
        self._away.count(self, done, failed)

    def get(self, done: Done) -> None:
        """Refused: messages are handed out where they are."""
        done(Locked(f"cannot obtain access to {self.label}: it lives on connector {self.member_id}"))

    def purge(self, done: Done) -> None:
        """By its owner."""
        self._away.purge(self, done)

    def when_counted(self, done: Callable[[], None]) -> None:
        """Whoever wants numbers asks with ``count``."""
        done()

    def when_acknowledged(self, done: Callable[[], None]) -> None:
        """What was told to the owner has arrived when it has answered what was asked afterwards."""
        if self._got_count:
            self.when_sure(done)
        else:
            done()

    # ------------------------------------------------------------------ messages the owner has sent

    @property
    def waiting_count(self) -> int:
        """A single active consumer is the owner's."""
        return len(self.consumers) if self.consumers.is_single_active else 0

    def on_lent(self, message: Message) -> None:
        """For a consumer here."""
        self._got_count += 1
        self._hub.memory_bytes += _size(message)
        self.ready.append(message)
        self._hub.mark_dirty(self)

    def dispatch(self) -> None:
        """As above; then the owner is told how many more there may be, and gets back what nobody here is left for."""
        super().dispatch()
        if self.is_deleted or self.consumers.is_single_active:
            return
        if not self.consumers and self.ready:
            self._away.tell_settled(self, "back", [message.sequence for message in self.ready])
            self._drop_ready()
        limit = self._got_count + max(0, min(self.consumers.credit(), MOST_AHEAD) - len(self.ready))
        if limit != self._limit:
            self._limit = limit
            self._away.tell_room(self, limit)

    def requeue(self, messages: list[Message]) -> None:
        """By its owner."""
        sequences = [message.sequence for message in messages if self._release(message)]
        if sequences:
            self._away.tell_settled(self, "requeue", sequences)
        self._hub.mark_dirty(self)

    def _take(self) -> Message:
        message = self.ready.popleft()
        self._held[message.sequence] = message
        return message

    def _settle(self, message: Message) -> None:
        if self._release(message):
            self._away.tell_settled(self, "done", [message.sequence])

    def _put_back(self, message: Message) -> None:
        if self._release(message):
            self._away.tell_settled(self, "back", [message.sequence])

    def _release(self, message: Message) -> bool:
        if self._held.pop(message.sequence, None) is None:
            return False
        self._hub.memory_bytes -= _size(message)
        return True

    def _drop_ready(self) -> None:
        self._hub.memory_bytes -= sum([_size(message) for message in self.ready])
        self.ready.clear()

    def _drain(self, done: Callable[[], None]) -> None:
        self._drop_ready()
        for message in list(self._held.values()):
            self._release(message)
        done()


class RemoteReply(RemoteQueue):
    """What is behind an address for direct replies that another connector gave out; only that one knows if it is."""

    def publish(self, message: Message, receipt: Receipt, token: int) -> None:
        """As above; when nobody reads there any more the receipt learns that the message had no route."""
        receipt.on_doubt(token)
        super().publish(message, receipt, token)

    def look_for(self, done: Callable[[bool], None]) -> None:
        """``done`` is told whether there is a reader."""
        self._away.look_for(self, done)


def _size(message: Message) -> int:
    return len(message.body) + len(message.header) + OVERHEAD_BYTES

"""A throw-away queue that lives in another connector's memory, as this one sees it.

Owns the way there: what is published goes to its owner, and is stored when the owner says so; counts, purge and delete
are the owner's.  Consumers on this connector wait; it goes with its owner.  Rules: docs/adr/0007-replicas.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.broker.base_queue import Queue
from connector.broker.errors import Locked

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.base_queue import Hub
    from connector.broker.exchanges.binding import BindingKey
    from connector.broker.message import Message
    from connector.broker.ports import Done, QueueOwner, Receipt
    from connector.broker.topology import QueueRecord


class RemoteQueue(Queue):
    """``number`` is the owner's for this queue; ``bindings`` have the ids of their exchanges."""

    is_owned = False

    def __init__(self, record: QueueRecord, hub: Hub, away: QueueOwner, member_id: str, number: int) -> None:
        super().__init__(record, hub, owner=away if record.exclusive else None)
        self.member_id = member_id
        self.number = number
        self.bindings: dict[BindingKey, int] = {}
        self._away = away

    @property
    def unacked_count(self) -> int:
        """None of them is here."""
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
        """Nothing of it was delivered here."""
        done()

    def _drain(self, done: Callable[[], None]) -> None:
        done()

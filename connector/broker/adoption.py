"""Messages whose copies wait unread in a new generation, while their clients hold them or have decided already.

Owns what is known of them until the reader meets the copy, by MessageID: it is then the very message the client has.
Their Sequence is 0 meanwhile.  Rule: design.md section 3, point 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.broker.message import Message


class Adopted:
    """``held``: a client has it; ``moving``: a requeued copy is being stored; ``settled``: done with.

    ``returned``: back in its place; the number of its failed deliveries, 0 where no client has seen it,
    and whether that was before a purge.
    """

    __slots__ = ("held", "moving", "returned", "settled")

    def __init__(self) -> None:
        self.held: dict[str, Message] = {}
        self.moving: dict[str, Message] = {}
        self.settled: set[str] = set()
        self.returned: dict[str, tuple[int, bool]] = {}

    def __len__(self) -> int:
        return len(self.held) + len(self.moving) + len(self.settled)

    def is_held(self, message_id: str) -> bool:
        """Whether a client has it, or had until it was requeued."""
        return message_id in self.held or message_id in self.moving

    def pass_on(self, message_ids: set[str], other: Adopted) -> None:
        """The copies of these were copied once more, before they were read."""
        for mine, others in ((self.held, other.held), (self.moving, other.moving)):
            for message_id in message_ids.intersection(mine):
                others[message_id] = mine.pop(message_id)
        other.settled |= self.settled & message_ids
        self.settled -= message_ids

    def settle(self, message: Message) -> None:
        """Acknowledged before its copy was read."""
        if self.held.pop(message.message_id, None) is not None:
            self.settled.add(message.message_id)

    def start_move(self, message: Message) -> bool:
        """Requeued before its copy was read; False when it was settled already."""
        if self.held.pop(message.message_id, None) is None:
            return False
        self.moving[message.message_id] = message
        return True

    def finish_move(self, message: Message) -> None:
        """What was requeued is stored."""
        if self.moving.pop(message.message_id, None) is not None:
            self.settled.add(message.message_id)

    def put_back(self, message: Message) -> bool:
        """Refused before its copy was read: that is handed out again; False when it was settled already."""
        if self.held.pop(message.message_id, None) is None:
            return False
        self.returned[message.message_id] = (message.delivery_count + 1, False)
        return True

    def settle_everything(self) -> None:
        """The queue is deleted."""
        self.settled.update(self.held, self.moving)
        self.held.clear()
        self.moving.clear()

    def give_back(self, message: Message) -> None:
        """The client never saw it: the copy is as good as any message."""
        if self.held.pop(message.message_id, None) is not None:
            self.returned[message.message_id] = (0, False)

    def start_purge(self) -> None:
        """What is back in its place is purged with all else."""
        self.returned = {message_id: (count, True) for message_id, (count, _) in self.returned.items()}

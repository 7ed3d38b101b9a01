"""Handing out a message when it is stored, before it is read back from its channel.

Owns which messages may go out so, and which of those that went out are still unread in the channel.  Nobody else may
be waiting in the channel: everything unread there has been handed out already, so order holds.  When the reader meets
such a message it is the very one the client has, or has decided about (``adoption.py``).  A channel's own count of
what was handed out does not have it until then, so its MessageID says that it may have been (``mapping.message_ids``).
Why, and what bounds it: docs/adr/0009-early-delivery.md.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.adoption import Adopted
    from connector.broker.message import Message

#: So many messages and bytes may be handed out and unread, and this old.
MOST_UNREAD = 1024
MOST_UNREAD_BYTES = 1_000_000
MOST_UNREAD_S = 0.5
#: What was handed out is read so much later, in seconds: what comes meanwhile takes no request of its own.  Sooner when
#: it is so much.
READ_DELAY_S = 0.02
READ_COUNT = 256

#: ``~<replica>`` of a MessageID; after one more character its number.
_LIFE_LENGTH = 13
_NUMBER_AT = _LIFE_LENGTH + 1


class Early:
    """``offered``: stored just now, for the consumers that have room; ``unread``: handed out and not read yet.

    ``unread`` is in the order of storing, by MessageID: (monotonic second, bytes).
    """

    __slots__ = (
        "_adopted",
        "_counts_to_come",
        "_now",
        "_offered_bytes",
        "_read_upto",
        "_unread_bytes",
        "_waits_upto",
        "life",
        "offered",
        "unread",
    )

    def __init__(self, adopted: Adopted, now: Callable[[], float]) -> None:
        self._adopted = adopted
        self._now = now
        self.life = ""  #: ours: what we store is numbered in its order; empty where nothing is handed out early
        self._read_upto = self._waits_upto = 0  # its numbers: read, and stored without having been handed out
        self._offered_bytes = self._unread_bytes = 0
        self._counts_to_come = 0
        self.offered: deque[Message] = deque()
        self.unread: dict[str, tuple[float, int]] = {}

    @property
    def count(self) -> int:
        """Of the known backlog: handed out, or about to be."""
        return len(self.unread) + len(self.offered)

    @property
    def unread_bytes(self) -> int:
        """Of messages that were handed out and are unread."""
        return self._unread_bytes

    @property
    def has_settled(self) -> bool:
        """Whether an acknowledgement waits until its message is read."""
        return bool(self.unread and self._adopted.settled)

    @property
    def is_unsure(self) -> bool:
        """Whether something may be stored that is in no count."""
        return self._counts_to_come > 0

    def on_unknown(self) -> None:
        """It is not certain that a message was not stored: the next count but one has it if it was."""
        self._counts_to_come = 2

    def on_counted(self, count: int) -> None:
        """So many are unread in the channel, and no more of what was handed out."""
        self._counts_to_come = max(0, self._counts_to_come - 1)
        self.limit(count)

    def on_stored(self, message: Message, may_offer: bool) -> None:
        """One of ours is stored: it may be taken until ``withdraw``, unless something of ours waits to be read."""
        message_id = message.message_id
        self.life = message_id[:_LIFE_LENGTH]
        number = int(message_id[_NUMBER_AT:])
        if self._read_upto >= number:  # it was read before we heard of it
            return
        if not (may_offer and self._read_upto >= self._waits_upto and self._offer(message)):
            self._waits_upto = number

    def _offer(self, message: Message) -> bool:
        """False when too much is unread."""
        size = _size(message)
        unread_bytes = self._unread_bytes + self._offered_bytes + size
        if self.count >= MOST_UNREAD or unread_bytes > MOST_UNREAD_BYTES or self._is_old():
            return False
        self._offered_bytes += size
        self.offered.append(message)
        return True

    def _is_old(self) -> bool:
        """Whether what was handed out is unread for too long: somebody else may have it."""
        for first_at, _ in self.unread.values():
            return self._now() > first_at + MOST_UNREAD_S
        return False

    @property
    def read_at(self) -> float:
        """When what was handed out is to be read; without end when nothing was."""
        if len(self.unread) >= READ_COUNT:
            return 0.0
        for first_at, _ in self.unread.values():
            return first_at + READ_DELAY_S
        return float("inf")

    def take(self) -> Message:
        """Hand out the first of what is offered."""
        message = self.offered.popleft()
        size = _size(message)
        self._offered_bytes -= size
        self._unread_bytes += size
        self.unread[message.message_id] = (self._now(), size)
        self._adopted.held[message.message_id] = message
        return message

    def withdraw(self) -> None:
        """What is still offered comes by way of its channel."""
        if self.offered:
            self._waits_upto = int(self.offered[-1].message_id[_NUMBER_AT:])
            self.offered.clear()
            self._offered_bytes = 0

    def on_read(self, message_id: str) -> None:
        """A message was read, perhaps before it was reported stored: then it is not to be offered any more.

        What was handed out before it has left the queue, unless it has been read too: somebody else has it.
        """
        unread = self.unread
        if self.offered:
            self._withdraw(message_id)
        if message_id in unread:
            while message_id in unread:
                self._drop(next(iter(unread)))
        if message_id.startswith(self.life):
            self._read_upto = max(self._read_upto, int(message_id[_NUMBER_AT:]))

    def give_back(self, message_id: str) -> None:
        """It is unread like any other."""
        if message_id in self.unread:
            self._drop(message_id)
            self._waits_upto = max(self._waits_upto, int(message_id[_NUMBER_AT:]))

    def limit(self, count: int) -> None:
        """No more than so many are unread in the channel."""
        while len(self.unread) > count:
            self._drop(next(iter(self.unread)))

    def _withdraw(self, message_id: str) -> None:
        for message in self.offered:
            if message.message_id == message_id:
                self.offered.remove(message)
                self._offered_bytes -= _size(message)
                return

    def _drop(self, message_id: str) -> None:
        _, size = self.unread.pop(message_id)
        self._unread_bytes -= size


def _size(message: Message) -> int:
    return len(message.body) + len(message.header)

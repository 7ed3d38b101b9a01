"""The deliveries of one channel that wait for the client's word.

Owns the channel's delivery tags (from 1, one more each time, never reused: CO-10) and which tags may still be settled
(CO-14).  Must not know what settling means: it hands the entries out, ``consume.py`` acts on them.  Rules:
RabbitMQ's ``rabbit_channel:collect_acks``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.broker.message import Message
    from connector.session.consume import Consumer
    from connector.session.ports import Queue

    #: Where the message came from, the message, and the consumer that has it (None: ``basic.get``).
    Entry: TypeAlias = tuple[Queue, Message, Consumer | None]


class Unacked:
    """Delivery tag to entry, in ascending order of the tags."""

    __slots__ = ("_entries", "_lowest", "last_tag")

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._lowest = 1  # no tag below this one is in the ledger
        self.last_tag = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[int, Entry]]:
        """Tags and entries, ascending."""
        return iter(self._entries.items())

    def add(self, entry: Entry) -> int:
        """Remember a delivery and return its tag."""
        self.last_tag = tag = self.last_tag + 1
        self._entries[tag] = entry
        return tag

    def skip(self) -> int:
        """Return the tag of a delivery that nobody settles (``no_ack``)."""
        self.last_tag = tag = self.last_tag + 1
        return tag

    def take(self, delivery_tag: int) -> Entry:
        """Remove one entry; raises 406 when the tag is unknown, settled already, or 0."""
        entry = self._entries.pop(delivery_tag, None)
        if entry is None:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {delivery_tag}")
        return entry

    def take_up_to(self, delivery_tag: int) -> list[Entry]:
        """Remove the entries up to and including a tag, ascending; tag 0 means all there are, also none.

        Raises 406, and removes nothing, when the tag itself is not outstanding.
        """
        if delivery_tag == 0:
            return self.take_all()
        entries = self._entries
        if delivery_tag not in entries:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {delivery_tag}")
        taken = [entries.pop(tag) for tag in range(self._lowest, delivery_tag + 1) if tag in entries]
        self._lowest = delivery_tag + 1
        return taken

    def take_tagged(self, delivery_tag: int, *, multiple: bool) -> dict[int, Entry]:
        """Remove one entry, or all up to a tag, as ``take`` and ``take_up_to``; for ``restore``."""
        if not multiple:
            return {delivery_tag: self.take(delivery_tag)}
        entries = self._entries
        if delivery_tag and delivery_tag not in entries:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {delivery_tag}")
        taken = {tag: entry for tag, entry in entries.items() if tag <= delivery_tag or not delivery_tag}
        for tag in taken:
            del entries[tag]
        return taken

    def restore(self, taken: dict[int, Entry]) -> None:
        """Put back what ``take_tagged`` has removed."""
        if taken:
            self._entries = dict(sorted((self._entries | taken).items()))
            self._lowest = min(self._lowest, *taken)

    def take_all(self) -> list[Entry]:
        """Remove every entry, ascending (recover, channel and connection close)."""
        taken = list(self._entries.values())
        self._entries.clear()
        self._lowest = self.last_tag + 1
        return taken

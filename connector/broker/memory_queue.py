"""Throw-away queues (design.md section 6): their messages live in the connector's memory and go with it.

Owns those messages and what they add to the process's mark; consumers, gets and turns are ``queue.py``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.broker.outbox import OVERHEAD_BYTES
from connector.broker.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.message import Message
    from connector.broker.ports import Receipt
    from connector.broker.queue import Hub
    from connector.broker.topology import QueueRecord


class MemoryQueue(Queue):
    """A throw-away queue: its messages live here and go with it; they are stored the moment they are accepted."""

    def __init__(self, record: QueueRecord, hub: Hub, owner: object = None) -> None:
        super().__init__(record, hub, owner)
        self._held: dict[int, Message] = {}
        self._last_sequence = 0

    @property
    def unacked_count(self) -> int:
        """Delivered and unsettled."""
        return len(self._held)

    def dispatch(self) -> None:
        """As above; what the consumers here have no room for goes to those on other connectors."""
        super().dispatch()
        if self.ready:
            self._hub.lend(self)

    def take(self) -> Message:
        """The next one, for a consumer on another connector."""
        return self._take()

    def publish(self, message: Message, receipt: Receipt, token: int) -> None:
        """Accept, or refuse at the process's mark for messages in memory."""
        hub = self._hub
        size = len(message.body) + len(message.header) + OVERHEAD_BYTES
        if hub.memory_bytes + size > hub.memory_limit_bytes:
            receipt.on_refused(token, "memory mark of throw-away queues reached")
            return
        hub.memory_bytes += size
        self._append(message)
        receipt.on_stored(token)

    def _append(self, message: Message) -> None:
        self._last_sequence += 1
        message.sequence = self._last_sequence
        self.ready.append(message)
        if not self.is_dirty:
            self._hub.mark_dirty(self)

    def _append_again(self, messages: list[Message]) -> None:
        for message in messages:
            if self._held.pop(message.sequence, None) is not None:
                message.redelivered = True
                message.delivery_count += 1
                self._append(message)

    def _return(self, message: Message) -> bool:
        message.redelivered = True
        message.delivery_count += 1
        self._put_back(message)
        return True

    def when_counted(self, done: Callable[[], None]) -> None:
        """Counts are always exact here."""
        done()

    def when_acknowledged(self, done: Callable[[], None]) -> None:
        """Nothing is kept anywhere else."""
        done()

    def purge(self, done: Callable[[int], None]) -> None:
        """Drop what is ready at once."""
        count = len(self.ready)
        for message in self.ready:
            self._free(message)
        self.ready.clear()
        done(count)

    def _take(self) -> Message:
        message = self.ready.popleft()
        self._held[message.sequence] = message
        return message

    def _settle(self, message: Message) -> None:
        if self._held.pop(message.sequence, None) is not None:
            self._free(message)

    def _put_back(self, message: Message) -> None:
        if self._held.pop(message.sequence, None) is None:
            return
        at = 0
        while at < len(self.ready) and self.ready[at].sequence < message.sequence:
            at += 1
        self.ready.insert(at, message)

    def _free(self, message: Message) -> None:
        self._hub.memory_bytes -= len(message.body) + len(message.header) + OVERHEAD_BYTES

    def _drain(self, done: Callable[[], None]) -> None:
        for message in (*self.ready, *self._held.values()):
            self._free(message)
        self.ready.clear()
        self._held.clear()
        done()

"""A queue's move to its next generation: what is stored again there, and who holds it then.

Owns what has been copied and acknowledged so far, so that a move that is interrupted goes on, and the hand-over from
the old lease to the new one.  Nothing held is ever given back to the old channel.  Knows no stream and no lane:
``runtime/queue_mover.py`` performs it.  Rules: design.md section 3, points 12 and 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.broker.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from connector.broker.sources import Source


class Copy:
    """One message to be stored in the new generation (``ports.Outgoing``); ``queue`` is where it is read."""

    __slots__ = ("kubemq_channel", "message", "original", "queue")

    def __init__(self, original: Message, target: Source, *, redelivered: bool) -> None:
        self.original = original
        self.kubemq_channel = target.kubemq_channel
        self.queue = target
        self.message = Message(
            original.exchange,
            original.routing_key,
            original.header,
            original.body,
            original.message_id,
            redelivered=redelivered,
            delivery_count=original.delivery_count,
        )


class Move:
    """``old`` to ``target``; identities are (Sequence, MessageID) of the old channel."""

    def __init__(self, old: Source, target: Source, reason: str) -> None:
        self.old = old
        self.target = target
        self.reason = reason
        self.stored_count = 0
        self.is_running = False
        self.on_end: Callable[[], None] | None = None  # who waits until nothing more is stored by it
        self._copied: set[tuple[int, str]] = set()
        self._acknowledged: set[int] = set()

    def copies(self, messages: Iterable[Message]) -> list[Copy]:
        """What is to be stored now: all of mine, and of ``messages`` (an answer) what is not done with; in order."""
        lease = self.old.lease
        chosen: dict[tuple[int, str], Copy] = {}
        for pile in (lease.held, lease.moving):
            for message in pile.values():
                self._choose(chosen, message, redelivered=True)
        for message in lease.ready:
            self._choose(chosen, message, redelivered=message.redelivered)
        for message in messages:
            known = lease.orphans.get((message.sequence, message.message_id))
            if known is not None:
                self._choose(chosen, known, redelivered=True)
            elif lease.wants_copy(message):
                flag = message.redelivered or lease.was_handed_out(message.sequence)
                self._choose(chosen, message, redelivered=flag)
        return [chosen[key] for key in sorted(chosen)]

    def _choose(self, chosen: dict[tuple[int, str], Copy], message: Message, *, redelivered: bool) -> None:
        key = (message.sequence, message.message_id)
        if key not in self._copied and key not in chosen:
            chosen[key] = Copy(message, self.target, redelivered=redelivered)

    def on_stored(self, copies: Iterable[Copy]) -> None:
        """These are stored in the new generation."""
        for copy in copies:
            self._copied.add((copy.original.sequence, copy.original.message_id))
            self.stored_count += 1

    def on_unknown(self, copies: Iterable[Copy]) -> None:
        """These may be stored: they are stored again under the same MessageIDs."""
        ids = []
        for copy in copies:
            copy.message.redelivered = True
            ids.append(copy.message.message_id)
        self.target.lease.watch_repeated(ids)

    def pause(self) -> None:
        """Nothing is under way: it goes on later, is done, or its queue is deleted."""
        self.is_running = False
        ended, self.on_end = self.on_end, None
        if ended is not None:
            ended()

    def on_acknowledged(self, sequences: Iterable[int]) -> None:
        """These are done with in the old channel."""
        self._acknowledged.update(sequences)

    def left_behind(self) -> list[int]:
        """Sequences that may appear in the old channel again though they live on elsewhere, or are done with."""
        lease = self.old.lease
        done = {sequence for sequence, _ in self._copied} | set(lease.settled)
        for _, _, batch in lease.sent:
            done.update(batch)
        return sorted(done - self._acknowledged)

    def hand_over(self) -> None:
        """The new generation is current: what clients hold is held there, and the old lease has nothing any more."""
        lease, adopted = self.old.lease, self.target.lease.adopted
        channel = self.target.kubemq_channel
        orphans = {key: message for key, message in lease.orphans.items() if key in self._copied}
        for pile, waiting in ((lease.held, adopted.held), (lease.moving, adopted.moving)):
            for sequence, message in pile.items():
                if (sequence, message.message_id) in self._copied:
                    waiting[message.message_id] = message
        for key, message in orphans.items():
            del lease.orphans[key]
            adopted.held[message.message_id] = message
        for sequence, message in lease.settled.items():
            if (sequence, message.message_id) in self._copied:
                adopted.settled.add(message.message_id)
        for waiting in (adopted.held, adopted.moving):
            for message in waiting.values():
                message.sequence, message.kubemq_channel = 0, channel
        self.target.lease.counts.on_given_back(self.stored_count)
        lease.leave()

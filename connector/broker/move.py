"""A move of what is in one generation of a queue to another: what is stored again there, and who holds it then.

Owns what has been copied and acknowledged so far, so that a move that is interrupted goes on, and the hand-over from
the old lease to the new one.  Nothing held is ever given back to the old channel.  Knows no stream and no lane:
``runtime/queue_mover.py`` performs it.  Rules: design.md section 3, points 12 and 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.broker.message import Message
from mapping.message_ids import is_ours

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        self._copied: set[tuple[int, str]] = set()
        self._copied_ids: set[str] = set()
        self._unknown: set[tuple[int, str]] = set()  # perhaps stored; they are stored again, unless settled meanwhile
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
            if self._is_copied(message):
                continue
            known = lease.orphans.get((message.sequence, message.message_id))
            if known is not None:
                self._choose(chosen, known, redelivered=True)
            elif lease.wants_copy(message):
                flag = message.redelivered or lease.was_handed_out(message.sequence, message.message_id)
                flag = flag or lease.adopted.is_held(message.message_id)
                self._choose(chosen, message, redelivered=flag)
        return [chosen[key] for key in sorted(chosen)]

    def _is_copied(self, message: Message) -> bool:
        """Whether it lives on in the new generation: it may not be taken for the first copy seen, nor copied again."""
        if (message.sequence, message.message_id) in self._copied:
            return True
        return message.message_id in self._copied_ids and is_ours(message.message_id)  # natives may use an id twice

    def _choose(self, chosen: dict[tuple[int, str], Copy], message: Message, *, redelivered: bool) -> None:
        key = (message.sequence, message.message_id)
        if key not in self._copied and key not in chosen:
            chosen[key] = Copy(message, self.target, redelivered=redelivered)

    def on_sent(self, count: int) -> None:
        """So many copies are on their way."""
        self.target.lease.counts.pending_count += count

    def on_results(self, copies: list[Copy], errors: list[str]) -> None:
        """What is stored in the new generation: all without an error."""
        counts = self.target.lease.counts
        for copy, error in zip(copies, errors, strict=True):
            if error:
                counts.on_refused()
                continue
            counts.on_stored()
            self.target.lease.repeated.pass_on(copy.message.message_id, self.target.generation)
            self._copied.add((copy.original.sequence, copy.original.message_id))
            self._copied_ids.add(copy.original.message_id)
            self.stored_count += 1

    def on_unknown(self, copies: list[Copy]) -> None:
        """These may be stored: they are stored again under the same MessageIDs."""
        ids = []
        for copy in copies:
            self.target.lease.counts.on_refused()
            copy.message.redelivered = True
            ids.append(copy.message.message_id)
            self._unknown.add((copy.original.sequence, copy.original.message_id))
            self.target.lease.repeated.renew(copy.message.message_id)
        self.target.lease.watch_repeated(ids)

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

    @property
    def unsure_count(self) -> int:
        """How many of them may not be there any more: their acknowledgement was on its way when the stream was lost."""
        return len(self.old.lease.unsure.intersection(self.left_behind()) - {sequence for sequence, _ in self._copied})

    def seen_after(self, sequence: int) -> int:
        """How many after this one have been read to be copied."""
        seen = {sequence for sequence, _ in self._copied} | self._acknowledged
        return sum(number > sequence for number in seen)

    def hand_over(self) -> None:
        """All is copied: what clients hold is held there, and the old lease has nothing any more."""
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
            elif (sequence, message.message_id) in self._unknown:
                self.target.lease.repeated.settle(message.message_id, sequence, self.old.generation)
        lease.adopted.pass_on(self._copied_ids, adopted)
        for waiting in (adopted.held, adopted.moving):
            for message in waiting.values():
                message.sequence, message.kubemq_channel = 0, channel
        lease.leave()

"""What a lease has in its hands: every message read from KubeMQ that is not known to be acknowledged, by identity.

Owns the piles, what moves between them, and how the messages of an answer are filed:

    mine = held (delivered, unsettled) + ready (read, undelivered) + moving (copy being stored)
         + settled (acknowledgement not sent yet)

and beside it ``sent``: acknowledged in a request whose success is not proven yet (acks are silent).  What does not
come back has left the queue; a client may still have it (``orphans``), or its copy is still being stored
(``departed``): should it return after all, it is known.  Knows no transaction and no time to act: that is the lease's
(``lease.py``).  Rules: design.md section 3, points 4, 6, 8 and 9.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

from connector.broker.acknowledged import Acknowledged, Repeated
from connector.broker.adoption import Adopted
from connector.broker.backlog import NEVER, Backlog
from connector.broker.early import Early
from connector.broker.left_behind import LeftBehind
from connector.broker.line import Line
from connector.broker.outbox import HEADER_FACTOR
from connector.broker.proofs import Proofs
from mapping.message_ids import is_early, is_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from connector.broker.message import Message
    from connector.broker.ports import Answer, ChannelInfo

#: What a message costs KubeMQ's memory and an answer beside body and header (measured with 100 B bodies).
MESSAGE_BYTES = 512
#: All that a Get returns comes in one gRPC message of at most 100 MB: stay under 90 % of it.
MAX_ANSWER_BYTES = 90_000_000
#: What an earlier life has sent may be stored so much later: a link that stood still, a server that was busy.
LATE_S = 30.0


def _cost(message: Message) -> int:
    """Bytes of one message, for the caps; what was not read has no envelope yet."""
    return len(message.body) + (message.envelope_bytes or HEADER_FACTOR * len(message.header)) + MESSAGE_BYTES


class Holdings:
    """The piles of one queue's lease, by Sequence; ``orphans`` and ``departed`` by (Sequence, MessageID).

    ``redelivered_upto``: up to this Sequence an earlier life may have delivered, ``early_upto``: what says so itself;
    ``highest_delivered``: this one has.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.ready: deque[Message] = deque()
        self.held: dict[int, Message] = {}
        self.moving: dict[int, Message] = {}
        self.settled: dict[int, Message] = {}
        self.orphans: dict[tuple[int, str], Message] = {}
        self.departed: dict[tuple[int, str], Message] = {}
        self.adopted = Adopted()
        self.early = Early(self.adopted, now)
        self.left = LeftBehind()  #: dropped when it appears
        self.was_in_doubt = False  #: the queue was deleted before it was known whether something is withheld
        self.counts = Backlog()
        self.line = Line()
        self.generation = 0
        self.repeated = Repeated()
        self.oldest_since: float | None = None  #: when the oldest message was stored, as far as is known
        self.is_unsure = False  #: the server was restarted in an earlier life: it may have handed out more than it says
        self.handed_out_upto: int | None = None  #: what the connector that read before us has handed out
        self.redelivered_upto = self.early_upto = 0
        self.inherited_upto = 0  # what an earlier life stored, some of it perhaps twice
        self._inherits_until = now() + LATE_S
        self.highest_delivered = 0
        self.taken_count = 0
        self.reread_count = 0
        self._acknowledged = Acknowledged()
        self._proofs = Proofs()
        self._unseen: set[int] = set()
        self._failed: dict[tuple[int, str], int] = {}
        self._mine_bytes = 0
        self._average_bytes = 2.0 * MESSAGE_BYTES
        self._settled_at = 0.0
        self._purge_waiters: list[Callable[[], None]] = []
        self._is_ending = False  # the queue is deleted

    # ------------------------------------------------------------------ counts

    @property
    def mine_count(self) -> int:
        """Messages of the open transaction that are not acknowledged yet."""
        return len(self.held) + len(self.ready) + len(self.moving) + len(self.settled)

    @property
    def mine_bytes(self) -> int:
        """What the messages of the open transaction take, about, and what was handed out before it is read."""
        return self._mine_bytes + self.early.unread_bytes

    @property
    def ready_count(self) -> int:
        """Ready messages as a client counts them: undelivered, read or not (QU-01)."""
        return len(self.ready) + self.undelivered_count

    @property
    def undelivered_count(self) -> int:
        """Of the known backlog: what nobody has been given."""
        early = self.early.unread
        return max(0, self.counts.count - len(early)) if early else self.counts.count

    @property
    def unreadable_count(self) -> int:
        """Withheld by the server, not known from memory either, and missed by somebody."""
        return self.left.missed_of(self.counts.withheld)

    def note_oldest(self, since: float) -> None:
        """An answer has told when its first message was stored (monotonic seconds)."""
        self.oldest_since = since

    @property
    def backlog(self) -> int:
        """Messages known to be stored and not read yet."""
        return self.counts.count

    @property
    def has_unread_settled(self) -> bool:
        """Whether something is acknowledged that is still to be read."""
        return self.counts.count > 0 and bool(self.adopted.settled)

    @property
    def sent(self) -> list[tuple[int, int, dict[int, Message]]]:
        """What was acknowledged without proof so far (see ``Proofs``)."""
        return self._proofs.sent

    @property
    def unsure(self) -> set[int]:
        """Sequences whose acknowledgement was on its way when the stream was lost: it may have arrived."""
        return self._proofs.unsure.union(*(batch for _, _, batch in self.sent))

    # ------------------------------------------------------------------ what consumers and clients do

    def take(self) -> Message:
        """Hand out the first ready message; it is held from now on."""
        message = self.ready.popleft()
        sequence = message.sequence
        self.held[sequence] = message
        self.taken_count += 1
        if sequence > self.highest_delivered:
            self.highest_delivered = sequence
        if self._unseen:
            self._unseen.discard(sequence)
        return message

    def settle(self, message: Message) -> None:
        """The message is done with: its acknowledgement goes out with the next step."""
        sequence = message.sequence
        if self.held.get(sequence) is message:
            del self.held[sequence]
            self._add_settled(sequence, message)
        elif self._leaves(self.orphans, message):
            self._remember(message)
        elif not sequence:
            self.adopted.settle(message)

    def start_move(self, message: Message) -> bool:
        """A copy of this message is about to be stored; False when it was settled already."""
        sequence = message.sequence
        if self.held.get(sequence) is message:
            del self.held[sequence]
            self.moving[sequence] = message
            return True
        if self._leaves(self.orphans, message):
            self.departed[sequence, message.message_id] = message
            return True
        return not sequence and self.adopted.start_move(message)

    def finish_move(self, message: Message) -> None:
        """The copy is stored: the original may be acknowledged."""
        sequence = message.sequence
        if self.moving.get(sequence) is message:
            del self.moving[sequence]
            self._add_settled(sequence, message)
        elif self._leaves(self.departed, message):
            self._remember(message)
        elif not sequence:
            self.adopted.finish_move(message)

    def give_back(self, message: Message) -> None:
        """The message reached nobody: back into the ready list at its place, its redelivered mark unchanged."""
        sequence = message.sequence
        if self.held.get(sequence) is message:
            del self.held[sequence]
            if not message.redelivered:
                self._unseen.add(sequence)
            self._insert_ready(message)
        elif not self._leaves(self.orphans, message) and not sequence:
            self.early.give_back(message.message_id)
            self.adopted.give_back(message)

    def put_back(self, message: Message) -> bool:
        """A client refused the message: into the ready list at its place, redelivered; False when it is not held.

        The count of its failed deliveries is remembered, should it go back to KubeMQ unread.
        """
        sequence = message.sequence
        if self.held.get(sequence) is not message:
            self.early.give_back(message.message_id)
            return not sequence and self.adopted.put_back(message)
        del self.held[sequence]
        message.redelivered = True
        message.delivery_count += 1
        self._failed[sequence, message.message_id] = message.delivery_count
        self._insert_ready(message)
        return True

    def watch_repeated(self, message_ids: list[str]) -> None:
        """These are stored again, as it is not known whether they are: of each the first copy read counts.

        That may have been read already.
        """
        read = self._acknowledged.sequences()
        sent = [batch for _, _, batch in self.sent]
        for pile in (self.held, self.moving, self.settled, *sent, {m.sequence: m for m in self.ready}):
            read.update((message.message_id, sequence) for sequence, message in pile.items())
        for message_id in message_ids:
            self.repeated.watch(message_id, read.get(message_id, 0), self.generation)
        self.counts.uncounted_count += len(message_ids)

    def purge(self, done: Callable[[], None]) -> None:
        """Acknowledge unseen what is ready now (``ready_count``), here and in KubeMQ (QU-10).

        ``done`` is called when their acknowledgements have provably arrived.
        """
        for message in self.ready:
            self._add_settled(message.sequence, message)
        self.ready.clear()
        self._unseen.clear()
        self.adopted.start_purge()
        self.counts.start_purge((*self.held, *self.moving))
        self._purge_waiters.append(done)
        self._check_purged()

    def settle_everything(self) -> None:
        """The queue is deleted: what is held or moving is acknowledged too."""
        self._is_ending = True
        for pile in (self.held, self.moving):
            for sequence, message in pile.items():
                self._add_settled(sequence, message)
            pile.clear()
        self.orphans.clear()
        self.departed.clear()
        self.adopted.settle_everything()
        self._failed.clear()

    def answer_room(self) -> int:
        """How many messages fit into one answer, by what the queue has shown."""
        return max(1, int(MAX_ANSWER_BYTES / self._average_bytes))

    def expect_larger(self) -> None:
        """An answer was too large: messages are larger than thought."""
        self._average_bytes *= 4

    def when_flushed(self, done: Callable[[], None]) -> None:
        """Call ``done`` once every acknowledgement given so far has provably reached KubeMQ."""
        self._proofs.wait(done, self._has_settled)

    @property
    def _has_settled(self) -> bool:
        """Whether an acknowledgement is still to be sent."""
        return bool(self.settled) or self.early.has_settled

    @property
    def is_waited_for(self) -> bool:
        """True while somebody waits for proof of acknowledgements."""
        return self._proofs.has_waiters

    def _check_purged(self) -> None:
        if self.counts.purge_left == 0 and self._purge_waiters:
            waiters, self._purge_waiters = self._purge_waiters, []
            for done in waiters:
                self.when_flushed(done)

    def _stop_purge_in_vain(self) -> None:
        """Nothing is to be had at this moment: a purge that waits for more ends when that lasts.

        Where the queue is deleted nobody waits for acknowledgements of what cannot be had either.
        """
        left = self.counts.purge_left + (len(self.settled) if self._is_ending else 0)
        if self.counts.gives_up_purge(left, self._now()):
            self._check_purged()
            if self._is_ending:
                self.abandon()

    def _insert_ready(self, message: Message) -> None:
        """Into the ready list at its Sequence."""
        ready, sequence = self.ready, message.sequence
        if ready and sequence < ready[0].sequence:
            ready.appendleft(message)
            return
        at = len(ready)
        while at and ready[at - 1].sequence > sequence:
            at -= 1
        ready.insert(at, message)

    def _add_settled(self, sequence: int, message: Message) -> None:
        if not self.settled:
            self._settled_at = self._now()
        self.settled[sequence] = message

    def _leaves(self, pile: dict[tuple[int, str], Message], message: Message) -> bool:
        """Take the message out of ``orphans`` or ``departed``; False when it is not there."""
        key = (message.sequence, message.message_id)
        if pile.get(key) is not message:
            return False
        del pile[key]
        return True

    # ------------------------------------------------------------------ what an answer brings

    def on_first_sight(self, seen: ChannelInfo, *, is_known: bool = True) -> None:
        """What an earlier life may have handed out comes with redelivered=true (point 10).

        Not ``is_known``: these may be another channel's numbers, which is reported under the same name.

        Only the first numbers count: nothing is read before they are known, later ones may have our own doing in them.
        """
        if self.counts.known_at > NEVER:
            return
        first_sequence, last_sequence = seen.first_sequence, seen.last_sequence
        upto = min(first_sequence + seen.delivered - 1, last_sequence) if seen.delivered else 0
        if is_known:
            read_upto = max(upto, first_sequence - 1)
            self.line.start(read_upto, seen.waiting - (last_sequence - read_upto))
        if self.handed_out_upto is not None:  # whoever read before us has said so
            upto = min(upto, self.handed_out_upto)
        else:
            self.early_upto = last_sequence
            if self.is_unsure:
                upto = last_sequence
        self.redelivered_upto = last_sequence if seen.subscribers > 1 else upto
        self.inherited_upto = last_sequence
        if not last_sequence:
            self._inherits_until = 0.0  # nobody has stored anything before us

    def _file(self, messages: list[Message], is_counted: bool) -> tuple[int, int]:
        """Re-link what is mine, put the rest in its pile; returns the bytes of the answer, and of what was mine.

        Not ``is_counted``: what returns although it had left the queue is not part of the known backlog.
        """
        held, settled, moving = self.held, self.settled, self.moving
        was_ready = {message.sequence: message for message in self.ready} if self.ready else {}
        relinked = size = again = fresh = 0
        for message in messages:
            sequence = message.sequence
            cost = _cost(message)
            size += cost
            mine = held.get(sequence) or settled.get(sequence) or was_ready.get(sequence) or moving.get(sequence)
            if mine is not None and mine.message_id == message.message_id:
                relinked += 1
                again += cost
                continue
            if mine is not None:
                self._displace(sequence, mine)
            if self._take_in(sequence, message, is_counted):
                is_told = self.counts.is_told(sequence, message.message_id) or self.line.has_given_back(sequence)
                fresh += is_told or self.counts.has_again(sequence)
        if fresh:  # up at once, down slowly: an answer that is too large costs the stream
            average = size / len(messages)
            self._average_bytes = max(average, 0.7 * self._average_bytes + 0.3 * average)
        self.line.on_read(messages, self.counts.highest_read)
        self.counts.on_read(fresh, messages[-1].sequence if messages else 0)
        self.reread_count += relinked
        return size, again

    def is_next(self, messages: list[Message]) -> bool:
        """Whether nothing that is there is missing before the last message of this answer, which has some."""
        ready = (message.sequence for message in self.ready)
        mine = chain(self.held, self.moving, self.settled, ready)
        return self.line.is_next(messages, mine, self.mine_count, self.counts.highest_read)

    def _may_be_inherited(self, sequence: int) -> bool:
        """Whether an earlier life may have stored it, and twice; its last requests may arrive late."""
        if sequence <= self.inherited_upto:
            return True
        if self._inherits_until and self._now() > self._inherits_until:
            self._inherits_until = 0.0
        return self._inherits_until > 0.0

    def _take_in(self, sequence: int, message: Message, is_counted: bool) -> bool:
        """File a message that was not mine: known from before, a second copy, purged, or new; True when it counts."""
        self._mine_bytes += _cost(message)
        is_purged = self.counts.takes(sequence)
        if self.early.life:
            self.early.on_read(message.message_id)
        if self._acknowledged.knows(sequence, message.message_id):
            self._add_settled(sequence, message)
            return is_counted
        if (self.orphans or self.departed) and self._is_back(sequence, message.message_id):
            return is_counted
        if self.adopted and self._is_adopted(sequence, message):
            self.repeated.is_second(sequence, message.message_id, self.generation)  # this is the first
            return True
        if message.message_id in self.adopted.returned:
            self._return(sequence, message, is_purged)
            return True
        if sequence in self.left:
            self._add_settled(sequence, message)
            return True
        if self._may_be_inherited(sequence) and is_ours(message.message_id):  # natives may use an id twice
            self.repeated.watch_passing(message.message_id)
        is_second = self.repeated.is_second(sequence, message.message_id, self.generation)
        if is_second or is_purged:
            self._add_settled(sequence, message)
            return not is_second or self.counts.has_again(sequence)
        if self.was_handed_out(sequence, message.message_id):
            message.redelivered = True
            if self._failed:
                message.delivery_count = self._failed.get((sequence, message.message_id), message.delivery_count)
        if self.ready and sequence < self.ready[-1].sequence:
            self._insert_ready(message)
        else:
            self.ready.append(message)
        return True

    def _start_over(self) -> None:
        """The channel was made anew: what is known of its Sequences is of another one."""
        self.counts.highest_read = self.highest_delivered = 0
        self.redelivered_upto = self.early_upto = self.counts.withheld = 0
        self.left.clear()
        self.line.start(0, 0)
        self._unseen.clear()
        self._failed.clear()

    def check_left(self, answer: Answer) -> None:
        """A channel that was made anew has nothing of what was left in the one before."""
        if self.left.known_at and self.left.is_over(answer):
            self.left.clear()
            self.counts.withheld = 0

    def _return(self, sequence: int, message: Message, is_purged: bool) -> None:
        """It was put back before it was read; purged only if that was before the purge."""
        failed_count, was_there = self.adopted.returned.pop(message.message_id)
        self.repeated.is_second(sequence, message.message_id, self.generation)  # this is the first
        if is_purged and was_there:
            self._add_settled(sequence, message)
            return
        if failed_count:
            message.redelivered = True
            message.delivery_count = self._failed[sequence, message.message_id] = failed_count
        self._insert_ready(message)

    def was_handed_out(self, sequence: int, message_id: str) -> bool:
        """Whether a client may have seen it before."""
        if sequence <= self.redelivered_upto:
            return True
        if sequence <= self.early_upto and is_early(message_id):
            return True
        return sequence <= self.highest_delivered and sequence not in self._unseen

    def cost_of(self, messages: Iterable[Message]) -> int:
        """Bytes of these messages, for the caps."""
        return sum(map(_cost, messages))

    def wants_copy(self, message: Message) -> bool:
        """Whether a message just read, which is not among mine, lives on: it is not acknowledged, purged or a copy."""
        sequence, message_id = message.sequence, message.message_id
        sent = (batch for _, _, batch in self.sent)
        for pile in (self.settled, self.held, self.moving, *sent):
            mine = pile.get(sequence)
            if mine is not None and mine.message_id == message_id:
                return False
        if sequence in self.left or self._acknowledged.knows(sequence, message_id):
            return False
        if (sequence, message_id) in self.departed:
            return False
        return not (self.repeated.is_second(sequence, message_id, self.generation) or self.counts.takes(sequence))

    def abandon(self) -> None:
        """Nothing here is mine any more; who waits for acknowledgements need not."""
        self._confirm(self.settled)
        for batch in self._proofs.take_back():
            self._confirm(batch)
        for pile in (self.held, self.moving, self.settled):
            pile.clear()
        self.ready.clear()
        self._unseen.clear()
        self._mine_bytes = 0
        self.counts.on_short()
        self.early.limit(0)
        self.counts.limit_purge()
        self._proofs.release(is_settled=False)
        self._check_purged()

    def _is_adopted(self, sequence: int, message: Message) -> bool:
        """The copy of what a client holds, or has decided about: it is that message from now on."""
        adopted, message_id = self.adopted, message.message_id
        if message_id in adopted.settled:
            adopted.settled.remove(message_id)
            self._add_settled(sequence, message)
            return True
        for waiting, pile in ((adopted.held, self.held), (adopted.moving, self.moving)):
            known = waiting.pop(message_id, None)
            if known is not None:
                known.sequence, known.kubemq_channel = sequence, message.kubemq_channel
                known.envelope_bytes = message.envelope_bytes
                pile[sequence] = known
                self.highest_delivered = max(self.highest_delivered, sequence)
                return True
        return False

    def _is_back(self, sequence: int, message_id: str) -> bool:
        """Re-link what was thought to have left the queue."""
        for gone, pile in ((self.orphans, self.held), (self.departed, self.moving)):
            message = gone.pop((sequence, message_id), None)
            if message is not None:
                pile[sequence] = message
                return True
        return False

    def _displace(self, sequence: int, message: Message) -> None:
        """Another message has this Sequence now (the channel was made anew): ours has left the queue."""
        self._failed.pop((sequence, message.message_id), None)
        if not self._depart(sequence):
            if self.settled.pop(sequence, None) is None:
                self.ready.remove(message)
            self._mine_bytes -= _cost(message)

    def _depart(self, sequence: int) -> bool:
        """What is held or moving has left the queue; False when it is neither."""
        for pile, gone in ((self.held, self.orphans), (self.moving, self.departed)):
            message = pile.pop(sequence, None)
            if message is not None:
                self._failed.pop((sequence, message.message_id), None)
                gone[sequence, message.message_id] = message
                self._mine_bytes -= _cost(message)
                return True
        return False

    def _forget(self, is_gone: Callable[[int], bool]) -> None:
        """What of mine ``is_gone`` has left the queue (by Sequence).

        Its acknowledgement is done, its requeue still stores the copy (point 4).
        """
        departed = 0
        for pile in (self.held, self.moving):
            for sequence in [sequence for sequence in pile if is_gone(sequence)]:
                departed += self._depart(sequence)
        for message in [message for message in self.ready if is_gone(message.sequence)]:
            self.ready.remove(message)
            self._failed.pop((message.sequence, message.message_id), None)
            self._mine_bytes -= _cost(message)
            departed += 1
        self.counts.confirmed_count += departed
        self._confirm({s: self.settled.pop(s) for s in [s for s in self.settled if is_gone(s)]})
        self._proofs.release(self._has_settled)

    # ------------------------------------------------------------------ acknowledgements

    def on_proof(self, failed: Iterable[int]) -> bool:
        """A later request has answered: every AckRange not named in ``failed`` has arrived; False if any has failed."""
        self.counts.is_unclear = False
        arrived, refused = self._proofs.resolve(failed)
        for batch in arrived:
            self._confirm(batch)
        if refused:
            self._settle_again(refused)
            self._proofs.postpone()
        self._proofs.release(self._has_settled)
        return not refused

    def _confirm(self, batch: dict[int, Message]) -> None:
        """These acknowledgements have arrived."""
        for message in batch.values():
            self._mine_bytes -= _cost(message)
            self._remember(message)
        self.counts.confirmed_count += len(batch)
        if self._proofs.unsure:
            self._proofs.unsure.difference_update(batch)

    def _remember(self, message: Message) -> None:
        """It is done with: should it return, it is acknowledged again."""
        self._acknowledged.add(message.sequence, message.message_id)
        if self._failed:
            self._failed.pop((message.sequence, message.message_id), None)

    def _settle_again(self, batches: list[dict[int, Message]]) -> None:
        """These acknowledgements did not arrive, or not provably: they are given again."""
        for batch in batches:
            for sequence, message in batch.items():
                self._add_settled(sequence, message)

    def _drop_ready(self) -> None:
        """What was read ahead is unread again."""
        self.counts.on_given_back(len(self.ready))
        self.line.give_back([message.sequence for message in self.ready])
        self._mine_bytes -= sum(map(_cost, self.ready))
        self.ready.clear()

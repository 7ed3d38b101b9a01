"""The lease: one queue's reading from KubeMQ as a pure, synchronous state machine.

Owns the one open KubeMQ transaction of a channel, and when it is acknowledged, closed, read again and renewed; what
was read is in its ``Holdings``, whether somebody else reads too in its ``Sharing``.  A transaction may end at any
moment; whatever was not acknowledged comes back first, in order, as the same message, and is re-linked.  The rules are
design.md section 3, points 1 to 12; a move to another generation (point 13) is ``move.py``'s.

Knows no gRPC, no task and no consumer: the reader (``runtime/queue_reader.py``) asks ``next_step``, performs it and
reports back.  Acks, requeues, credit and purges only change data and are legal in every state; what the reader
reports moves the state by ``_TRANSITIONS``.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from connector.broker.backlog import NEVER, UNBOUNDED, Snapshot
from connector.broker.holdings import MAX_ANSWER_BYTES, Holdings
from connector.broker.pacing import ACK_DELAY_S, READ_AHEAD_BYTES, WORTH_BYTES, Pacing
from connector.broker.sharing import LOST, Sharing
from connector.broker.steps import NOT_AT_ALL, WAIT, Step, StepKind
from connector.broker.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from connector.broker.message import Message
    from connector.broker.ports import Answer

#: Most unread messages one Get asks for.
MAX_NEW = 1024
#: What was read ahead and nobody took goes back after this.
GIVE_BACK_DELAY_S = 0.2
#: The last acknowledgements are proven after this, if no later request does it before.
PROOF_DELAY_S = 1.0
#: First and longest pause after a short answer or a lost link.
BACK_OFF_S = 0.01
MAX_BACK_OFF_S = 1.0


class State(Enum):
    """Where the lease stands with KubeMQ."""

    IDLE = "no transaction"
    GETTING = "a Get is under way"
    OPEN = "a transaction is open and exactly mine"
    CLOSING = "acknowledged and closed, on the way to the next Get or to rest"
    RECOVERING = "the last answer was short, or the stream is lost: count afresh before reading"


class Event(Enum):
    """What the reader reports."""

    CLOSED = "acks and CloseByClient are written"
    GET_SENT = "a Get is about to be written"
    REST = "nothing is to be read now"
    FULL = "the answer has all that was asked"
    SHORT = "the answer has less, or nothing"
    LOST = "the stream or the link is gone, or the Get was refused"
    LATE = "the answer was given back: something may come before it"


class Lease(Holdings):
    """One queue's reading; counts are in messages, times in monotonic seconds.

    ``credit`` answers how many more messages could be delivered right now (consumers and waiting gets).  A busy
    queue's Get brings up to ``read_ahead`` times that: what is read ahead goes out the moment an acknowledgement makes
    room, without another round trip or re-read.
    """

    def __init__(
        self,
        credit: Callable[[], int],
        now: Callable[[], float],
        read_ahead: int = 1,
        is_pressed: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(now)
        self._credit = credit
        self._is_pressed = is_pressed  # for memory: nothing is read before it is asked for
        self._pacing = Pacing(read_ahead)
        self.state = State.IDLE
        self.transaction_id = ""
        self.sharing = Sharing()
        self.may_withhold = False  #: the server was restarted since the channel was known to be whole
        self.is_doubtful = False  #: so it is examined before anything else
        self.is_due = False  #: its oldest message nears the server's retention: it moves when examined
        self._peeks = 0
        self.get_count = self.short_count = 0
        self._new_cap = MAX_NEW
        self._link_cap = UNBOUNDED
        self._returning_at: float | None = None
        self._recover_at = 0.0
        self._back_off_s = BACK_OFF_S
        self._asked = self._relinking = self._linked_upto = 0
        self._everything: int | None = None
        self._is_counted = True
        self._has_left_some = False
        self.dry_at = -1  #: when so much was stored nothing could be had, though it was counted; -1: something can
        self.streams = Streams()

    def takes_early(self) -> bool:
        """Whether the next message stored may be handed out before it is read: all that is unread has been.

        Not where somebody else may read, and not while somebody waits for acknowledgements: that would never end.
        """
        early = self.early
        if self.counts.count != early.count + 1 or early.is_unsure or self.ready or self.state is State.RECOVERING:
            return False
        return self._is_plain and not self._proofs.has_waiters

    @property
    def _is_plain(self) -> bool:
        """It is known what is there, and nobody else reads, withholds or purges any of it."""
        counts = self.counts
        is_odd = self.may_withhold or self.is_doubtful or self.is_due or counts.withheld or counts.purge_left
        return not (is_odd or self.sharing.is_on) and counts.known_at > NEVER

    @property
    def is_at_rest(self) -> bool:
        """True when the known backlog is all there is: no Get and no recount is under way."""
        return self.state is State.IDLE or self.state is State.OPEN

    @property
    def has_nothing(self) -> bool:
        """True when a get need not wait: nothing is there, or nothing that can be had."""
        if self.must_keep:
            return True
        if self.is_doubtful or self.ready:
            return False
        if self.state is State.RECOVERING:
            return self.dry_at == self.counts.stored_count
        return self.is_at_rest and (self.backlog == 0 or self.is_full)

    @property
    def is_full(self) -> bool:
        """True when what consumers hold leaves no room for one more in an answer: nothing is read until they settle."""
        return self.mine_count > 0 and not self._fits()

    @property
    def is_idle(self) -> bool:
        """True when nothing is mine, on its way, waited for or known to be there."""
        counts = self.counts
        return counts.known_at > NEVER and not (
            self.wants_reader() or counts.count or counts.pending_count or counts.purge_left
        )

    @property
    def is_unused(self) -> bool:
        """True when no transaction is open, nothing is mine, and nobody waits: another may read instead."""
        return self.state is State.IDLE and not self.wants_reader() and not (self.orphans or self.departed)

    def leave(self) -> None:
        """Another one reads the channel from now on: nothing here is mine any more."""
        self.state = State.IDLE
        self.transaction_id = ""
        self.abandon()
        self.trust()

    # ------------------------------------------------------------------ the known backlog

    def begin_snapshot(self) -> Snapshot:
        """Note the counters at the start of a QueuesInfo call."""
        return self.counts.begin_snapshot(self._is_quiet(), self._open_as, self._now())

    def on_snapshot(
        self, waiting: int, began: Snapshot, last_sequence: int | None = None, subscribers: int = 0
    ) -> bool:
        """QueuesInfo says ``waiting`` messages are stored and unacknowledged (point 2).

        ``last_sequence`` is None where several channels are reported under one name.  Returns whether the verdict on
        foreign subscribers has changed (point 11).
        """
        counts = self.counts
        if last_sequence is not None and last_sequence < max(began.highest, self.left.upto):
            self._start_over()
        if self.may_withhold and counts.known_at == NEVER and waiting > counts.withheld:
            self.is_doubtful = True
        settled_count = len(self.settled)
        acked_count = settled_count + sum(len(batch) for _, _, batch in self._proofs.sent)
        counts.correct(waiting, last_sequence, self.mine_count - settled_count, began, self._is_quiet(), acked_count)
        counts.on_counted(self._now(), began)
        self.early.on_counted(counts.count)
        self._check_purged()
        is_changed = self.sharing.on_count(subscribers, began.transaction_id, self._open_as, counts.known_at)
        if self.must_keep:
            self._stop_purge_in_vain()
        if self.sharing.is_certain and self.transaction_id and not counts.withheld:
            self._suspect()
        elif subscribers == 1 and self.transaction_id and self.transaction_id == began.transaction_id:
            self.may_withhold = self.is_doubtful
        return is_changed

    def is_in_turn(self, messages: list[Message]) -> bool:
        """Whether an answer may be taken: nothing comes before it, or that cannot be told.

        A short one has all that KubeMQ had for a second; and where others read too, something is always missing.
        """
        return self.is_short(messages) or self.sharing.is_on or self.counts.withheld > 0 or self.is_next(messages)

    def is_short(self, messages: list[Message]) -> bool:
        """Whether an answer has less than was asked for."""
        return len(messages) < self._asked

    @property
    def must_keep(self) -> bool:
        """True while the open transaction may not end: what is held would go to somebody else (point 11)."""
        return self.sharing.is_on and bool(self.transaction_id) and bool(self.held or self.moving)

    @property
    def _open_as(self) -> str:
        """The open transaction, for counts of subscribers."""
        return LOST if self.streams.has_remains else self.transaction_id

    def doubt(self) -> None:
        """The server was restarted: where something was open it may withhold messages (point 12)."""
        self.may_withhold = True
        self.counts.renew_patience()
        self.streams.clear()
        self._recover_at = 0.0
        if self.state is not State.IDLE or self.mine_count or self.sent or self.counts.count:
            self.is_doubtful = True

    def _suspect(self) -> None:
        """An answer was short, or somebody else is there: a restarted server may be the reason."""
        if self.may_withhold:
            self.is_doubtful = True

    def trust(self) -> None:
        """Nothing is withheld, or it is known what."""
        self.may_withhold = self.is_doubtful = self.is_due = False

    def drop_doubt(self) -> None:
        """The queue is deleted: it is not worth finding out."""
        self.was_in_doubt = self.was_in_doubt or self.may_withhold
        self.trust()

    def peek(self, count: int = 1) -> None:
        """Read so many messages ahead, to learn what they are; they go back as what nobody takes does."""
        self._peeks = max(self._peeks, count)

    def _is_quiet(self) -> bool:
        return not (self.sent or self.settled or self.counts.pending_count or self.state is State.GETTING)

    # ------------------------------------------------------------------ what to do next

    def next_step(self) -> Step:
        """What the reader is to do now."""
        if self.is_doubtful:
            now = self._now()
            return Step(StepKind.WAIT, self._recover_at) if now < self._recover_at else Step(StepKind.EXAMINE)
        if self.counts.may_have_uncounted and self.is_at_rest and not self.must_keep:
            return Step(StepKind.RECOVER)
        return _CHOOSE[self.state](self)

    def wants_reader(self) -> bool:
        """True while a reader has something to do now or later (else it may end, and its stream with it)."""
        if self.is_doubtful or self.counts.may_have_uncounted:
            return True
        if self.state is not State.IDLE or self.sent or self._proofs.has_waiters or self.mine_count:
            return True
        is_unmet = self.counts.count > 0 and bool(self.early.unread)
        return is_unmet or (self.reachable_count > 0 and self._wanted() > 0)

    def _wanted(self) -> int:
        adopted_count = max(0, len(self.adopted) - len(self.early.unread))
        return self.counts.purge_left + self._credit() + adopted_count + self._peeks

    def _fits(self) -> bool:
        """Whether one more fits into an answer with what is mine."""
        return self._new_cap > 0 and self._mine_bytes + self._average_bytes <= MAX_ANSWER_BYTES

    def _choose_idle(self) -> Step:
        now, read_at = self._now(), self._read_at()
        if self.mine_count or read_at <= now:  # never read what was not counted: point 10 needs it
            if self.streams.has_remains or self.counts.known_at == NEVER:
                return Step(StepKind.RECOVER)
            return Step(StepKind.REFILL) if self.mine_count else self._refill()
        if self._proofs.has_waiters:
            return Step(StepKind.BARRIER)
        if self.sent:
            due = self._proofs.sent_at + (0.0 if self.counts.is_unclear else PROOF_DELAY_S)
            return Step(StepKind.BARRIER) if now >= due else Step(StepKind.WAIT, min(due, read_at))
        return WAIT if read_at == NOT_AT_ALL else Step(StepKind.WAIT, read_at)

    def _choose_open(self) -> Step:
        still = bool(self.held or self.moving)
        if still and self.sharing.is_on:
            return WAIT
        now, pacing, read_at = self._now(), self._pacing, self._read_at()
        if not still and not self.ready:
            if read_at <= now:
                return self._refill()
            return Step(StepKind.FINISH if self.settled else StepKind.CLOSE)
        due: list[float] = []
        if still and self._runs_low(now):
            read_at = now
        if read_at < NOT_AT_ALL and self._fits():
            due.append(max(read_at, pacing.refill_at) if still else read_at)
        if self.settled:
            patience_s = 0.0 if self._proofs.has_waiters else ACK_DELAY_S
            due.append(pacing.acks_at(self._settled_at + patience_s))
        if due and min(due) <= now:
            return Step(StepKind.REFILL)
        if self._is_overdue(still, now, due):
            return Step(StepKind.CLOSE)
        return Step(StepKind.WAIT, min(due)) if due else WAIT

    def _refill(self) -> Step:
        return Step(StepKind.REFILL, can_wait=not (self._is_hungry() or self._proofs.has_waiters))

    def _is_hungry(self) -> bool:
        """Somebody waits for a message that is known to be there, or is coming."""
        is_there = self.undelivered_count > 0 or self.reachable_count > 0
        return is_there and not self.ready and self._wanted() > 0

    @property
    def reachable_count(self) -> int:
        """What a Get begun now finds: what is known to be there, and what KubeMQ is storing at this moment.

        Of that nothing where a Get might wait in vain for it.
        """
        counts = self.counts
        if not counts.coming_count or self.state is State.RECOVERING or self.early.life or not self._is_plain:
            return counts.count
        return counts.soon_count

    def _read_at(self) -> float:
        """When the channel is to be read: at once where somebody waits, later for what went out before it was read."""
        if self._is_hungry():
            return 0.0
        if not self.early.unread or self.counts.count <= 0:
            return NOT_AT_ALL
        return 0.0 if self._proofs.has_waiters else self.early.read_at

    def _runs_low(self, now: float) -> bool:
        """Somebody will, before a refill can have answered."""
        if self.undelivered_count <= 0 or self._is_pressed():
            return False
        return self._pacing.runs_low(now, self.taken_count, len(self.ready))

    def _is_overdue(self, still: bool, now: float, due: list[float]) -> bool:
        """Whether what was read ahead has waited long enough for somebody; else adds when it will have."""
        if still or not self.ready or self._credit() > 0:
            self._returning_at = None
            return False
        if self._returning_at is None:
            self._returning_at = now + GIVE_BACK_DELAY_S
        due.append(self._returning_at)
        return now >= self._returning_at

    def _choose_busy(self) -> Step:
        return WAIT

    def _choose_recovering(self) -> Step:
        if self.must_keep:
            return WAIT
        if self._now() < self._recover_at:
            return Step(StepKind.WAIT, self._recover_at)
        return Step(StepKind.RECOVER)

    # ------------------------------------------------------------------ performing a step

    def acks_due(self) -> list[int]:
        """The Sequences to acknowledge now, ascending: all that is settled and part of the present answer."""
        due = sorted(self.settled)
        while due and due[-1] > self._linked_upto:
            del due[-1]
        self._proofs.gather(due, len(due) == len(self.settled) and not self.early.has_settled)
        return due

    def acks_sent(self, token: int, sequences: Iterable[int]) -> None:
        """AckRange of these was written under ``token``."""
        settled = self.settled
        batch = {sequence: settled.pop(sequence) for sequence in sequences if sequence in settled}
        self._settled_at = self._now()
        self._proofs.add(token, batch, self._settled_at)
        if self._new_cap == 0:
            self._new_cap = 1

    @property
    def needs_close(self) -> bool:
        """False when the AckRange just written was of all there is: it has closed the transaction.

        After a short answer the transaction may hold what was never seen.
        """
        return self.mine_count > 0 or self._has_left_some or self.state is State.RECOVERING

    def leave_ready(self) -> None:
        """The transaction is about to end: on a shared channel nothing of it may be handed out from now on."""
        if self.sharing.is_on and self.ready:
            self._has_left_some = True
            self._drop_ready()

    def get_size(self) -> int:
        """MaxItems of the Get to be written now: all that is mine and what is new; 0 when there is nothing."""
        self._relinking = mine = self.mine_count
        self._everything = None
        early = len(self.early.unread)
        new = min(max(0, self._wished(mine)) + early, self.reachable_count)
        if self._is_pressed():
            new = min(new, self._wanted() + early)
        if new > 0:
            room = int((MAX_ANSWER_BYTES - self._mine_bytes) / self._average_bytes)
            new = max(min(new, self._new_cap, room), 0 if mine else 1)
        self._asked = min(mine + max(new, 0), self._link_cap)
        return self._asked

    def _wished(self, mine: int) -> int:
        """How many new messages the Get begun now should bring, if they are there and there is room."""
        pacing, now = self._pacing, self._now()
        pacing.begin(now, self.taken_count)
        if not self._is_hungry():
            need = pacing.need(now, self.taken_count) if self.held or self.moving else 0
            return min(need, int(WORTH_BYTES / self._average_bytes)) - len(self.ready)
        wanted = self._wanted()
        ahead = min(wanted * pacing.ahead, int(READ_AHEAD_BYTES / self._average_bytes))
        return max(wanted, ahead, self._worth(mine))

    def _worth(self, mine: int) -> int:
        """How much new a re-read of what is mine should bring: twice as much, so that it stays the smaller part."""
        return max(mine // 2, min(2 * mine, int(WORTH_BYTES / self._average_bytes)))

    def rest_size(self) -> int:
        """As ``get_size`` after FINISH or CLOSE: 0, unless something was handed out meanwhile: it is re-linked."""
        return self.get_size() if self.held or self.moving or self.settled else 0

    def recover_size(self, waiting: int | None) -> int:
        """As ``get_size``, but never more than the ``waiting`` messages that are there.

        An answer with all of them shows what of mine has left the queue; where ``waiting`` is not known (None), a
        short one does.
        """
        counts = self.counts
        last = counts.last_sequence
        if waiting == 0:
            self._forget(lambda _sequence: True)
        elif last is not None:
            self._forget(lambda sequence: sequence > last)
        size = self.get_size()
        self._is_counted = waiting is not None
        if waiting is None:
            counts.limit_purge()
            self._check_purged()
            self._everything = -1
        else:
            size = self._asked = min(size, waiting)
            self._everything = waiting
        return size

    # ------------------------------------------------------------------ examined and moved (``queue_mover.py``)

    def note_sizes(self, messages: list[Message]) -> None:
        """An answer that is not filed: its sizes count."""
        size = self.cost_of(messages)
        self.streams.on_get(size)
        if messages:
            self._average_bytes = max(self._average_bytes, size / len(messages))

    def linked_sequences(self) -> list[int]:
        """Everything of the open transaction, ascending."""
        ready = [message.sequence for message in self.ready]
        mine = {*self.held, *self.moving, *self.settled, *ready}
        return sorted(sequence for sequence in mine if sequence <= self._linked_upto)

    @property
    def is_filled(self) -> bool:
        """The open transaction has no room for more messages."""
        return len(self.linked_sequences()) >= self._asked

    def on_event(self, event: Event) -> None:
        """Move by the transition table; raises KeyError for what cannot happen in this state."""
        action, self.state = _TRANSITIONS[self.state, event]
        if action is not None:
            action(self)

    def on_too_much(self) -> None:
        """The answer was larger than one gRPC message may be: ask for half as many new ones after the recovery.

        When even one was too many, there is no refill before something is acknowledged (point 3); when nothing was
        new, what is mine is re-linked in parts.
        """
        if self._asked > self._relinking:
            self._new_cap = (self._asked - self._relinking) // 2
        else:
            self._link_cap = max(1, self._asked // 2)
        self.on_event(Event.LOST)

    def on_answer(self, answer: Answer) -> bool:
        """The Get has answered: re-link what is mine, queue what is new, note what has left the queue.

        False when an earlier acknowledgement was refused: the stream is to be dropped, as it may hold what was thought
        acknowledged.
        """
        now = self._now()
        messages = answer.messages
        self.get_count += 1
        self.transaction_id = answer.transaction_id
        self.check_left(answer)
        self._peeks = 0
        is_proven = self.on_proof(answer.failed_acks)
        read_count = self.counts.read_count
        size, again = self._file(messages, self._is_counted)
        if self.counts.read_count > read_count:
            self._back_off_s = BACK_OFF_S
        self.streams.on_get(size)
        self._pacing.end(now, again, size)
        self._linked_upto = messages[-1].sequence if messages else 0
        if self._link_cap < UNBOUNDED:
            self._link_cap *= 2
        if is_proven and self.mine_count > len(messages):
            self._forget_missing(messages)
        self._proofs.release(self._has_settled)
        is_full = len(messages) >= self._asked and self.mine_count == len(messages)
        self.on_event(Event.FULL if is_full else Event.SHORT)
        self._check_purged()
        return is_proven

    def _forget_missing(self, messages: list[Message]) -> None:
        """Some of mine is not in the answer: what lies below its highest Sequence has left the queue (point 4).

        All of it has when the answer has everything that is there.
        """
        there = {message.sequence for message in messages}
        if self._everything == -1:
            is_everything = len(messages) < self._asked
        else:
            is_everything = self._everything is not None and len(messages) >= self._everything
        highest = self._linked_upto
        self._forget(lambda sequence: sequence not in there and (is_everything or sequence <= highest))

    # ------------------------------------------------------------------ actions of the table

    def _note_rest(self) -> None:
        """At rest: what was read ahead is unread again."""
        self.transaction_id = ""
        self._returning_at = None
        self._drop_ready()

    def _note_closed(self) -> None:
        self.transaction_id = ""
        self._has_left_some = False

    def _note_full(self) -> None:
        self._back_off_s = BACK_OFF_S
        self._new_cap = min(MAX_NEW, self._new_cap * 2)

    def _note_short(self) -> None:
        """Keep what came, count afresh (point 7); while the transaction stays open KubeMQ parks messages in it."""
        self.short_count += 1
        self.dry_at = -1 if self.ready else self.counts.stored_count
        self._stop_purge_in_vain()
        self.counts.on_short()
        self.counts.coming_count = 0
        self.early.limit(0)
        self._suspect()
        self._back_off()

    def _note_lost(self) -> None:
        """Everything unacknowledged went back; acks without proof may come again and are given again."""
        self._note_closed()
        self.counts.renew_patience()
        self.dry_at = -1
        self._settle_again(self._proofs.take_back())
        self.streams.lose(self._now())
        self._back_off()

    def _back_off(self) -> None:
        self._recover_at = self._now() + self._back_off_s
        self._back_off_s = min(MAX_BACK_OFF_S, self._back_off_s * 2)


_CHOOSE: dict[State, Callable[[Lease], Step]] = {
    State.IDLE: Lease._choose_idle,  # noqa: SLF001
    State.OPEN: Lease._choose_open,  # noqa: SLF001
    State.GETTING: Lease._choose_busy,  # noqa: SLF001
    State.CLOSING: Lease._choose_busy,  # noqa: SLF001
    State.RECOVERING: Lease._choose_recovering,  # noqa: SLF001
}

_TRANSITIONS: dict[tuple[State, Event], tuple[Callable[[Lease], None] | None, State]] = {
    (State.IDLE, Event.CLOSED): (Lease._note_closed, State.CLOSING),  # noqa: SLF001
    (State.IDLE, Event.LOST): (Lease._note_lost, State.RECOVERING),  # noqa: SLF001
    (State.OPEN, Event.CLOSED): (Lease._note_closed, State.CLOSING),  # noqa: SLF001
    (State.OPEN, Event.LOST): (Lease._note_lost, State.RECOVERING),  # noqa: SLF001
    (State.CLOSING, Event.GET_SENT): (None, State.GETTING),
    (State.CLOSING, Event.REST): (Lease._note_rest, State.IDLE),  # noqa: SLF001
    (State.CLOSING, Event.LOST): (Lease._note_lost, State.RECOVERING),  # noqa: SLF001
    (State.GETTING, Event.FULL): (Lease._note_full, State.OPEN),  # noqa: SLF001
    (State.GETTING, Event.SHORT): (Lease._note_short, State.RECOVERING),  # noqa: SLF001
    (State.GETTING, Event.LOST): (Lease._note_lost, State.RECOVERING),  # noqa: SLF001
    (State.GETTING, Event.LATE): (Lease._back_off, State.RECOVERING),  # noqa: SLF001
    (State.RECOVERING, Event.CLOSED): (Lease._note_closed, State.RECOVERING),  # noqa: SLF001
    (State.RECOVERING, Event.GET_SENT): (None, State.GETTING),
    (State.RECOVERING, Event.REST): (Lease._note_rest, State.IDLE),  # noqa: SLF001
    (State.RECOVERING, Event.LOST): (Lease._note_lost, State.RECOVERING),  # noqa: SLF001
}

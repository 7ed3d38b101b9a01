"""A lease alone, with a clock and a credit that the test sets, and the reader's moves in short."""

from __future__ import annotations

import itertools

from connector.broker.lease import Event, Lease, State
from connector.broker.message import Message
from connector.broker.ports import Answer
from connector.broker.steps import StepKind


def message_id(number: int | str) -> str:
    """One of ours."""
    return f"~0123456789ab.{number}"


def message(sequence: int, identity: str = "", body: bytes = b"x") -> Message:
    return Message("", "q", b"\0\0", body, identity or message_id(sequence), sequence, "channel")


class Bench:
    """A lease, its clock and its credit; ``get`` and the rest are what a reader does."""

    def __init__(self, stored: int = 0, *, is_counted: bool = True) -> None:
        self.now = 100.0
        self.credit = 0
        self.lease = Lease(lambda: self.credit, lambda: self.now)
        self._transactions = itertools.count(1)
        if is_counted:
            self.count(0)
        self.store(stored)

    def count(self, waiting: int, last_sequence: int | None = None) -> None:
        """A QueuesInfo call while nothing moves."""
        self.lease.on_snapshot(waiting, self.lease.begin_snapshot(), last_sequence)

    def store(self, count: int) -> None:
        """We have stored so many."""
        self.lease.counts.pending_count += count
        for _ in range(count):
            self.lease.counts.on_stored()

    def is_in(self, state: State) -> bool:
        """Where the lease stands now."""
        return self.lease.state is state

    @property
    def kind(self) -> StepKind:
        """What is to be done now."""
        return self.lease.next_step().kind

    def answer(self, *sequences: int, failed: tuple[int, ...] = ()) -> bool:
        """The Get under way is answered."""
        transaction_id = f"t{next(self._transactions)}"
        return self.lease.on_answer(Answer(transaction_id, [message(s) for s in sequences], "", failed))

    def open(self, *sequences: int) -> list[Message]:
        """Read these into an open transaction and deliver as many as there is credit for."""
        assert self.begin_get() == len(sequences)
        self.answer(*sequences)
        assert self.is_in(State.OPEN)
        return self.deliver()

    def begin_get(self) -> int:
        """Close what is open and send a Get; returns what it asks for."""
        self.lease.on_event(Event.CLOSED)
        size = self.lease.get_size()
        self.lease.on_event(Event.GET_SENT)
        return size

    def deliver(self) -> list[Message]:
        """Hand out what is ready, within the credit."""
        taken = []
        while self.lease.ready and self.credit > 0:
            self.credit -= 1
            taken.append(self.lease.take())
        return taken

    def get(self, *sequences: int, failed: tuple[int, ...] = ()) -> int:
        """One Get, answered with these; returns what it asked for."""
        size = self.begin_get()
        self.answer(*sequences, failed=failed)
        return size

    def recover(self, waiting: int | None, *sequences: int, last_sequence: int | None = None) -> int:
        """The recovery's snapshot and Get; returns what it asked for."""
        lease = self.lease
        lease.on_event(Event.CLOSED)
        if waiting is not None:
            self.count(waiting, last_sequence)
        size = lease.recover_size(waiting)
        if size:
            lease.on_event(Event.GET_SENT)
            self.answer(*sequences)
        else:
            lease.on_event(Event.REST)
        return size

    def send_acks(self, token: int = 1) -> list[int]:
        """AckRange of what is due."""
        due = self.lease.acks_due()
        if due:
            self.lease.acks_sent(token, due)
        return due

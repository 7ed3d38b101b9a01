"""The lease alone: every state and event, every decision, every way in which a message may come back."""

from __future__ import annotations

import itertools

import pytest

from connector.broker.backlog import NEVER
from connector.broker.lease import (
    _TRANSITIONS,
    ACK_DELAY_S,
    BACK_OFF_S,
    GIVE_BACK_DELAY_S,
    MAX_ANSWER_BYTES,
    MAX_BACK_OFF_S,
    MAX_NEW,
    MIN_SPACING_S,
    RECYCLE_BYTES,
    RECYCLE_GETS,
    WORTH_BYTES,
    Event,
    Lease,
    State,
    StepKind,
)
from connector.broker.message import Message
from connector.broker.ports import Answer

WAIT, FINISH, CLOSE, REFILL, RECOVER, BARRIER = (
    StepKind.WAIT,
    StepKind.FINISH,
    StepKind.CLOSE,
    StepKind.REFILL,
    StepKind.RECOVER,
    StepKind.BARRIER,
)


def message(sequence: int, message_id: str = "", body: bytes = b"x") -> Message:
    return Message("", "q", b"\0\0", body, message_id or f"id{sequence}", sequence, "channel")


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
        lease = self.lease
        lease.on_event(Event.CLOSED)
        assert lease.get_size() == len(sequences)
        lease.on_event(Event.GET_SENT)
        self.answer(*sequences)
        assert lease.state is State.OPEN
        return self.deliver()

    def deliver(self) -> list[Message]:
        """Hand out what is ready, within the credit."""
        taken = []
        while self.lease.ready and self.credit > 0:
            self.credit -= 1
            taken.append(self.lease.take())
        return taken

    def get(self, *sequences: int, failed: tuple[int, ...] = ()) -> int:
        """One Get, answered with these; returns what it asked for."""
        self.lease.on_event(Event.CLOSED)
        size = self.lease.get_size()
        self.lease.on_event(Event.GET_SENT)
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


# --------------------------------------------------------------------------------------------- the table
EXPECTED = {
    (State.IDLE, Event.CLOSED): State.CLOSING,
    (State.IDLE, Event.LOST): State.RECOVERING,
    (State.OPEN, Event.CLOSED): State.CLOSING,
    (State.OPEN, Event.LOST): State.RECOVERING,
    (State.CLOSING, Event.GET_SENT): State.GETTING,
    (State.CLOSING, Event.REST): State.IDLE,
    (State.CLOSING, Event.LOST): State.RECOVERING,
    (State.GETTING, Event.FULL): State.OPEN,
    (State.GETTING, Event.SHORT): State.RECOVERING,
    (State.GETTING, Event.LOST): State.RECOVERING,
    (State.RECOVERING, Event.CLOSED): State.RECOVERING,
    (State.RECOVERING, Event.GET_SENT): State.GETTING,
    (State.RECOVERING, Event.REST): State.IDLE,
    (State.RECOVERING, Event.LOST): State.RECOVERING,
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_state_and_event(state: State, event: Event) -> None:
    lease = Bench().lease
    lease.state = state
    lease.transaction_id = "t"
    if (state, event) not in EXPECTED:
        with pytest.raises(KeyError):
            lease.on_event(event)
        assert lease.state is state
        return
    lease.on_event(event)
    assert lease.state is EXPECTED[state, event]
    keeps = event in {Event.GET_SENT, Event.FULL, Event.SHORT}
    assert lease.transaction_id == ("t" if keeps else "")


def test_the_table_is_all_there_is() -> None:
    assert {pair: state for pair, (_, state) in _TRANSITIONS.items()} == EXPECTED


def test_what_stands_in_every_state() -> None:
    lease = Bench().lease
    for state in State:
        lease.state = state
        assert lease.is_at_rest is (state in {State.IDLE, State.OPEN})
        assert lease.wants_reader() is (state is not State.IDLE)


# --------------------------------------------------------------------------------------------- idle
def test_idle_waits_until_there_is_a_message_and_somebody_for_it() -> None:
    bench = Bench()
    assert bench.lease.next_step() == (WAIT, None)
    assert not bench.lease.wants_reader()
    bench.store(1)
    assert bench.kind is WAIT
    assert not bench.lease.wants_reader()
    bench.credit = 1
    assert bench.kind is REFILL
    assert bench.lease.wants_reader()


def test_nothing_is_read_before_the_first_count() -> None:
    bench = Bench(2, is_counted=False)
    bench.credit = 1
    assert bench.kind is RECOVER
    assert bench.lease.counts.known_at == NEVER
    assert bench.recover(2, 1) == 1
    assert bench.is_in(State.OPEN)


def test_acknowledgements_are_proven_after_a_while() -> None:
    bench = Bench(1)
    bench.credit = 1
    [one] = bench.open(1)
    bench.lease.settle(one)
    assert bench.kind is FINISH
    assert bench.send_acks() == [1]
    assert not bench.lease.needs_close
    bench.lease.on_event(Event.CLOSED)
    assert bench.lease.rest_size() == 0
    bench.lease.on_event(Event.REST)
    assert bench.lease.next_step() == (WAIT, bench.now + ACK_DELAY_S)
    assert bench.lease.wants_reader()
    bench.now += ACK_DELAY_S
    assert bench.kind is BARRIER
    assert bench.lease.on_proof(())
    assert bench.kind is WAIT
    assert not bench.lease.wants_reader()


def test_who_waits_for_proof_does_not_wait_long() -> None:
    bench = Bench(2)
    bench.credit = 2
    one, two = bench.open(1, 2)
    bench.lease.settle(one)
    told: list[int] = []
    bench.lease.when_flushed(lambda: told.append(1))
    bench.now += MIN_SPACING_S
    assert bench.kind is REFILL  # although two is held
    bench.send_acks()
    assert bench.get(2) == 1
    assert told == [1]
    bench.lease.settle(two)
    bench.lease.when_flushed(lambda: told.append(2))
    assert bench.kind is FINISH
    bench.send_acks()
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_event(Event.REST)
    assert bench.kind is BARRIER
    bench.lease.on_proof(())
    assert told == [1, 2]
    bench.lease.when_flushed(lambda: told.append(3))
    assert told == [1, 2, 3]


def test_the_reader_is_wanted_while_somebody_waits_for_proof() -> None:
    bench = Bench(1)
    bench.credit = 1
    [one] = bench.open(1)
    bench.lease.settle(one)
    bench.lease.when_flushed(lambda: None)
    bench.send_acks()
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_event(Event.REST)
    bench.lease.sent.clear()
    assert bench.lease.wants_reader()


def test_idle_is_when_nothing_is_mine_on_its_way_or_there() -> None:
    assert not Bench(is_counted=False).lease.is_idle
    bench = Bench()
    seen = [bench.lease.is_idle]

    def look() -> None:
        seen.append(bench.lease.is_idle)

    bench.lease.counts.pending_count = 1
    look()
    bench.lease.counts.on_stored()
    look()
    bench.lease.purge(lambda: None)
    bench.lease.counts.on_short()
    look()  # the purge is not over
    bench.count(0)
    look()
    bench.lease.on_event(Event.LOST)
    look()
    assert seen == [True, False, False, False, True, False]


def test_full_is_when_one_more_would_be_too_much() -> None:
    bench = Bench(2)
    bench.credit = 1
    bench.open(1)
    seen = [bench.lease.is_full]
    bench.lease._average_bytes = 2.0 * MAX_ANSWER_BYTES
    seen.append(bench.lease.is_full)
    bench.lease.held.clear()
    seen.append(bench.lease.is_full)
    assert seen == [False, True, False]  # one can always be read


# --------------------------------------------------------------------------------------------- open
def test_nothing_is_done_while_everything_is_held() -> None:
    bench = Bench(2)
    bench.credit = 2
    bench.open(1, 2)
    assert bench.lease.next_step() == (WAIT, None)


def test_a_refill_while_something_is_held_keeps_its_distance() -> None:
    bench = Bench(1)
    bench.credit = 1
    bench.open(1)
    bench.store(1)
    bench.credit = 1
    assert bench.kind is REFILL  # nothing was re-read so far
    bench.lease.on_event(Event.CLOSED)
    assert bench.lease.get_size() == 2
    bench.lease.on_event(Event.GET_SENT)
    bench.now += 0.02
    bench.answer(1, 2)
    bench.deliver()
    bench.store(1)
    bench.credit = 1
    assert bench.kind is WAIT
    assert bench.lease.next_step().until == pytest.approx(bench.now + 4 * 0.02)
    bench.now += 0.09
    assert bench.kind is REFILL


def test_without_anything_held_there_is_no_distance() -> None:
    bench = Bench(3)
    bench.credit = 1
    [one] = bench.open(1)
    bench.lease.settle(one)
    bench.credit = 1
    assert bench.kind is REFILL
    bench.credit = 0
    assert bench.kind is FINISH


def test_acknowledgements_wait_for_a_refill_or_a_tenth_of_a_second() -> None:
    bench = Bench(2)
    bench.credit = 2
    one, _ = bench.open(1, 2)
    bench.lease.settle(one)
    assert bench.lease.next_step() == (WAIT, bench.now + ACK_DELAY_S)
    bench.store(1)
    bench.credit = 1
    assert bench.kind is REFILL
    bench.credit = 0
    bench.now += ACK_DELAY_S
    assert bench.kind is REFILL
    assert bench.send_acks() == [1]
    assert bench.lease.needs_close
    assert bench.get(2) == 1


def test_the_oldest_acknowledgement_sets_the_time() -> None:
    bench = Bench(3)
    bench.credit = 3
    one, two, _ = bench.open(1, 2, 3)
    bench.lease.settle(one)
    due = bench.now + ACK_DELAY_S
    bench.now += ACK_DELAY_S / 2
    bench.lease.settle(two)
    assert bench.lease.next_step() == (WAIT, due)


def test_what_was_read_ahead_goes_back_when_nobody_takes_it() -> None:
    bench = Bench(3)
    bench.credit = 3
    bench.lease.on_event(Event.CLOSED)
    bench.lease.get_size()
    bench.lease.on_event(Event.GET_SENT)
    bench.credit = 0
    bench.answer(1, 2, 3)
    assert bench.lease.next_step() == (WAIT, bench.now + GIVE_BACK_DELAY_S)
    bench.now += GIVE_BACK_DELAY_S / 2
    bench.credit = 1
    assert bench.lease.next_step() == (WAIT, None)  # somebody has come, and starts the time anew
    bench.credit = 0
    bench.lease.next_step()
    bench.now += GIVE_BACK_DELAY_S
    assert bench.kind is CLOSE
    bench.lease.on_event(Event.CLOSED)
    assert bench.lease.rest_size() == 0
    bench.lease.on_event(Event.REST)
    assert (bench.lease.backlog, bench.lease.mine_count, bench.lease._mine_bytes) == (3, 0, 0)


def test_read_ahead_stays_while_something_is_held() -> None:
    bench = Bench(2)
    bench.credit = 1
    bench.lease.on_event(Event.CLOSED)
    bench.credit = 2
    bench.lease.get_size()
    bench.lease.on_event(Event.GET_SENT)
    bench.credit = 1
    bench.answer(1, 2)
    bench.deliver()
    bench.now += 10.0
    assert bench.lease.next_step() == (WAIT, None)


def test_an_empty_transaction_is_closed() -> None:
    bench = Bench(1)
    bench.credit = 1
    [one] = bench.open(1)
    bench.lease.held.pop(one.sequence)
    assert bench.kind is CLOSE


def test_handed_out_while_closing_it_is_linked_again() -> None:
    """A consumer has come in between: what it got may not be left to others."""
    bench = Bench(2)
    bench.credit = 2
    bench.lease.on_event(Event.CLOSED)
    bench.lease.get_size()
    bench.lease.on_event(Event.GET_SENT)
    bench.credit = 0
    bench.answer(1, 2)
    bench.lease.next_step()
    bench.now += GIVE_BACK_DELAY_S
    assert bench.kind is CLOSE
    assert bench.send_acks() == []
    bench.credit = 1
    [one] = bench.deliver()
    bench.lease.on_event(Event.CLOSED)
    assert bench.lease.rest_size() == 2
    bench.lease.on_event(Event.GET_SENT)
    bench.answer(1, 2)
    assert bench.is_in(State.OPEN)
    assert bench.lease.held == {1: one}


def test_something_in_hand_without_a_transaction_is_linked_again() -> None:
    bench = Bench(1)
    bench.credit = 1
    [one] = bench.open(1)
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_event(Event.REST)  # no reader does so
    bench.lease.settle(one)
    assert bench.lease.wants_reader()
    assert bench.kind is REFILL


@pytest.mark.parametrize("state", [State.GETTING, State.CLOSING])
def test_there_is_nothing_to_choose_in_the_middle_of_a_step(state: State) -> None:
    bench = Bench(1)
    bench.credit = 1
    bench.lease.state = state
    assert bench.lease.next_step() == (WAIT, None)


# --------------------------------------------------------------------------------------------- how much
def test_a_get_asks_for_what_is_known_within_the_credit() -> None:
    bench = Bench(10)
    bench.credit = 4
    assert bench.lease.get_size() == 4
    bench.credit = 40
    assert bench.lease.get_size() == 10
    bench.credit = 0
    assert bench.lease.get_size() == 0


def test_a_get_has_a_limit() -> None:
    bench = Bench(5000)
    bench.credit = 4000
    assert bench.lease.get_size() == MAX_NEW


def test_much_in_hand_reads_ahead() -> None:
    """Twice what is mine, within a limit in bytes, so that re-reading stays the smaller part."""
    bench = Bench(500)
    bench.credit = 100
    bench.open(*range(1, 101))
    bench.credit = 1
    assert bench.lease.get_size() == 300
    bench.lease._average_bytes = WORTH_BYTES / 70
    assert bench.lease.get_size() == 170
    bench.lease._average_bytes = WORTH_BYTES / 40
    assert bench.lease.get_size() == 150


def test_gets_in_quick_succession_read_further_ahead() -> None:
    """What consumers have no room for yet waits here; a queue read seldom takes no more than they can."""
    bench = Bench(1000)
    lease = Lease(lambda: bench.credit, lambda: bench.now, read_ahead=4)
    lease.on_snapshot(1000, lease.begin_snapshot(), 1000)
    bench.credit = 10
    sizes = []
    for pause_s in (0.0, 0.05, 0.05, 0.05, 0.3, 1.0):
        bench.now += pause_s
        sizes.append(lease.get_size())
    assert sizes == [10, 20, 40, 40, 40, 10]


def test_nothing_new_while_something_is_ready() -> None:
    bench = Bench(20)
    bench.credit = 10
    bench.lease.on_event(Event.CLOSED)
    bench.lease.get_size()
    bench.lease.on_event(Event.GET_SENT)
    bench.answer(*range(1, 11))
    assert bench.lease.get_size() == 10


def test_large_bodies_limit_what_is_read() -> None:
    bench = Bench(100)
    lease = bench.lease
    sizes: list[int] = []
    for _ in range(8):
        bench.credit = 100 if sizes else 1  # the first shows how large they are
        lease.on_event(Event.CLOSED)
        sizes.append(lease.get_size())
        lease.on_event(Event.GET_SENT)
        lease.on_answer(Answer("t", [message(s, body=bytes(7_000_000)) for s in range(1, sizes[-1] + 1)]))
        bench.deliver()
    assert sizes[-1] * 7_000_000 <= MAX_ANSWER_BYTES
    assert sizes[-1] >= 10
    bench.credit = 100
    bench.now += 1.0
    assert bench.lease.next_step() == (WAIT, None)


def test_a_full_answer_is_not_refilled_before_something_is_settled() -> None:
    bench = Bench(3)
    bench.credit = 1
    lease = bench.lease
    lease.on_event(Event.CLOSED)
    lease.get_size()
    lease.on_event(Event.GET_SENT)
    lease.on_answer(Answer("t", [message(1, body=bytes(89_999_999))]))
    [large] = bench.deliver()
    bench.credit = 5
    bench.now += 1.0
    assert bench.lease.next_step() == (WAIT, None)
    lease.settle(large)
    assert bench.kind is REFILL


def test_one_is_always_read_when_nothing_is_mine() -> None:
    bench = Bench(3)
    bench.credit = 1
    bench.lease._average_bytes = 2.0 * MAX_ANSWER_BYTES
    assert bench.lease.get_size() == 1


def test_too_much_halves_what_is_new_and_recovers() -> None:
    bench = Bench(3000)
    bench.credit = 3000
    sizes = []
    for _ in range(14):
        bench.lease.on_event(Event.CLOSED)
        sizes.append(bench.lease.get_size())
        bench.lease.on_event(Event.GET_SENT)
        bench.lease.on_too_much()
        assert bench.is_in(State.RECOVERING)
    assert sizes == [1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1, 1, 1]
    assert bench.get(1) == 1
    bench.lease.settle(bench.lease.take())
    assert bench.send_acks() == [1]
    assert bench.get(2) == 1
    assert bench.lease.get_size() == 1  # it is ready
    bench.lease.settle(bench.lease.take())
    bench.send_acks()
    assert bench.get(3, 4) == 2


def test_at_one_too_many_nothing_is_read_before_something_is_acknowledged() -> None:
    bench = Bench(10)
    bench.credit = 2
    one, two = bench.open(1, 2)
    bench.credit = 5
    bench.now += 1.0
    for expected in (7, 4, 3):
        bench.lease.on_event(Event.CLOSED)
        assert bench.lease.get_size() == expected
        bench.lease.on_event(Event.GET_SENT)
        bench.lease.on_too_much()
    assert bench.recover(10, 1, 2) == 2
    bench.now += 1.0
    assert bench.lease.next_step() == (WAIT, None)
    bench.lease.settle(one)
    bench.now += ACK_DELAY_S
    assert bench.kind is REFILL
    bench.send_acks()
    assert bench.get(2, 3) == 2
    assert bench.lease.held == {2: two}


def test_too_much_of_ones_own_is_linked_in_parts() -> None:
    bench = Bench(4)
    bench.credit = 4
    held = bench.open(1, 2, 3, 4)
    bench.lease.on_event(Event.CLOSED)
    assert bench.lease.get_size() == 4
    bench.lease.on_event(Event.GET_SENT)
    bench.lease.on_too_much()
    assert bench.recover(4, 1, 2) == 2
    assert bench.is_in(State.RECOVERING)  # two are not linked
    assert list(bench.lease.held) == [1, 2, 3, 4]
    for one in held:
        bench.lease.settle(one)
    assert bench.send_acks() == [1, 2]
    assert bench.recover(2, 3, 4) == 2
    assert bench.is_in(State.OPEN)
    assert bench.send_acks(2) == [3, 4]


def test_streams_are_renewed() -> None:
    bench = Bench()
    lease = bench.lease

    def is_due() -> bool:
        return lease.is_recycle_due

    assert not is_due()
    lease._stream_gets = RECYCLE_GETS
    assert is_due()
    lease.stream_renewed()
    assert not is_due()
    lease._stream_bytes = RECYCLE_BYTES
    assert is_due()


# --------------------------------------------------------------------------------------------- coming back
def test_held_is_linked_not_delivered_again() -> None:
    bench = Bench(2)
    bench.credit = 1
    [one] = bench.open(1)
    bench.credit = 1
    assert bench.get(1, 2) == 2
    assert bench.lease.held == {1: one}
    assert [m.sequence for m in bench.lease.ready] == [2]
    assert bench.lease.reread_count == 1


def test_what_was_delivered_comes_back_redelivered_and_what_was_not_does_not() -> None:
    bench = Bench(3)
    bench.credit = 3
    one, two, _three = bench.open(1, 2, 3)
    bench.lease.give_back(two)
    bench.lease.held.clear()  # their channel is gone, in a way that no session does
    bench.lease.ready.clear()
    bench.credit = 3
    bench.recover(3, 1, 2, 3)
    assert [(m.sequence, m.redelivered) for m in bench.lease.ready] == [(1, True), (2, False), (3, True)]
    assert one.redelivered is False
    bench.deliver()
    bench.lease.held.clear()
    bench.credit = 3
    bench.recover(3, 1, 2, 3)
    assert [m.redelivered for m in bench.lease.ready] == [True, True, True]


def test_give_back_goes_to_its_place() -> None:
    bench = Bench(4)
    bench.credit = 4
    one, two, three, four = bench.open(1, 2, 3, 4)
    for back in (three, one, four, two):
        bench.lease.give_back(back)
    bench.lease.give_back(two)
    assert list(bench.lease.ready) == [one, two, three, four]
    bench.credit = 1
    bench.deliver()
    one.redelivered = True
    bench.lease.give_back(one)
    assert list(bench.lease.ready) == [one, two, three, four]
    assert bench.lease.held == {}


def test_put_back_goes_to_its_place_redelivered() -> None:
    """Where the setting asks for RabbitMQ's way (CO-15)."""
    bench = Bench(3)
    bench.credit = 2
    one, two = bench.open(1, 2)
    assert bench.lease.put_back(one)
    assert not bench.lease.put_back(one)
    assert [(m.sequence, m.redelivered, m.delivery_count) for m in bench.lease.ready] == [(1, True, 1)]
    bench.lease.settle(two)
    bench.send_acks()
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_event(Event.REST)  # nobody takes it: back to KubeMQ, which knows nothing of the failure
    bench.credit = 2
    assert bench.get(1, 3) == 2
    assert [(m.redelivered, m.delivery_count) for m in bench.lease.ready] == [(True, 1), (False, 0)]
    again = bench.lease.take()
    assert bench.lease.put_back(again)
    assert again.delivery_count == 2
    bench.lease.settle(bench.lease.take())
    bench.send_acks()
    bench.get(3)
    assert bench.lease._failed == {}


def test_a_failed_one_that_left_the_queue_is_forgotten() -> None:
    bench = Bench(2)
    bench.credit = 2
    for one in bench.open(1, 2):
        bench.lease.put_back(one)
    one, two = bench.lease.take(), bench.lease.take()
    bench.lease.on_event(Event.LOST)
    bench.recover(0)
    bench.lease.settle(one)
    assert not bench.lease.put_back(two)
    bench.lease.start_move(two)
    bench.lease.finish_move(two)
    assert bench.lease._failed == {}


def test_first_sight_marks_what_an_earlier_life_may_have_delivered() -> None:
    bench = Bench(is_counted=False)
    bench.lease.on_first_sight(1, 10, 4, 1)
    bench.count(10, 10)
    bench.lease.on_first_sight(1, 10, 10, 1)  # later numbers have our own doing in them
    bench.credit = 6
    bench.get(*range(1, 7))
    assert [m.redelivered for m in bench.lease.ready] == [True] * 4 + [False] * 2


def test_twins_of_an_earlier_life_are_known() -> None:
    """What it stored again after an unknown result lies there twice; natives may use an id twice."""
    bench = Bench(is_counted=False)
    bench.lease.on_first_sight(1, 4, 0, 1)
    bench.count(5, 4)
    bench.credit = 9
    bench.lease.on_event(Event.CLOSED)
    bench.lease.get_size()
    bench.lease.on_event(Event.GET_SENT)
    ours, native = "~0123456789ab.1", "native"
    twins = [message(n, message_id) for n, message_id in enumerate((ours, native, ours, native, ours), 1)]
    bench.lease.on_answer(Answer("t", twins))
    assert [m.sequence for m in bench.lease.ready] == [1, 2, 4]
    assert sorted(bench.lease.settled) == [3, 5]


@pytest.mark.parametrize(("delivered", "subscribers", "upto"), [(0, 1, 0), (3, 1, 3), (99, 1, 5), (0, 2, 5)])
def test_how_far_first_sight_reaches(delivered: int, subscribers: int, upto: int) -> None:
    bench = Bench(is_counted=False)
    bench.lease.on_first_sight(1, 5, delivered, subscribers)
    assert bench.lease.redelivered_upto == upto


def test_an_acknowledged_message_that_comes_again_is_acknowledged_again() -> None:
    """A crashed server forgets some of its last acknowledgements."""
    bench = Bench(2)
    bench.credit = 1
    [one] = bench.open(1)
    bench.lease.settle(one)
    bench.send_acks()
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_event(Event.REST)
    bench.lease.on_proof(())
    bench.lease.on_event(Event.LOST)
    bench.credit = 2
    bench.recover(2, 1, 2)
    assert [m.sequence for m in bench.lease.ready] == [2]
    assert bench.send_acks() == [1]


def test_an_acknowledgement_without_proof_is_given_again() -> None:
    bench = Bench(3)
    bench.credit = 2
    one, two = bench.open(1, 2)
    bench.lease.settle(one)
    assert bench.send_acks() == [1]
    told: list[str] = []
    bench.lease.when_flushed(lambda: told.append("x"))
    bench.lease.on_event(Event.LOST)
    assert (list(bench.lease.settled), bench.lease.sent) == ([1], [])
    bench.now += BACK_OFF_S
    assert bench.kind is RECOVER
    assert bench.recover(3, 1, 2) == 2
    assert told == []
    assert bench.send_acks() == [1]
    bench.get(2)
    assert told == ["x"]
    assert bench.lease.held == {2: two}


def test_an_acknowledgement_that_had_arrived_is_not_waited_for() -> None:
    bench = Bench(3)
    bench.credit = 3
    one, two, three = bench.open(1, 2, 3)
    bench.lease.settle(one)
    bench.lease.settle(three)
    bench.send_acks()
    told: list[str] = []
    bench.lease.when_flushed(lambda: told.append("x"))
    bench.lease.on_event(Event.LOST)
    assert bench.recover(1, 2) == 1  # both have arrived
    assert bench.is_in(State.OPEN)
    assert (bench.lease.held, bench.lease.settled) == ({2: two}, {})
    assert told == ["x"]


def test_a_refused_acknowledgement_is_given_again_and_the_stream_dropped() -> None:
    bench = Bench(3)
    bench.credit = 2
    one, _ = bench.open(1, 2)
    bench.lease.settle(one)
    assert bench.send_acks(7) == [1]
    told: list[str] = []
    bench.lease.when_flushed(lambda: told.append("x"))
    bench.lease.on_event(Event.CLOSED)
    bench.lease.get_size()
    bench.lease.on_event(Event.GET_SENT)
    assert bench.answer(2, failed=(7,)) is False
    assert list(bench.lease.settled) == [1]  # it may be hidden in the old transaction: not taken for gone
    assert told == []
    bench.lease.on_event(Event.LOST)
    bench.recover(2, 1, 2)
    assert bench.send_acks(8) == [1]
    bench.lease.on_proof(())
    assert told == ["x"]


def test_only_what_the_present_answer_has_is_acknowledged() -> None:
    """AckRange stops at an unknown Sequence: one that is not there would hold up all after it."""
    bench = Bench(4)
    bench.credit = 4
    held = bench.open(1, 2, 3, 4)
    bench.lease.on_event(Event.LOST)
    for one in held:
        bench.lease.settle(one)
    told: list[str] = []
    bench.lease.when_flushed(lambda: told.append("x"))
    bench.recover(4, 1, 2)  # a half-open old link still has the others
    assert bench.is_in(State.RECOVERING)
    assert bench.send_acks() == [1, 2]
    assert bench.lease.needs_close
    bench.lease.on_proof(())
    assert told == []
    bench.recover(2, 3, 4)
    assert bench.send_acks(2) == [3, 4]
    bench.lease.on_proof(())
    assert told == ["x"]


def test_what_lies_below_and_is_not_there_has_left_the_queue() -> None:
    bench = Bench(5)
    bench.credit = 3
    one, two, three = bench.open(1, 2, 3)
    bench.lease.settle(one)
    bench.lease.start_move(two)
    bench.credit = 1
    bench.get(4, 5)
    lease = bench.lease
    assert (lease.held, lease.settled, lease.moving) == ({}, {}, {})
    assert list(lease.orphans.values()) == [three]
    assert list(lease.departed.values()) == [two]
    assert lease.state is State.RECOVERING  # four were asked for
    lease.finish_move(two)
    lease.settle(three)
    lease.settle(three)
    assert not lease.orphans
    assert not lease.departed


def test_ready_messages_leave_too() -> None:
    bench = Bench(3)
    bench.credit = 3
    bench.lease.on_event(Event.CLOSED)
    bench.lease.get_size()
    bench.lease.on_event(Event.GET_SENT)
    bench.answer(1, 2, 3)
    bench.get(2, 3)
    assert [m.sequence for m in bench.lease.ready] == [2, 3]


def test_an_empty_queue_has_nothing_of_mine() -> None:
    bench = Bench(3)
    bench.credit = 2
    bench.open(1, 2)
    bench.lease.on_event(Event.LOST)
    assert bench.recover(0) == 0
    assert bench.is_in(State.IDLE)
    assert bench.lease.mine_count == 0
    assert len(bench.lease.orphans) == 2


def test_everything_that_is_there_shows_what_is_not() -> None:
    bench = Bench(3)
    bench.credit = 3
    one, _two, three = bench.open(1, 2, 3)
    bench.lease.on_event(Event.LOST)
    bench.recover(1, 1)
    assert bench.is_in(State.OPEN)
    assert bench.lease.held == {1: one}
    assert three in bench.lease.orphans.values()


def test_a_short_answer_does_where_the_number_is_not_known() -> None:
    """Two channels are reported under one name."""
    bench = Bench(3)
    bench.credit = 3
    one, *_ = bench.open(1, 2, 3)
    bench.lease.on_event(Event.LOST)
    assert bench.recover(None, 1) == 3
    assert bench.lease.held == {1: one}
    assert bench.is_in(State.RECOVERING)
    assert bench.recover(None, 1) == 1
    assert bench.is_in(State.OPEN)


def test_a_full_answer_says_nothing_of_what_lies_above_it() -> None:
    bench = Bench(3)
    bench.credit = 3
    bench.open(1, 2, 3)
    bench.lease.on_event(Event.LOST)
    bench.lease.held[9] = message(9)
    assert bench.recover(None, 1, 2, 3, 4) == 4
    assert 9 in bench.lease.held


def test_what_returns_after_all_is_known() -> None:
    bench = Bench(6)
    bench.credit = 5
    held, moving, acked, moved, given = bench.open(1, 2, 3, 4, 5)
    for gone in (moving, moved):
        bench.lease.start_move(gone)
    bench.lease.on_event(Event.LOST)
    bench.recover(1, 6)  # a half-open link has the others
    lease = bench.lease
    lease.settle(acked)
    lease.finish_move(moved)
    lease.give_back(given)
    assert lease._mine_bytes == sum(len(m.body) + 2 * len(m.header) + 512 for m in lease.ready)
    bench.credit = 9
    bench.recover(6, 1, 2, 3, 4, 5, 6)
    assert lease.held == {1: held}
    assert lease.moving == {2: moving}
    assert sorted(lease.settled) == [3, 4]
    assert [m.sequence for m in lease.ready] == [5, 6]
    lease.settle(held)
    lease.finish_move(moving)
    assert sorted(lease.settled) == [1, 2, 3, 4]


def test_an_orphan_is_requeued_like_any_other() -> None:
    bench = Bench(1)
    bench.credit = 1
    [one] = bench.open(1)
    bench.lease.on_event(Event.LOST)
    bench.recover(0)
    assert bench.lease.start_move(one)
    assert not bench.lease.start_move(one)
    assert list(bench.lease.departed.values()) == [one]


def test_a_sequence_that_belongs_to_another_message_now() -> None:
    """The channel was deleted and made anew; the new one with our Sequence is new, and ours is gone."""
    bench = Bench(4)
    bench.credit = 3
    one, two, three = bench.open(1, 2, 3)
    bench.lease.start_move(two)
    bench.lease.settle(three)
    bench.credit = 9
    lease = bench.lease
    lease.on_event(Event.CLOSED)
    lease.get_size()
    lease.on_event(Event.GET_SENT)
    lease.on_answer(Answer("t", [message(s, f"new{s}") for s in (1, 2, 3, 4)]))
    assert [m.message_id for m in lease.ready] == ["new1", "new2", "new3", "new4"]
    assert (list(lease.orphans.values()), list(lease.departed.values())) == ([one], [two])
    assert lease.settled == {}
    lease.on_event(Event.CLOSED)
    lease.get_size()
    lease.on_event(Event.GET_SENT)
    lease.on_answer(Answer("t", [message(s, f"newer{s}") for s in (1, 2, 3, 4)]))
    assert [m.message_id for m in lease.ready] == [f"newer{s}" for s in (1, 2, 3, 4)]
    assert lease._mine_bytes == 4 * (1 + 4 + 512)


def test_sequences_that_start_again_are_seen_in_queues_info() -> None:
    bench = Bench(3)
    bench.credit = 3
    bench.open(1, 2, 3)
    assert bench.lease.highest_delivered == 3
    bench.count(1, last_sequence=1)
    assert bench.lease.highest_delivered == 0
    bench.lease.on_event(Event.LOST)
    bench.recover(1, 1, last_sequence=1)
    assert len(bench.lease.orphans) == 2  # above the last Sequence there is
    assert bench.lease.mine_count == 1


def test_lower_sequences_take_their_place() -> None:
    """Somebody else has given them back."""
    bench = Bench(2)
    bench.credit = 0
    bench.lease.on_event(Event.LOST)
    bench.credit = 2
    bench.recover(2, 5, 6)
    bench.store(1)
    bench.lease.on_event(Event.CLOSED)
    bench.lease.get_size()
    bench.lease.on_event(Event.GET_SENT)
    bench.answer(4, 5, 6)
    assert [m.sequence for m in bench.lease.ready] == [4, 5, 6]


# --------------------------------------------------------------------------------------------- second copies
def test_the_second_copy_of_a_repeated_store_is_dropped() -> None:
    bench = Bench(3)
    bench.credit = 3
    bench.lease.watch_repeated(["same"])
    bench.lease.on_event(Event.CLOSED)
    bench.lease.get_size()
    bench.lease.on_event(Event.GET_SENT)
    bench.lease.on_answer(Answer("t", [message(1, "same"), message(2), message(3, "same")]))
    assert [m.sequence for m in bench.lease.ready] == [1, 2]
    assert bench.send_acks() == [3]


def test_the_first_copy_may_have_been_read_before_the_doubt_arose() -> None:
    bench = Bench(5)
    bench.credit = 4
    _held, moving, settled, sent = bench.open(1, 2, 3, 4)
    lease = bench.lease
    lease.start_move(moving)
    lease.settle(sent)
    bench.send_acks()
    lease.settle(settled)
    bench.credit = 2
    bench.get(1, 2, 3, 5)
    lease.watch_repeated([f"id{s}" for s in (1, 2, 3, 4, 5)])
    for sequence in (1, 2, 3, 4, 5):
        assert lease.repeated.is_second(sequence + 10, f"id{sequence}")
        assert not lease.repeated.is_second(sequence, f"id{sequence}")


# --------------------------------------------------------------------------------------------- recovery
def test_a_short_answer_is_kept_and_counted_afresh_with_a_growing_pause() -> None:
    bench = Bench(6)
    bench.credit = 6
    pauses = []
    for _ in range(10):
        bench.lease.on_event(Event.CLOSED)
        bench.lease.get_size()
        bench.lease.on_event(Event.GET_SENT)
        bench.answer()
        step = bench.lease.next_step()
        assert step.kind is WAIT
        assert step.until is not None
        pauses.append(round(step.until - bench.now, 3))
        bench.now = step.until
        assert bench.kind is RECOVER
        assert bench.lease.backlog == 0
        bench.store(1)
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]
    assert pauses[-1] == MAX_BACK_OFF_S
    assert bench.lease.short_count == 10
    bench.recover(1, 1)
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_event(Event.LOST)
    assert bench.lease.next_step().until == bench.now + BACK_OFF_S


def test_after_a_short_answer_the_transaction_is_closed_whatever_was_acknowledged() -> None:
    """It may hold what was never seen."""
    bench = Bench(3)
    bench.credit = 3
    bench.get(1, 2)
    [one, two] = bench.deliver()
    assert bench.is_in(State.RECOVERING)
    bench.lease.settle(one)
    bench.lease.settle(two)
    assert bench.send_acks() == [1, 2]
    assert bench.lease.needs_close


def test_the_recovery_asks_for_no_more_than_there_is() -> None:
    bench = Bench(10)
    bench.credit = 10
    bench.lease.on_event(Event.LOST)
    assert bench.recover(4, 1, 2, 3, 4) == 4
    assert bench.is_in(State.OPEN)


def test_a_recovery_with_nothing_to_do_rests() -> None:
    bench = Bench(5)
    bench.lease.on_event(Event.LOST)
    assert bench.recover(5) == 0
    assert bench.is_in(State.IDLE)
    assert bench.lease.backlog == 5


# --------------------------------------------------------------------------------------------- purge, delete
def test_a_purge_reads_and_acknowledges_up_to_the_backlog() -> None:
    bench = Bench(6)
    bench.credit = 1
    [held] = bench.open(1)
    told: list[str] = []
    bench.lease.purge(lambda: told.append("done"))
    assert bench.lease.wants_reader()
    assert bench.kind is REFILL
    assert bench.get(1, 2, 3, 4, 5, 6) == 6
    assert (bench.lease.held, sorted(bench.lease.settled)) == ({1: held}, [2, 3, 4, 5, 6])
    assert told == []
    assert bench.send_acks() == [2, 3, 4, 5, 6]
    bench.get(1)
    assert told == ["done"]


def test_a_purge_takes_what_is_ready_at_once() -> None:
    bench = Bench(2)
    bench.credit = 2
    bench.lease.on_event(Event.CLOSED)
    bench.lease.get_size()
    bench.lease.on_event(Event.GET_SENT)
    bench.answer(1, 2)
    told: list[str] = []
    bench.lease.purge(lambda: told.append("done"))
    assert bench.lease.ready_count == 0
    assert bench.kind is FINISH
    bench.send_acks()
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_event(Event.REST)
    assert bench.kind is BARRIER
    bench.lease.on_proof(())
    assert told == ["done"]


def test_purging_nothing_is_done_at_once() -> None:
    told: list[str] = []
    Bench().lease.purge(lambda: told.append("done"))
    assert told == ["done"]


def test_a_purge_ends_when_there_is_less_than_counted() -> None:
    bench = Bench(5)
    told: list[str] = []
    bench.lease.purge(lambda: told.append("done"))
    bench.count(0)
    assert told == ["done"]


def test_a_purge_ends_with_a_short_answer_where_the_number_is_not_known() -> None:
    bench = Bench(5)
    told: list[str] = []
    bench.lease.purge(lambda: told.append("done"))
    bench.get(1, 2)
    assert told == []
    bench.send_acks()
    bench.lease.on_proof(())
    assert bench.recover(None) == 0
    assert told == ["done"]


def test_a_deleted_queue_settles_everything() -> None:
    bench = Bench(4)
    bench.credit = 3
    _held, moving, gone = bench.open(1, 2, 3)
    bench.lease.start_move(moving)
    bench.lease.on_event(Event.LOST)
    bench.recover(2, 1, 2)
    assert gone in bench.lease.orphans.values()
    bench.lease.settle_everything()
    assert sorted(bench.lease.settled) == [1, 2]
    assert (bench.lease.held, bench.lease.moving, bench.lease.orphans) == ({}, {}, {})
    bench.lease.settle(gone)
    bench.lease.finish_move(moving)
    assert sorted(bench.lease.settled) == [1, 2]

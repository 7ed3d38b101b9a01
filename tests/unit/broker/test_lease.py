"""The lease alone: every state and event, every decision, how much it asks for, and how it recovers."""

from __future__ import annotations

import pytest

from connector.broker.backlog import NEVER, PURGE_PATIENCE_S
from connector.broker.holdings import MAX_ANSWER_BYTES
from connector.broker.lease import (
    _TRANSITIONS,
    BACK_OFF_S,
    GIVE_BACK_DELAY_S,
    MAX_BACK_OFF_S,
    MAX_NEW,
    PROOF_DELAY_S,
    Event,
    Lease,
    State,
)
from connector.broker.pacing import ACK_DELAY_S, MIN_SPACING_S, WORTH_BYTES
from connector.broker.ports import Answer
from connector.broker.steps import StepKind
from tests.support.lease_bench import Bench, message

WAIT, FINISH, CLOSE, REFILL, RECOVER, BARRIER = (
    StepKind.WAIT,
    StepKind.FINISH,
    StepKind.CLOSE,
    StepKind.REFILL,
    StepKind.RECOVER,
    StepKind.BARRIER,
)


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
    (State.GETTING, Event.LATE): State.RECOVERING,
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
    keeps = event in {Event.GET_SENT, Event.FULL, Event.SHORT, Event.LATE}
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
    assert bench.lease.next_step()[:2] == (WAIT, None)
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
    assert bench.lease.next_step()[:2] == (WAIT, bench.now + PROOF_DELAY_S)
    assert bench.lease.wants_reader()
    bench.now += PROOF_DELAY_S
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


def test_what_is_stored_after_an_answer_without_anything_is_waited_for() -> None:
    bench = Bench(1)
    bench.lease.state = State.GETTING
    bench.lease.on_event(Event.SHORT)
    seen = [bench.lease.has_nothing]
    bench.lease.counts.on_stored()
    seen.append(bench.lease.has_nothing)
    assert seen == [True, False]


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
    assert bench.lease.next_step()[:2] == (WAIT, None)


def test_a_refill_while_something_is_held_keeps_its_distance() -> None:
    bench = Bench(1)
    bench.credit = 1
    bench.open(1)
    bench.store(1)
    bench.credit = 1
    assert bench.kind is REFILL  # nothing was re-read so far
    assert bench.begin_get() == 2
    bench.now += 0.02
    bench.answer(1, 2)
    bench.deliver()
    bench.store(1)
    bench.credit = 1
    assert bench.kind is WAIT
    assert bench.lease.next_step().until == pytest.approx(bench.now + 0.5 * 0.02)  # half of it was read before
    bench.now += 0.011
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
    assert bench.lease.next_step()[:2] == (WAIT, bench.now + ACK_DELAY_S)
    bench.store(1)
    bench.credit = 1
    assert bench.kind is REFILL
    bench.credit = 0
    bench.now += ACK_DELAY_S
    assert bench.kind is REFILL
    assert bench.send_acks() == [1]
    assert bench.lease.needs_close
    assert bench.get(2, 3) == 2  # at the pace seen one more will be wanted soon: it comes along


def test_the_oldest_acknowledgement_sets_the_time() -> None:
    bench = Bench(3)
    bench.credit = 3
    one, two, _ = bench.open(1, 2, 3)
    bench.lease.settle(one)
    due = bench.now + ACK_DELAY_S
    bench.now += ACK_DELAY_S / 2
    bench.lease.settle(two)
    assert bench.lease.next_step()[:2] == (WAIT, due)


def test_what_was_read_ahead_goes_back_when_nobody_takes_it() -> None:
    bench = Bench(3)
    bench.credit = 3
    bench.begin_get()
    bench.credit = 0
    bench.answer(1, 2, 3)
    assert bench.lease.next_step()[:2] == (WAIT, bench.now + GIVE_BACK_DELAY_S)
    bench.now += GIVE_BACK_DELAY_S / 2
    bench.credit = 1
    assert bench.lease.next_step()[:2] == (WAIT, None)  # somebody has come, and starts the time anew
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
    assert bench.lease.next_step()[:2] == (WAIT, None)


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
    bench.begin_get()
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
    assert bench.lease.next_step()[:2] == (WAIT, None)


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
    bench.begin_get()
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
    assert bench.lease.next_step()[:2] == (WAIT, None)


def test_a_full_answer_is_not_refilled_before_something_is_settled() -> None:
    bench = Bench(3)
    bench.credit = 1
    lease = bench.lease
    bench.begin_get()
    lease.on_answer(Answer("t", [message(1, body=bytes(89_999_999))]))
    [large] = bench.deliver()
    bench.credit = 5
    bench.now += 1.0
    assert bench.lease.next_step()[:2] == (WAIT, None)
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
        assert bench.begin_get() == expected
        bench.lease.on_too_much()
    assert bench.recover(10, 1, 2) == 2
    bench.now += 1.0
    assert bench.lease.next_step()[:2] == (WAIT, None)
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
    assert bench.begin_get() == 4
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


# --------------------------------------------------------------------------------------------- recovery
def test_a_short_answer_is_kept_and_counted_afresh_with_a_growing_pause() -> None:
    bench = Bench(6)
    bench.credit = 6
    pauses = []
    for _ in range(10):
        bench.begin_get()
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


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_purge_waits_anew_after_the_link_was_lost(is_restarted: bool) -> None:
    bench = Bench(2)
    told: list[str] = []
    bench.lease.purge(lambda: told.append("done"))
    bench.get()
    bench.now += PURGE_PATIENCE_S - 1
    if is_restarted:
        bench.lease.doubt()
        bench.lease.trust()
    else:
        bench.lease.on_event(Event.LOST)
    for waited_s, expected in ((1, []), (PURGE_PATIENCE_S - 1, []), (1, ["done"])):
        bench.now += waited_s
        bench.recover(2)
        assert told == expected


def test_what_is_settled_lowers_no_suspected_count() -> None:
    """Its AckRange may be written at this moment: KubeMQ may have counted it or not."""
    bench = Bench(stored=4)
    bench.credit = 2
    first, _ = bench.open(1, 2)
    bench.lease.settle(first)
    bench.lease.counts.suspect()
    bench.count(3)
    assert bench.lease.backlog == 2

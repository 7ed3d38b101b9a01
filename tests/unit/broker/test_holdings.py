"""What a lease has in its hands: every way in which a message may come back, be purged, or be gone."""

from __future__ import annotations

import pytest

from connector.broker.backlog import NEVER
from connector.broker.lease import BACK_OFF_S, Event, State
from connector.broker.ports import Answer, ChannelInfo
from connector.broker.steps import StepKind
from mapping.message_ids import MessageIds
from tests.support.lease_bench import Bench, message, message_id

FINISH = StepKind.FINISH
REFILL = StepKind.REFILL
RECOVER = StepKind.RECOVER
BARRIER = StepKind.BARRIER


# --------------------------------------------------------------------------------------------- what it costs
def test_a_message_costs_what_its_envelope_takes_where_that_is_known() -> None:
    bench = Bench(2)
    bench.credit = 2
    bench.begin_get()
    small, large = message(1), message(2)
    large.envelope_bytes = 720_000
    bench.lease.on_answer(Answer("t", [small, large]))
    assert bench.lease.mine_bytes == bench.lease.cost_of([small, large]) == 1 + 4 + 512 + 1 + 720_000 + 512
    bench.deliver()
    for held in (small, large):
        bench.lease.settle(held)
    bench.send_acks()
    assert bench.lease.on_proof(())
    assert bench.lease.mine_bytes == 0


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


def first_sight(bench: Bench, first: int, last: int, delivered: int, subscribers: int) -> None:
    bench.lease.on_first_sight(ChannelInfo("channel", last, first, last, delivered, subscribers))


def test_first_sight_marks_what_an_earlier_life_may_have_delivered() -> None:
    bench = Bench(is_counted=False)
    first_sight(bench, 1, 10, 4, 1)
    bench.count(10, 10)
    first_sight(bench, 1, 10, 10, 1)  # later numbers have our own doing in them
    bench.credit = 6
    bench.get(*range(1, 7))
    assert [m.redelivered for m in bench.lease.ready] == [True] * 4 + [False] * 2


def test_twins_of_an_earlier_life_are_known() -> None:
    """What it stored again after an unknown result lies there twice; natives may use an id twice."""
    bench = Bench(is_counted=False)
    first_sight(bench, 1, 4, 0, 1)
    bench.count(5, 4)
    bench.credit = 9
    bench.begin_get()
    ours, native = "~0123456789ab.1", "native"
    twins = [message(n, message_id) for n, message_id in enumerate((ours, native, ours, native, ours), 1)]
    bench.lease.on_answer(Answer("t", twins))
    assert [m.sequence for m in bench.lease.ready] == [1, 2, 4]
    assert sorted(bench.lease.settled) == [3, 5]


@pytest.mark.parametrize(("delivered", "subscribers", "upto"), [(0, 1, 0), (3, 1, 3), (99, 1, 5), (0, 2, 5)])
def test_how_far_first_sight_reaches(delivered: int, subscribers: int, upto: int) -> None:
    bench = Bench(is_counted=False)
    first_sight(bench, 1, 5, delivered, subscribers)
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
    bench = Bench(2)
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
    assert bench.recover(2, 1, 2) == 2
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
    bench.begin_get()
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
    bench.begin_get()
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
    bench.begin_get()
    lease.on_answer(Answer("t", [message(s, f"new{s}") for s in (1, 2, 3, 4)]))
    assert [m.message_id for m in lease.ready] == ["new1", "new2", "new3", "new4"]
    assert (list(lease.orphans.values()), list(lease.departed.values())) == ([one], [two])
    assert lease.settled == {}
    bench.begin_get()
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
    bench.begin_get()
    bench.answer(4, 5, 6)
    assert [m.sequence for m in bench.lease.ready] == [4, 5, 6]


# --------------------------------------------------------------------------------------------- second copies
def test_the_second_copy_of_a_repeated_store_is_dropped() -> None:
    bench = Bench(3)
    bench.credit = 3
    bench.lease.watch_repeated(["same"])
    bench.begin_get()
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
    lease.watch_repeated([message_id(s) for s in (1, 2, 3, 4, 5)])
    for sequence in (1, 2, 3, 4, 5):
        assert lease.repeated.is_second(sequence + 10, message_id(sequence))
        assert not lease.repeated.is_second(sequence, message_id(sequence))


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
    bench.begin_get()
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


def test_of_what_an_earlier_life_stored_late_one_copy_is_delivered() -> None:
    """Its last requests may reach KubeMQ after the first count of this life."""
    bench = Bench(3)
    bench.credit = 3
    twin = MessageIds("0123456789ab").next()
    bench.lease.inherited_upto = 0
    bench.begin_get()
    bench.lease.on_answer(Answer("t", [message(1, twin), message(2), message(3, twin)]))
    assert [m.sequence for m in bench.lease.ready] == [1, 2]


def test_what_is_stored_where_nothing_was_before_is_not_watched_for_late_copies() -> None:
    """Each message costs something there: only an earlier life can have stored late."""
    bench = Bench(1)
    bench.credit = 1
    ours = MessageIds("0123456789ab").next()
    bench.lease.counts.known_at = NEVER
    first_sight(bench, 0, 0, 0, 0)
    bench.begin_get()
    bench.lease.on_answer(Answer("t", [message(1, ours)]))
    assert not bench.lease.repeated.is_second(2, ours)


def with_one_acknowledged(stored: int) -> Bench:
    """The first of so many has been read and provably acknowledged, and there is room for another one."""
    bench = Bench(stored)
    bench.credit = 1
    (one,) = bench.open(1)
    bench.lease.settle(one)
    bench.lease.acks_sent(1, bench.lease.acks_due())
    bench.lease.on_proof(())
    bench.credit = 1
    return bench


def test_an_acknowledged_message_that_comes_again_is_in_no_count() -> None:
    """Its acknowledgement was too late for the next Get: counted as new, it would leave another one behind for good."""
    bench = with_one_acknowledged(2)
    assert bench.get(1) == 1
    assert list(bench.lease.settled) == [1]
    assert bench.lease.backlog == 1  # the second one is still to be read


def test_it_is_counted_where_kubemq_has_counted_it() -> None:
    bench = with_one_acknowledged(1)
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_event(Event.REST)
    bench.count(1, 1)
    assert bench.lease.backlog == 1
    assert bench.get(1) == 1
    assert bench.lease.backlog == 0
    assert list(bench.lease.settled) == [1]


@pytest.mark.parametrize("is_counted", [False, True])
def test_a_second_copy_is_in_no_count_but_kubemqs(is_counted: bool) -> None:
    bench = Bench(2)
    twice = message_id(1)
    bench.lease.watch_repeated([twice])
    if is_counted:
        bench.count(3, 3)
    bench.credit = 9
    size = bench.begin_get()
    assert size == (3 if is_counted else 2)
    bench.lease.on_answer(Answer("t", [message(1, twice), message(2, twice), message(3)][:size]))
    assert bench.lease.backlog == (0 if is_counted else 1)
    assert [m.sequence for m in bench.lease.ready] == ([1, 3] if is_counted else [1])


def test_what_kubemq_counted_besides_is_forgotten_when_all_is_read() -> None:
    bench = Bench()
    bench.count(2, 2)
    bench.credit = 2
    bench.open(1, 2)
    assert not bench.lease.counts.has_again(1)

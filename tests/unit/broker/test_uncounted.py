"""A lease and what it was not told of: native producers' messages, and second copies of what was stored again."""

from __future__ import annotations

import pytest

from connector.broker.backlog import UNKNOWN_CAPACITY
from connector.broker.lease import Event
from connector.broker.ports import Answer
from connector.broker.queue import StoredQueue
from connector.broker.requests import QueueDeclare
from connector.broker.steps import StepKind
from tests.support.lease_bench import Bench, message, message_id
from tests.support.replica_model import Pair

RECOVER = StepKind.RECOVER


@pytest.mark.parametrize("is_counted", [False, True])
def test_a_native_message_is_in_no_count_but_kubemqs(is_counted: bool) -> None:
    """It lies before one of ours, which would wait for the next count if it were taken for that."""
    bench = Bench(1)
    if is_counted:
        bench.count(2, 2)
    bench.credit = 9
    size = bench.begin_get()
    assert size == (2 if is_counted else 1)
    bench.lease.on_answer(Answer("t", [message(1, "native"), message(2)][:size]))
    assert bench.lease.backlog == (0 if is_counted else 1)
    bench.deliver()
    assert bench.begin_get() == 2


def test_what_an_earlier_life_left_makes_no_later_native_message_a_counted_one() -> None:
    """A get would be answered with get-empty though one of ours is there."""
    bench = Bench()
    bench.count(3, 3)
    bench.store(1)
    bench.credit = 9
    assert bench.begin_get() == 4
    bench.lease.on_answer(Answer("t", [*map(message, (1, 2, 3)), message(4, "native")]))
    assert bench.lease.backlog == 1


def test_a_count_that_may_have_acknowledged_messages_in_it_asks_for_proof() -> None:
    """They would hide what a native producer has stored until then."""
    bench = Bench(1)
    bench.credit = 1
    bench.lease.settle(*bench.open(1))
    bench.send_acks()
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_event(Event.REST)
    kinds = [bench.kind]
    bench.count(1, 2)
    kinds.append(bench.kind)
    bench.lease.on_proof(())
    kinds.append(bench.kind)
    bench.count(1, 2)
    assert (kinds, bench.lease.backlog) == ([StepKind.WAIT, StepKind.BARRIER, StepKind.WAIT], 1)


def test_second_copies_are_counted_and_read_once_what_was_stored_again_is_answered() -> None:
    """Nobody else would find them: the first may be acknowledged, and the next life would take them for messages."""
    bench = Bench()
    bench.lease.counts.pending_count += 1
    bench.lease.watch_repeated([message_id(1)])
    assert not bench.lease.wants_reader()
    bench.store(0)
    bench.lease.counts.on_stored()
    bench.credit = 1
    bench.lease.settle(*bench.open(1))
    bench.send_acks()
    bench.credit = 0
    assert bench.lease.wants_reader()
    assert bench.kind is RECOVER
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_proof(())
    bench.count(1, 2)
    bench.lease.peek(bench.lease.counts.take_uncounted())
    assert bench.lease.recover_size(1) == 1
    bench.lease.on_event(Event.GET_SENT)
    bench.lease.on_answer(Answer("t", [message(2, message_id(1))]))
    assert list(bench.lease.settled) == [2]
    assert bench.kind is not RECOVER


def test_what_is_more_than_second_copies_is_not_read_for_them() -> None:
    bench = Bench(2)
    bench.lease.watch_repeated([message_id(1)])
    assert bench.kind is RECOVER
    bench.lease.on_event(Event.CLOSED)
    bench.count(2, 2)
    assert bench.lease.counts.take_uncounted() == 0
    assert bench.lease.recover_size(2) == 0
    bench.lease.on_event(Event.REST)
    assert bench.kind is not RECOVER
    assert not bench.lease.wants_reader()


def test_what_was_refused_but_is_stored_is_in_no_count_but_kubemqs() -> None:
    """It was nacked, as nobody knew; if it were taken for a counted one, a later one would wait for the next count."""
    bench = Bench(1)
    bench.lease.counts.note_unknown([message_id(1)])
    bench.lease.counts.uncounted_count = 0  # no look at once
    bench.credit = 9
    assert bench.get(1) == 1
    assert bench.lease.backlog == 1
    bench.deliver()
    assert bench.get(1, 2) == 2
    assert bench.lease.backlog == 0


def test_what_was_refused_and_read_counts_as_any_when_it_was_given_back() -> None:
    bench = Bench(1)
    bench.lease.counts.note_unknown([message_id(2)])
    bench.count(2, 2)
    bench.credit = 2
    assert bench.get(1, 2) == 2
    bench.credit = 1
    bench.deliver()
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_event(Event.REST)
    assert bench.lease.backlog == 1
    bench.credit = 1
    assert bench.begin_get() == 2


def test_no_more_ids_are_remembered_than_there_is_room_for() -> None:
    bench = Bench()
    counts = bench.lease.counts
    for start in range(0, 2 * UNKNOWN_CAPACITY, UNKNOWN_CAPACITY // 2):
        counts.note_unknown([message_id(n) for n in range(start, start + UNKNOWN_CAPACITY // 2)])
    assert counts.uncounted_count == 2 * UNKNOWN_CAPACITY
    assert not counts.is_told(1, message_id(0))
    assert counts.is_told(2, message_id(0))
    assert counts.is_told(3, message_id(UNKNOWN_CAPACITY))


def test_whoever_reads_the_queue_hears_of_it_from_the_one_who_stored_it() -> None:
    pair = Pair()
    pair.a.start(pair.a.vhost.declare_queue, QueueDeclare("q", durable=True), None)
    pair.run(1)
    owner, other = pair.a.vhost.queues["q"], pair.b.vhost.queues["q"]
    assert isinstance(owner, StoredQueue)
    assert isinstance(other, StoredQueue)
    other.note_unknown([message_id(1)])
    other.watch_repeated([message_id(2)])
    pair.run(0.1)
    lease = owner.lease
    assert not lease.counts.is_told(1, message_id(1))
    assert lease.counts.is_told(2, message_id(2))
    assert [lease.repeated.is_second(sequence, message_id(2)) for sequence in (2, 3)] == [False, True]
    assert [lease.repeated.is_second(sequence, message_id(1)) for sequence in (1, 4)] == [False, False]

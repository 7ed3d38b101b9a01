"""In which order a channel is read: what an answer begins with, when another one is taken, what a purge spares."""

from __future__ import annotations

import pytest

from connector.broker.backlog import UNBOUNDED
from connector.broker.lease import Event, State
from connector.broker.line import MAX_ODD, Line
from connector.broker.ports import ChannelInfo
from tests.support.lease_bench import Bench, message


class Reader:
    """A line, and what reading has told so far."""

    def __init__(self, upto: int = 0, left: int = 0) -> None:
        self.line = Line()
        self.line.start(upto, left)
        self.mine: set[int] = set()
        self.highest = 0

    def is_next(self, *sequences: int) -> bool:
        messages = [message(sequence) for sequence in sequences]
        return self.line.is_next(messages, iter(self.mine), len(self.mine), self.highest)

    def read(self, *sequences: int, keeps: bool = False) -> None:
        """Take these, and acknowledge them unless they are kept."""
        self.line.on_read([message(sequence) for sequence in sequences], self.highest)
        self.highest = max(self.highest, *sequences)
        self.mine = {*self.mine, *sequences} if keeps else set()


def test_above_the_highest_one_read_nothing_may_be_missing() -> None:
    reader = Reader()
    assert reader.is_next(1, 2, 3)
    assert not reader.is_next(2, 3)
    assert not reader.is_next(1, 3)
    reader.read(1, 2, 3)
    assert reader.is_next(4, 5)
    assert not reader.is_next(5)
    assert not reader.is_next(4, 6)
    assert reader.is_next(2, 4)  # a crashed server has forgotten an acknowledgement


def test_what_is_mine_has_to_be_there_as_far_as_the_answer_goes() -> None:
    reader = Reader()
    reader.read(1, 2, 3, keeps=True)
    assert reader.is_next(1, 2, 3, 4)
    assert reader.is_next(1, 2)
    for missing in (1, 2):
        assert not reader.is_next(*sorted({1, 2, 3, 4} - {missing}))
    assert not reader.is_next(4, 5)


def test_what_was_given_back_comes_before_what_is_new() -> None:
    reader = Reader()
    reader.read(*range(1, 10))
    reader.line.give_back([7, 8])
    reader.line.give_back([2, 4])
    reader.line.give_back([])
    assert reader.is_next(2, 4)
    assert reader.is_next(2, 4, 7, 8, 10)
    assert not reader.is_next(7, 8)
    assert not reader.is_next(4)
    assert not reader.is_next(10)
    reader.read(2, 4)
    assert not reader.is_next(10)
    assert reader.is_next(7)
    reader.read(8)  # taken although it lacks 7: that has left the queue
    assert reader.is_next(10)


def test_what_an_earlier_life_has_left_may_have_gaps_but_has_to_come_twice() -> None:
    reader = Reader(upto=10, left=4)  # 2, 4, 9 and 10, say
    assert not reader.is_next(9)
    assert not reader.is_next(2)
    reader.read(2)
    assert reader.is_next(3)  # nothing lies between
    assert not reader.is_next(4)
    reader.read(4)
    assert reader.is_next(9, 10)  # that is all it has left
    assert reader.is_next(9, 10, 11, 12)
    assert not reader.is_next(9, 10, 12)
    assert not reader.is_next(10, 11)
    reader.read(9, 10)
    assert reader.is_next(11)
    assert not reader.is_next(12)


def test_what_nobody_has_left_needs_no_second_look() -> None:
    reader = Reader(upto=10)
    assert reader.is_next(11, 12)
    assert not reader.is_next(12)
    reader = Reader(upto=10, left=-3)
    assert reader.is_next(11)
    reader = Reader(upto=3, left=3)
    reader.read(11)  # more was counted than was there
    assert reader.is_next(12)


def test_a_channel_that_is_not_counted_alone_is_read_in_neighbours_or_twice() -> None:
    reader = Reader(UNBOUNDED, UNBOUNDED)
    assert not reader.is_next(1)
    reader.read(1)
    assert reader.is_next(2, 3)
    assert not reader.is_next(3)


def test_an_answer_out_of_turn_is_taken_when_it_comes_twice_or_nothing_else_comes() -> None:
    def is_confirmed(*sequences: int) -> bool:
        return line.is_confirmed([message(sequence) for sequence in sequences])

    line = Line()
    assert not is_confirmed(8, 9)
    assert not is_confirmed(7, 8)
    assert is_confirmed(7, 8, 9)  # one more was stored, or asked for
    assert is_confirmed(7)
    line.on_read([], 0)
    assert not is_confirmed(7)
    line.on_read([], 0)
    for n in range(1, MAX_ODD):
        assert not is_confirmed(n)
    assert is_confirmed(MAX_ODD)


@pytest.mark.parametrize("left", [0, 2])
def test_the_lease_knows_what_an_earlier_life_has_left(left: int) -> None:
    bench = Bench(is_counted=False)
    bench.lease.on_first_sight(ChannelInfo("channel", 3 + left, 3, 13, 8, 1))
    bench.count(3 + left, 13)
    bench.credit = 9
    assert bench.lease.is_in_turn([message(11), message(12)]) == (left == 0)
    assert bench.lease.is_in_turn([message(4), message(10), message(11)])


def test_the_lease_keeps_the_order_of_what_it_gave_back() -> None:
    bench = Bench(6)
    bench.credit = 6
    one, two, *others = bench.open(1, 2, 3, 4, 5, 6)
    for held in others:
        bench.lease.give_back(held)
    for done in (one, two):
        bench.lease.settle(done)
    bench.lease.acks_sent(1, bench.lease.acks_due())
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_event(Event.REST)
    assert bench.is_in(State.IDLE)
    bench.credit = 2
    assert bench.begin_get() == 2
    assert not bench.lease.is_in_turn([message(5), message(6)])
    assert not bench.lease.is_in_turn([message(3), message(5)])
    assert bench.lease.is_in_turn([message(3), message(4)])
    assert bench.lease.is_in_turn([message(6)])  # KubeMQ had no more for a second
    bench.lease.counts.withheld = 1
    assert bench.lease.is_in_turn([message(5), message(6)])  # nobody can tell


def test_a_purge_spares_what_clients_held_although_it_goes_back() -> None:
    bench = Bench(4)
    bench.credit = 3
    one, two, three = bench.open(1, 2, 3)
    assert bench.lease.start_move(two)
    purged: list[bool] = []
    bench.lease.purge(lambda: purged.append(True))
    for message_ in (one, three):
        bench.lease.put_back(message_)
    bench.lease.finish_move(two)
    bench.lease.acks_sent(1, bench.lease.acks_due())
    bench.lease.on_event(Event.CLOSED)
    bench.lease.on_event(Event.REST)
    bench.credit = 2
    assert bench.get(1, 3, 4) == 3
    assert [m.sequence for m in bench.lease.ready] == [1, 3]
    assert sorted(bench.lease.settled) == [4]

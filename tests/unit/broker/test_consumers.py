"""Whose turn it is (CO-03, CO-04, CO-28, CO-33, CO-34), without a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.broker.consumers import Consumers, SingleActive

if TYPE_CHECKING:
    from connector.broker.message import Message


class Fake:
    """A consumer with room for so many."""

    no_ack = False

    def __init__(self, name: str, room: int = 1 << 30, priority: int = 0, *, exclusive: bool = False) -> None:
        self.name = name
        self.room = room
        self.priority = priority
        self.exclusive = exclusive
        self.held_count = 0

    def free_credit(self) -> int:
        return self.room

    def deliver(self, message: Message) -> None:
        raise NotImplementedError

    def on_queue_gone(self) -> None:
        raise NotImplementedError


def serve(consumers: Consumers, count: int) -> str:
    """Who is served in one round, one letter each, with "-" for nobody; each serving takes room."""
    served = ""
    consumers.begin_round()
    for _ in range(count):
        consumer = consumers.next()
        if consumer is None:
            served += "-"
        else:
            assert isinstance(consumer, Fake)
            consumer.room -= 1
            served += consumer.name
    return served


def attached(*fakes: Fake, single: bool = False) -> Consumers:
    consumers = SingleActive() if single else Consumers()
    for fake in fakes:
        assert consumers.admits(fake)
        consumers.add(fake)
    return consumers


def test_nobody() -> None:
    consumers = Consumers()
    assert serve(consumers, 2) == "--"
    assert (len(consumers), bool(consumers), list(consumers), consumers.credit()) == (0, False, [], 0)
    assert not consumers.remove(Fake("a"))


def test_in_turn_and_past_the_full_ones() -> None:
    a, b, c = Fake("a"), Fake("b", 1), Fake("c")
    consumers = attached(a, b, c)
    assert serve(consumers, 7) == "abcacac"
    assert (len(consumers), bool(consumers), list(consumers)) == (3, True, [a, b, c])


@pytest.mark.parametrize(
    ("served", "gone", "then"),
    [(1, "a", "bcb"), (1, "b", "cac"), (2, "a", "cbc"), (2, "b", "cac"), (3, "c", "aba"), (0, "a", "bcb")],
)
def test_who_goes_changes_nobody_elses_turn(served: int, gone: str, then: str) -> None:
    fakes = {name: Fake(name) for name in "abc"}
    consumers = attached(*fakes.values())
    serve(consumers, served)
    assert consumers.remove(fakes[gone])
    assert serve(consumers, 3) == then


def test_the_higher_rank_goes_first_while_it_has_room() -> None:
    consumers = attached(
        Fake("a", 2), Fake("b", 1, -1), Fake("c", 1, 7), Fake("d", 2, 7), Fake("e", 1, 3)
    )  # fmt: skip
    assert consumers.credit() == 7
    assert serve(consumers, 8) == "cddeaab-"


def test_the_last_of_a_rank_takes_it_along() -> None:
    high, low = Fake("h", priority=1), Fake("l")
    consumers = attached(low, high)
    assert serve(consumers, 2) == "hh"
    assert consumers.remove(high)
    assert not consumers.remove(high)
    assert serve(consumers, 2) == "ll"
    consumers.add(high)
    assert serve(consumers, 1) == "h"


def test_exclusive_consumers_are_alone() -> None:
    only = Fake("a", exclusive=True)
    consumers = attached(only)
    assert not consumers.admits(Fake("b"))
    assert not consumers.admits(Fake("b", exclusive=True))
    consumers.remove(only)
    consumers.add(Fake("b"))
    assert consumers.admits(Fake("c"))
    assert not consumers.admits(Fake("c", exclusive=True))


def test_a_single_active_one_does_not_share() -> None:
    a, b = Fake("a", 2), Fake("b", 5, 9)
    consumers = attached(a, b, single=True)
    assert not consumers.admits(Fake("c", exclusive=True))
    assert consumers.credit() == 2
    assert serve(consumers, 3) == "aa-"
    assert consumers.credit() == 0


def test_the_next_follows_when_nothing_is_held_any_more() -> None:
    a, b, c, d = Fake("a"), Fake("b"), Fake("c", priority=3), Fake("d", priority=3)
    consumers = attached(a, b, c, d, single=True)
    a.held_count = 2
    assert consumers.remove(a)
    assert not consumers.remove(a)
    assert (consumers.credit(), serve(consumers, 1)) == (0, "-")
    assert consumers.remove(c)
    a.held_count = 0
    assert consumers.credit() > 0
    assert serve(consumers, 2) == "dd"
    assert consumers.remove(b)
    assert serve(consumers, 1) == "d"


def test_whoever_comes_after_everybody_has_gone_is_the_next() -> None:
    a, b = Fake("a"), Fake("b")
    consumers = attached(a, single=True)
    a.held_count = 1
    consumers.remove(a)
    consumers.add(b)
    assert serve(consumers, 1) == "-"
    a.held_count = 0
    assert serve(consumers, 1) == "b"


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), max_size=6),
    st.integers(0, 12),
)
def test_nobody_is_served_before_a_higher_rank_is_full(plans: list[tuple[int, int]], count: int) -> None:
    fakes = [Fake(str(index), room, priority) for index, (priority, room) in enumerate(plans)]
    consumers = attached(*fakes)
    for _ in range(count):
        room = sum(fake.room for fake in fakes)
        served = serve(consumers, 1)
        assert (served == "-") == (room == 0)
        if served != "-":
            mine = fakes[int(served)].priority
            assert all(fake.room == 0 for fake in fakes if fake.priority > mine)


def test_a_new_one_is_behind_all_others() -> None:
    first = Fake("a")
    consumers = attached(first)
    assert serve(consumers, 1) == "a"
    consumers.add(Fake("b"))
    assert serve(consumers, 1) == "a"
    consumers.add(Fake("c"))
    assert serve(consumers, 4) == "bacb"


def test_who_was_found_full_is_last_when_it_has_room() -> None:
    full = Fake("a", room=0)
    consumers = attached(full, Fake("b"), Fake("c"))
    assert serve(consumers, 1) == "b"
    full.room = 1 << 30
    assert serve(consumers, 4) == "cbac"

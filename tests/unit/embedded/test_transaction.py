"""A transaction: what it accepted, when it is full, and what a range may name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.embedded.quirks import OFF, ON, Quirks
from connector.embedded.transaction import Transaction
from tests.unit.embedded.test_engine import World


def opened(quirks: Quirks, published: int, max_items: int) -> tuple[World, Transaction]:
    world = World(quirks)
    world.publish(published)
    return world, Transaction(world.engine, world.queue, max_items)


def test_full_at_once() -> None:
    _, transaction = opened(ON, 5, 3)
    assert list(transaction.accepted) == [1, 2, 3]
    assert not transaction.accepting


def test_fills_up_while_it_accepts() -> None:
    world, transaction = opened(ON, 2, 3)
    calls: list[str] = []
    transaction.on_full = lambda: calls.append("full")
    assert transaction.accepting
    world.publish(5)
    assert list(transaction.accepted) == [1, 2, 3]
    assert (transaction.accepting, calls) == (False, ["full"])


def test_without_parking_it_takes_nothing_more_once_it_has_stopped() -> None:
    world, transaction = opened(OFF, 0, 3)
    calls: list[str] = []
    transaction.on_some, transaction.on_full = lambda: calls.append("some"), lambda: calls.append("full")
    world.publish(1)
    world.publish(1)
    transaction.stop_accepting()
    world.publish(1)
    assert (list(transaction.accepted), calls) == ([1, 2], ["some", "some"])
    assert world.queue.last_sent == 2


def test_without_parking_it_takes_nothing_more_once_it_was_full() -> None:
    world, transaction = opened(OFF, 3, 2)
    transaction.settle([1])
    world.publish(1)
    assert list(transaction.accepted) == [2]
    assert world.queue.last_sent == 2


def test_what_was_parked_is_neither_accepted_nor_settled() -> None:
    world, transaction = opened(ON, 2, 5)
    transaction.stop_accepting()
    world.publish(2)
    assert list(transaction.accepted) == [1, 2]
    transaction.settle([1, 2])
    transaction.close()
    assert world.forgotten == [1, 2]
    assert world.queue.returned == [3, 4]


def test_closing_twice_is_closing_once() -> None:
    world, transaction = opened(ON, 2, 2)
    transaction.close()
    transaction.close()
    assert not transaction.is_open
    assert world.queue.returned == [1, 2]


@pytest.mark.parametrize(
    ("asked", "good", "bad"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([3, 1, 2], [3, 1, 2], None),
        ([2], [2], None),
        ([2, 9, 1], [2], 9),
        ([2, 2, 1], [2], 2),
        ([1, 2, 2], [1, 2], 2),
        ([9], [], 9),
    ],
)
def test_a_range_is_good_up_to_the_first_unknown(asked: list[int], good: list[int], bad: int | None) -> None:
    _, transaction = opened(ON, 3, 3)
    assert transaction.known(asked) == (good, bad)


@given(st.lists(st.integers(1, 8), max_size=8))
def test_a_range_is_what_a_plain_loop_says(asked: list[int]) -> None:
    _, transaction = opened(ON, 5, 5)
    good: list[int] = []
    bad = None
    for sequence in asked:
        if sequence > 5 or sequence in good:
            bad = sequence
            break
        good.append(sequence)
    assert transaction.known(asked) == (good, bad)

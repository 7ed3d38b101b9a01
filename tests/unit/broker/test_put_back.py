"""What a client refuses, put back into its place (``requeue: original``), in the lease's hands."""

from __future__ import annotations

from connector.broker.holdings import Holdings
from connector.broker.message import Message


def message(sequence: int, message_id: str = "") -> Message:
    return Message("", "q", b"\x00\x00", b"", message_id or f"m{sequence}", sequence)


def holding(*sequences: int) -> Holdings:
    """These were read and all handed out."""
    holdings = Holdings(lambda: 0.0)
    holdings._file([message(sequence) for sequence in sequences], is_counted=True)
    for _ in sequences:
        holdings.take()
    return holdings


def ready(holdings: Holdings) -> list[tuple[int, bool, int]]:
    return [(item.sequence, item.redelivered, item.delivery_count) for item in holdings.ready]


def test_in_any_order_each_finds_its_place() -> None:
    holdings = holding(1, 2, 3, 4, 5)
    holdings._file([message(6), message(7)], is_counted=True)
    for sequence in (3, 1, 5, 4):
        assert holdings.put_back(holdings.held[sequence])
    assert ready(holdings) == [
        (1, True, 1), (3, True, 1), (4, True, 1), (5, True, 1), (6, False, 0), (7, False, 0)
    ]  # fmt: skip
    assert list(holdings.held) == [2]
    assert holdings.mine_count == 7


def test_only_what_is_held_goes_back_and_only_once() -> None:
    holdings = holding(1, 2)
    first, second = holdings.held.values()
    holdings.settle(second)
    assert not holdings.put_back(second)
    assert holdings.put_back(first)
    assert not holdings.put_back(first)
    assert not holdings.put_back(message(1))
    assert ready(holdings) == [(1, True, 1)]


def test_what_has_left_the_queue_is_not_put_back_but_moved() -> None:
    holdings = holding(1, 2)
    first = holdings.held[1]
    holdings._forget(lambda sequence: sequence == 1)
    assert not holdings.put_back(first)
    assert holdings.start_move(first)


def test_counts_are_remembered_until_the_acknowledgement_has_arrived() -> None:
    holdings = holding(1, 2, 3)
    for sequence in (1, 2):
        holdings.put_back(holdings.held[sequence])
    holdings.put_back(holdings.take())
    holdings._drop_ready()
    holdings._file([message(1), message(2, "another of this Sequence"), message(4)], is_counted=True)
    assert ready(holdings) == [(1, True, 2), (2, True, 0), (4, False, 0)]
    first = holdings.take()
    holdings.settle(first)
    holdings._confirm({1: holdings.settled.pop(1)})
    assert holdings._failed == {(2, "m2"): 1}


def test_the_counts_of_what_has_left_the_queue_are_forgotten() -> None:
    holdings = holding(1, 2, 3)
    for sequence in (1, 2, 3):
        holdings.put_back(holdings.held[sequence])
    assert holdings.take().sequence == 1
    holdings._displace(3, holdings.ready[1])
    holdings._forget(lambda _sequence: True)
    assert not holdings._failed


def test_given_back_to_nobody_after_a_refusal_it_stays_redelivered() -> None:
    holdings = holding(1)
    holdings.put_back(holdings.held[1])
    holdings.give_back(holdings.take())
    holdings._drop_ready()
    holdings._file([message(1)], is_counted=True)
    assert ready(holdings) == [(1, True, 1)]

"""Whether a Get takes longer than others, or everything is slow."""

from __future__ import annotations

from connector.runtime.examining import FEW, Examining


def test_one_of_few_is_late_by_itself() -> None:
    examining = Examining()
    numbers = [examining.ask() for _ in range(FEW + 1)]
    assert not examining.is_late(numbers[0])
    examining.end(numbers[1], is_served=False)
    assert examining.is_late(numbers[0])


def test_one_of_many_is_late_when_a_later_one_was_served() -> None:
    examining = Examining()
    numbers = [examining.ask() for _ in range(FEW + 4)]
    examining.end(numbers[2], is_served=True)
    assert [examining.is_late(number) for number in numbers[1:5]] == [True, False, False, False]
    examining.end(numbers[-1], is_served=False)
    assert not examining.is_late(numbers[3])

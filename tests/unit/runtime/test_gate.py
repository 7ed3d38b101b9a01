"""Who passes the gate, in which order, and what becomes of a turn that is not taken."""

from __future__ import annotations

from connector.runtime.gate import Gate


class Reader:
    """Counts how often it was its turn."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_so_many_pass_at_a_time_and_the_others_in_their_order() -> None:
    gate = Gate(2)
    readers = [Reader() for _ in range(4)]
    assert [gate.enter(reader) for reader in readers] == [True, True, False, False]
    gate.leave()
    assert [reader.woken for reader in readers] == [0, 0, 1, 0]
    assert not gate.enter(Reader())
    assert gate.enter(readers[2])


def test_who_asks_again_waits_once() -> None:
    gate = Gate(1)
    first, second, third = (Reader() for _ in range(3))
    assert gate.enter(first)
    assert not gate.enter(second)
    assert not gate.enter(second)
    assert not gate.enter(third)
    gate.leave()
    assert gate.enter(second)
    gate.leave()
    assert third.woken == 1


def test_a_turn_that_is_not_taken_goes_to_the_next() -> None:
    gate = Gate(1)
    first, second, third = (Reader() for _ in range(3))
    gate.enter(first)
    gate.enter(second)
    gate.enter(third)
    gate.leave()
    gate.withdraw(second)
    assert third.woken == 1
    assert gate.enter(third)


def test_who_withdraws_is_not_woken() -> None:
    gate = Gate(1)
    first, second = Reader(), Reader()
    gate.enter(first)
    gate.enter(second)
    gate.withdraw(second)
    gate.leave()
    assert second.woken == 0
    assert gate.enter(first)

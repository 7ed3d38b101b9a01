"""What a lease remembers when it is done with it."""

from __future__ import annotations

from connector.broker.acknowledged import CAPACITY, KNOWN_CAPACITY, Acknowledged, Repeated


def test_an_acknowledged_message_is_known_by_both_its_names() -> None:
    memory = Acknowledged()
    memory.add(7, "a")
    assert memory.knows(7, "a")
    assert not memory.knows(7, "b")
    assert not memory.knows(8, "a")
    memory.add(7, "b")  # the channel was made anew
    assert memory.knows(7, "b")
    assert memory.sequences() == {"b": 7}


def test_the_memory_is_bounded_and_keeps_the_last_few_thousand() -> None:
    memory = Acknowledged()
    for sequence in range(1, 3 * CAPACITY + 1):
        memory.add(sequence, str(sequence))
    assert len(memory.sequences()) <= 2 * CAPACITY
    assert all(memory.knows(sequence, str(sequence)) for sequence in range(2 * CAPACITY + 1, 3 * CAPACITY + 1))
    assert not memory.knows(1, "1")


def test_the_first_copy_seen_counts() -> None:
    repeated = Repeated()
    assert not repeated.is_second(1, "a")  # nobody watches
    repeated.watch("a")
    assert not repeated.is_second(3, "a")
    assert not repeated.is_second(3, "a")  # read once more
    assert repeated.is_second(4, "a")
    repeated.watch("a")  # sent a third time
    assert repeated.is_second(5, "a")


def test_the_first_copy_may_have_been_read_before() -> None:
    repeated = Repeated()
    repeated.watch("a", 3)
    assert not repeated.is_second(3, "a")
    assert repeated.is_second(4, "a")


def test_the_oldest_watched_are_forgotten() -> None:
    repeated = Repeated()
    for number in range(KNOWN_CAPACITY + 1):
        repeated.watch(str(number), 1)
    assert not repeated.is_second(2, "0")
    assert repeated.is_second(2, "1")


def test_what_is_known_to_be_repeated_outlasts_what_only_may_be() -> None:
    """It lies behind a long backlog of an earlier life, of which each message may be a second copy."""
    repeated = Repeated()
    repeated.watch("again")
    for number in range(3 * CAPACITY):
        repeated.watch_passing(f"old{number}")
        assert not repeated.is_second(number, f"old{number}")
    assert not repeated.is_second(90_000, "again")
    assert repeated.is_second(90_001, "again")
    assert repeated.is_second(90_002, f"old{3 * CAPACITY - 1}")


def test_a_first_copy_that_was_read_in_passing_stays_the_first() -> None:
    repeated = Repeated()
    repeated.watch_passing("one")
    assert not repeated.is_second(7, "one")
    repeated.watch("one")
    assert not repeated.is_second(7, "one")
    assert repeated.is_second(8, "one")


def test_a_copy_that_was_passed_on_is_the_first_wherever_older_ones_turn_up() -> None:
    repeated = Repeated()
    repeated.watch("a")
    assert not repeated.is_second(5, "a", 1)
    repeated.pass_on("a", 3)
    assert repeated.is_second(7, "a", 0)  # its place in the old channel was withheld until now
    assert [repeated.is_second(sequence, "a", 3) for sequence in (4, 4, 6)] == [False, False, True]
    assert repeated.is_second(7, "a", 0)
    repeated.pass_on("never watched", 3)
    assert not repeated.is_second(1, "never watched", 0)
    assert not repeated.is_second(2, "never watched", 0)

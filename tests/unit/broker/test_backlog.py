"""The known backlog: what raises it, what lowers it, and what a purge takes of it."""

from __future__ import annotations

import pytest

from connector.broker.backlog import AHEAD_S, AWAY_S, PURGE_PATIENCE_S, SUSPICION, Backlog


def stored(count: int) -> Backlog:
    backlog = Backlog()
    backlog.pending_count = count
    for _ in range(count):
        backlog.on_stored()
    return backlog


def test_own_stores_and_reads_are_exact() -> None:
    backlog = stored(5)
    backlog.on_read(2, 2)
    assert (backlog.count, backlog.highest_read) == (3, 2)
    backlog.on_given_back(1)
    assert backlog.count == 4
    backlog.on_read(4, 1)
    assert (backlog.count, backlog.highest_read) == (0, 2)


def test_what_is_read_before_it_is_reported_counts_when_it_is() -> None:
    """Else the report would count it as unread, and a later Get ask for more than there is."""
    backlog = stored(1)
    backlog.pending_count = 2
    backlog.on_read(2, 2)
    assert backlog.count == 0
    backlog.on_stored()
    assert backlog.count == 0
    backlog.on_stored()
    assert backlog.count == 1


def test_a_refusal_ends_the_doubt() -> None:
    backlog = stored(0)
    backlog.pending_count = 1
    backlog.on_read(1, 1)  # a native one, as it turns out
    backlog.on_refused()
    backlog.pending_count = 1
    backlog.on_stored()
    assert backlog.count == 1


def test_more_reads_than_known_are_no_debt() -> None:
    backlog = stored(1)
    backlog.on_read(5, 5)
    assert backlog.count == 0
    backlog.pending_count = 1
    backlog.on_stored()
    assert backlog.count == 1


def test_a_short_answer_ends_the_count() -> None:
    backlog = stored(5)
    backlog.on_short()
    assert backlog.count == 0


@pytest.mark.parametrize(("is_suspect", "count"), [(False, 101), (True, 42)])
def test_a_count_that_is_suspected_is_lowered_though_messages_move(is_suspect: bool, count: int) -> None:
    """Of 100 known to be unread a native client took 60; 2 were stored during the call, 1 read and 3 acknowledged."""
    backlog = stored(110)
    backlog.on_read(10, 10)
    backlog.suspicion = int(is_suspect)
    began = backlog.begin_snapshot(is_quiet=False)
    for _ in range(2):
        backlog.pending_count += 1
        backlog.on_stored()
    backlog.on_read(1, 20)
    backlog.confirmed_count += 3
    backlog.correct(48, 200, 9, began, is_quiet=False)
    assert backlog.count == count
    assert not backlog.suspicion


def test_what_may_be_acknowledged_already_lowers_no_suspected_count() -> None:
    """Of 5 stored 2 are in hand and 2 acknowledged, of which KubeMQ has heard: 3 wait, one of them unread."""
    backlog = stored(5)
    backlog.on_read(4, 4)
    backlog.suspect()
    began = backlog.begin_snapshot(is_quiet=False)
    backlog.correct(3, 5, 2, began, is_quiet=False, acked_count=2)
    assert backlog.count == 1


def test_a_suspected_count_is_lowered_until_nothing_acknowledged_can_be_in_it() -> None:
    """Of 8 stored 4 are acknowledged and a native client took 3; the first count has the 4 still in it."""
    backlog = stored(8)
    backlog.on_read(4, 4)
    backlog.suspect()
    for waiting, count in ((5, 4), (2, 2), (1, 1)):
        began = backlog.begin_snapshot(is_quiet=False)
        backlog.correct(waiting, 8, 0, began, is_quiet=False, acked_count=4)
        assert backlog.count == count
    began = backlog.begin_snapshot(is_quiet=False)
    backlog.correct(1, 8, 0, began, is_quiet=False)
    assert backlog.count == 1
    assert not backlog.suspicion
    backlog.suspect()
    for _ in range(SUSPICION):
        backlog.correct(1, 8, 0, backlog.begin_snapshot(is_quiet=False), is_quiet=False, acked_count=1)
    assert not backlog.suspicion


def test_what_is_withheld_is_never_less_than_nothing() -> None:
    backlog = stored(0)
    backlog.correct(-1, 5, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    assert (backlog.withheld, backlog.count) == (0, 0)
    backlog.correct(3, 8, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    assert backlog.count == 3


def test_a_snapshot_raises_by_what_is_certainly_unread() -> None:
    backlog = stored(2)
    backlog.on_read(1, 1)
    began = backlog.begin_snapshot(is_quiet=False)
    backlog.pending_count = 1
    backlog.confirmed_count += 1
    backlog.correct(10, 10, 3, began, is_quiet=False)
    assert backlog.count == 5  # of 10, 3 are in hand, 1 was acknowledged since, 1 may be one on its way


def test_a_snapshot_lowers_only_when_nothing_moved() -> None:
    backlog = stored(5)
    busy = backlog.begin_snapshot(is_quiet=False)
    backlog.correct(3, 5, 0, busy, is_quiet=False)
    assert backlog.count == 5
    quiet = backlog.begin_snapshot(is_quiet=True)
    backlog.pending_count = 1
    backlog.on_stored()
    backlog.correct(3, 5, 0, quiet, is_quiet=True)
    assert backlog.count == 6
    quiet = backlog.begin_snapshot(is_quiet=True)
    backlog.correct(3, 5, 0, quiet, is_quiet=False)
    assert backlog.count == 6
    backlog.correct(3, 5, 0, quiet, is_quiet=True)
    assert backlog.count == 3
    backlog.correct(3, 5, 4, quiet, is_quiet=True)
    assert backlog.count == 0


def test_a_purge_takes_what_is_there() -> None:
    backlog = stored(3)
    backlog.correct(3, 3, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    backlog.start_purge()
    assert [backlog.takes(sequence) for sequence in (1, 2, 3, 4)] == [True, True, True, False]
    assert backlog.purge_left == 0


def test_a_purge_takes_nothing_that_came_later() -> None:
    """However wrong the count: a foreign reader has taken two of five."""
    backlog = stored(5)
    backlog.correct(5, 5, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    backlog.start_purge()
    assert [backlog.takes(sequence) for sequence in (1, 4, 5)] == [True, True, True]
    assert not backlog.takes(6)
    assert backlog.purge_left == 0


def test_what_was_stored_since_the_count_is_purged_too() -> None:
    backlog = stored(2)
    backlog.correct(2, 2, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    backlog.pending_count = 1
    backlog.on_stored()
    backlog.start_purge()
    assert backlog.purge_left == 3
    assert [backlog.takes(sequence) for sequence in (1, 2, 3)] == [True] * 3


def test_where_names_are_shared_the_count_alone_decides() -> None:
    backlog = stored(2)
    backlog.correct(9, None, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    backlog.on_read(7, 7)
    backlog.start_purge()
    assert [backlog.takes(sequence) for sequence in (100, 200, 300)] == [True, True, False]


def test_a_low_count_does_not_end_a_purge() -> None:
    """After a lost link some of what is thought to be in hand is not: the count is low until the next answer."""
    backlog = stored(5)
    backlog.start_purge()
    backlog.on_short()
    backlog.correct(5, 5, 3, backlog.begin_snapshot(is_quiet=False), is_quiet=False)
    assert (backlog.count, backlog.purge_left) == (2, 5)


def test_an_exact_count_ends_a_purge_that_waits_for_more() -> None:
    backlog = stored(5)
    backlog.start_purge()
    began = backlog.begin_snapshot(is_quiet=True)
    backlog.correct(2, 5, 0, began, is_quiet=False)
    assert backlog.purge_left == 5
    backlog.correct(2, 5, 0, began, is_quiet=True)
    assert (backlog.count, backlog.purge_left) == (2, 2)


def test_what_a_count_had_already_is_not_counted_again_when_its_storer_tells() -> None:
    """A Get that asks for one too many waits a second for it."""
    backlog = Backlog()
    backlog.correct(0, 0, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    backlog.known_at = 100.0
    backlog.correct(2, 2, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    backlog.known_at = 101.0
    backlog.on_announced(1, 101.01)
    assert backlog.count == 2
    backlog.on_read(2, 2)
    backlog.on_announced(1, 101.02)
    assert backlog.count == 0
    backlog.on_announced(1, 101.03)
    assert backlog.count == 1


def test_what_natives_stored_is_not_taken_for_what_is_told_later() -> None:
    backlog = Backlog()
    backlog.known_at = 100.0
    backlog.correct(2, 2, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    backlog.on_announced(1, 100.0 + AHEAD_S)
    assert backlog.count == 3
    backlog.correct(3, 3, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    backlog.on_announced(1, 100.1)
    assert backlog.count == 4


def test_what_was_counted_and_read_as_a_natives_is_not_what_is_told_later() -> None:
    """A get on the one who reads would be answered with get-empty though the other's client has its confirm."""
    backlog = Backlog()
    backlog.correct(0, 0, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    backlog.known_at = 100.0
    backlog.correct(2, 2, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    backlog.known_at = 101.0
    assert [backlog.has_again(sequence) for sequence in (1, 2, 3)] == [True, True, False]
    backlog.on_read(2, 2)
    assert backlog.found_more
    backlog.on_announced(1, 101.01)
    assert backlog.count == 1


def quiet_count(backlog: Backlog, waiting: int, last_sequence: int, now: float) -> None:
    backlog.correct(waiting, last_sequence, 0, backlog.begin_snapshot(is_quiet=True), is_quiet=True)
    backlog.known_at = now


def test_natives_that_are_read_show_that_what_was_told_had_not_been_counted() -> None:
    backlog = Backlog()
    quiet_count(backlog, 0, 0, 100.0)
    quiet_count(backlog, 3, 3, 101.0)
    backlog.on_announced(1, 101.1)
    assert backlog.count == 3
    again = [backlog.has_again(sequence) for sequence in (1, 2, 3)]
    backlog.on_read(sum(again), 3)
    assert (again, backlog.count) == ([True, True, False], 1)


def test_natives_of_an_earlier_count_show_nothing_about_what_is_told_after_the_last_one() -> None:
    """A Get that asks for one too many waits a second for it."""
    backlog = Backlog()
    quiet_count(backlog, 0, 0, 100.0)
    quiet_count(backlog, 3, 3, 101.0)
    quiet_count(backlog, 5, 5, 101.1)
    backlog.on_announced(2, 101.2)
    assert backlog.count == 5
    assert [backlog.has_again(sequence) for sequence in (1, 2, 3)] == [True, True, True]


def test_what_was_stored_before_the_first_count_says_nothing_about_what_that_has() -> None:
    """Another connector read it, and natives have stored since: all that is there was only found."""
    backlog = Backlog()
    for _ in range(3):
        backlog.pending_count += 1
        backlog.on_stored()
    quiet_count(backlog, 3, 6, 100.0)
    assert backlog.count == 3
    again = [backlog.has_again(sequence) for sequence in (4, 5, 6)]
    backlog.on_read(sum(again), 6)
    assert (again, backlog.count) == ([True, True, True], 0)


def test_acknowledged_messages_in_a_count_make_it_unclear() -> None:
    backlog = Backlog()
    quiet_count(backlog, 0, 0, 100.0)
    backlog.correct(2, 3, 0, backlog.begin_snapshot(is_quiet=False), is_quiet=False, acked_count=2)
    assert (backlog.count, backlog.is_unclear) == (0, True)
    backlog.correct(0, 3, 0, backlog.begin_snapshot(is_quiet=False), is_quiet=False, acked_count=2)
    assert not backlog.is_unclear
    quiet_count(backlog, 1, 3, 101.0)
    assert (backlog.count, backlog.is_unclear) == (1, False)


def test_a_purge_is_not_given_up_by_the_first_look_after_an_outage() -> None:
    backlog = stored(5)
    backlog.start_purge()
    backlog.on_counted(100.0, backlog.begin_snapshot(is_quiet=True))
    assert not backlog.gives_up_purge(5, 100.0)
    after = 100.0 + AWAY_S + 1
    backlog.on_counted(after, backlog.begin_snapshot(is_quiet=True))
    assert not backlog.gives_up_purge(5, after)
    backlog.on_counted(after + PURGE_PATIENCE_S, backlog.begin_snapshot(is_quiet=True))
    assert backlog.gives_up_purge(5, after + PURGE_PATIENCE_S)
    assert backlog.unpurged_count == 5


def test_what_others_take_is_not_had_by_a_purge_and_what_it_takes_is() -> None:
    backlog = stored(5)
    backlog.start_purge()
    assert not backlog.gives_up_purge(5, 100.0)
    backlog.on_read(1, 1)  # by others: an exact count says so
    backlog.limit_purge()
    assert backlog.gives_up_purge(4, 100.0 + PURGE_PATIENCE_S)
    backlog.start_purge()
    assert not backlog.gives_up_purge(4, 100.0)
    assert backlog.takes(2)
    assert not backlog.gives_up_purge(3, 100.0 + PURGE_PATIENCE_S)

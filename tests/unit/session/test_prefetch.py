"""The prefetch ledger by itself."""

from __future__ import annotations

from connector.session.prefetch import UNLIMITED, Prefetch


def test_room_shrinks_with_use_and_comes_back() -> None:
    prefetch = Prefetch(2)
    assert prefetch.room() == 2
    prefetch.used += 2
    assert prefetch.room() == 0
    prefetch.used -= 1
    assert prefetch.room() == 1


def test_zero_is_no_limit() -> None:
    prefetch = Prefetch(0)
    prefetch.used = 1_000_000
    assert prefetch.room() == UNLIMITED


def test_a_limit_below_what_is_used_leaves_no_room() -> None:
    prefetch = Prefetch(1)
    prefetch.used = 5
    assert prefetch.room() == 0


def test_full_is_a_limit_that_is_reached() -> None:
    prefetch = Prefetch(2)
    assert not prefetch.is_full()
    prefetch.used += 2
    assert prefetch.is_full()
    prefetch.limit = 1
    assert prefetch.is_full()
    prefetch.limit = 0
    assert not prefetch.is_full()

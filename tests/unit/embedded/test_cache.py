"""The record cache: its limit, whose records go first, and exact accounting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.embedded.cache import RecordCache
from connector.embedded.records import Record


def record(size: int) -> Record:
    return Record(b"x" * size, 1)


def test_what_fits_is_kept_and_forgotten() -> None:
    cache = RecordCache(10_000)
    shelf = cache.shelf()
    kept = record(100)
    assert cache.put(shelf, 1, kept)
    assert shelf.records == {1: kept}
    assert cache.size_bytes == shelf.size_bytes > 100
    cache.forget(shelf, [1, 2])
    assert not shelf.records
    assert cache.size_bytes == shelf.size_bytes == 0


def test_a_full_queue_keeps_its_oldest() -> None:
    cache = RecordCache(10_000)
    shelf = cache.shelf()
    kept = [sequence for sequence in range(100) if cache.put(shelf, sequence, record(300))]
    assert kept == list(range(20))


def test_the_largest_queue_gives_way_with_its_newest() -> None:
    cache = RecordCache(10_000)
    large, small = cache.shelf(), cache.shelf()
    for sequence in range(100):
        cache.put(large, sequence, record(300))
    assert cache.put(small, 1, record(300))
    assert list(small.records) == [1]
    assert list(large.records) == list(range(len(large.records)))
    assert cache.size_bytes <= cache.limit_bytes


def test_a_record_too_large_for_the_cache_is_not_kept() -> None:
    cache = RecordCache(10_000)
    shelf, other = cache.shelf(), cache.shelf()
    cache.put(other, 1, record(5000))
    assert not cache.put(shelf, 1, record(20_000))
    assert list(other.records) == [1]


def test_a_discarded_queue_frees_its_share() -> None:
    cache = RecordCache(10_000)
    shelf, other = cache.shelf(), cache.shelf()
    cache.put(shelf, 1, record(500))
    cache.put(other, 1, record(300))
    cache.discard(shelf)
    assert cache.size_bytes == other.size_bytes


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4000), st.booleans())))
def test_sizes_add_up_and_stay_below_the_limit(steps: list[tuple[int, int, bool]]) -> None:
    cache = RecordCache(20_000)
    shelves = [cache.shelf() for _ in range(4)]
    for sequence, (which, size, forget) in enumerate(steps):
        if forget:
            cache.forget(shelves[which], list(shelves[which].records)[:2])
        else:
            cache.put(shelves[which], sequence, record(size))
        assert cache.size_bytes == sum(shelf.size_bytes for shelf in shelves) <= cache.limit_bytes
        for shelf in shelves:
            assert shelf.size_bytes == sum(len(kept.data) + 200 for kept in shelf.records.values())

"""What is known of a lease's streams: when one is worn, and what a lost one may have left."""

from __future__ import annotations

import pytest

from connector.broker.sharing import LOST
from connector.broker.streams import PATIENCE_S, RECYCLE_BYTES, RECYCLE_GETS, Streams
from tests.support.lease_bench import Bench


@pytest.mark.parametrize(("count", "size"), [(RECYCLE_GETS, 0), (1, RECYCLE_BYTES), (2, RECYCLE_BYTES // 2)])
def test_a_stream_is_worn_by_what_it_has_handed_out(count: int, size: int) -> None:
    streams = Streams()
    for _ in range(count):
        assert not streams.is_worn
        streams.on_get(size)
    assert streams.is_worn
    streams.renew()
    assert not streams.is_worn


def test_what_a_lost_stream_had_is_back_when_ours_is_the_only_transaction() -> None:
    streams = Streams()
    streams.lose(100.0)
    assert streams.has_remains
    assert not streams.on_count(2, 100.1)
    assert not streams.on_count(0, 100.2)
    assert streams.has_remains
    assert streams.on_count(1, 100.3)
    assert not streams.has_remains


def test_a_server_that_does_not_notice_is_not_waited_for() -> None:
    streams = Streams()
    streams.lose(100.0)
    assert not streams.on_count(2, 100.0 + PATIENCE_S - 0.1)
    assert streams.on_count(2, 100.0 + PATIENCE_S)
    streams.lose(200.0)
    streams.clear()
    assert not streams.has_remains


def test_a_lost_stream_of_ours_is_not_taken_for_another_reader() -> None:
    bench = Bench(1)
    bench.lease.streams.lose(bench.now)
    began = bench.lease.begin_snapshot()
    assert began.transaction_id == LOST
    assert not bench.lease.on_snapshot(1, began, 1, 2)
    bench.lease.streams.clear()
    assert not bench.lease.on_snapshot(1, began, 1, 2)  # counted while it may have been open
    assert not bench.lease.sharing.is_on
    assert bench.lease.on_snapshot(1, bench.lease.begin_snapshot(), 1, 2)
    assert bench.lease.sharing.is_certain
    bench.lease.streams.lose(bench.now)
    bench.lease.doubt()  # a restarted server has no stream of ours
    assert not bench.lease.streams.has_remains

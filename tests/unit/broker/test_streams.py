"""What is known of a lease's streams: when one is worn, and what a lost one may have left."""

from __future__ import annotations

import pytest

from connector.broker.sharing import LOST
from connector.broker.streams import PATIENCE_S, RECYCLE_BYTES, RECYCLE_GETS, Streams
from tests.support.lease_bench import Bench, message


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
    assert (streams.has_remains, streams.is_in_doubt) == (True, True)
    assert not streams.on_count(2, 9, 100.1)
    assert not streams.on_count(0, 9, 100.2)
    assert streams.on_count(1, 9, 100.3)
    assert (streams.has_remains, streams.is_in_doubt) == (False, True)  # what is back may come askew
    streams.clear()
    assert streams.is_wary


def test_a_server_that_does_not_notice_is_not_waited_for() -> None:
    streams = Streams()
    streams.lose(100.0)
    assert not streams.on_count(2, 9, 100.0 + PATIENCE_S - 0.1)
    assert streams.on_count(2, 9, 100.0 + PATIENCE_S)
    streams.lose(200.0)
    streams.clear()
    assert not streams.has_remains


def test_an_answer_that_does_not_go_on_where_reading_stopped_has_to_come_twice() -> None:
    def takes(*sequences: int, is_in_line: bool, now: float = 101.5) -> bool:
        return streams.takes([message(sequence) for sequence in sequences], is_in_line, now)

    streams = Streams()
    streams.lose(100.0)
    streams.on_count(1, 9, 100.1)
    assert takes(1, 2, is_in_line=True)
    assert not takes(8, 9, is_in_line=False)
    assert not takes(7, 8, is_in_line=False)
    assert takes(7, 8, is_in_line=False)
    assert takes(7, 8, 9, is_in_line=False)  # one more was stored, or asked for
    assert not streams.is_wary  # all that was there has been read
    streams.lose(101.0)
    streams.on_count(1, 9, 101.1)
    assert not takes(8, is_in_line=False)
    assert takes(is_in_line=True)
    assert streams.is_in_doubt
    assert not takes(7, is_in_line=False, now=101.0 + PATIENCE_S)
    assert takes(8, is_in_line=False, now=101.1 + PATIENCE_S)  # slow reading for long would be worse
    assert not streams.is_wary


def test_an_answer_is_in_line_with_what_is_mine_and_what_was_read() -> None:
    def is_in_line(*sequences: int) -> bool:
        return bench.lease.is_in_line([message(sequence) for sequence in sequences])

    bench = Bench(4)
    assert is_in_line(1, 2)
    assert not is_in_line(2, 3)
    assert not is_in_line(1, 3)
    bench.credit = 4
    one, two, _, _ = bench.open(1, 2, 3, 4)
    bench.lease.settle(one)
    assert bench.lease.start_move(two)
    assert is_in_line(1, 2, 3, 4)
    assert is_in_line(1, 2, 3, 4, 5, 6)
    assert not is_in_line(1, 2, 3, 4, 6)
    for missing in (1, 2, 3):
        assert not is_in_line(*{1, 2, 3, 4} - {missing})
    assert not is_in_line(5, 6)


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

"""The outbox: order, batches, what becomes of results, and of results that nobody knows."""

from __future__ import annotations

import pytest

from connector.broker.message import Message
from connector.broker.outbox import (
    BATCH_BYTES,
    BATCH_COUNT,
    HEADER_FACTOR,
    OVERHEAD_BYTES,
    Outbox,
    Submission,
    on_results,
    on_unknown,
    watch_repeated,
)
from connector.broker.queue import StoredQueue
from tests.support.broker_model import Publisher, held_queue


class Wakes:
    """Counts the calls of ``wake``."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def queue() -> StoredQueue:
    return held_queue()


@pytest.fixture
def wakes() -> Wakes:
    return Wakes()


@pytest.fixture
def outbox(wakes: Wakes) -> Outbox:
    return Outbox(wakes)


def submit(
    outbox: Outbox,
    queue: StoredQueue,
    receipt: Publisher,
    *tokens: int,
    body: bytes = b"x",
    header: bytes = b"\0\0",
) -> None:
    """Hand in one copy per token, as the queue does."""
    queue._outbox = outbox
    for token in tokens:
        queue.publish(Message("", "q", header, body), receipt, token)


def tokens(batch: list[Submission]) -> list[int]:
    return [submission.token for submission in batch]


def test_order_and_one_wake(outbox: Outbox, queue: StoredQueue, wakes: Wakes) -> None:
    submit(outbox, queue, Publisher(), 1, 2, 3)
    assert wakes.count == 1
    assert len(outbox) == 3
    assert outbox.size_bytes == 3 * (1 + 2 * HEADER_FACTOR + OVERHEAD_BYTES)
    assert tokens(outbox.take()) == [1, 2, 3]
    assert (len(outbox), outbox.size_bytes) == (0, 0)
    assert outbox.take() == []
    submit(outbox, queue, Publisher(), 4)
    assert wakes.count == 2


def test_a_batch_has_a_limit_in_count(outbox: Outbox, queue: StoredQueue) -> None:
    submit(outbox, queue, Publisher(), *range(BATCH_COUNT + 1))
    assert len(outbox.take()) == BATCH_COUNT
    assert len(outbox.take()) == 1


def test_a_batch_has_a_limit_in_bytes(outbox: Outbox, queue: StoredQueue) -> None:
    third = b"x" * (BATCH_BYTES // 3)
    submit(outbox, queue, Publisher(), 1, 2, 3, 4, body=third)
    assert tokens(outbox.take()) == [1, 2]
    assert tokens(outbox.take()) == [3, 4]


def test_a_message_over_the_limit_goes_alone(outbox: Outbox, queue: StoredQueue) -> None:
    large = b"x" * (BATCH_BYTES * 2)
    submit(outbox, queue, Publisher(), 1)
    submit(outbox, queue, Publisher(), 2, 3, body=large)
    assert [tokens(outbox.take()) for _ in range(3)] == [[1], [2], [3]]


def test_headers_count_in_batches_and_in_what_waits(outbox: Outbox, queue: StoredQueue) -> None:
    header = bytes(BATCH_BYTES // (3 * HEADER_FACTOR))
    submit(outbox, queue, Publisher(), 1, 2, 3, 4, header=header)
    waiting = outbox.size_bytes
    assert waiting > 4 * HEADER_FACTOR * len(header)
    batch = outbox.take()
    assert tokens(batch) == [1, 2]
    assert outbox.size_bytes == waiting // 2
    outbox.put_back(batch)
    assert outbox.size_bytes == waiting
    assert [tokens(outbox.take()) for _ in range(2)] == [[1, 2], [3, 4]]
    assert outbox.size_bytes == 0


def test_copies_for_a_deleted_queue_are_answered_and_left_out(outbox: Outbox, queue: StoredQueue) -> None:
    receipt = Publisher()
    submit(outbox, queue, receipt, 1, 2)
    queue.is_deleted = True
    assert outbox.take() == []
    assert receipt.stored == [1, 2]
    assert receipt.flush_count == 2
    assert outbox.size_bytes == 0
    assert queue.lease.counts.pending_count == 0


def test_results_reach_queues_and_receipts_in_order(outbox: Outbox, queue: StoredQueue) -> None:
    one, two = Publisher(), Publisher()
    submit(outbox, queue, one, 1)
    submit(outbox, queue, two, 2)
    submit(outbox, queue, one, 3, 4)
    batch = outbox.take()
    on_results(batch, ["", "no room", "", "no room"])
    assert (one.stored, one.refused, one.flush_count) == ([1, 3], [(4, "no room")], 1)
    assert (two.stored, two.refused, two.flush_count) == ([], [(2, "no room")], 1)
    assert queue.lease.backlog == 2
    assert queue.lease.counts.pending_count == 0


def test_every_message_needs_a_result(outbox: Outbox, queue: StoredQueue) -> None:
    submit(outbox, queue, Publisher(), 1)
    with pytest.raises(ValueError, match="shorter"):
        on_results(outbox.take(), [])


def test_unknown_results(outbox: Outbox, queue: StoredQueue, wakes: Wakes) -> None:
    """What is confirmed is refused, never silently sent again; the rest goes first, in order, under the same ids."""
    confirmed, plain = Publisher(), Publisher(retry=True)
    submit(outbox, queue, plain, 1)
    submit(outbox, queue, confirmed, 2)
    submit(outbox, queue, plain, 3)
    batch = outbox.take()
    submit(outbox, queue, confirmed, 4)
    on_unknown(outbox, batch, "link lost")
    assert confirmed.refused == [(2, "link lost")]
    assert confirmed.flush_count == 1
    assert (plain.stored, plain.refused) == ([], [])
    assert queue.lease.counts.pending_count == 3
    again = outbox.take()
    assert tokens(again) == [1, 3, 4]
    ids = [submission.message.message_id for submission in batch]
    assert [submission.message.message_id for submission in again[:2]] == [ids[0], ids[2]]
    assert [submission.message.redelivered for submission in again] == [True, True, False]
    assert outbox.size_bytes == 0
    assert not queue.lease.counts.is_told(1, ids[1])  # it may be stored, uncounted
    assert queue.lease.counts.is_told(1, ids[0])


def test_second_copies_are_watched_for(outbox: Outbox, queue: StoredQueue) -> None:
    submit(outbox, queue, Publisher(retry=True), 1, 2)
    batch = outbox.take()
    watch_repeated(batch)
    repeated = queue.lease.repeated
    for submission in batch:
        message_id = submission.message.message_id
        assert not repeated.is_second(7, message_id)
        assert not repeated.is_second(7, message_id)
        assert repeated.is_second(8, message_id)


class BrokenReceipt(Publisher):
    """Has a bug for one token."""

    def on_stored(self, token: int) -> None:
        if token == 2:
            raise ZeroDivisionError
        super().on_stored(token)


def test_a_receipt_that_fails_takes_none_of_the_others_along(outbox: Outbox, queue: StoredQueue) -> None:
    broken, good = BrokenReceipt(), Publisher()
    submit(outbox, queue, broken, 1, 2, 3)
    submit(outbox, queue, good, 4)
    batch = outbox.take()
    with pytest.raises(ExceptionGroup) as bugs:
        on_results(batch, [""] * 4)
    assert [type(bug) for bug in bugs.value.exceptions] == [ZeroDivisionError]
    assert (broken.stored, good.stored) == ([1, 3], [4])
    assert (broken.flush_count, good.flush_count) == (1, 1)
    assert queue.lease.backlog == 4
    submit(outbox, queue, broken, 2)
    queue.is_deleted = True
    assert outbox.take() == []
    assert [type(bug) for bug in outbox.bugs] == [ZeroDivisionError]

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connector.broker.counters import Counters
from connector.broker.message import Message
from connector.broker.outbox import HEADER_FACTOR, OVERHEAD_BYTES, Outbox, Submission
from connector.broker.ports import NotSent, Outgoing, QueueStore, ServerInfo, Unavailable
from connector.broker.queue import StoredQueue
from connector.runtime.queue_writer import STALL_S, QueueWriter
from tests.support.waiting import until

HEADER, BODY = b"\0\0", b"body"
COST = len(BODY) + HEADER_FACTOR * len(HEADER) + OVERHEAD_BYTES


class FakeQueue:
    """What a submission needs of its queue."""

    kubemq_channel = "amqp.default.q"
    is_deleted = False
    is_held = False

    def on_stored(self, message: Message) -> None: ...

    def on_dropped(self) -> None: ...

    def on_refused(self) -> None: ...

    def on_coming(self, count: int) -> None: ...

    def note_unknown(self, message_ids: list[str]) -> None: ...


class Results:
    """A receipt of a channel with confirms."""

    retry = False

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.refused: list[int] = []

    def on_stored(self, token: int) -> None:
        self.stored.append(token)

    def on_refused(self, token: int, reason: str) -> None:
        self.refused.append(token)

    def on_doubt(self, token: int) -> None: ...

    def on_unrouted(self, token: int, message: Message) -> None: ...

    def flush(self) -> None: ...


class FakeStore:
    """A KubeMQ that answers or does not; also its own lane."""

    def __init__(self) -> None:
        self.is_up = True
        self.pings = self.sent_count = 0
        self.answer = asyncio.Event()
        self.answer.set()
        self.error: Unavailable = Unavailable("down")
        self.on_check: Callable[[], None] = lambda: None
        self.messages: list[Message] = []
        self.kubemq_channels: list[str] = []

    def open_lane(self) -> FakeStore:
        return self

    def cancel(self) -> None: ...

    async def send(self, batch: Sequence[Outgoing]) -> list[str]:
        self._check()
        self.sent_count += 1
        await self.answer.wait()
        self.messages += [outgoing.message for outgoing in batch]
        self.kubemq_channels += [outgoing.kubemq_channel for outgoing in batch]
        return [""] * len(batch)

    async def ping(self) -> ServerInfo:
        self.pings += 1
        self._check()
        return ServerInfo("host", "2.4.0", 1)

    def _check(self) -> None:
        self.on_check()
        if not self.is_up:
            raise self.error


class Lane:
    """A writer at work."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.results = Results()
        self.links: list[bool] = []
        self.may_send: Callable[[], bool] = lambda: True
        self.outbox = Outbox(lambda: self.writer.wake())  # noqa: PLW0108 # the writer is made next
        self.writer = QueueWriter(
            self.outbox,
            cast("QueueStore", self.store),
            Counters(),
            settle=lambda: None,
            on_link=lambda: self.links.append(self.writer.is_failing),
            deadline_s=30.0,
            may_send=lambda: self.may_send(),  # noqa: PLW0108 # a test may replace it
        )

    def publish(self, token: int, queue: Any = None) -> None:
        queue = queue or FakeQueue()
        message = Message("", "q", HEADER, BODY, f"id {token}")
        self.outbox.append(Submission(cast("StoredQueue", queue), message, self.results, token))


@pytest.fixture
async def lane(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lane]:
    monkeypatch.setattr("connector.runtime.queue_writer.MAX_PAUSE_S", 0.01)
    lane = Lane()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(lane.writer.run())
        yield lane
        task.cancel()


async def test_what_is_published_is_stored(lane: Lane) -> None:
    lane.publish(1)
    await until(lambda: lane.results.stored == [1])
    assert lane.links == []


async def test_a_lane_with_nothing_left_to_send_notices_that_kubemq_is_back(lane: Lane) -> None:
    lane.store.is_up = False
    lane.publish(1)
    await until(lambda: lane.results.refused == [1])
    assert lane.writer.is_failing
    await until(lambda: lane.store.pings > 1)
    assert lane.writer.is_failing
    lane.store.is_up = True
    await until(lambda: not lane.writer.is_failing)
    assert lane.links == [True, False]


async def test_what_comes_while_kubemq_is_away_is_held_and_sent_in_order(lane: Lane) -> None:
    lane.store.is_up = False
    lane.publish(1)
    await until(lambda: lane.store.pings > 0)
    for token in (2, 3):
        lane.publish(token)
        tries = lane.store.pings
        await until(lambda: lane.store.pings > tries + 1)  # noqa: B023 # within the turn
    assert lane.results.refused == [1], "that one was on its way"
    await until(lambda: len(lane.outbox) == 2)
    assert lane.outbox.size_bytes == 2 * COST
    lane.store.is_up = True
    lane.publish(4)
    await until(lambda: lane.results.stored == [2, 3, 4])
    assert [message.redelivered for message in lane.store.messages] == [False] * 3
    assert not lane.writer.is_failing
    assert lane.outbox.size_bytes == 0


async def test_a_batch_that_the_stream_did_not_take_is_held(lane: Lane) -> None:
    lane.store.is_up = False
    lane.store.error = NotSent("down")
    queue = FakeQueue()
    lane.store.on_check = lambda: setattr(queue, "kubemq_channel", "amqp.default.~g1.q")
    lane.publish(1, queue)
    await tries(lane)
    assert lane.writer.is_failing
    assert lane.results.refused == []
    lane.store.is_up = True
    await until(lambda: lane.results.stored == [1])
    assert lane.store.kubemq_channels == ["amqp.default.~g1.q"], "the queue moved while the batch was under way"


async def test_each_is_held_for_the_deadline(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest decides for all; what comes after it was refused may wait as long again."""
    now = 0.0
    monkeypatch.setattr("connector.runtime.queue_writer.time", SimpleNamespace(monotonic=lambda: now))
    lane.store.is_up = False
    lane.store.error = NotSent("down")
    for token in (1, 2):
        lane.publish(token)
        await tries(lane)
        now += 29.0
        await tries(lane)
        assert lane.results.refused == list(range(1, token))
        now += 1.0
        await until(lambda: lane.results.refused == list(range(1, token + 1)))  # noqa: B023 # within the turn
        assert lane.outbox.size_bytes == 0
        now += 100.0
        await tries(lane)
    assert lane.writer.is_failing


async def test_what_waits_behind_a_request_without_an_answer_is_refused_in_time(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen KubeMQ fails no request before its own deadline."""
    now = 0.0
    monkeypatch.setattr("connector.runtime.queue_writer.time", SimpleNamespace(monotonic=lambda: now))
    lane.store.answer.clear()
    lane.publish(1)
    await until(lambda: lane.store.sent_count == 1)
    now = 5.0
    lane.publish(2)
    for at, refused in ((34.9, []), (35.0, [2])):
        now = at
        lane.writer.check_deadlines(now)
        assert lane.results.refused == refused
    lane.publish(3)
    now = 64.0
    lane.store.answer.set()
    await until(lambda: lane.results.stored == [1, 3])
    lane.writer.check_deadlines(now)
    assert lane.results.refused == [2]


async def test_what_makes_progress_is_not_refused(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long something waits: the lane is never empty, but KubeMQ answers."""
    now = 0.0
    monkeypatch.setattr("connector.runtime.queue_writer.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("connector.broker.outbox.BATCH_COUNT", 1)
    lane.store.answer.clear()
    for token in (1, 2, 3):
        lane.publish(token)
    for count in (1, 2, 3):
        await until(lambda: lane.store.sent_count == count)  # noqa: B023 # within the turn
        now += 20.0
        lane.writer.check_deadlines(now)
        lane.store.answer.set()
        lane.store.answer.clear()
    await until(lambda: lane.results.stored == [1, 2, 3])
    assert lane.results.refused == []


async def test_nothing_is_sent_while_others_may_take_us_for_dead(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.runtime.queue_writer.LAPSE_S", 0.0)
    looks: list[bool] = []

    def may_send() -> bool:
        looks.append(queue.is_deleted)
        return queue.is_deleted

    lane.may_send = may_send
    queue = FakeQueue()
    lane.publish(1, queue)
    lane.publish(2)
    await until(lambda: len(looks) > 1)
    queue.is_deleted = True  # that is known now
    await until(lambda: lane.results.stored == [1, 2])
    assert [message.message_id for message in lane.store.messages] == ["id 2"]


async def test_a_slow_kubemq_is_not_taken_for_one_that_is_away(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("connector.runtime.queue_writer.time", SimpleNamespace(monotonic=lambda: now))
    lane.writer._deadline_s = 1.0
    lane.store.answer.clear()
    lane.publish(1)
    await until(lambda: lane.store.sent_count == 1)
    lane.publish(2)
    for at, refused in ((STALL_S - 0.1, []), (STALL_S, [2])):
        now = at
        lane.writer.check_deadlines(now)
        assert lane.results.refused == refused
    lane.store.answer.set()


async def tries(lane: Lane) -> None:
    """Let the lane look for KubeMQ, and once more, so that the first look's result is dealt with."""
    before = lane.store.pings
    await until(lambda: lane.store.pings > before + 1)


async def test_what_waits_for_a_held_queue_is_refused_after_the_deadline(lane: Lane) -> None:
    """KubeMQ may go again while its queues are examined, and nothing is sent then that could fail."""
    held = FakeQueue()
    held.is_held = True
    lane.publish(1, held)
    await until(lambda: lane.outbox.aside_count == 1)
    for now, refused in ((100.0, []), (129.0, []), (130.0, [1])):
        lane.writer.check_deadlines(now)
        assert lane.results.refused == refused
    lane.publish(2, held)
    await until(lambda: lane.outbox.aside_count == 1)
    lane.writer.check_deadlines(131.0)
    assert lane.results.refused == [1, 2]
    assert (lane.outbox.size_bytes, lane.outbox.aside_count) == (0, 0)
    held.is_held = False
    lane.writer.check_deadlines(132.0)
    held.is_held = True
    lane.publish(3, held)
    await until(lambda: lane.outbox.aside_count == 1)
    lane.writer.check_deadlines(133.0)
    assert lane.results.refused == [1, 2]

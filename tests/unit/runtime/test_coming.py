"""What KubeMQ is storing is asked for before it says so; where a Get might wait in vain, it is not."""

from __future__ import annotations

import asyncio

import pytest

from connector.broker.backlog import Backlog
from connector.broker.lease import Event, State
from connector.broker.message import Message
from connector.broker.outbox import COMING_BYTES, announce, end_coming
from connector.broker.queue import StoredQueue
from tests.support.broker_model import Consumer, Publisher, held_queue
from tests.support.fake_kubemq import FakeKubeMQ
from tests.support.lease_bench import Bench
from tests.support.runtime_model import RuntimeModel
from tests.support.waiting import until


class Gates:
    """Pauses of the fake: a closed one is waited at."""

    def __init__(self) -> None:
        self.points: list[str] = []
        self._closed = ""
        self._opens = asyncio.Event()

    async def __call__(self, point: str) -> None:
        self.points.append(point)
        await asyncio.sleep(0)
        if point == self._closed:
            await self._opens.wait()

    def close(self, point: str) -> None:
        """Nobody comes by here from now on."""
        self._closed = point
        self._opens.clear()

    def open(self) -> None:
        """Who waits goes on."""
        self._closed = ""
        self._opens.set()


async def test_a_message_is_delivered_before_its_publisher_hears_that_it_is_stored() -> None:
    gates = Gates()
    async with RuntimeModel(FakeKubeMQ(gates)).running() as model:
        model.broker.delivers_early = False
        consumer = Consumer()
        model.queue.add_consumer(consumer)
        model.settle()
        await until(lambda: "count answered" in gates.points)
        gates.close("store answered")
        receipt = model.publish(b"1", b"2")
        await until(lambda: len(consumer.got) == 2)
        assert consumer.bodies == [b"1", b"2"]
        assert not receipt.stored
        assert model.queue.ready_count == 0
        gates.open()
        await until(lambda: receipt.stored == [1, 2])
        assert model.queue.ready_count == 0
        assert model.queue.lease.counts.coming_count == 0
        assert model.store.short_count == 0


async def test_what_is_refused_holds_up_one_get_and_no_more() -> None:
    """The Get that asked for it comes short; until something is stored again nothing is asked for in vain."""
    gates = Gates()
    store = FakeKubeMQ(gates)
    async with RuntimeModel(store).running() as model:
        model.broker.delivers_early = False
        consumer = Consumer()
        model.queue.add_consumer(consumer)
        model.settle()
        await until(lambda: "count answered" in gates.points)
        store.refuse = lambda _outgoing: "no"
        gates.close("store answered")
        receipt = model.publish(b"1")
        await until(lambda: store.short_count == 1)
        gets = store.channel(model.queue.kubemq_channel).get_count
        await until(lambda: model.queue.lease.state is State.IDLE)
        assert store.channel(model.queue.kubemq_channel).get_count == gets
        gates.open()
        await until(lambda: receipt.refused)
        again = model.publish(b"1")
        await until(lambda: again.refused)
        store.refuse = lambda _outgoing: ""
        model.publish(b"2")
        await until(lambda: consumer.got)
        assert consumer.bodies == [b"2"]
        assert store.short_count == 1
        gates.close("store answered")
        stored = model.publish(b"3")
        await until(lambda: len(consumer.got) == 2)
        assert not stored.stored
        gates.open()
        await until(lambda: stored.stored)


@pytest.fixture
def bench() -> Bench:
    """Two are on their way, one of them being stored."""
    bench = Bench()
    bench.lease.counts.pending_count = 2
    bench.lease.counts.coming_count = 1
    bench.credit = 5
    return bench


def test_a_get_asks_for_what_is_coming_when_nothing_else_is_there(bench: Bench) -> None:
    assert bench.lease.wants_reader()
    assert bench.begin_get() == 1
    bench.answer(1)
    assert bench.lease.reachable_count == 0
    assert bench.lease.ready_count == 1
    bench.lease.counts.on_stored()
    assert bench.lease.reachable_count == 1  # until the lane says so
    end_coming([bench.lease.counts])
    assert bench.lease.reachable_count == bench.lease.backlog == 0


def test_it_is_asked_for_together_with_what_is_known_to_be_there(bench: Bench) -> None:
    bench.lease.counts.on_stored()
    assert bench.begin_get() == 2
    bench.answer(1, 2)
    assert bench.is_in(State.OPEN)
    bench.lease.counts.on_stored()
    end_coming([bench.lease.counts])
    assert bench.lease.backlog == 0


def test_no_more_is_asked_for_than_somebody_wants(bench: Bench) -> None:
    bench.credit = 1
    bench.lease.counts.on_stored()
    assert bench.begin_get() == 1


def test_after_a_short_answer_only_what_is_known_to_be_there(bench: Bench) -> None:
    bench.lease.counts.on_stored()
    assert bench.begin_get() == 2
    bench.answer(1)
    assert bench.is_in(State.RECOVERING)
    bench.lease.counts.coming_count = bench.lease.counts.pending_count = 1
    assert bench.lease.reachable_count == 0
    bench.lease.counts.on_stored()
    assert bench.lease.reachable_count == 1


@pytest.mark.parametrize("why", ["withholds", "doubtful", "due", "withheld", "purges", "shared", "early", "unknown"])
def test_where_a_get_might_wait_in_vain_nothing_is_asked_for(bench: Bench, why: str) -> None:
    lease = bench.lease
    assert lease.reachable_count == 1
    if why == "withholds":
        lease.may_withhold = True
    elif why == "doubtful":
        lease.is_doubtful = True
    elif why == "due":
        lease.is_due = True
    elif why == "withheld":
        lease.counts.withheld = 1
    elif why == "purges":
        lease.counts.purge_left = 1
    elif why == "shared":
        lease.on_snapshot(0, lease.begin_snapshot(), 0, 2)
    elif why == "early":
        lease.early.life = "~0123456789ab"
    else:
        lease.counts.known_at = float("-inf")
    assert lease.reachable_count == 0


def test_a_short_answer_ends_it_for_this_batch(bench: Bench) -> None:
    assert bench.begin_get() == 1
    bench.answer()
    assert bench.is_in(State.RECOVERING)
    assert bench.lease.reachable_count == 0
    bench.lease.on_event(Event.CLOSED)
    assert bench.lease.recover_size(0) == 0
    bench.lease.on_event(Event.REST)
    assert bench.lease.reachable_count == 0
    assert not bench.lease.wants_reader()


class TestAnnounce:
    """Which of a batch is asked for."""

    @pytest.fixture
    def queue(self) -> StoredQueue:
        return held_queue()

    def announced(self, queue: StoredQueue, *bodies: bytes) -> list[Backlog]:
        for token, body in enumerate(bodies, 1):
            queue.publish(Message("", "q", b"\0\0", body), Publisher(), token)
        return announce(queue._outbox.take())

    def test_each_queue_once_with_its_count(self, queue: StoredQueue) -> None:
        assert self.announced(queue, b"1", b"2", b"3") == [queue.lease.counts]
        assert queue.lease.counts.coming_count == 3

    def test_not_what_takes_long_to_store(self, queue: StoredQueue) -> None:
        assert self.announced(queue, bytes(COMING_BYTES)) == []
        assert queue.lease.counts.coming_count == 0

    def test_it_ends_where_it_began(self, queue: StoredQueue) -> None:
        coming = self.announced(queue, b"1")
        before = queue.lease.counts
        queue.start_anew("amqp.default.q.1")
        end_coming(coming)
        assert before.coming_count == queue.lease.counts.coming_count == 0

    def test_not_what_another_connector_reads(self, queue: StoredQueue) -> None:
        queue.is_owned = False
        assert self.announced(queue, b"1") == []

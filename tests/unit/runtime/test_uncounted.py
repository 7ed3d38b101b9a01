"""Messages that nobody has told us of: a native producer's, and second copies of what was stored again."""

from __future__ import annotations

import asyncio

import pytest

from connector.runtime import counts as counts_module
from tests.support.broker_model import Consumer, Publisher
from tests.support.fake_kubemq import FakeKubeMQ
from tests.support.runtime_model import RuntimeModel
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody counts unasked."""
    monkeypatch.setattr(counts_module, "POLL_S", 1000.0)


async def counted(model: RuntimeModel) -> None:
    """QueuesInfo has answered."""
    told: list[bool] = []
    model.counts.refresh(lambda: told.append(True))
    await until(lambda: bool(told) and model.queue.lease.counts.known_at > 0)


async def test_ours_does_not_wait_for_a_count_because_a_native_message_lies_before_it() -> None:
    async with RuntimeModel().running() as model:
        model.broker.delivers_early = False
        consumer = Consumer(no_ack=True)
        model.queue.add_consumer(consumer)
        await counted(model)
        for body in (b"native 1", b"native 2"):
            model.store.publish_native(model.queue.kubemq_channel, body)
        model.publish(b"ours")
        await until(lambda: len(consumer.got) == 3)
        assert consumer.bodies == [b"native 1", b"native 2", b"ours"]
        assert model.queue.ready_count == 0
        assert model.store.short_count == 0


async def test_where_a_native_message_was_found_it_is_looked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "QUICK_S", 0.001)
    async with RuntimeModel().running() as model:
        consumer = Consumer(no_ack=True)
        model.queue.add_consumer(consumer)
        await counted(model)
        for number in (1, 2, 3):
            model.store.publish_native(model.queue.kubemq_channel, b"%d" % number)
            if number == 1:
                await counted(model)
            await until(lambda number=number: len(consumer.got) == number)  # type: ignore[misc]


def test_the_polls_become_rare_again_and_take_a_part_of_the_time() -> None:
    model = RuntimeModel()
    counts = model.counts
    model.broker.found_more = True
    assert counts.pause(0.0) == counts_module.QUICK_S
    assert counts.pause(0.01) == pytest.approx(0.2)
    model.broker.found_more = False
    assert counts.pause(0.0) == pytest.approx(0.3)
    assert counts.pause(0.0) == pytest.approx(0.45)
    paused_s = [counts.pause(0.0) for _ in range(30)]
    assert paused_s[-1] == counts_module.POLL_S
    model.broker.found_more = True
    assert counts.pause(1e9) == counts_module.POLL_S


async def test_what_was_nacked_but_is_stored_comes_without_a_count_by_the_way() -> None:
    lose = [True]

    async def pause(point: str) -> None:
        await asyncio.sleep(0)
        if point == "store answered" and lose:
            lose.clear()
            for lane in store.lanes:
                lane.lose()

    store = FakeKubeMQ(pause)
    async with RuntimeModel(store).running() as model:
        consumer = Consumer(no_ack=True)
        model.queue.add_consumer(consumer)
        await counted(model)
        receipt = model.publish(b"nacked")
        await until(lambda: bool(receipt.refused))
        await until(lambda: consumer.bodies == [b"nacked"])
        model.publish(b"next")
        await until(lambda: consumer.bodies == [b"nacked", b"next"])
        assert store.short_count == 0


@pytest.mark.parametrize("prefetch", [1, 5])
async def test_a_second_copy_is_dropped_although_nobody_waits(prefetch: int) -> None:
    """The first is acknowledged: whoever reads the channel in the next life would take the second for a message."""
    is_lost = asyncio.Event()

    async def pause(point: str) -> None:
        await asyncio.sleep(0)
        if point == "store answered" and not is_lost.is_set():
            is_lost.set()
            for lane in store.lanes:
                lane.lose()

    store = FakeKubeMQ(pause)
    async with RuntimeModel(store).running() as model:
        consumer = Consumer(prefetch)
        model.queue.add_consumer(consumer)
        await counted(model)
        receipt = model.publish(b"twice", receipt=Publisher(retry=True))
        await until(lambda: receipt.stored == [1])
        await until(lambda: len(consumer.got) == 1)
        model.queue.remove_consumer(consumer)
        model.queue.settle(consumer.got[0])
        model.settle()
        await until(lambda: store.channel(model.queue.kubemq_channel).info().waiting == 0)
        assert store.channel(model.queue.kubemq_channel).info().last_sequence == 2
        assert consumer.bodies == [b"twice"]

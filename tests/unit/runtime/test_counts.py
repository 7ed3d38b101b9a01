"""QueuesInfo for everybody: one call for all who asked before it began, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import time

import pytest

from connector.broker.ports import ChannelInfo, Unavailable
from connector.runtime import counts as counts_module
from connector.runtime.counts import SharedSnapshot
from tests.support.broker_model import Consumer
from tests.support.fake_kubemq import FakeKubeMQ
from tests.support.runtime_model import RuntimeModel, in_background
from tests.support.waiting import until


class Gate:
    """Holds every QueuesInfo call at its answer until opened."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.waiting = 0

    async def __call__(self, point: str) -> None:
        if point == "count answered":
            self.waiting += 1
            await self.is_open.wait()
        else:
            await asyncio.sleep(0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's deadline passes."""
    monkeypatch.setattr(counts_module, "DEADLINE_S", 1000.0)


@pytest.mark.usefixtures("patient")
async def test_one_call_for_all_who_asked_before_it_began() -> None:
    gate = Gate()
    store = FakeKubeMQ(gate)
    async with RuntimeModel(store).running(lanes=False) as model:
        told: list[int] = []
        for number in range(3):
            model.counts.refresh(lambda number=number: told.append(number))  # type: ignore[misc]
        await until(lambda: gate.waiting == 1)
        model.counts.refresh(lambda: told.append(9))  # too late for this call
        assert told == []
        gate.is_open.set()
        await until(lambda: told == [0, 1, 2, 9])
        assert store.snapshot_count == 2


@pytest.mark.usefixtures("patient")
async def test_the_counts_are_there_when_it_is_told() -> None:
    store = FakeKubeMQ()
    async with RuntimeModel(store).running() as model:
        store.publish_native(model.queue.kubemq_channel, b"1")
        counted: list[int] = []
        model.counts.refresh(lambda: counted.append(model.queue.ready_count))
        await until(lambda: counted)
        assert counted == [1]
        assert model.settle_count > 0


async def test_nobody_waits_longer_than_the_deadline() -> None:
    gate = Gate()
    async with RuntimeModel(FakeKubeMQ(gate)).running() as model:
        told: list[float] = []
        started = time.monotonic()
        model.counts.refresh(lambda: told.append(time.monotonic() - started))
        await until(lambda: told)
        assert told[0] >= counts_module.DEADLINE_S * 0.9
        gate.is_open.set()
        await until(lambda: model.queue.lease.counts.known_at > 0)
        assert len(told) == 1


async def test_who_asks_during_a_call_has_the_deadline_too() -> None:
    gate = Gate()
    async with RuntimeModel(FakeKubeMQ(gate)).running() as model:
        told: list[str] = []
        model.counts.refresh(lambda: told.append("first"))
        await until(lambda: gate.waiting == 1)
        model.counts.refresh(lambda: told.append("second"))
        await until(lambda: told == ["first", "second"])
        assert model.store.snapshot_count == 1


@pytest.mark.usefixtures("patient")
async def test_a_failed_call_answers_without_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeKubeMQ()
    store.is_up = False
    async with RuntimeModel(store).running(counts=False, lanes=False) as model:
        told: list[str] = []
        model.counts.refresh(lambda: told.append("x"))
        with pytest.raises(Unavailable):
            await model.counts.count()
        assert told == ["x"]
        assert model.queue.lease.counts.known_at < 0


async def test_readers_that_recover_together_share_one_call() -> None:
    """QueuesInfo of hundreds of channels takes KubeMQ tens of ms: who asks before a call begins shares it."""
    store = FakeKubeMQ()
    calls = 0
    snapshot = store.snapshot

    async def counting() -> list[ChannelInfo]:
        nonlocal calls
        calls += 1
        return await snapshot()

    store.snapshot = counting  # type: ignore[method-assign]
    async with RuntimeModel(store).running(counts=False, lanes=False) as model:
        await asyncio.gather(*[model.snapshot.rows() for _ in range(100)])
        assert calls == 1
        await model.snapshot.rows()
        assert calls == 2


async def test_it_goes_on_after_a_failure() -> None:
    store = FakeKubeMQ()
    store.is_up = False
    async with RuntimeModel(store).running(lanes=False) as model:
        told: list[str] = []
        model.counts.refresh(lambda: told.append("down"))
        await until(lambda: told)
        store.is_up = True
        model.queue.when_counted(lambda: told.append("up"))
        await until(lambda: told == ["down", "up"])
        assert model.queue.lease.counts.known_at > 0


async def test_somebody_who_waits_for_a_native_message_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "POLL_S", 0.01)
    async with RuntimeModel().running() as model:
        consumer = Consumer(no_ack=True)
        model.queue.add_consumer(consumer)
        await until(lambda: model.store.snapshot_count >= 3)
        model.store.publish_native(model.queue.kubemq_channel, b"native")
        await until(lambda: consumer.got)
        model.queue.remove_consumer(consumer)
        await until(lambda: not model.broker.needs_poll())
        count = model.store.snapshot_count
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            ticks += 1
            asyncio.get_running_loop().call_later(0.01, tick)

        tick()
        await until(lambda: ticks > 5)
        assert model.store.snapshot_count <= count + 1
        ticks = -(10**9)


async def test_a_bug_reaches_all_who_wait_and_ends_nobody_else() -> None:
    store = FakeKubeMQ()

    def broken() -> list[ChannelInfo]:
        raise ZeroDivisionError

    store.rows = broken  # type: ignore[method-assign]
    snapshot = SharedSnapshot(store)
    serving = in_background(snapshot.run())
    results = await asyncio.gather(snapshot.rows(), snapshot.rows(), return_exceptions=True)
    assert [type(result) for result in results] == [ZeroDivisionError] * 2
    with pytest.raises(ZeroDivisionError):
        await serving
    del store.rows
    serving = in_background(snapshot.run())
    assert await snapshot.rows() == []
    serving.cancel()
    await until(serving.cancelled)


async def test_the_end_cancels_who_waits() -> None:
    gate = Gate()
    snapshot = SharedSnapshot(FakeKubeMQ(gate))
    serving, waiting = in_background(snapshot.run()), in_background(snapshot.rows())
    await until(lambda: gate.waiting == 1)
    serving.cancel()
    await until(lambda: serving.cancelled() and waiting.cancelled())


async def test_who_is_gone_does_not_end_the_call_of_others() -> None:
    gate = Gate()
    snapshot = SharedSnapshot(FakeKubeMQ(gate))
    serving = in_background(snapshot.run())
    gone, stays = in_background(snapshot.rows()), in_background(snapshot.rows())
    await until(lambda: gate.waiting == 1)
    gone.cancel()
    gate.is_open.set()
    assert await stays == []
    serving.cancel()
    await until(serving.cancelled)

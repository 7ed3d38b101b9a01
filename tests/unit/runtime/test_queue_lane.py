"""The writer lane on the fake KubeMQ: batches that grow, results, lost links, and copies that are stored once."""

from __future__ import annotations

import asyncio

from tests.support.broker_model import Consumer, Publisher
from tests.support.fake_kubemq import FakeKubeMQ
from tests.support.runtime_model import RuntimeModel
from tests.support.waiting import until


class Gate:
    """Holds the first store request at its answer until opened."""

    def __init__(self, point: str = "store answered") -> None:
        self.point = point
        self.is_open = asyncio.Event()
        self.waiting = 0

    async def __call__(self, point: str) -> None:
        if point == self.point and not self.is_open.is_set():
            self.waiting += 1
            await self.is_open.wait()
        else:
            await asyncio.sleep(0)


async def test_batches_grow_while_a_request_is_under_way() -> None:
    gate = Gate()
    store = FakeKubeMQ(gate)
    async with RuntimeModel(store).running() as model:
        receipt = model.publish(b"0")
        await until(lambda: gate.waiting)
        model.publish(*[b"%d" % n for n in range(1, 50)], receipt=receipt)
        gate.is_open.set()
        await until(lambda: len(receipt.stored) == 50)
        assert store.batch_sizes == [1, 49]
        assert model.stored() == [b"%d" % n for n in range(50)]


async def test_a_message_that_is_refused_is_told_and_the_others_are_stored() -> None:
    store = FakeKubeMQ()
    store.refuse = lambda outgoing: "no" if outgoing.message.body == b"2" else ""
    async with RuntimeModel(store).running() as model:
        receipt = model.publish(b"1", b"2", b"3")
        await until(lambda: len(receipt.stored) == 2)
        assert receipt.refused == [(2, "no")]
        assert model.stored() == [b"1", b"3"]


async def test_a_request_that_is_refused_refuses_all_of_it() -> None:
    store = FakeKubeMQ()
    store.send_error = "Error 101"
    async with RuntimeModel(store).running() as model:
        receipt = model.publish(b"1", b"2")
        await until(lambda: len(receipt.refused) == 2)
        assert receipt.refused == [(1, "Error 101"), (2, "Error 101")]
        receipt = model.publish(b"3")
        await until(lambda: receipt.stored)


async def test_a_lost_link_refuses_what_is_confirmed() -> None:
    gate = Gate()
    store = FakeKubeMQ(gate)
    async with RuntimeModel(store).running() as model:
        receipt = model.publish(b"1")
        await until(lambda: gate.waiting)
        store.lanes[-1].lose()
        gate.is_open.set()
        await until(lambda: receipt.refused)
        assert receipt.stored == []
        assert model.counters.link_losses == 1
        later = model.publish(b"2")
        await until(lambda: later.stored)
        assert model.stored() == [b"1", b"2"]  # it was stored, only nobody knew
        consumer = Consumer()
        model.queue.add_consumer(consumer)
        await until(lambda: len(consumer.got) == 2)


async def test_a_lost_link_stores_the_rest_again_and_delivers_it_once() -> None:
    gate = Gate()
    store = FakeKubeMQ(gate)
    async with RuntimeModel(store).running() as model:
        receipt = Publisher(retry=True)
        model.publish(b"1", b"2", receipt=receipt)
        await until(lambda: gate.waiting)
        store.lanes[-1].lose()
        gate.is_open.set()
        await until(lambda: receipt.stored == [1, 2])
        model.publish(b"3", receipt=receipt)
        await until(lambda: model.stored() == [b"1", b"2", b"1", b"2", b"3"])
        consumer = Consumer(no_ack=True)
        model.queue.add_consumer(consumer)
        model.settle()
        await until(lambda: not model.stored())
        assert consumer.bodies == [b"1", b"2", b"3"]


async def test_a_link_that_is_lost_before_kubemq_saw_the_request() -> None:
    gate = Gate("store sent")
    store = FakeKubeMQ(gate)
    async with RuntimeModel(store).running() as model:
        receipt = model.publish(b"1", b"2", receipt=Publisher(retry=True))
        await until(lambda: gate.waiting)
        store.lanes[-1].lose()
        gate.is_open.set()
        await until(lambda: receipt.stored == [1, 2])
        assert model.stored() == [b"1", b"2"]


async def test_publishers_hear_of_the_link() -> None:
    store = FakeKubeMQ()
    store.is_up = False
    async with RuntimeModel(store).running() as model:
        receipt = model.publish(b"1", receipt=Publisher(retry=True))
        await until(lambda: model.links == [True])
        store.is_up = True
        await until(lambda: receipt.stored)
        await until(lambda: model.links == [True, False])


async def test_what_waits_too_long_is_refused() -> None:
    store = FakeKubeMQ()
    store.is_up = False
    async with RuntimeModel(store, deadline_s=0.05).running() as model:
        receipt = model.publish(b"1", b"2", receipt=Publisher(retry=True))
        await until(lambda: len(receipt.refused) == 2)
        assert receipt.refused[0][1] == "KubeMQ is not available"
        store.is_up = True
        later = model.publish(b"3")
        await until(lambda: later.stored)


async def test_copies_for_a_deleted_queue_are_dropped() -> None:
    gate = Gate()
    async with RuntimeModel(FakeKubeMQ(gate)).running() as model:
        receipt = model.publish(b"1")
        await until(lambda: gate.waiting)
        model.publish(b"2", receipt=receipt)
        told: list[str] = []
        model.queue.close(lambda: told.append("drained"))
        model.settle()
        gate.is_open.set()
        await until(lambda: told)
        assert receipt.stored == [1, 1]  # RabbitMQ confirms them as well
        assert model.stored() == []


async def test_a_cancelled_lane_drops_its_stream() -> None:
    model = RuntimeModel()
    async with model.running():
        receipt = model.publish(b"1")
        await until(lambda: receipt.stored)
        assert [lane.is_gone for lane in model.store.lanes] == [False]
    assert [lane.is_gone for lane in model.store.lanes] == [True]


class BrokenReceipt(Publisher):
    """Has a bug for one token."""

    def on_stored(self, token: int) -> None:
        if token == 2:
            raise ZeroDivisionError
        super().on_stored(token)


async def test_a_receipt_that_fails_is_a_bug_of_its_own() -> None:
    store = FakeKubeMQ()
    async with RuntimeModel(store).running() as model:
        receipt = model.publish(b"1", b"2", b"3", receipt=BrokenReceipt())
        await until(lambda: receipt.stored == [1, 3])
        later = model.publish(b"4")
        await until(lambda: later.stored)
        assert len(store.lanes) == 1, "the lane went on"
        assert model.counters.internal_errors == 1
        model.counters.internal_errors = 0  # this one was expected

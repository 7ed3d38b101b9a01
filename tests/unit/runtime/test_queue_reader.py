"""The reader as a task on the fake KubeMQ: every step, every failure, and its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connector.broker.lease import Event, State
from connector.broker.streams import RECYCLE_GETS
from connector.runtime import queue_reader
from tests.support.broker_model import Consumer
from tests.support.fake_kubemq import FakeKubeMQ
from tests.support.runtime_model import RuntimeModel
from tests.support.waiting import until


async def test_what_is_published_is_delivered_acknowledged_and_proven() -> None:
    async with RuntimeModel().running() as model:
        consumer = Consumer()
        model.queue.add_consumer(consumer)
        receipt = model.publish(b"1", b"2", b"3")
        await until(lambda: len(consumer.got) == 3)
        assert consumer.bodies == [b"1", b"2", b"3"]
        assert receipt.stored == [1, 2, 3]
        for message in consumer.got:
            model.queue.settle(message)
        model.settle()
        await until(lambda: not model.queue.lease.sent and model.queue.lease.state is State.IDLE)
        assert model.stored() == []
        assert model.store.short_count == 0
        assert model.counters.kubemq_requests > 0


async def test_many_messages_through_a_small_prefetch_in_order() -> None:
    async with RuntimeModel().running() as model:
        consumer = Consumer(3)
        model.queue.add_consumer(consumer)
        bodies = [b"%d" % n for n in range(200)]
        model.publish(*bodies)
        seen: list[bytes] = []
        while len(seen) < 200:
            await until(lambda: consumer.got)
            message = consumer.got.pop(0)
            seen.append(message.body)
            model.queue.settle(message)
            model.settle()
        assert seen == bodies
        await until(lambda: not model.stored())
        assert model.store.short_count == 0


async def test_a_held_message_does_not_hold_up_the_others() -> None:
    async with RuntimeModel().running() as model:
        slow, fast = Consumer(1), Consumer(1)
        model.queue.add_consumer(slow)
        model.queue.add_consumer(fast)
        model.publish(*[b"%d" % n for n in range(20)])
        done = 0
        while done < 19:
            await until(lambda: fast.got)
            model.queue.settle(fast.got.pop())
            model.settle()
            done += 1
        assert slow.bodies == [b"0"]
        await until(lambda: model.stored() == [b"0"])


async def test_the_reader_ends_when_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_reader, "IDLE_S", 0.02)
    async with RuntimeModel().running() as model:
        consumer = Consumer(no_ack=True)
        model.queue.add_consumer(consumer)
        model.publish(b"1")
        await until(lambda: consumer.got)
        await until(lambda: not model.readers)
        assert model.store.streams == []
        model.publish(b"2")
        await until(lambda: len(consumer.got) == 2)
        assert model.reader_count >= 2


async def test_a_wake_up_keeps_the_idle_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    async with RuntimeModel().running() as model:
        consumer = Consumer(no_ack=True)
        model.queue.add_consumer(consumer)
        model.publish(b"1")
        await until(lambda: consumer.got and model.queue.lease.is_idle)
        reader = model.readers[model.queue]
        for _ in range(3):
            reader.wake()
            await asyncio.sleep(0)
        assert model.readers[model.queue] is reader
        assert model.reader_count == 1


async def test_a_lost_stream_is_opened_again_and_everything_linked() -> None:
    async with RuntimeModel().running() as model:
        consumer = Consumer(2)
        model.queue.add_consumer(consumer)
        model.publish(*[b"%d" % n for n in range(6)])
        await until(lambda: len(consumer.got) == 2)
        for stream in list(model.store.streams):
            stream.lose()
        model.queue.settle(consumer.got.pop(0))
        model.settle()
        await until(lambda: len(consumer.got) == 2)
        assert consumer.bodies == [b"1", b"2"]
        assert [message.redelivered for message in consumer.got] == [False, False]
        while consumer.got:
            model.queue.settle(consumer.got.pop(0))
            model.settle()
            await until(lambda: consumer.got or not model.stored())
        assert model.counters.link_losses >= 1
        assert model.stored() == []


async def test_it_goes_on_trying_while_kubemq_is_away() -> None:
    async with RuntimeModel().running() as model:
        consumer = Consumer()
        model.queue.add_consumer(consumer)
        model.publish(b"1", b"2")
        await until(lambda: len(consumer.got) == 2)
        model.store.is_up = False
        model.queue.settle(consumer.got.pop(0))
        model.settle()
        await until(lambda: model.counters.link_losses >= 3)
        model.store.is_up = True
        await until(lambda: model.stored() == [b"2"])
        await until(lambda: model.queue.lease.state is State.OPEN)
        assert list(model.queue.lease.held.values()) == consumer.got


async def test_a_refused_get_is_tried_again() -> None:
    async with RuntimeModel().running() as model:
        consumer = Consumer()
        model.store.get_error = "queue poll failed"
        model.queue.add_consumer(consumer)
        model.publish(b"1")
        await until(lambda: consumer.got)
        assert model.counters.kubemq_errors == 1


async def test_a_refused_acknowledgement_drops_the_stream() -> None:
    async with RuntimeModel().running() as model:
        consumer = Consumer()
        model.queue.add_consumer(consumer)
        model.publish(b"1", b"2")
        await until(lambda: len(consumer.got) == 2)
        [transaction] = model.store.channel(model.queue.kubemq_channel).open
        transaction.close()  # the server has ended it without a word
        streams = model.store.stream_count
        model.queue.settle(consumer.got.pop(0))
        model.settle()
        await until(lambda: model.stored() == [b"2"])
        assert model.store.stream_count == streams + 1
        await until(lambda: model.queue.lease.state is State.OPEN)
        assert list(model.queue.lease.held.values()) == consumer.got


async def test_too_large_an_answer() -> None:
    store = FakeKubeMQ()
    store.limit_bytes = 50
    async with RuntimeModel(store).running() as model:
        consumer = Consumer()
        model.queue.add_consumer(consumer)
        bodies = [b"%010d" % n for n in range(20)]
        model.publish(*bodies)
        seen: list[bytes] = []
        while len(seen) < 20:
            await until(lambda: consumer.got)
            while consumer.got:
                message = consumer.got.pop(0)
                seen.append(message.body)
                model.queue.settle(message)
            model.settle()
        assert seen == bodies
        assert store.too_much_count > 0


async def test_the_recovery_counts_after_its_acknowledgements_have_arrived() -> None:
    """Else what is on its way would be counted as still there."""
    points: list[str] = []

    async def pause(point: str) -> None:
        points.append(point)
        await asyncio.sleep(0)

    async with RuntimeModel(FakeKubeMQ(pause, is_lazy=True)).running(counts=False) as model:
        model.broker.on_snapshot(model.broker.begin_snapshot(), [])
        consumer = Consumer(no_ack=True)
        model.publish(b"1", b"2", b"3")
        await until(lambda: len(model.stored()) == 3)
        model.store.channel(model.queue.kubemq_channel).remove(2)  # the answer will be short
        model.queue.add_consumer(consumer)
        model.settle()
        await until(lambda: "count answered" in points)
        at = points.index("count sent")
        assert points[at - 2 : at] == ["barrier sent", "barrier answered"]
        await until(lambda: model.queue.lease.state is State.IDLE)
        assert consumer.bodies == [b"1", b"3"]


async def test_streams_are_renewed_behind_a_barrier() -> None:
    async with RuntimeModel().running() as model:
        consumer = Consumer(1)
        model.queue.add_consumer(consumer)
        model.publish(b"1", b"2")
        await until(lambda: consumer.got)
        model.queue.lease.streams._gets = RECYCLE_GETS
        barriers = model.store.barrier_count
        model.queue.settle(consumer.got.pop())
        model.settle()
        await until(lambda: consumer.got)
        assert model.store.stream_count == 2
        assert model.store.barrier_count == barriers + 1
        assert len(model.store.streams) == 1


@pytest.mark.parametrize("skipped", [0, 2])
async def test_after_an_answer_that_was_too_large_nothing_newer_comes_first(skipped: int) -> None:
    store = FakeKubeMQ(is_slow=True)
    store.limit_bytes = 5
    async with RuntimeModel(store).running() as model:
        channel = store.channel(model.queue.kubemq_channel)
        model.publish(*[b"%d" % n for n in range(9)])
        await until(lambda: len(channel.stored) == 9)
        consumer = Consumer(6)
        model.queue.add_consumer(consumer)
        model.settle()
        await until(lambda: channel.get_count > 2)  # too much, and then what is newer
        assert store.too_much_count == 1
        assert not consumer.got
        assert not model.queue.lease.sharing.is_on
        channel.out_of_turn = skipped
        store.take_back()
        await until(lambda: len(consumer.got) >= 3)
        assert consumer.bodies == [b"%d" % n for n in range(len(consumer.got))]
        assert not any(message.redelivered for message in consumer.got)


@pytest.mark.parametrize("acknowledged", [(), (1, 3)])
@pytest.mark.parametrize("is_new_life", [False, True])
async def test_what_was_given_back_keeps_its_order(is_new_life: bool, acknowledged: tuple[int, ...]) -> None:
    """KubeMQ may send the rest of what a closed transaction had to the next but one Get, before it begins anew."""
    model = RuntimeModel()
    store, read = model.store, [b"%d" % n for n in range(9) if n not in acknowledged]
    async with model.running():
        model.publish(*[b"%d" % n for n in range(9)])
        all_of_it = Consumer(9)
        model.queue.add_consumer(all_of_it)
        model.settle()
        await until(lambda: len(all_of_it.got) == 9)
        model.queue.remove_consumer(all_of_it)
        for n in acknowledged:
            model.queue.settle(all_of_it.got[n])
        for n in sorted({*range(9)} - {*acknowledged}, reverse=True):
            model.queue.lease.put_back(all_of_it.got[n])
        model.settle()
        await until(lambda: model.queue.lease.state is State.IDLE)
        if not is_new_life:
            await _read_out_of_turn(model, read)
    if is_new_life:
        model = RuntimeModel(store)
        async with model.running():
            await _read_out_of_turn(model, read)


async def _read_out_of_turn(model: RuntimeModel, bodies: list[bytes]) -> None:
    channel = model.store.channel(model.queue.kubemq_channel)
    consumer, got = Consumer(1), []
    channel.out_of_turn = 4
    model.queue.add_consumer(consumer)
    for _ in bodies:
        model.settle()
        await until(lambda: consumer.got)
        channel.out_of_turn = 2
        got += consumer.bodies
        model.queue.settle(consumer.got.pop())
    assert got == bodies


async def test_who_waits_for_proof_gets_it() -> None:
    async with RuntimeModel().running() as model:
        consumer = Consumer()
        model.queue.add_consumer(consumer)
        model.publish(b"1", b"2")
        await until(lambda: len(consumer.got) == 2)
        told: list[str] = []
        model.queue.settle(consumer.got[0])
        model.queue.lease.when_flushed(lambda: told.append("one"))
        model.settle()
        await until(lambda: told)
        assert model.stored() == [b"2"]
        model.queue.settle(consumer.got[1])
        model.queue.lease.when_flushed(lambda: told.append("two"))
        model.settle()
        await until(lambda: told == ["one", "two"])
        assert model.stored() == []


async def test_what_nobody_takes_goes_back() -> None:
    async with RuntimeModel().running() as model:
        answers: list[Any] = []
        model.publish(*[b"%d" % n for n in range(8)])
        await until(lambda: len(model.stored()) == 8)
        model.queue.get(answers.append)
        model.settle()
        await until(lambda: answers)
        message, left = answers[0]
        assert left == 7
        model.queue.settle(message)
        model.settle()
        await until(lambda: model.queue.lease.state is State.IDLE)
        assert model.queue.ready_count == 7
        assert not model.store.channel(model.queue.kubemq_channel).open


async def test_a_reader_takes_over_from_one_that_failed() -> None:
    """Whatever that one was doing: its stream is gone."""
    async with RuntimeModel().running() as model:
        model.publish(b"1")
        await until(lambda: model.stored() == [b"1"])
        lease = model.queue.lease
        lease.on_event(Event.CLOSED)
        lease.get_size()
        lease.on_event(Event.GET_SENT)
        assert lease.state is State.GETTING
        consumer = Consumer()
        model.queue.add_consumer(consumer)
        model.settle()
        await until(lambda: consumer.got)


async def test_cancelling_the_reader_drops_its_stream() -> None:
    model = RuntimeModel()
    async with model.running():
        consumer = Consumer()
        model.queue.add_consumer(consumer)
        model.publish(b"1")
        await until(lambda: consumer.got)
        assert len(model.store.streams) == 1
    assert model.store.streams == []
    assert model.store.channel(model.queue.kubemq_channel).available() == [1]


async def test_a_foreign_reader_leaves_less_than_counted() -> None:
    """The answer is short; what came is delivered, and the count is taken afresh."""
    async with RuntimeModel().running() as model:
        model.publish(b"1", b"2", b"3")
        await until(lambda: len(model.stored()) == 3)
        model.store.channel(model.queue.kubemq_channel).remove(2)
        consumer = Consumer()
        model.queue.add_consumer(consumer)
        model.settle()
        await until(lambda: len(consumer.got) == 2)
        await until(lambda: model.queue.lease.state is State.OPEN)
        assert model.queue.ready_count == 0
        model.publish(b"4")
        await until(lambda: consumer.bodies == [b"1", b"3", b"4"])

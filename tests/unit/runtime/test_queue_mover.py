"""A crash of KubeMQ, with what it withholds, under a whole runtime: who gets what, and where the queue goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from connector.broker import streams
from connector.broker.generations import Left, queue_moving, queue_rescued
from connector.broker.message import Message
from connector.broker.ports import Answer
from connector.broker.topology import encode_event, name_event
from connector.runtime import queue_mover
from connector.runtime.queue_view import BrokerQueues
from tests.support.fake_kubemq import FakeKubeMQ, FakeStream, FakeTopologyLog, FakeTransaction
from tests.support.running import BASE, FIRST, SECOND, Running, running
from tests.support.waiting import until


@pytest.fixture
async def world() -> AsyncIterator[Running]:
    store, log = FakeKubeMQ(), FakeTopologyLog()
    async with running(store, log) as world:
        await world.declare()
        yield world


async def test_a_crash_that_withholds_nothing_moves_nothing(world: Running) -> None:
    await world.publish(20)
    consumer = world.consume(3)
    await until(lambda: len(consumer.held) == 3)
    world.store.crash(withholds=False)
    await world.ping()
    await world.publish(5)
    await world.ack_all(consumer, 25)
    assert [body for body, _ in consumer.seen] == [b"%d" % n for n in range(1, 26)]
    assert not any(flag for _, flag in consumer.seen[:20])  # the others were sent twice
    assert world.queue.kubemq_channel == BASE
    await until(lambda: not world.stored(BASE))


async def test_a_queue_moves_away_from_what_a_crashed_server_withholds(world: Running) -> None:
    await world.publish(20)
    consumer = world.consume(3)
    await until(lambda: len(consumer.held) == 3)
    world.store.crash(withholds=True)
    await world.ping()
    await world.publish(5)
    assert world.queue.kubemq_channel == SECOND
    world.ack(consumer, 1)
    await world.ack_all(consumer, 25)
    assert sorted(int(body) for body, _ in consumer.seen) == list(range(1, 26))
    assert len(consumer.seen) == 25
    await until(lambda: not world.stored(FIRST))
    generations = world.hub.broker.topology.queues["default", "q"].generations
    assert (generations.current, generations.moving) == (2, {})


async def test_a_channel_made_anew_has_nothing_of_what_was_left_in_the_one_before(world: Running) -> None:
    world.queue.lease.left.note(Left(0, [4], 3, 0, 1_000))
    world.store.now = 100_000
    await world.publish(6)
    channel = world.store.channel(BASE)
    dead = FakeTransaction("dead", channel, 1)
    channel.open.append(dead)
    channel.fill()
    world.store.crash(withholds=False)
    world.store.zombies.append(dead)
    await world.ping()
    await until(lambda: world.queue.kubemq_channel == SECOND and not world.queue.is_moving)
    consumer = world.consume(5)
    await world.ack_all(consumer, 5)
    assert sorted(int(body) for body, _ in consumer.seen) == list(range(2, 7))
    left = world.hub.broker.topology.queues["default", "q"].generations.left[0]
    assert left == Left(1, [], 0, 0, 100_000)


async def test_what_is_withheld_is_counted_and_comes_back_after_a_rescue(world: Running) -> None:
    await world.publish(10)
    consumer = world.consume(2)
    await until(lambda: len(consumer.held) == 2)
    channel = world.store.channel(BASE)
    channel.open[0].capacity = 6  # the dead subscription has more than was shown
    channel.fill()
    world.store.crash(withholds=True)
    await world.ping()
    await until(lambda: world.queue.kubemq_channel == SECOND and not world.queue.is_moving)
    await world.ack_all(consumer, 6)
    withheld = world.queue.older[0].lease.counts.withheld
    assert withheld == 6
    assert world.queue.ready_count == 0
    (row,) = await BrokerQueues(world.hub.broker, world.hub.counts.count).rows("/")
    assert (row["messages"], row["kubemq"]["channel"], row["kubemq"]["moving"]) == (0, SECOND, [])
    channels = row["kubemq"]["channels"]
    withheld_in = [(channel["name"], channel["generation"], channel["messages_withheld"]) for channel in channels]
    assert withheld_in == [(BASE, 0, 4), (FIRST, 1, 0), (SECOND, 2, 0)]  # the two that were held live on as copies
    world.store.rescue()
    world.hub.broker.append(queue_rescued("default", "q"), lambda _result: None)
    await world.ack_all(consumer, 10)
    assert sorted(int(body) for body, _ in consumer.seen) == list(range(1, 11))
    await until(lambda: not world.stored(BASE))


async def test_nothing_is_given_to_the_dead_while_a_deep_queue_is_read(
    world: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a transaction hands what waits to whoever has room: none ends before all is read."""
    monkeypatch.setattr(queue_mover, "READ_COUNT", 4)
    await world.publish(30)
    consumer = world.consume(2)
    await until(lambda: len(consumer.held) == 2)
    dead = world.store.channel(BASE).open[0]
    world.store.crash(withholds=True)
    dead.capacity, dead.is_late = 100, True
    await world.ping()
    await world.ack_all(consumer, 30)
    assert sorted(int(body) for body, _ in consumer.seen) == list(range(1, 31))
    assert not dead.parked


async def test_nobody_waits_while_it_is_looked_whether_a_restart_has_freed_something(
    world: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KubeMQ takes a second for saying that there is nothing: what is behind goes on."""
    await world.publish(10)
    consumer = world.consume(20)
    await until(lambda: len(consumer.held) == 10)
    channel = world.store.channel(BASE)
    world.ack(consumer, 10)
    await until(lambda: not world.stored(BASE))
    world.queue.remove_consumer(consumer)
    await world.publish(4)
    world.store.crash(withholds=False)
    dead = FakeTransaction("dead", channel, 4)
    channel.open.append(dead)
    channel.fill()
    world.store.zombies.append(dead)
    consumer = world.consume(20)
    await world.ping()
    await until(lambda: world.queue.older and world.queue.older[0].lease.counts.withheld == 4)
    asked, answer = asyncio.Event(), asyncio.Event()
    real_get = FakeStream.get

    async def get(stream: FakeStream, kubemq_channel: str, max_items: int) -> Answer:
        if kubemq_channel == BASE:
            asked.set()
            await answer.wait()
        return await real_get(stream, kubemq_channel, max_items)

    monkeypatch.setattr(FakeStream, "get", get)
    world.store.crash(withholds=False)
    await world.ping()
    await until(asked.is_set)
    await world.publish(3)
    await until(lambda: len(consumer.seen) == 3)
    world.store.rescue()
    answer.set()
    await world.ack_all(consumer, 7)


async def test_held_messages_can_be_requeued_over_a_move(world: Running) -> None:
    await world.publish(4)
    consumer = world.consume(2)
    await until(lambda: len(consumer.held) == 2)
    world.store.crash(withholds=True)
    await world.ping()
    requeued, consumer.held = consumer.held, []
    world.queue.requeue(requeued)
    world.hub.settle()
    await until(lambda: world.queue.kubemq_channel == SECOND)
    await world.ack_all(consumer, 6)
    again = [int(body) for body, flag in consumer.seen if flag]
    assert again == [1, 2]
    await until(lambda: not world.stored(FIRST))


async def test_a_move_that_was_interrupted_is_done_at_the_next_start() -> None:
    store, log = FakeKubeMQ(), FakeTopologyLog()
    async with running(store, log) as world:
        await world.declare()
        await world.publish(6)
    log.events.append(encode_event({"v": 1, "id": "x", **queue_moving("default", "q", 0, 1, "withheld")}))
    async with running(store, log) as world:
        await until(lambda: world.queue.kubemq_channel == SECOND)
        consumer = world.consume(10)
        await world.ack_all(consumer, 6)
        assert [body for body, _ in consumer.seen] == [b"%d" % n for n in range(1, 7)]
    async with running(store, log) as world:
        assert world.queue.kubemq_channel == SECOND
        assert world.queue.sources[0].kubemq_channel == BASE


async def test_a_queue_deleted_during_its_move_leaves_no_copies(world: Running) -> None:
    """Whoever declares the name again would get them."""
    await world.publish(6)
    consumer = world.consume(2)
    await until(lambda: len(consumer.held) == 2)
    stopped, go_on = asyncio.Event(), asyncio.Event()

    async def gate(point: str) -> None:
        if point == "store answered" and not go_on.is_set():
            stopped.set()
            await go_on.wait()

    world.store.pause = gate
    world.store.crash(withholds=True)
    await world.ping()
    await stopped.wait()
    assert world.stored(FIRST)
    deleted: list[object] = []
    vhost = world.hub.broker.virtual_host("/")
    vhost.delete_queue("q", None, if_unused=False, if_empty=False, done=deleted.append)
    world.hub.settle()
    await until(lambda: "q" not in vhost.queues)
    go_on.set()
    world.store.rescue()
    await until(lambda: not world.stored(FIRST))
    await until(lambda: deleted)
    await world.declare()
    await world.publish(1)
    again = world.consume(10)
    await world.ack_all(again, 1)
    assert [body for body, _ in again.seen] == [b"7"]


async def test_copies_of_a_move_whose_queue_was_deleted_go_at_the_next_start() -> None:
    store, log = FakeKubeMQ(), FakeTopologyLog()
    async with running(store, log) as world:
        await world.declare()
        await world.publish(3)
    for event in (queue_moving("default", "q", 0, 1, "withheld"), name_event("queue.deleted", "default", "q")):
        log.events.append(encode_event({"v": 1, "id": "x", **event}))
    store.publish_native(FIRST, b"copy")
    async with running(store, log) as world:
        await until(lambda: not world.stored(FIRST) and not world.stored(BASE))


async def test_native_messages_in_the_first_channel_still_come_after_a_move(world: Running) -> None:
    await world.publish(4)
    consumer = world.consume(4)
    await until(lambda: len(consumer.held) == 4)
    world.store.crash(withholds=True)
    await world.ping()
    await world.ack_all(consumer, 4)
    await until(lambda: world.queue.kubemq_channel == SECOND)
    world.store.publish_native(BASE, b"native")
    world.hub.counts.refresh(lambda: None)
    await world.ack_all(consumer, 5)
    assert consumer.seen[-1][0] == b"native"


class Gate:
    """Holds up what passes a point of the fake, until opened."""

    def __init__(self, store: FakeKubeMQ, point: str) -> None:
        self.is_reached = False
        self._open = asyncio.Event()
        self._point = point
        self._before = store.pause
        store.pause = self._pass

    async def _pass(self, point: str) -> None:
        await self._before(point)
        if point == self._point and not self._open.is_set():
            self.is_reached = True
            await self._open.wait()

    def open(self) -> None:
        self._open.set()


async def restart_of_many(world: Running, count: int) -> None:
    """So many queues are in doubt: with a message in each the server was started anew."""
    queues = world.hub.broker.virtual_host("/").queues
    for number in range(count):
        await world.declare(f"q{number}")
        queues[f"q{number}"].publish(Message("", "", b"\0\0", b"old"), world.publisher, 0)
    world.hub.settle()
    await until(lambda: len(world.publisher.stored) == count)
    world.store.crash(withholds=False)


async def doubts_end(world: Running) -> None:
    """Until every queue is examined, or has begun to move."""
    await until(lambda: not any(source.lease.is_doubtful for source in world.hub.broker.sources()))


async def test_many_queues_share_what_is_counted_after_a_restart(world: Running) -> None:
    """KubeMQ takes the longer for a count, the more channels there are."""
    await restart_of_many(world, 40)
    count = world.store.snapshot_count
    await world.ping()
    await doubts_end(world)
    assert world.store.snapshot_count - count <= 10
    assert world.hub.broker.recovery.move_count == 0


@pytest.mark.parametrize("point", ["count sent", "count answered", "get answered"])
async def test_a_slow_machine_moves_nothing(world: Running, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Only a Get that takes longer than later ones tells of messages that are withheld."""
    monkeypatch.setattr(queue_mover, "EARLY_S", 0.05)
    await restart_of_many(world, 10)
    gate = Gate(world.store, point)
    await world.ping()
    await until(lambda: gate.is_reached)
    loop = asyncio.get_running_loop()
    late = loop.time() + 0.1
    await until(lambda: loop.time() > late)
    gate.open()
    await doubts_end(world)
    assert world.hub.broker.recovery.move_count == 0


async def test_publishing_waits_neither_for_a_short_get_nor_for_the_copies(world: Running) -> None:
    await world.publish(20)
    consumer = world.consume(3)
    await until(lambda: len(consumer.held) == 3)
    world.store.crash(withholds=True)
    gate = Gate(world.store, "get answered")
    await world.ping()
    await until(lambda: gate.is_reached)
    await world.publish(5)
    assert world.stored(SECOND) == [b"21", b"22", b"23", b"24", b"25"]
    assert not world.stored(FIRST)
    assert world.queue.is_moving
    gate.open()
    await world.ack_all(consumer, 25)
    assert [int(body) for body, _ in consumer.seen] == list(range(1, 26))


@pytest.mark.parametrize("arrives", [True, False])
async def test_acknowledgements_in_the_moment_of_a_crash_leave_nothing_unread(world: Running, arrives: bool) -> None:
    """Where they have arrived and nobody knows, as many others would stay behind, and not even be counted."""
    await world.publish(10)
    consumer = world.consume(4)
    await until(lambda: len(consumer.held) == 4)
    (dead,) = world.store.channel(BASE).open
    dead.is_late, world.store.is_lazy = True, not arrives
    gate = Gate(world.store, "ack written")
    world.ack(consumer, 2)
    await until(lambda: gate.is_reached)
    dead.capacity = len(dead.unacked)
    assert dead.capacity == (2 if arrives else 4)
    world.store.crash(withholds=True)
    world.store.is_lazy = False
    shorts = world.store.short_count
    gate.open()
    await world.ping()
    await until(lambda: world.queue.kubemq_channel == SECOND and not world.queue.is_moving)
    assert world.store.short_count == shorts  # each takes a second
    await world.ack_all(consumer, 10)
    assert len(world.stored(BASE)) == dead.capacity
    assert all(source.lease.unreadable_count == 0 for source in world.queue.sources)


@pytest.mark.parametrize("arrives", [True, False])
async def test_what_nobody_has_seen_is_counted_whatever_became_of_acknowledgements(
    world: Running, arrives: bool
) -> None:
    """Those that arrived leave as many fewer with the dead, which has three that it never handed over."""
    await world.publish(10)
    consumer = world.consume(4)
    await until(lambda: len(consumer.held) == 4)
    channel = world.store.channel(BASE)
    (dead,) = channel.open
    dead.is_late, world.store.is_lazy = True, not arrives
    gate = Gate(world.store, "ack written")
    world.ack(consumer, 2)
    await until(lambda: gate.is_reached)
    dead.capacity, dead.is_late = len(dead.unacked) + 3, False
    channel.fill()
    world.store.crash(withholds=True)
    world.store.is_lazy = False
    gate.open()
    await world.ping()
    await until(lambda: world.queue.kubemq_channel == SECOND and not world.queue.is_moving)
    assert world.hub.broker.topology.queues["default", "q"].generations.left[0].unreadable == 3
    await world.ack_all(consumer, 7)
    assert sum(source.lease.unreadable_count for source in world.queue.sources) == 3
    world.store.rescue()
    world.hub.broker.append(queue_rescued("default", "q"), lambda _result: None)
    await world.ack_all(consumer, 10)
    assert sorted({int(body) for body, _ in consumer.seen}) == list(range(1, 11))


async def test_what_was_copied_is_moved_again_when_the_server_crashes_again(world: Running) -> None:
    await world.publish(12)
    consumer = world.consume(2)
    await until(lambda: len(consumer.held) == 2)
    for crash in range(1, 4):
        world.store.crash(withholds=True)
        await world.ping()
        await world.publish(2)
        await until(lambda: not world.queue.is_moving and not world.queue.is_held)
        world.ack(consumer, 1)
        await until(lambda crash=crash: len(consumer.seen) == 2 + crash)  # type: ignore[misc]
    await world.ack_all(consumer, 18)
    assert [int(body) for body, _ in consumer.seen] == list(range(1, 19))
    assert all(source.lease.unreadable_count == 0 for source in world.queue.sources)
    world.store.rescue()
    world.hub.broker.append(queue_rescued("default", "q"), lambda _result: None)

    def is_small() -> bool:
        world.hub.counts.refresh(lambda: None)
        return len(world.queue.sources) == 2  # the first one, for natives, and the one that is written to

    await until(is_small)
    assert len(consumer.seen) == 18


async def test_a_queue_that_is_deleted_while_it_moves_leaves_nothing(world: Running) -> None:
    await world.publish(6)
    consumer = world.consume(1)
    await until(lambda: len(consumer.held) == 1)
    world.store.crash(withholds=False)
    world.queue.lease.is_due = True
    gate = Gate(world.store, "store sent")
    await world.ping()
    await until(lambda: gate.is_reached)
    results: list[object] = []
    world.hub.broker.virtual_host("/").delete_queue("q", None, False, False, results.append)
    world.hub.settle()
    await until(lambda: ("default", "q") not in world.hub.broker.topology.queues)
    gate.open()
    await until(lambda: bool(results))
    assert [channel for channel in (BASE, FIRST, SECOND) if world.stored(channel)] == []
    await world.declare()
    assert world.queue.ready_count == 0


async def test_a_get_is_answered_though_what_is_counted_cannot_be_had(
    world: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PATIENCE_S", 0.05)
    await world.publish(6)
    consumer = world.consume(3)
    await until(lambda: len(consumer.held) == 3)
    world.store.crash(withholds=True)
    world.store.start_time -= 1  # nobody knows that it crashed: somebody else reads, it seems
    world.queue.remove_consumer(consumer)
    for _ in range(5):
        answers: list[object] = []
        world.queue.get(answers.append)
        world.hub.settle()
        await until(lambda answers=answers: bool(answers))  # type: ignore[misc]
        if answers == [None]:
            return
    raise AssertionError("a get should have said that the queue is empty")


async def test_a_queue_that_was_not_counted_yet_is_still_in_doubt_when_the_connector_ends() -> None:
    store, log = FakeKubeMQ(), FakeTopologyLog()
    async with running(store, log) as world:
        await world.declare()
        await world.publish(6)
        consumer = world.consume(3)
        await until(lambda: len(consumer.held) == 3)
        store.crash(withholds=True)
    async with running(store, log) as world:
        counted = Gate(store, "count sent")
        await world.ping()
        world.hub.counts.refresh(lambda: None)
        await until(lambda: counted.is_reached)
        assert world.hub.broker.topology.server_start == 1
        counted.open()
        await until(lambda: world.queue.kubemq_channel == SECOND)
        await until(lambda: world.hub.broker.topology.server_start == store.start_time)
        assert not world.queue.is_moving
        successor = world.consume(10)
        await until(lambda: len(successor.held) == 3)
        assert all(flag for _, flag in successor.seen)  # what the server says it handed out may be too little


async def test_what_natives_publish_while_a_queue_moves_is_not_taken_for_withheld(world: Running) -> None:
    await world.publish(4)
    consumer = world.consume(2)
    await until(lambda: len(consumer.held) == 2)
    before = world.store.pause
    published: list[int] = []

    async def pause(point: str) -> None:
        await before(point)
        if point == "ack written" and world.queue.is_moving and not published:
            world.store.zombies[0].capacity = 0  # it takes no more
            published.append(world.store.publish_native(BASE, b"native"))

    world.store.pause = pause
    world.store.crash(withholds=True)
    await world.ping()
    await world.ack_all(consumer, 5)
    assert sorted(body for body, _ in consumer.seen) == [b"1", b"2", b"3", b"4", b"native"]


@pytest.mark.parametrize("is_moving", [False, True])
async def test_what_a_restarted_server_does_not_give_yet_is_not_withheld(world: Running, is_moving: bool) -> None:
    await world.publish(20)
    consumer = world.consume(3)
    await until(lambda: len(consumer.held) == 3)
    world.store.crash(withholds=False)
    world.store.channel(BASE).hidden_gets = 2
    if is_moving:
        world.queue.lease.is_due = True
    await world.ping()
    await world.ack_all(consumer, 20)
    assert [int(body) for body, _ in consumer.seen] == list(range(1, 21))
    assert all(source.lease.counts.withheld == 0 for source in world.queue.sources)

"""Crashes of KubeMQ in any order with everything clients do: nothing is lost, and nothing doubled unflagged.

The whole runtime on the fake KubeMQ (``tests/unit/runtime/test_queue_mover.py``); what happens is drawn from a seed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from connector.broker.generations import queue_rescued
from connector.broker.message import Message
from tests.support.fake_kubemq import FakeKubeMQ, FakeTopologyLog
from tests.support.running import Consumer, Publisher, Running, running
from tests.support.waiting import until


class Story:
    """One run; ``allowed`` says how often each body may be delivered."""

    def __init__(self, world: Running, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.publisher = Publisher()
        self.count = 0
        self.allowed: Counter[bytes] = Counter()
        self.consumers: list[Consumer] = []

    async def step(self) -> None:
        """Something happens."""
        steps = (self.publish, self.publish, self.ack, self.ack, self.requeue, self.consume, self.crash, self.pause)
        await self.random.choice(steps)()
        self.world.hub.settle()

    async def publish(self) -> None:
        for _ in range(self.random.randint(1, 8)):
            self.count += 1
            body = b"%d" % self.count
            self.allowed[body] += 1
            self.world.queue.publish(Message("", "q", b"\0\0", body), self.publisher, self.count)

    async def consume(self) -> None:
        if len(self.consumers) < 3:
            self.consumers.append(self.world.consume(self.random.randint(1, 4)))

    async def ack(self) -> None:
        for consumer in self.consumers:
            self.world.ack(consumer, self.random.randint(0, 3))

    async def requeue(self) -> None:
        for consumer in self.consumers:
            messages, consumer.held = consumer.held[:1], consumer.held[1:]
            self.allowed.update(message.body for message in messages)
            self.world.queue.requeue(messages)

    async def crash(self) -> None:
        self.world.store.crash(withholds=self.random.random() < 0.7)
        await self.pause()
        await self.world.ping()

    async def pause(self) -> None:
        for _ in range(self.random.randint(1, 30)):
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Everything is rescued, delivered and acknowledged."""
        world = self.world
        await until(lambda: not world.queue.is_held)
        world.store.rescue()
        await self.note_rescue()
        self.consumers.append(world.consume(50))

        def is_done() -> bool:
            for consumer in self.consumers:
                world.ack(consumer, len(consumer.held))
            seen = {body for consumer in self.consumers for body, _ in consumer.seen}
            return len(seen) == self.count and len(self.publisher.stored) == self.count

        await until(is_done)

    async def note_rescue(self) -> None:
        """As an operator would: again, when the log could not take it."""
        results: list[object] = []
        while not results or isinstance(results[-1], Exception):
            count = len(results)
            self.world.hub.broker.append(queue_rescued("default", "q"), results.append)
            await until(lambda count=count: len(results) > count)  # type: ignore[misc]

    def check(self) -> None:
        seen = Counter(body for consumer in self.consumers for body, _ in consumer.seen)
        unflagged = Counter(body for consumer in self.consumers for body, flag in consumer.seen if not flag)
        assert set(seen) == set(self.allowed)
        assert {body: count for body, count in unflagged.items() if count > 1} == {}
        assert {body: count for body, count in seen.items() if count > self.allowed[body]} == {}


@pytest.mark.parametrize(("seed", "steps"), [*((seed, 40) for seed in range(30)), (45, 70), (50, 100)])
async def test_nothing_is_lost_and_nothing_doubled_whatever_crashes(seed: int, steps: int) -> None:
    async with running(FakeKubeMQ(), FakeTopologyLog()) as world:
        await world.declare()
        story = Story(world, seed)
        for _ in range(steps):
            await story.step()
        await story.end()
        story.check()

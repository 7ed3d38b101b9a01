"""The mixed load of the soak: clients that stay, and clients that come and go in every way.

Owns what each client does and the tally.  Must not know what is measured.  Every client is one task on the lean client
of the fault runner; none leaves anything behind but messages on the way.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pamqp import commands, header

from tools.fault.client import Channel, Connection, Gone

QUEUES = 4
#: Names are used again: a KubeMQ channel costs descriptors until the server drops it, a day later.
SHORT_LIVED = 20
EXCHANGE = "soak"
_WINDOW = 50
_PREFETCH = 20
_TICK_S = 0.01
_PAUSE_S = 0.2
_REQUEUED = 0.01
_SIZES = (100, 100, 100, 1_000, 10_000)
_VISIT_LIMIT_S = 10.0
_GREETINGS = 10

_PERSISTENT = commands.Basic.Properties(delivery_mode=2, content_type="application/octet-stream")
_TRANSIENT = commands.Basic.Properties(delivery_mode=1)


class MixedLoad:
    """``rate``: msg/s of all steady publishers; ``visits``: clients per second that come and go."""

    def __init__(self, port: int, rate: float, visits: float) -> None:
        self.tally: Counter[str] = Counter()
        self.problems: list[str] = []
        self._port = port
        self._rate = rate / QUEUES
        self._visits = visits
        self._stem = f"soak-{uuid.uuid4().hex[:8]}"
        self._dice = random.Random(self._stem)  # noqa: S311 # load, not secrets
        self._is_over = False

    @property
    def queue_names(self) -> list[str]:
        """Every durable queue that the load declares."""
        short_lived = [f"{self._stem}-short-{at}" for at in range(SHORT_LIVED)]
        return [f"{self._stem}-{at}" for at in range(QUEUES)] + short_lived

    async def run(self, seconds: float) -> None:
        """Load for so long, then end in order.  Raises Gone when the queues cannot be declared."""
        await self._declare()
        steady = self.queue_names[:QUEUES]
        async with asyncio.TaskGroup() as group:
            for queue in steady:
                group.create_task(self._again("publisher", partial(self._publish, queue)))
                group.create_task(self._again("consumer", partial(self._consume, queue)))
            group.create_task(self._again("poller", self._poll))
            group.create_task(self._again("declarer", self._come_and_go))
            group.create_task(self._receive_visitors(steady))
            await asyncio.sleep(seconds)
            self._is_over = True

    async def delete_queues(self) -> None:
        """Delete what is left.  Raises Gone."""
        connection, channel = await self._enter()
        for queue in self.queue_names:
            await channel.call(commands.Queue.Delete(queue=queue))
        await channel.call(commands.Exchange.Delete(exchange=EXCHANGE))
        await _leave(connection)

    async def _declare(self) -> None:
        connection, channel = await self._enter()
        await channel.call(commands.Exchange.Declare(exchange=EXCHANGE, exchange_type="direct", durable=True))
        for queue in self.queue_names[:QUEUES]:
            await channel.call(commands.Queue.Declare(queue=queue, durable=True))
        await _leave(connection)

    async def _enter(self) -> tuple[Connection, Channel]:
        connection = await Connection.open(self._port, heartbeat_s=10)
        self.tally["connections"] += 1
        return connection, await connection.channel()

    async def _again(self, name: str, session: Callable[[], Awaitable[None]]) -> None:
        """One session after the other; one that ends although it should not is a problem."""
        while not self._is_over:
            try:
                await session()
            except Gone as gone:
                self._note(f"{name}: {gone}")
                await asyncio.sleep(_PAUSE_S)

    def _note(self, problem: str) -> None:
        self.tally["problems"] += 1
        if len(self.problems) < 50:
            self.problems.append(problem)

    # ------------------------------------------------------------------ clients that stay

    async def _publish(self, queue: str) -> None:
        connection, channel = await self._enter()
        waiting: set[int] = set()

        def on_confirm(tag: int, multiple: bool, is_ack: bool) -> None:
            done = {number for number in waiting if number <= tag} if multiple else {tag}
            waiting.difference_update(done)
            self.tally["confirmed" if is_ack else "refused"] += len(done)

        channel.on_confirm = on_confirm
        await channel.call(commands.Confirm.Select())
        loop, number = asyncio.get_running_loop(), 0
        next_at = loop.time()
        while not self._is_over and not connection.gone.is_set():
            if loop.time() >= next_at and len(waiting) < _WINDOW and not connection.is_full:
                number += 1
                waiting.add(number)
                channel.publish("", queue, _PERSISTENT, bytes(self._dice.choice(_SIZES)))
                self.tally["published"] += 1
                next_at = max(next_at + 1 / self._rate, loop.time() - 1)
            else:
                await asyncio.sleep(_TICK_S)
        await _end(connection)

    async def _consume(self, queue: str) -> None:
        connection, channel = await self._enter()

        def on_deliver(method: commands.Basic.Deliver, _properties: header.ContentHeader, _content: bytes) -> None:
            tag = method.delivery_tag or 0
            if self._dice.random() < _REQUEUED and not method.redelivered:
                self.tally["requeued"] += 1
                channel.send(commands.Basic.Nack(tag, multiple=False, requeue=True))
            else:
                self.tally["consumed"] += 1
                channel.send(commands.Basic.Ack(tag))

        channel.on_deliver = on_deliver
        await channel.call(commands.Basic.Qos(prefetch_count=_PREFETCH))
        await channel.call(commands.Basic.Consume(queue=queue))
        await self._stay(connection)

    async def _poll(self) -> None:
        """basic.get, mostly of nothing."""
        connection, channel = await self._enter()
        while not self._is_over:
            answer, _ = await channel.call(commands.Basic.Get(queue=self.queue_names[0]))
            if isinstance(answer, commands.Basic.GetOk):
                self.tally["got"] += 1
                channel.send(commands.Basic.Ack(answer.delivery_tag or 0))
            await asyncio.sleep(5 * _TICK_S)
        await _leave(connection)

    async def _come_and_go(self) -> None:
        """Queues and bindings that are declared, used and deleted."""
        connection, channel = await self._enter()
        at = 0
        while not self._is_over:
            queue = self.queue_names[QUEUES + at % SHORT_LIVED]
            at += 1
            await channel.call(commands.Queue.Declare(queue=queue, durable=True))
            await channel.call(commands.Queue.Bind(queue=queue, exchange=EXCHANGE, routing_key=queue))
            for _ in range(3):
                channel.publish(EXCHANGE, queue, _PERSISTENT, bytes(100))
            answer, _ = await channel.call(commands.Basic.Get(queue=queue, no_ack=True))
            self.tally["got"] += isinstance(answer, commands.Basic.GetOk)
            await channel.call(commands.Queue.Delete(queue=queue))
            self.tally["queues"] += 1
            await asyncio.sleep(_PAUSE_S)
        await _leave(connection)

    async def _stay(self, connection: Connection) -> None:
        while not self._is_over and not connection.gone.is_set():  # noqa: ASYNC110 # two conditions
            await asyncio.sleep(_PAUSE_S)
        await _end(connection)

    # ------------------------------------------------------------------ clients that come and go

    async def _receive_visitors(self, steady: list[str]) -> None:
        kinds: list[Callable[[str], Awaitable[None]]] = [self._talk_to_itself, self._talk_and_drop, self._hold_and_drop]
        at = 0
        async with asyncio.TaskGroup() as group:
            while not self._is_over:
                group.create_task(self._visit(kinds[at % len(kinds)], steady[at % len(steady)]))
                at += 1
                await asyncio.sleep(1 / self._visits)

    async def _visit(self, kind: Callable[[str], Awaitable[None]], queue: str) -> None:
        try:
            async with asyncio.timeout(_VISIT_LIMIT_S):
                await kind(queue)
            self.tally["visits"] += 1
        except (Gone, TimeoutError) as error:
            self._note(f"visitor, {kind.__name__.strip('_')} at {queue}: {error!r}")

    async def _talk_to_itself(self, _queue: str) -> None:
        """An exclusive queue and messages to it, as remote calls do; leaves in order."""
        connection = await self._greet()
        await _leave(connection)

    async def _talk_and_drop(self, _queue: str) -> None:
        """The same, but the socket is just dropped."""
        connection = await self._greet()
        connection.abort("dropped")

    async def _greet(self) -> Connection:
        connection, channel = await self._enter()
        arrived = asyncio.Event()
        left = _GREETINGS

        def on_deliver(*_: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                arrived.set()

        channel.on_deliver = on_deliver
        answer, _ = await channel.call(commands.Queue.Declare(queue="", exclusive=True))
        await channel.call(commands.Basic.Consume(queue=answer.queue, no_ack=True))
        for _ in range(_GREETINGS):
            channel.publish("", answer.queue, _TRANSIENT, b"hello")
        await arrived.wait()
        return connection

    async def _hold_and_drop(self, queue: str) -> None:
        """Take messages that others wait for, acknowledge none and drop the socket."""
        connection, channel = await self._enter()
        held = asyncio.Event()
        channel.on_deliver = lambda *_: held.set()
        await channel.call(commands.Basic.Qos(prefetch_count=5))
        await channel.call(commands.Basic.Consume(queue=queue))
        await held.wait()
        self.tally["dropped with unacked"] += 1
        connection.abort("dropped")


async def _end(connection: Connection) -> None:
    """Close in order; raises Gone when the connection is over already, as it ought not to be."""
    if connection.gone.is_set():
        raise Gone(connection.reason)
    await _leave(connection)


async def _leave(connection: Connection) -> None:
    await connection.close()
    connection.abort("left")

"""The clients of the workload: publishers, consumers and pollers that come back whatever happens to them.

Owns what each client does and what it writes into the ledger.  Must not know which faults there are: a lost connection
is a lost connection.  Every actor is one task; deliveries and confirms are noted in the callbacks, at their arrival.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any
from zlib import crc32

from pamqp import commands, header

from tests.support.ledger import Delivery, Ledger, Publish, Session, Settlement
from tools.fault.client import Channel, Connection, Gone
from tools.fault.scenario import ConsumerPlan, PollerPlan, PublisherPlan

RECONNECT_PAUSE_S = 0.05
#: Longest sleep between two looks at what is due.
TICK_S = 0.02
#: A channel with fresh settlements is asked something synchronous this often, to make them certain.
PROOF_S = 0.05
#: How long a publisher waits for its last confirms; above the connector's deadline for storing.
LAST_CONFIRMS_S = 12.0
LARGE_EVERY = 25
SMALL_BYTES = 100


class Stage:
    """What the run is doing: ``publishing``, then draining (``is_draining``: no delays, no nacks), then ``is_over``."""

    def __init__(self, seed: int, names: dict[str, str]) -> None:
        self.seed = seed
        self.is_publishing = True
        self.is_draining = False
        self.is_over = False
        self.losses: Counter[str] = Counter()
        self._names = names

    def real_name(self, short: str) -> str:
        """The broker's name of a queue or exchange; the default exchange has none."""
        return self._names.get(short, short)


class Actor:
    """One client that opens one session after the other."""

    def __init__(self, name: str, port: Callable[[], int], ledger: Ledger, stage: Stage) -> None:
        self.name = name
        self._port = port
        self._ledger = ledger
        self._stage = stage
        self._dice = random.Random(f"{stage.seed} {name}")  # noqa: S311 # repeatable, not secret
        self._heartbeat_s = 0

    async def run(self) -> None:
        """Until there is nothing left to do."""
        while not self._is_over():
            session: Session | None = None
            connection: Connection | None = None
            try:
                connection = await Connection.open(self._port(), heartbeat_s=self._heartbeat_s)
                channel = await connection.channel()
                session = self._ledger.open_session(self.name)
                await self._work(connection, channel, session)
                reason = "left"
            except Gone as gone:
                reason = str(gone)
                self._stage.losses[reason] += 1
            finally:
                if connection is not None:
                    connection.abort("left")
                if session is not None:
                    self._on_end(session)
            if session is not None:
                self._ledger.end_session(session, reason)
            await asyncio.sleep(RECONNECT_PAUSE_S)

    def _is_over(self) -> bool:
        raise NotImplementedError

    async def _work(self, connection: Connection, channel: Channel, session: Session) -> None:
        raise NotImplementedError

    def _on_end(self, session: Session) -> None:
        """The session is over, however it ended."""

    async def _prove(self, channel: Channel, session: Session, method: Any) -> tuple[Any, bytes]:
        """Call something synchronous: its answer proves what was sent before it."""
        sent_at = self._ledger.now()
        answer = await channel.call(method)
        self._ledger.prove(session, sent_at)
        return answer


def check_alive(connection: Connection) -> None:
    """Raise Gone when the connection is over."""
    if connection.gone.is_set():
        raise Gone(connection.reason)


# --------------------------------------------------------------------------------------------- publishing
class Publisher(Actor):
    """Publishes at its rate, within its window of unconfirmed messages."""

    def __init__(
        self,
        plan: PublisherPlan,
        queues: tuple[str, ...],
        port: Callable[[], int],
        ledger: Ledger,
        stage: Stage,
    ) -> None:
        super().__init__(plan.name, port, ledger, stage)
        self._plan = plan
        self._queues = queues
        self._open: dict[int, Publish] = {}

    def _is_over(self) -> bool:
        return not self._stage.is_publishing

    async def _work(self, connection: Connection, channel: Channel, session: Session) -> None:
        plan, now = self._plan, self._ledger.now
        self._open = {}
        channel.on_return = self._on_return
        channel.on_confirm = self._on_confirm
        if plan.confirming:
            await channel.call(commands.Confirm.Select())
        until = session.opened_at + plan.session_s
        next_at = now()
        number = 0
        while self._stage.is_publishing and now() < until:
            check_alive(connection)
            if now() < next_at or connection.is_blocked or connection.is_full or self._is_window_full():
                await asyncio.sleep(min(TICK_S, max(0.001, next_at - now())))
                continue
            for _ in range(min(plan.burst, plan.window - len(self._open)) if plan.confirming else plan.burst):
                number += 1
                self._publish(channel, session, number)
            next_at = max(next_at + plan.burst / plan.rate, now() - 1.0)
            await asyncio.sleep(0)
        await self._leave(connection, channel)

    def _is_window_full(self) -> bool:
        return self._plan.confirming and len(self._open) >= self._plan.window

    def _publish(self, channel: Channel, session: Session, number: int) -> None:
        plan, stage = self._plan, self._stage
        message_id = f"{stage.seed}.{session.name}.{number}"
        size = plan.large_bytes if plan.large_bytes and number % LARGE_EVERY == 0 else SMALL_BYTES
        content = f"{message_id}|".encode() + self._dice.randbytes(size)
        publish = self._ledger.publish(message_id, session, number, self._queues, confirming=plan.confirming)
        publish.digest = crc32(content)
        self._open[number] = publish
        properties = commands.Basic.Properties(message_id=message_id, delivery_mode=2, headers={"n": number})
        exchange, key = plan.route
        channel.publish(
            stage.real_name(exchange) if exchange else "",
            key if exchange else stage.real_name(key),
            properties,
            content,
        )

    def _on_confirm(self, tag: int, multiple: bool, is_ack: bool) -> None:
        tags = [number for number in self._open if number <= tag] if multiple else [tag]
        for number in tags:
            publish = self._open.pop(number, None)
            if publish is None:
                self._ledger.note("bad confirm", f"{self.name}: confirm of {number}, which is not open")
            elif is_ack:
                self._ledger.confirm(publish)
            else:
                self._ledger.refuse(publish)

    def _on_return(self, content: bytes) -> None:
        self._ledger.note("returned", f"{self.name}: {content[:40]!r} came back though its queue exists")

    async def _leave(self, connection: Connection, channel: Channel) -> None:
        """Go in order, so that all published is stored; or abruptly, with what is under way unknown."""
        ledger = self._ledger
        if self._plan.is_abrupt and self._stage.is_publishing:
            return
        limit = ledger.now() + LAST_CONFIRMS_S
        while self._plan.confirming and self._open:
            check_alive(connection)
            if ledger.now() > limit:
                ledger.note("unanswered", f"{self.name}: {len(self._open)} publishes have neither ack nor nack")
                return
            await asyncio.sleep(TICK_S / 4)
        await channel.call(commands.Channel.Close(200, "done", 0, 0))
        for publish in self._open.values():  # close-ok comes after the results of all (PU-07)
            ledger.confirm(publish)
        self._open = {}
        await connection.close()


# --------------------------------------------------------------------------------------------- consuming
class Receiver(Actor):
    """What consumers and pollers share: the unsettled deliveries of one channel."""

    def __init__(self, name: str, queue: str, port: Callable[[], int], ledger: Ledger, stage: Stage) -> None:
        super().__init__(name, port, ledger, stage)
        self._queue = queue
        self._unsettled: dict[int, Delivery] = {}
        self._is_unproven = False

    def _is_over(self) -> bool:
        return self._stage.is_over

    def _receive(
        self, content: bytes, session: Session, consumer: str, redelivered: bool, queue: str = ""
    ) -> Delivery | None:
        ledger = self._ledger
        message_id = content.partition(b"|")[0].decode("ascii", "replace")
        delivery = ledger.deliver(queue or self._queue, message_id, session, consumer, redelivered=redelivered)
        if delivery is not None and delivery.copy.publish.digest != crc32(content):
            ledger.note("damaged", f"{message_id}: the body is not what was published")
        return delivery

    def _settle(self, channel: Channel, tag: int, settlement: Settlement, *, multiple: bool = False) -> None:
        """Ack, nack with requeue, or nack for good, at random where AMQP has several ways."""
        if settlement is Settlement.REQUEUED:
            channel.send(self._dice.choice((commands.Basic.Nack, commands.Basic.Reject))(tag, requeue=True))
        else:
            channel.send(commands.Basic.Ack(tag, multiple))
        tags = [each for each in self._unsettled if each <= tag] if multiple else [tag]
        for each in tags:
            self._ledger.settle(self._unsettled.pop(each), settlement)
        self._is_unproven = True

    def _drop(self, channel: Channel, tag: int) -> None:
        channel.send(commands.Basic.Reject(tag, requeue=False))
        self._ledger.settle(self._unsettled.pop(tag), Settlement.DONE)
        self._is_unproven = True


class Consumer(Receiver):
    """Consumes with a prefetch, works on one message at a time, and settles it in one of several ways."""

    def __init__(self, plan: ConsumerPlan, port: Callable[[], int], ledger: Ledger, stage: Stage) -> None:
        super().__init__(plan.name, plan.queue, port, ledger, stage)
        self._plan = plan
        self._heartbeat_s = plan.heartbeat_s
        self._inbox: deque[int] = deque()
        self._held: deque[tuple[float, int]] = deque()
        self._worked: list[int] = []
        self._wake = asyncio.Event()
        self._count = 0
        self._tag = ""
        self._tag_no = 0
        self._cancelled: set[str] = set()
        self._by_tag: Counter[str] = Counter()

    async def _work(self, connection: Connection, channel: Channel, session: Session) -> None:
        self._inbox.clear()
        self._held.clear()
        self._worked.clear()
        self._unsettled.clear()
        self._by_tag.clear()
        self._is_unproven = False
        channel.on_deliver = lambda method, properties, content: self._on_deliver(session, method, properties, content)
        plan, now = self._plan, self._ledger.now
        await channel.call(commands.Basic.Qos(prefetch_count=plan.prefetch))
        await self._consume(channel)
        until, recancel_at = session.opened_at + plan.session_s, session.opened_at + plan.recancel_s
        proof_at = 0.0
        while not self._stage.is_over and (now() < until or self._stage.is_draining):
            check_alive(connection)
            await self._step(channel)
            if self._is_unproven and now() >= proof_at:
                self._is_unproven = False
                await self._prove(channel, session, commands.Basic.Qos(prefetch_count=plan.prefetch))
                proof_at = now() + PROOF_S
            if now() >= recancel_at and not self._stage.is_draining:
                recancel_at = now() + plan.recancel_s
                await self._cancel(channel, session)
                await self._consume(channel)
        if self._stage.is_over or not plan.is_abrupt:
            sent_at = now()
            self._ledger.leave(session)
            await connection.close()
            self._ledger.prove(session, sent_at)

    async def _consume(self, channel: Channel) -> None:
        self._tag_no += 1
        self._tag = f"{self.name}-{self._tag_no}"
        await channel.call(
            commands.Basic.Consume(
                queue=self._stage.real_name(self._queue), consumer_tag=self._tag, no_ack=self._plan.no_ack
            )
        )

    async def _cancel(self, channel: Channel, session: Session) -> None:
        await self._prove(channel, session, commands.Basic.Cancel(self._tag))
        self._cancelled.add(self._tag)

    def _on_deliver(
        self, session: Session, method: commands.Basic.Deliver, properties: header.ContentHeader, content: bytes
    ) -> None:
        consumer, tag = method.consumer_tag or "", method.delivery_tag or 0
        ledger, prefetch = self._ledger, self._plan.prefetch
        if consumer in self._cancelled:
            ledger.note("unexpected", f"{session.name}: a delivery after cancel-ok of {consumer}")
        delivery = self._receive(content, session, consumer, bool(method.redelivered))
        if delivery is None:
            return
        if properties.properties.message_id != delivery.copy.publish.message_id:
            ledger.note("damaged", f"{delivery.copy.publish.message_id}: the header's message_id is another")
        if self._plan.no_ack:
            ledger.settle(delivery, Settlement.DONE, is_certain=True)
            return
        self._unsettled[tag] = delivery
        held = sum(each.consumer == consumer for each in self._unsettled.values()) if prefetch else 0
        if held > prefetch:
            ledger.note("prefetch exceeded", f"{session.name}: {held} unacknowledged with a prefetch of {prefetch}")
        self._inbox.append(tag)
        self._wake.set()

    async def _step(self, channel: Channel) -> None:
        """Work on one message, release what was held long enough, or wait a little."""
        plan, stage, now = self._plan, self._stage, self._ledger.now()
        while self._held and (self._held[0][0] <= now or stage.is_draining):
            self._settle(channel, self._held.popleft()[1], Settlement.DONE)
        if not self._inbox:
            self._acknowledge(channel)
            self._wake.clear()
            try:
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            return
        tag = self._inbox.popleft()
        if plan.work_s and not stage.is_draining:
            await asyncio.sleep(plan.work_s)
        self._finish(channel, tag, now)

    def _finish(self, channel: Channel, tag: int, now: float) -> None:
        """Decide what becomes of one message."""
        plan = self._plan
        self._count += 1
        chance = 1.0 if self._stage.is_draining else self._dice.random()
        if plan.hold_every and self._count % plan.hold_every == 0 and not self._stage.is_draining:
            self._held.append((now + plan.hold_s, tag))
        elif chance < plan.requeue_share:
            self._settle(channel, tag, Settlement.REQUEUED)
        elif chance < plan.requeue_share + plan.drop_share:
            self._drop(channel, tag)
        else:
            self._worked.append(tag)
            if len(self._worked) >= plan.batch:
                self._acknowledge(channel)

    def _acknowledge(self, channel: Channel) -> None:
        worked, self._worked = self._worked, []
        if self._plan.batch > 1 and worked:
            self._settle(channel, worked[-1], Settlement.DONE, multiple=True)
        else:
            for tag in worked:
                self._settle(channel, tag, Settlement.DONE)


class Poller(Receiver):
    """Asks with basic.get, keeps a few messages, settles them together."""

    def __init__(self, plan: PollerPlan, port: Callable[[], int], ledger: Ledger, stage: Stage) -> None:
        super().__init__(plan.name, plan.queue, port, ledger, stage)
        self._plan = plan

    async def _work(self, connection: Connection, channel: Channel, session: Session) -> None:
        plan, now = self._plan, self._ledger.now
        self._unsettled.clear()
        until = session.opened_at + plan.session_s
        while not self._stage.is_over and (now() < until or self._stage.is_draining):
            check_alive(connection)
            got = await self._get(channel, session)
            if not got or len(self._unsettled) >= plan.keep:
                self._settle_all(channel)
            if not got or plan.pause_s:
                await asyncio.sleep(max(plan.pause_s, TICK_S / 4))
        if self._stage.is_over or not plan.is_abrupt:
            self._settle_all(channel)
            sent_at = now()
            self._ledger.leave(session)
            await connection.close()
            self._ledger.prove(session, sent_at)

    async def _get(self, channel: Channel, session: Session) -> bool:
        method, content = await self._prove(
            channel, session, commands.Basic.Get(queue=self._stage.real_name(self._queue))
        )
        if not isinstance(method, commands.Basic.GetOk):
            return False
        delivery = self._receive(content, session, "", bool(method.redelivered))
        if delivery is not None:
            self._unsettled[method.delivery_tag or 0] = delivery
        return True

    def _settle_all(self, channel: Channel) -> None:
        for tag in list(self._unsettled):
            is_requeue = not self._stage.is_draining and self._dice.random() < self._plan.requeue_share
            self._settle(channel, tag, Settlement.REQUEUED if is_requeue else Settlement.DONE)

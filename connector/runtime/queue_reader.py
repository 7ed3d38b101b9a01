"""The reader of one active queue: performs its lease's steps on one downstream stream.

Owns the stream and the waiting; the decisions are the lease's (``broker/lease.py``).  Ends when the lease has
nothing to do for a while, so that an idle queue costs no task and no stream.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from connector.broker.lease import Event, State
from connector.broker.ports import StoreError, TooMuch
from connector.broker.steps import StepKind
from connector.runtime.examining import Examining
from connector.runtime.gate import Gate
from connector.runtime.outage import Outage
from connector.runtime.queue_mover import QueueMover

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from connector.broker.broker import Broker
    from connector.broker.ports import Answer, ChannelInfo, QueueStore, QueueStream
    from connector.broker.sources import Source
    from connector.broker.steps import Step

#: A reader with nothing to do ends after this, and its stream with it.
IDLE_S = 5.0
#: While this connector is out of touch with the others, it is looked so often whether it may read again.
HOLD_S = 0.05
#: A Get for what is there takes a few milliseconds, unless its bodies are many bytes; one for what is not there waits.
WAITED_S = 0.02
WAITED_BYTES = 1_000_000
REFUSED = "an acknowledgement was refused"

log = structlog.get_logger(__name__)


class QueueReader:
    """Reads one channel of a queue; ``settle`` is called after every batch of changes (dispatch and flush).

    ``examining`` bounds how many queues are examined at a time, ``gate`` how many read what nobody waits for.
    """

    def __init__(
        self,
        source: Source,
        store: QueueStore,
        snapshot: Callable[[], Awaitable[list[ChannelInfo]]],
        broker: Broker,
        settle: Callable[[], None],
        examining: Examining | None = None,
        outage: Outage | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._source = source
        self._queue = source.queue
        self._lease = source.lease
        self._examining = examining or Examining()
        self._gate = gate or Gate(1)
        self._is_at_gate = False
        self._outage = outage or Outage(broker.counters, broker.clock)
        self._asks_first = False
        self._store = store
        self._snapshot = snapshot
        self._broker = broker
        self._settle = settle
        self._stream: QueueStream | None = None
        self._wake = asyncio.Event()
        self._perform: dict[StepKind, Callable[[], Awaitable[None]]] = {
            StepKind.FINISH: self._finish,
            StepKind.CLOSE: self._close,
            StepKind.REFILL: self._refill,
            StepKind.RECOVER: self._recover,
            StepKind.BARRIER: self._barrier,
            StepKind.EXAMINE: self._examine,
        }

    @property
    def held_bytes(self) -> int:
        """What has been read and is not acknowledged."""
        return self._lease.mine_bytes

    def wake(self) -> None:
        """Something changed: look at the next step again."""
        self._wake.set()

    async def run(self) -> None:
        """Until idle or cancelled."""
        lease = self._lease
        if lease.state is not State.IDLE or lease.sent:  # an earlier reader failed, and its stream went with it
            lease.on_event(Event.LOST)
        try:
            while True:
                self._wake.clear()
                if not self._broker.may_read():  # the others may think us dead, and read instead
                    await asyncio.sleep(HOLD_S)
                    continue
                step = lease.next_step()
                if not self._may_pass(step):
                    await self._wake.wait()
                    continue
                if step.kind is StepKind.WAIT:
                    if not await self._wait(step):
                        return
                    continue
                try:
                    await self._perform[step.kind]()
                except TooMuch as error:
                    self._drop_stream()
                    lease.on_too_much()
                    log.warning("answer too large", kubemq_channel=self._source.kubemq_channel, error=str(error))
                except StoreError as error:
                    self._lose(error)
                finally:
                    if step.can_wait:
                        self._gate.leave()
        finally:
            self._gate.withdraw(self)
            self._drop_stream()

    def _may_pass(self, step: Step) -> bool:
        """False when the step has to wait for its turn; a step that cannot wait gives up its turn."""
        if step.can_wait:
            self._is_at_gate = not self._gate.enter(self)
            return not self._is_at_gate
        if self._is_at_gate:
            self._is_at_gate = False
            self._gate.withdraw(self)
        return True

    async def _wait(self, step: Step) -> bool:
        """Wait for a wake-up or the step's time; False when the reader may end."""
        idle = step.until is None and not self._lease.wants_reader()
        delay = IDLE_S if idle else None if step.until is None else step.until - self._broker.clock()
        if delay is None:
            await self._wake.wait()
            return True
        timer = asyncio.get_running_loop().call_later(max(0.0, delay), self._wake.set)
        started = self._broker.clock()
        await self._wake.wait()
        timer.cancel()
        return not (idle and self._broker.clock() - started >= IDLE_S and not self._lease.wants_reader())

    def _lose(self, error: StoreError) -> None:
        self._drop_stream()
        self._asks_first = True
        self._lease.on_event(Event.LOST)
        self._outage.on_loss("reads", error, kubemq_channel=self._source.kubemq_channel)

    def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    def _open_stream(self) -> QueueStream:
        if self._stream is None:
            self._stream = self._store.open_stream()
            self._lease.streams.renew()
        return self._stream

    # ------------------------------------------------------------------ steps

    async def _end_transaction(self) -> None:
        """AckRange of what is settled, CloseByClient unless that was everything."""
        lease = self._lease
        transaction_id = lease.transaction_id
        if not transaction_id:
            return
        lease.leave_ready()
        stream = self._open_stream()
        sequences = lease.acks_due()
        if sequences:
            token = await stream.ack_range(transaction_id, sequences)
            lease.acks_sent(token, sequences)
        if not sequences or lease.needs_close:
            await stream.close_transaction(transaction_id)

    async def _finish(self) -> None:
        await self._end_transaction()
        self._lease.on_event(Event.CLOSED)
        await self._get(self._lease.rest_size())

    _close = _finish

    async def _refill(self) -> None:
        lease = self._lease
        await self._end_transaction()
        lease.on_event(Event.CLOSED)
        if lease.streams.is_worn and self._stream is not None:
            await self._prove(self._stream)
            self._drop_stream()
        await self._get(lease.get_size())

    async def _recover(self) -> None:
        lease = self._lease
        if self._asks_first:  # a restarted server is not read before it is known what it withholds
            self._broker.recovery.on_server(await self._store.ping())
            self._asks_first = False
            if lease.is_doubtful:
                return
        if lease.transaction_id and (lease.held or lease.moving):  # closing gives back: to us, or to somebody else?
            began = lease.begin_snapshot()
            self._broker.count(self._source, began, await self._snapshot())
            if lease.must_keep:
                self._settle()
                return
        await self._end_transaction()
        lease.on_event(Event.CLOSED)
        if lease.sent:  # what is on its way would still be counted
            await self._prove(self._open_stream())
        began = lease.begin_snapshot()
        waiting = self._broker.count(self._source, began, await self._snapshot())
        if waiting == 0 or lease.sharing.is_certain or lease.counts.withheld:
            lease.streams.clear()  # others who read, and a dead server's self, could not be told from a lost stream
        second_count = lease.counts.take_uncounted()
        if not self._queue.older:  # else it would be read before its turn
            lease.peek(second_count)
        await self._get(lease.recover_size(waiting))

    async def _get(self, size: int) -> None:
        lease = self._lease
        if size == 0:
            lease.on_event(Event.REST)
            self._broker.mark_dirty(self._queue)
            self._settle()
            return
        stream = self._open_stream()
        lease.on_event(Event.GET_SENT)
        began = self._broker.clock()
        answer = await stream.get(self._source.kubemq_channel, size)
        if self._broker.clock() - began >= WAITED_S:
            self._on_waited(answer)
        self._broker.counters.kubemq_requests += 1
        if answer.error:
            self._broker.counters.kubemq_errors += 1
            raise StoreError(answer.error)
        if (lease.streams.has_remains or not lease.is_in_turn(answer.messages)) and not await self._is_next(answer):
            await self._return(stream, answer)
            return
        if answer.oldest_at:
            lease.note_oldest(self._broker.clock() - (time.time() - answer.oldest_at))
        is_proven = lease.on_answer(answer)
        self._broker.mark_dirty(self._queue)
        self._settle()
        if not is_proven:
            raise StoreError(REFUSED)

    def _on_waited(self, answer: Answer) -> None:
        """KubeMQ gives what it has at once: perhaps less is there than is thought, and each Get waits for new ones."""
        if sum([len(message.body) for message in answer.messages]) < WAITED_BYTES:
            self._lease.counts.suspect()

    async def _is_next(self, answer: Answer) -> bool:
        """Whether an answer that is in doubt is to be taken: not while a lost stream may have what comes before it."""
        lease, messages = self._lease, answer.messages
        had_remains = lease.streams.has_remains
        looked = self._broker.look(self._source, await self._snapshot())
        subscribers = looked.subscribers if messages else 0  # with nothing to give, KubeMQ has closed ours
        if had_remains and not lease.streams.on_count(subscribers, self._broker.clock()):
            return False
        if had_remains and lease.is_short(messages):  # what has come back meanwhile is not in it
            return False
        if lease.is_in_turn(messages):
            return True
        is_shared = subscribers > 1 and not had_remains
        return is_shared or lease.line.is_confirmed(messages)

    async def _return(self, stream: QueueStream, answer: Answer) -> None:
        """Give it back, to be read again soon; not on this stream, which keeps what it has handed out."""
        lease = self._lease
        await stream.close_transaction(answer.transaction_id)
        failed = await stream.barrier()
        self._drop_stream()
        is_proven = lease.on_proof([*answer.failed_acks, *failed])
        lease.on_event(Event.LATE)
        lease.dry_at = -1 if answer.messages or lease.ready else lease.counts.stored_count
        self._broker.mark_dirty(self._queue)
        self._settle()
        if not is_proven:
            raise StoreError(REFUSED)

    async def _examine(self) -> None:
        async with self._examining.verdicts:
            await QueueMover(
                self._source,
                self._store,
                self._snapshot,
                self._broker,
                self._settle,
                self._open_stream(),
                self._examining,
            ).run()

    async def _barrier(self) -> None:
        await self._prove(self._open_stream())
        self._settle()

    async def _prove(self, stream: QueueStream) -> None:
        failed = await stream.barrier()
        if not self._lease.on_proof(failed):
            raise StoreError(REFUSED)

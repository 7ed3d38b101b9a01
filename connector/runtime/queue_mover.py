"""Examines a queue after a restart of KubeMQ, and moves it to its next generation where messages are withheld.

Owns the requests of that, on the stream of the queue's reader and a lane of its own; what is copied and who holds it
then is ``broker/move.py``'s.  Everything that is there is read in one transaction, if the caps allow: a short answer,
or another subscriber beside ours, means that the dead server's own subscription has the rest.  Rules: design.md section
3, points 12 and 13.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from connector.broker.lease import Event
from connector.broker.outbox import BATCH_BYTES, BATCH_COUNT
from connector.broker.ports import StoreError, TooMuch
from connector.broker.recovery import RETENTION, WITHHELD

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from connector.broker.broker import Broker
    from connector.broker.message import Message
    from connector.broker.move import Copy, Move
    from connector.broker.ports import Answer, QueueStore, QueueStream
    from connector.broker.sources import Source

#: One Get takes at most so many messages; bytes are bounded by what the queue has shown.
READ_COUNT = 16_384
#: How often it is looked whether the last batch for the queue has been answered.
POLL_S = 0.005

log = structlog.get_logger(__name__)


class QueueMover:
    """Does it once, for one source; raises StoreError when it has to be done again."""

    def __init__(
        self, source: Source, store: QueueStore, broker: Broker, settle: Callable[[], None], stream: QueueStream
    ) -> None:
        self._source = source
        self._queue = source.queue
        self._lease = source.lease
        self._store = store
        self._broker = broker
        self._settle = settle
        self._stream = stream

    async def run(self) -> None:
        """Trust the channel, or move the queue away from it."""
        source, recovery = self._source, self._broker.recovery
        if source.is_current:
            self._queue.hold()
            while self._queue.in_flight_count > 0:  # noqa: ASYNC110 # seldom, and soon over
                await asyncio.sleep(POLL_S)
        generations = self._queue.record.generations
        answer, is_short, subscribers = None, False, 2
        if not await self._is_ours_shared():
            answer, is_short, subscribers = await self._read_all()
            if not is_short and subscribers <= 1 and not generations.moving and not self._lease.is_due:
                if answer is not None:
                    await self._stream.close_transaction(answer.transaction_id)
                recovery.trust(source)
                self._settle()
                return
        if source.is_current:
            reason = RETENTION if self._lease.is_due else WITHHELD
            move = recovery.begin(source, generations.reason or reason)
            move.is_running = True
            try:
                await self._move(move, answer, is_short=is_short)
            finally:
                move.pause()
                self._settle()
        else:
            await self._accept_loss(answer)

    async def _is_ours_shared(self) -> bool:
        """Whether our transaction is open and another one beside it; if ours is the only one it ends here."""
        lease = self._lease
        if not lease.transaction_id:
            return False
        _, subscribers = self._broker.look(self._source, await self._store.snapshot())
        if subscribers > 1:
            return True
        await self._stream.close_transaction(lease.transaction_id)
        lease.on_event(Event.LOST)
        return False

    async def _read_all(self) -> tuple[Answer | None, bool, int]:
        """All that can be had; whether that is less than there is; and how many subscribers there are."""
        began = self._lease.begin_snapshot()
        rows = await self._store.snapshot()
        self._broker.count(self._source, began, rows)
        size = self._size(rows)
        if not size:
            return None, False, 1
        size = max(1, size - self._lease.mine_count)  # what is withheld has mine: a short Get takes a second
        answer = await self._get(size)
        _, subscribers = self._broker.look(self._source, await self._store.snapshot())
        is_short = len(answer.messages) < size
        if is_short or subscribers > 1:
            log.warning(
                "messages are withheld",
                kubemq_channel=self._source.kubemq_channel,
                wanted=size,
                reached=len(answer.messages),
                subscribers=subscribers,
            )
        return answer, is_short, subscribers

    def _size(self, rows: list[Any]) -> int:
        """How many one Get is to ask for."""
        waiting, _ = self._broker.look(self._source, rows)
        if waiting is None:  # its name is reported together with another's
            waiting = self._lease.mine_count + self._lease.counts.count
        else:
            waiting -= self._lease.counts.withheld
        return max(0, min(waiting, READ_COUNT, self._lease.answer_room()))

    async def _get(self, size: int) -> Answer:
        try:
            answer = await self._stream.get(self._source.kubemq_channel, size)
        except TooMuch:
            self._lease.expect_larger()
            raise
        if answer.error:
            raise StoreError(answer.error)
        if not self._lease.on_proof(answer.failed_acks):
            raise StoreError("an acknowledgement was refused")
        self._lease.note_sizes(answer.messages)
        return answer

    async def _accept_loss(self, answer: Answer | None) -> None:
        """An older generation: what cannot be read there is counted as withheld, and the rest is read as usual."""
        lease = self._lease
        reached = len(answer.messages) if answer else 0
        transaction_id = answer.transaction_id if answer else ""
        if transaction_id:
            await self._stream.close_transaction(transaction_id)
        waiting, _ = self._broker.look(self._source, await self._store.snapshot())
        if waiting is not None and not lease.transaction_id:
            lease.counts.withheld = max(0, waiting - reached)
        self._broker.recovery.trust(self._source)
        self._settle()

    # ------------------------------------------------------------------ the move

    async def _move(self, move: Move, answer: Answer | None, *, is_short: bool) -> None:
        event = self._broker.recovery.moving_event(move)
        if event is not None:
            await self._append(event)
        await self._store_copies(move, answer.messages if answer else [])
        if answer is not None:
            await self._acknowledge(move, answer)
        elif self._lease.transaction_id:
            await self._acknowledge_mine(move)
        while not is_short and (size := self._size(await self._store.snapshot())) > len(move.left_behind()):
            answer = await self._get(size)
            await self._store_copies(move, answer.messages)
            await self._acknowledge(move, answer)
            is_short = len(answer.messages) < size
        waiting, _ = self._broker.look(self._source, await self._store.snapshot())
        await self._append(self._broker.recovery.moved_event(move, waiting or 0))
        self._settle()

    async def _acknowledge(self, move: Move, answer: Answer) -> None:
        """All of an answer, so that nothing of it is given back."""
        sequences = [message.sequence for message in answer.messages]
        if sequences:
            await self._stream.ack_range(answer.transaction_id, sequences)
        await self._stream.close_transaction(answer.transaction_id)
        await self._prove()
        move.on_acknowledged(sequences)

    async def _acknowledge_mine(self, move: Move) -> None:
        """All of the lease's own transaction: it was open when the others were seen."""
        sequences = self._lease.linked_sequences()
        if sequences:
            await self._stream.ack_range(self._lease.transaction_id, sequences)
        await self._stream.close_transaction(self._lease.transaction_id)
        await self._prove()
        move.on_acknowledged(sequences)
        self._lease.transaction_id = ""

    async def _prove(self) -> None:
        failed = await self._stream.barrier()
        if failed:
            raise StoreError("an acknowledgement was refused")

    async def _store_copies(self, move: Move, messages: list[Message]) -> None:
        copies = move.copies(messages)
        lane = self._store.open_lane()
        try:
            for batch in _batches(copies):
                if self._queue.is_deleted:
                    raise StoreError("the queue was deleted during its move")
                try:
                    errors = await lane.send(batch)
                except StoreError:
                    move.on_unknown(batch)
                    raise
                move.on_stored(copy for copy, error in zip(batch, errors, strict=True) if not error)
                refused = next((error for error in errors if error), "")
                if refused:
                    raise StoreError(refused)
        finally:
            lane.cancel()

    async def _append(self, event: dict[str, Any]) -> None:
        """Write an event, and return when it has come back."""
        back: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def done(result: object) -> None:
            if not back.done():
                back.set_result(result)

        self._broker.append(event, done)
        result = await back
        if isinstance(result, Exception):
            raise StoreError(f"the move was not recorded: {result}")


def _batches(copies: list[Copy]) -> list[list[Copy]]:
    """As large as one request may be."""
    batches: list[list[Copy]] = []
    size = 0
    for copy in copies:
        cost = len(copy.message.body) + 2 * len(copy.message.header)
        if not batches or len(batches[-1]) >= BATCH_COUNT or size + cost > BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(copy)
        size += cost
    return batches

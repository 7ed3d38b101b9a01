"""Examines a queue after a restart of KubeMQ, and moves it to its next generation where messages are withheld.

Owns the requests of that, on the stream of the queue's reader and a lane of its own; what is copied and who holds it
then is ``broker/move.py``'s.  One message is read: another subscriber beside ours means that the dead server's own
subscription has some.  What is published waits no longer than until that is known or likely: it goes behind the
copies, into a channel of its own.  Rules: design.md section 3, points 12 and 13; docs/adr/0005.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from connector.broker.lease import Event
from connector.broker.outbox import BATCH_BYTES, BATCH_COUNT, HEADER_FACTOR
from connector.broker.ports import Rejected, StoreError, TooMuch
from connector.broker.recovery import RETENTION, WITHHELD

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from connector.broker.broker import Broker
    from connector.broker.message import Message
    from connector.broker.move import Copy, Move
    from connector.broker.ports import Answer, ChannelInfo, QueueStore, QueueStream, StoreLane
    from connector.broker.sources import Source
    from connector.runtime.examining import Examining

#: One Get takes at most so many messages; bytes are bounded by what the queue has shown.  A Get that takes more than a
#: second answers with what it has by then, and a busy server needs that for many thousands.
READ_COUNT = 1_024
#: Where nothing is withheld a Get brings a message sooner than this; a short one takes a second.
EARLY_S = 0.5
#: A restarted server may count messages that it does not give yet: it is asked again after these pauses.
PATIENCE_S = (0.1, 0.3)
#: How often it is looked whether the last batch for the queue has been answered.
POLL_S = 0.005

log = structlog.get_logger(__name__)


class QueueMover:
    """Does it once, for one source; raises StoreError when it has to be done again."""

    def __init__(
        self,
        source: Source,
        store: QueueStore,
        snapshot: Callable[[], Awaitable[list[ChannelInfo]]],
        broker: Broker,
        settle: Callable[[], None],
        stream: QueueStream,
        examining: Examining,
    ) -> None:
        self._source = source
        self._queue = source.queue
        self._lease = source.lease
        self._store = store
        self._snapshot = snapshot
        self._examining = examining
        self._broker = broker
        self._settle = settle
        self._stream = stream
        self._begun: asyncio.Future[object] | None = None
        self._rescue_count = source.rescue_count
        self._is_withheld = False
        self._read_upto = 0  # the last Sequence that was there when last read
        self._highest_read = 0
        self._open: list[tuple[str, list[int]]] = []  # full transactions that end when nothing is left to read

    async def run(self) -> None:
        """Trust the channel, or copy what can be read of it to a new one."""
        source, queue, recovery = self._source, self._queue, self._broker.recovery
        if queue.is_deleted:
            recovery.abandon(source)
            return
        if source.is_current:
            queue.hold()
            while queue.in_flight_count > 0:  # noqa: ASYNC110 # seldom, and soon over
                await asyncio.sleep(POLL_S)
        answer, self._is_withheld = None, True
        if not await self._is_ours_shared():
            answer, self._is_withheld = await self._examine()
        if not self._is_withheld and self._begun is None and source.move is None and not self._lease.is_due:
            if answer is not None:
                await self._stream.close_transaction(answer.transaction_id)
            recovery.trust(source)
            self._settle()
        elif source.is_current or source.move is not None or self._lease.is_due or self._has_messages(answer):
            async with self._examining.reads:
                await self._move(answer)
        else:
            await self._accept_loss(answer)

    @property
    def _is_rescued(self) -> bool:
        """What was withheld has been freed meanwhile: it is read as usual."""
        return self._source.rescue_count != self._rescue_count

    def _has_messages(self, answer: Answer | None) -> bool:
        """Whether there is anything to copy."""
        return self._lease.mine_count > 0 or (answer is not None and bool(answer.messages))

    async def _is_ours_shared(self) -> bool:
        """Whether our transaction is open and another one beside it; if ours is the only one it ends here."""
        lease = self._lease
        if not lease.transaction_id:
            return False
        subscribers = self._broker.look(self._source, await self._snapshot()).subscribers
        if subscribers > 1:
            return True
        await self._stream.close_transaction(lease.transaction_id)
        lease.on_event(Event.LOST)
        return False

    async def _examine(self) -> tuple[Answer | None, bool]:
        """Read one message; what came, and whether another subscriber than ours has some.

        A server that was just started may count what it does not give yet: then it is asked again.  What was withheld
        before is looked for once.
        """
        counts = self._lease.counts
        began = self._lease.begin_snapshot()
        rows = await self._snapshot()
        self._broker.count(self._source, began, rows)
        size = self._size(rows)
        if not size and not counts.withheld:
            return None, False
        patience = iter(PATIENCE_S if size else ())
        while True:
            answer = await self._read_one()
            if answer.messages:
                counts.withheld = 0
            elif size:
                self._begin_early()
            subscribers = self._broker.look(self._source, await self._snapshot()).subscribers
            if subscribers > 1:
                channel = self._source.kubemq_channel
                log.warning("messages are withheld, perhaps", kubemq_channel=channel, subscribers=subscribers)
            pause_s = None if answer.messages or subscribers > 1 or self._queue.is_deleted else next(patience, None)
            if pause_s is None:  # with nothing to give, KubeMQ has closed ours: the other one is the only one then
                return answer, subscribers > 1 or not answer.messages
            await self._stream.close_transaction(answer.transaction_id)
            await asyncio.sleep(pause_s)

    async def _read_one(self) -> Answer:
        """When its turn has come; only then does the time count that a Get takes."""
        examining, answer = self._examining, None
        async with examining.reads:
            number = examining.ask()
            timer = asyncio.get_running_loop().call_later(EARLY_S, self._on_late, number)
            try:
                answer = await self._get(1)
            finally:
                timer.cancel()
                examining.end(number, is_served=answer is not None and bool(answer.messages))
        return answer

    def _on_late(self, number: int) -> None:
        if self._examining.is_late(number):
            self._begin_early()

    def _size(self, rows: list[ChannelInfo]) -> int:
        """How much there is to be read, as far as is known."""
        waiting, _, self._read_upto = self._broker.look(self._source, rows)
        if waiting is None:  # its name is reported together with another's
            waiting = self._lease.mine_count + self._lease.counts.count
        else:
            waiting -= self._lease.counts.withheld
        return max(0, waiting)

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
        self._lease.check_left(answer)
        self._lease.note_sizes(answer.messages)
        if answer.messages:
            self._highest_read = max(self._highest_read, answer.messages[-1].sequence)
            self._read_upto = max(self._read_upto, self._highest_read)
        return answer

    async def _count_unread(self) -> int | None:
        """How much is there still of what was there at the last Get: others may have published meanwhile."""
        waiting, _, last_sequence = self._broker.look(self._source, await self._snapshot())
        return None if waiting is None else max(0, waiting - max(0, last_sequence - self._read_upto))

    async def _accept_loss(self, answer: Answer | None) -> None:
        """An older generation: what cannot be read there is counted as withheld, and the rest is read as usual."""
        lease = self._lease
        reached = len(answer.messages) if answer else 0
        transaction_id = answer.transaction_id if answer else ""
        if transaction_id:
            await self._stream.close_transaction(transaction_id)
        unread = await self._count_unread()
        if unread is not None and not lease.transaction_id and not self._is_rescued:
            lease.counts.withheld = max(0, unread - reached) if self._is_withheld else 0
        self._broker.recovery.trust(self._source)
        self._settle()

    # ------------------------------------------------------------------ the move

    def _begin_early(self) -> None:
        """It takes long, so the Get will be short: publishers need not wait for that, nor for the copies."""
        source = self._source
        if source.is_current and source.move is None and not self._queue.is_deleted:
            self._begin()

    def _begin(self) -> asyncio.Future[object]:
        if self._begun is None:
            reason = RETENTION if self._lease.is_due else WITHHELD
            self._begun = self._append(self._broker.recovery.moving_event(self._source, reason))
        return self._begun

    async def _move(self, answer: Answer | None) -> None:
        while self._source.move is None and not self._queue.is_deleted:
            await self._begin()  # it is not the next when a move of another channel was first
            self._begun = None
        move = self._source.move
        if move is None:
            return
        await self._store_copies(move, answer.messages if answer else [])
        if answer is not None:
            await self._keep(move, answer, 1)
        elif self._lease.transaction_id:
            await self._keep_mine(move)
        await self._read_on(move)
        while self._open:
            await self._acknowledge(move, *self._open.pop())
        unread = await self._count_unread()
        if not self._queue.is_deleted:
            withheld = 0 if self._is_rescued or not self._is_withheld else unread or 0
            await self._append(self._broker.recovery.moved_event(move, withheld, self._gone_count(move, withheld)))
        self._settle()

    def _gone_count(self, move: Move, withheld: int) -> int:
        """How many of what was acknowledged in the moment of the crash are not there any more.

        As many as explain that what nobody has seen is withheld: each Sequence is a message.
        """
        seen_upto = self._lease.counts.highest_read
        unseen = self._read_upto - seen_upto - move.seen_after(seen_upto)
        return max(0, min(move.unsure_count, withheld, unseen - (withheld - len(move.left_behind()))))

    async def _read_on(self, move: Move) -> None:
        """Copy everything that can be read."""
        patience = iter(PATIENCE_S)
        left = await self._left(move)
        while left > 0:
            asked = min(left, READ_COUNT, self._lease.answer_room())
            answer = await self._get(asked)
            await self._store_copies(move, answer.messages)
            await self._keep(move, answer, asked)
            if not answer.messages:  # a Get waits a second for the first one
                pause_s = None if self._is_withheld or self._queue.is_deleted else next(patience, None)
                if pause_s is None:
                    break
                await asyncio.sleep(pause_s)
            left -= len(answer.messages)
            if left <= 0 or len(answer.messages) < asked:
                left = await self._left(move)

    async def _left(self, move: Move) -> int:
        """How much there is still to be read, as far as is known.

        What was acknowledged in the moment of a crash is taken to be there, with the dead; where it is not, as many
        others seem to be read.  Who has read up to the end has read them all: a Get that finds nothing takes a second.
        """
        unread = self._size(await self._snapshot())
        read = {sequence for _, sequences in self._open for sequence in sequences}
        left = unread - len(read.union(move.left_behind()))
        beyond = self._read_upto - max(self._highest_read, self._lease.highest_delivered)
        return max(left, min(unread, move.unsure_count, beyond))

    async def _keep(self, move: Move, answer: Answer, asked: int) -> None:
        """Leave a full transaction open: at its end what waits would go to whoever has room, as the dead have.

        One that has room itself ends now, or it would take what the next Get is to bring.
        """
        sequences = [message.sequence for message in answer.messages]
        if len(sequences) >= asked:
            self._open.append((answer.transaction_id, sequences))
        else:
            await self._acknowledge(move, answer.transaction_id, sequences)

    async def _keep_mine(self, move: Move) -> None:
        """The same with the lease's own transaction: it was open when the others were seen."""
        lease = self._lease
        sequences = lease.linked_sequences()
        if lease.is_filled:
            self._open.append((lease.transaction_id, sequences))
        else:
            await self._acknowledge(move, lease.transaction_id, sequences)
        lease.transaction_id = ""

    async def _acknowledge(self, move: Move, transaction_id: str, sequences: list[int]) -> None:
        """All of a transaction, so that nothing of it is given back."""
        if sequences:
            await self._stream.ack_range(transaction_id, sequences)
        await self._stream.close_transaction(transaction_id)
        await self._prove()
        move.on_acknowledged(sequences)

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
                    return
                errors = await self._store_batch(lane, move, batch)
                refused = next((error for error in errors if error), "")
                if refused:
                    raise StoreError(refused)
        finally:
            lane.cancel()

    async def _store_batch(self, lane: StoreLane, move: Move, batch: list[Copy]) -> list[str]:
        move.on_sent(len(batch))
        try:
            errors = await lane.send(batch)
        except Rejected as error:
            errors = [str(error)] * len(batch)
        except BaseException:
            move.on_unknown(batch)
            raise
        move.on_results(batch, errors)
        return errors

    def _append(self, event: dict[str, Any]) -> asyncio.Future[object]:
        """Write an event; the future raises StoreError when it was not recorded, and is done when it has come back."""
        back: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def done(result: object) -> None:
            if back.done():
                return
            if isinstance(result, Exception):
                back.set_exception(StoreError(f"the move was not recorded: {result}"))
                back.exception()  # whoever began it may be gone
            else:
                back.set_result(result)

        self._broker.append(event, done)
        return back


def _batches(copies: list[Copy]) -> list[list[Copy]]:
    """As large as one request may be."""
    batches: list[list[Copy]] = []
    size = 0
    for copy in copies:
        cost = len(copy.message.body) + HEADER_FACTOR * len(copy.message.header)
        if not batches or len(batches[-1]) >= BATCH_COUNT or size + cost > BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(copy)
        size += cost
    return batches

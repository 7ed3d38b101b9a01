"""One Get of a QueuesDownstream stream, from request to answer.

Owns the waiting and the answer's bytes.  Rule: KubeMQ's Get as measured: never less than a second of waiting, an empty
answer's transaction is closed, expired messages are settled and not shown.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Protocol

from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded import rules
from connector.embedded.core import Core, GetSlot
from connector.embedded.records import DOWNSTREAM_MESSAGES, Record, messages_field, varint
from connector.embedded.transaction import Transaction

#: Without the quirk ``fills_gets``, a Get that has some waits so long for the rest: what is being stored is soon there.
MOMENT_S = 0.05
# QueuesDownstreamResponse.RequestTypeData (3) = Get
_GET_TYPE = b"\x18\x01"


class Stream(Protocol):
    """What a Get needs of its stream."""

    async def write(self, answer: bytes) -> None:
        """Send one serialized response."""

    async def refuse_get(self, request: pb.QueuesDownstreamRequest, transaction_id: str, problem: str) -> None:
        """Answer a Get that was never begun."""

    def keep(self, transaction_id: str, transaction: Transaction) -> None:
        """Remember an answered Get."""

    def release_later(self, transaction: Transaction, wait_s: float) -> None:
        """The stream was lost under a waiting Get."""


class Get:
    """One Get from request to answer."""

    def __init__(self, call: Stream, core: Core, request: pb.QueuesDownstreamRequest) -> None:
        self._call = call
        self._core = core
        self._request = request
        self._transaction_id = uuid.uuid4().hex
        self._problem = rules.reader_problem(request.ClientID, request.Channel)
        self._max_items = request.MaxItems if request.MaxItems > 0 else rules.UNLIMITED_ITEMS
        self._wait_s = max(request.WaitTimeout, core.quirks.least_wait_ms) / 1000

    def would_wait(self) -> bool:
        """Less is there than is asked for."""
        queue = self._core.engine.channels.get(self._request.Channel)
        there_count = len(queue.returned) + queue.last_sequence - queue.last_sent if queue else 0
        return not self._problem and there_count < self._max_items

    async def run(self) -> None:
        """Open the transaction, wait if need be, answer."""
        if self._problem:
            await self._call.refuse_get(self._request, self._transaction_id, self._problem)
            return
        slot = self._core.slots.next()
        await slot.take()
        try:
            transaction = await self._collect(slot)
        finally:
            slot.give_back()
        records = await self._take(transaction)
        if self._request.AutoAck:
            transaction.settle(list(transaction.accepted))
            transaction.close()
        self._call.keep(self._transaction_id, transaction)
        await self._call.write(self._answer(records))

    async def _collect(self, slot: GetSlot) -> Transaction:
        """A transaction with what arrived in time; closed when that is nothing."""
        core = self._core
        _, channel = core.catalog.queue(self._request.Channel)
        transaction = Transaction(core.engine, channel, self._max_items)
        if transaction.accepting and self._wait_s:
            await self._wait(transaction, slot)
        transaction.stop_accepting()
        if not transaction.accepted:
            transaction.close()
        return transaction

    async def _wait(self, transaction: Transaction, slot: GetSlot) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_s
        over: asyncio.Future[None] = loop.create_future()
        timers: list[asyncio.TimerHandle] = []

        def end() -> None:
            if not over.done():
                over.set_result(None)

        def end_soon() -> None:
            transaction.on_some = None
            if not self._core.quirks.fills_gets:
                timers.append(loop.call_later(MOMENT_S, end))

        transaction.on_full = end
        timers.append(loop.call_at(deadline, end))
        if transaction.accepted:
            end_soon()
        else:
            transaction.on_some = end_soon
        try:
            await over
        except asyncio.CancelledError:
            if self._core.quirks.serial_streams:
                slot.keep_for(deadline - loop.time())
                self._call.release_later(transaction, deadline - loop.time())
            else:
                transaction.close()
            raise
        finally:
            for timer in timers:
                timer.cancel()

    async def _take(self, transaction: Transaction) -> dict[int, Record]:
        """The bodies; what has expired meanwhile is settled and not shown."""
        try:
            records = await self._core.records(transaction.member.channel, list(transaction.accepted))
        except BaseException:
            transaction.close()
            raise
        missing = [sequence for sequence in transaction.accepted if sequence not in records]
        for sequence in missing:
            del transaction.accepted[sequence]
        now_ns = time.time_ns()
        expired = [sequence for sequence, record in records.items() if 0 < record.expires_at_ns < now_ns]
        if expired:
            transaction.settle(expired)
            for sequence in expired:
                del records[sequence]
        return records

    def _answer(self, records: dict[int, Record]) -> bytes:
        transaction_id, request_id = self._transaction_id.encode(), self._request.RequestID.encode()
        head = (
            b"\x0a" + varint(len(transaction_id)) + transaction_id + b"\x12" + varint(len(request_id)) + request_id
        ) + _GET_TYPE
        return b"".join([head, *messages_field(DOWNSTREAM_MESSAGES, records.items())])

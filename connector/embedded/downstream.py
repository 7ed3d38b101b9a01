"""QueuesDownstream: one stream's requests, served in order, and the transactions they open.

Owns the life of a stream and its answers; what a Get does is in ``get``, what ends messages in ``settling``, the queue
group in ``engine``.  Rule: KubeMQ's QueuesDownstream as measured by the contract suite: success is silent but for Get
and ActiveOffsets, an error names its request, everything comes back when the stream is lost.
"""

from __future__ import annotations

import asyncio

import grpc
from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded.core import Core
from connector.embedded.get import Get
from connector.embedded.settling import HANDLERS, Refused
from connector.embedded.streams import next_request
from connector.embedded.transaction import Transaction

#: KubeMQ's Grpc.BodyLimit: a larger answer ends the stream.
BODY_LIMIT_BYTES = 100 * 1024 * 1024

Context = grpc.aio.ServicerContext[pb.QueuesDownstreamRequest, bytes]
_REMEMBERED_IDS = 1000


class DownstreamCall:
    """One QueuesDownstream call."""

    def __init__(self, core: Core, context: Context) -> None:
        self._core = core
        self._context = context
        self._transactions: dict[str, Transaction] = {}
        self._closed: set[str] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._write_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve requests until the client goes."""
        self._task = asyncio.current_task()
        try:
            while True:
                await self._serve(await next_request(self._context))
        finally:
            self._release()

    async def _serve(self, request: pb.QueuesDownstreamRequest) -> None:
        if request.RequestTypeData == pb.QueuesDownstreamRequestType.Get:
            get = Get(self, self._core, request)
            if self._core.quirks.serial_streams or not get.would_wait():
                await get.run()
            else:
                task = asyncio.get_running_loop().create_task(get.run(), name="waiting get")
                self._waiting.add(task)
                task.add_done_callback(self._on_answered)
            return
        transaction = self._transactions.get(request.RefTransactionId)
        if transaction is not None:
            await self._serve_open(transaction, request)
        elif request.RefTransactionId not in self._closed:
            await self._answer_error(request, "no such transaction, or it is completed", request.RequestTypeData)
        elif request.RequestTypeData not in HANDLERS and request.RequestTypeData != pb.ActiveOffsets:
            await self._answer_error(request, "unknown request type", pb.PollRequestTypeUnknown)
        elif request.RequestTypeData != pb.CloseByClient:
            await self._answer_error(request, "the transaction is closed", request.RequestTypeData)

    async def _serve_open(self, transaction: Transaction, request: pb.QueuesDownstreamRequest) -> None:
        if request.RequestTypeData == pb.ActiveOffsets:
            answer = pb.QueuesDownstreamResponse(
                TransactionId=request.RefTransactionId,
                RefRequestId=request.RequestID,
                RequestTypeData=pb.ActiveOffsets,
                ActiveOffsets=sorted(transaction.accepted),
            )
            await self.write(answer.SerializeToString())
            return
        handler = HANDLERS.get(request.RequestTypeData)
        if handler is None:
            await self._answer_error(request, "unknown request type", pb.PollRequestTypeUnknown)
            return
        try:
            await handler(self._core, transaction, request)
        except Refused as refusal:
            await self._answer_error(request, str(refusal), request.RequestTypeData)
        self._drop_closed(request.RefTransactionId)

    async def write(self, answer: bytes) -> None:
        """Send one serialized response; one that is too large ends the stream, as with KubeMQ."""
        if len(answer) > BODY_LIMIT_BYTES:
            await self._context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the answer has {len(answer)} bytes, at most {BODY_LIMIT_BYTES} fit",
            )
        async with self._write_lock:
            await self._context.write(answer)

    async def refuse_get(self, request: pb.QueuesDownstreamRequest, transaction_id: str, problem: str) -> None:
        """Answer a Get that was never begun."""
        answer = pb.QueuesDownstreamResponse(
            TransactionId=transaction_id,
            RefRequestId=request.RequestID,
            RequestTypeData=pb.QueuesDownstreamRequestType.Get,
            IsError=True,
            Error=problem,
        )
        await self.write(answer.SerializeToString())

    def keep(self, transaction_id: str, transaction: Transaction) -> None:
        """Remember an answered Get for the requests that refer to it."""
        self._transactions[transaction_id] = transaction
        self._drop_closed(transaction_id)

    def release_later(self, transaction: Transaction, wait_s: float) -> None:
        """The stream was lost under a waiting Get: all of it comes back when that Get ends (quirk)."""
        held = [transaction, *self._transactions.values()]
        self._transactions.clear()

        def release() -> None:
            for each in held:
                each.close()

        transaction.on_full = lambda: self._core.schedule(0, release)
        self._core.schedule(max(0.0, wait_s), release)

    async def _answer_error(
        self, request: pb.QueuesDownstreamRequest, problem: str, kind: pb.QueuesDownstreamRequestType
    ) -> None:
        answer = pb.QueuesDownstreamResponse(
            TransactionId=request.RefTransactionId,
            RefRequestId=request.RequestID,
            RequestTypeData=kind,
            IsError=True,
            Error=problem,
        )
        await self.write(answer.SerializeToString())

    def _drop_closed(self, transaction_id: str) -> None:
        """Keep no more than the id of a transaction that has ended; the last thousand ids, to name the error."""
        transaction = self._transactions.get(transaction_id)
        if transaction is not None and not transaction.is_open:
            del self._transactions[transaction_id]
            if len(self._closed) >= _REMEMBERED_IDS:
                self._closed.clear()
            self._closed.add(transaction_id)

    def _on_answered(self, task: asyncio.Task[None]) -> None:
        """A Get that waited is over; one that could not be answered ends the stream."""
        self._waiting.discard(task)
        if not task.cancelled() and task.exception() is not None and self._task is not None:
            self._task.cancel()

    def _release(self) -> None:
        for task in self._waiting:
            task.cancel()
        for transaction in self._transactions.values():
            transaction.close()
        self._transactions.clear()

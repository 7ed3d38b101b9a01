"""QueuesUpstream: publishing on a stream, with an answer per request in the order of the requests.

Owns the overlap: while one request is being written to disk, the next ones are taken in and share the group after it.
(KubeMQ serves them concurrently and in no particular order.)
"""

from __future__ import annotations

import asyncio

import grpc
from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded.publishing import Intake, Publisher
from connector.embedded.records import varint
from connector.embedded.streams import next_request

Context = grpc.aio.ServicerContext[pb.QueuesUpstreamRequest, bytes]

_MAX_UNANSWERED = 64
_LARGE_BYTES = 1024 * 1024

_Unanswered = tuple[str, Intake | None, asyncio.Future[None] | None]


async def serve_upstream(publisher: Publisher, context: Context) -> None:
    """Serve one stream until the client goes."""
    unanswered: asyncio.Queue[_Unanswered] = asyncio.Queue(_MAX_UNANSWERED)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_answer(unanswered, context), name="publish results")
        while True:
            request = await next_request(context)
            if not request.Messages:
                await unanswered.put((request.RequestID, None, None))
                continue
            intake = publisher.intake()
            for message in request.Messages:
                intake.add(message)
            stored = intake.submit()
            await unanswered.put((request.RequestID, intake, stored))
            if intake.size_bytes > _LARGE_BYTES:
                await asyncio.wait((stored,))  # what is large is in memory one at a time


async def _answer(unanswered: asyncio.Queue[_Unanswered], context: Context) -> None:
    while True:
        request_id, intake, stored = await unanswered.get()
        if intake is None or stored is None:
            refusal = pb.QueuesUpstreamResponse(
                RefRequestID=request_id, IsError=True, Error="the request has no messages"
            )
            await context.write(refusal.SerializeToString())
            continue
        await stored
        await context.write(_response(request_id, intake.results()))


def _response(request_id: str, results: list[bytes]) -> bytes:
    """A serialized QueuesUpstreamResponse: RefRequestID (1) and Results (2)."""
    reference = request_id.encode()
    parts = [b"\x0a", varint(len(reference)), reference]
    for result in results:
        parts += (b"\x12", varint(len(result)), result)
    return b"".join(parts)

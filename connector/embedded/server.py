"""The gRPC server: which method is served by whom, and the life of the process's event loop.

Owns method names, message sizes and keepalive limits of the port.  Methods KubeMQ has and nobody here needs
(StreamQueueMessage, SubscribeToRequests, SendResponse) answer UNIMPLEMENTED.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded.core import Core
from connector.embedded.downstream import BODY_LIMIT_BYTES, DownstreamCall
from connector.embedded.events import EventCalls
from connector.embedded.info import QueuesInfoRequest, queues_info
from connector.embedded.publishing import Publisher
from connector.embedded.receiving import Receiver
from connector.embedded.requests import RequestCalls
from connector.embedded.schema import Unusable
from connector.embedded.upstream import serve_upstream

SERVICE = "kubemq.kubemq"
VERSION = "v2.4.0-embedded"
_STOP_GRACE_S = 0.2

_OPTIONS = [
    ("grpc.max_receive_message_length", BODY_LIMIT_BYTES + 64 * 1024),
    ("grpc.max_send_message_length", BODY_LIMIT_BYTES + 64 * 1024),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
]


class Server:
    """One gRPC server on one core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._started_at = int(time.time())
        self._events = EventCalls(core)
        self._receiver = Receiver(core)
        self._requests = RequestCalls(core, self._events.log)
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port.  Raises Unusable when it cannot be had."""
        try:
            bound = self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError as error:
            raise Unusable(f"cannot listen on {host}:{port}: the address is in use or not ours") from error
        self._core.start()
        self._core.catalog.forget_idle(time.time())
        await self._server.start()
        return bound

    async def stop(self) -> None:
        """End all calls and write what waits."""
        await self._server.stop(_STOP_GRACE_S)
        self._events.log.flush()
        await asyncio.to_thread(self._core.close)

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        publisher = self._core.publisher
        return {
            "Ping": _unary(self._ping, pb.Empty),
            "SendQueueMessage": _unary(_send_one(publisher), pb.QueueMessage, None),
            "SendQueueMessagesBatch": _unary(_send_batch(publisher), pb.QueueMessagesBatchRequest),
            "ReceiveQueueMessages": _unary(self._receive, pb.ReceiveQueueMessagesRequest, None),
            "AckAllQueueMessages": _unary(self._acknowledge_all, pb.AckAllQueueMessagesRequest),
            "QueuesInfo": _unary(self._queues_info, QueuesInfoRequest),
            "SendEvent": _unary(self._events.send, pb.Event),
            "SendRequest": _unary(self._requests.send, pb.Request),
            "SendEventsStream": grpc.stream_stream_rpc_method_handler(
                self._send_events_stream, pb.Event.FromString, _serialized
            ),
            "SubscribeToEvents": grpc.unary_stream_rpc_method_handler(
                self._events.subscribe, pb.Subscribe.FromString, None
            ),
            "QueuesUpstream": grpc.stream_stream_rpc_method_handler(
                self._upstream, pb.QueuesUpstreamRequest.FromString, None
            ),
            "QueuesDownstream": grpc.stream_stream_rpc_method_handler(
                self._downstream, pb.QueuesDownstreamRequest.FromString, None
            ),
        }

    async def _ping(self, _request: pb.Empty, _context: Any) -> pb.PingResult:
        return pb.PingResult(
            Host=socket.gethostname(),
            Version=VERSION,
            ServerStartTime=self._started_at,
            ServerUpTimeSeconds=int(time.time()) - self._started_at,
        )

    async def _queues_info(self, request: Any, _context: Any) -> Any:
        return queues_info(self._core.engine, request)

    async def _receive(self, request: pb.ReceiveQueueMessagesRequest, _context: Any) -> bytes:
        return await self._receiver.receive(request)

    async def _acknowledge_all(
        self, request: pb.AckAllQueueMessagesRequest, _context: Any
    ) -> pb.AckAllQueueMessagesResponse:
        return await self._receiver.acknowledge_all(request)

    async def _send_events_stream(self, _requests: Any, context: Any) -> None:
        await self._events.send_stream(context)

    async def _downstream(self, _requests: Any, context: Any) -> None:
        await DownstreamCall(self._core, context).run()

    async def _upstream(self, _requests: Any, context: Any) -> None:
        await serve_upstream(self._core.publisher, context)


def _send_one(publisher: Publisher) -> Callable[[pb.QueueMessage, Any], Awaitable[bytes]]:
    async def send(message: pb.QueueMessage, _context: Any) -> bytes:
        results, _ = await publisher.publish((message,))
        return results[0]

    return send


def _send_batch(
    publisher: Publisher,
) -> Callable[[pb.QueueMessagesBatchRequest, Any], Awaitable[pb.QueueMessagesBatchResponse]]:
    async def send(request: pb.QueueMessagesBatchRequest, context: Any) -> pb.QueueMessagesBatchResponse:
        if not request.Messages:
            await context.abort(grpc.StatusCode.UNKNOWN, "the batch has no messages")
        results, have_errors = await publisher.publish(request.Messages)
        response = pb.QueueMessagesBatchResponse(BatchID=request.BatchID, HaveErrors=have_errors)
        for result in results:
            response.Results.add().ParseFromString(result)
        return response

    return send


def _serialized(message: Any) -> bytes:
    serialized: bytes = message.SerializeToString()
    return serialized


def _unary(
    handler: Callable[[Any, Any], Awaitable[Any]],
    request_class: Any,
    serializer: Callable[[Any], bytes] | None = _serialized,
) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(handler, request_class.FromString, serializer)

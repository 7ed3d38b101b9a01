"""A gRPC server that answers as a test says: KubeMQ's calls without a KubeMQ behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeAlias

import grpc
import grpc.aio

from connector.backend.kubemq.queues_info import QueuesInfoRequest, QueuesInfoResponse
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from tests.unit.backend.settling import quiet

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Unary: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
Streaming: TypeAlias = Callable[[Any, Context], AsyncIterator[Any]]

_UNARY = {
    "Ping": (pb.Empty, pb.PingResult),
    "QueuesInfo": (QueuesInfoRequest, QueuesInfoResponse),
    "SendQueueMessagesBatch": (pb.QueueMessagesBatchRequest, pb.QueueMessagesBatchResponse),
}
_DUPLEX = {
    "QueuesUpstream": (pb.QueuesUpstreamRequest, pb.QueuesUpstreamResponse),
    "QueuesDownstream": (pb.QueuesDownstreamRequest, pb.QueuesDownstreamResponse),
    "SendEventsStream": (pb.Event, pb.Result),
}


async def ping(request: pb.Empty, context: Context) -> pb.PingResult:
    """Answer as a server that runs."""
    return pb.PingResult(Host="scripted", Version="v0", ServerStartTime=7)


async def no_queues(request: Any, context: Context) -> Any:
    """Answer that there are no queues."""
    return QueuesInfoResponse()


async def refuse_all(request: pb.QueueMessagesBatchRequest, context: Context) -> pb.QueueMessagesBatchResponse:
    """Refuse the messages as KubeMQ refuses the probe: for their delay."""
    result = pb.SendQueueMessageResult(IsError=True, Error="Error 135: invalid delay seconds")
    return pb.QueueMessagesBatchResponse(Results=[result for _ in request.Messages])


class Scripted(grpc.GenericRpcHandler):
    """The server; ``handlers`` maps a call's name to a coroutine function or async generator function.

    It starts with Ping, QueuesInfo and the probe.  Use with ``async with``; ``seen`` has (call, metadata).
    """

    def __init__(self, **handlers: Unary | Streaming) -> None:
        self.handlers: dict[str, Any] = {
            "Ping": ping,
            "QueuesInfo": no_queues,
            "SendQueueMessagesBatch": refuse_all,
            **handlers,
        }
        self.address = ""
        self.seen: list[tuple[str, dict[str, str | bytes]]] = []
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        self._server.add_generic_rpc_handlers((self,))

    async def __aenter__(self) -> Self:
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await quiet()

    async def stop(self) -> None:
        """Be gone; a second time changes nothing."""
        await self._server.stop(None)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call, or None for one that is unknown."""
        name = details.method.rpartition("/")[2]
        metadata = dict(details.invocation_metadata or ())
        self.seen.append((name, metadata))
        handler = self.handlers.get(name)
        if handler is None:
            return None
        if name in _UNARY:
            request, response = _UNARY[name]
            make = grpc.unary_unary_rpc_method_handler
        elif name in _DUPLEX:
            request, response = _DUPLEX[name]
            make = grpc.stream_stream_rpc_method_handler
        else:
            request, response = pb.Subscribe, pb.EventReceive
            make = grpc.unary_stream_rpc_method_handler
        return make(handler, request_deserializer=request.FromString, response_serializer=response.SerializeToString)

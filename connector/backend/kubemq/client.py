"""The connection to a KubeMQ server: channels, their options, Ping and QueuesInfo.

Owns the gRPC channels, which address is used, the credentials and what every call has in common; the streams are in
``upstream.py``, ``downstream.py`` and ``topology_log.py``.  Choices and their measurements: docs/adr/0003.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from connector.backend.kubemq.calls import answer
from connector.backend.kubemq.errors import error_text, store_error
from connector.backend.kubemq.health import INFO, Health
from connector.backend.kubemq.queues_info import QueuesInfoRequest, QueuesInfoResponse, channel_infos
from connector.backend.kubemq.stubs import SERVICE
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.ports import ChannelInfo, Rejected, ServerInfo, StoreError, Unavailable

#: KubeMQ's default Grpc.BodyLimit: the largest gRPC message it takes or sends.
BODY_LIMIT_BYTES = 104_857_600

#: KubeMQ is a Go server: it closes a connection that pings more than once in five minutes without data ("too many
#: pings", measured at 10, 30 and 60 s), so keepalive only finds links that are dead for long; deadlines find the rest.
OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # gRPC's name for how long one attempt to connect may take
    ("grpc.use_local_subchannel_pool", 1),  # else equal channels share one connection
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.primary_user_agent", "kubemq-amqp"),
)

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

#: 100 MB over a slow link.
_PADDED_TIMEOUT_S = 30.0

_CLIENT_ID = re.compile(r"[A-Za-z0-9_-]+")

#: How long another address has to answer each question.
_PROBE_S = 2.0

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class KubeMQClient:
    """Channels to one KubeMQ server out of ``addresses`` (HOST:PORT or ``unix:/path``); call ``connect`` first.

    The addresses are those of one cluster: whichever is used has the same data.

    ``client_id`` names this connector to KubeMQ and differs between replicas: letters, digits, ``-`` and ``_``, as the
    ClientID of a subscription must be.  ``connections`` is how many HTTP/2 connections the calls are spread over.
    ``call_timeout_s`` is the deadline of Ping and QueuesInfo.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        client_id: str,
        *,
        auth_token: str = "",
        connections: int = 1,
        call_timeout_s: float = 5.0,
    ) -> None:
        self.addresses = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        if not self.addresses or not _CLIENT_ID.fullmatch(client_id) or connections < 1:
            raise ValueError("needs an address, a client id of letters, digits, '-' and '_', and a connection")
        self.client_id = client_id
        self.address = ""
        self.health = Health()
        self._metadata = (("authorization", auth_token),) if auth_token else None
        self._connections = connections
        self._call_timeout_s = call_timeout_s
        self._channels: list[grpc.aio.Channel] = []
        self._turn = itertools.count()

    async def connect(self, deadline_s: float) -> ServerInfo:
        """Use the first address that answers Ping and QueuesInfo; try all again until one does.

        Raises Unavailable after ``deadline_s`` seconds, with what each address said last; Rejected when all servers
        lack QueuesInfo.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        pause_s = _FIRST_PAUSE_S
        said: dict[str, StoreError] = {}
        while True:
            for address in self.addresses:
                await self._open(address)
                left_s = max(0.05, min(self._call_timeout_s, end - loop.time()))
                try:
                    info = await self._ping(left_s)
                    await self.queues_info()
                except StoreError as error:
                    said[address] = error
                else:
                    return info
            if all(isinstance(error, Rejected) for error in said.values()):
                raise said[self.address]
            if loop.time() + pause_s >= end:
                await self.close()
                raise Unavailable("; ".join(f"{address}: {text}" for address, text in said.items()))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 # no secret
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def probe(self) -> ServerInfo:
        """Look once whether the first address is there and serves.  Raises StoreError."""
        await self._open(self.addresses[0])
        info = await self._ping(self._call_timeout_s)
        await self.queues_info()
        return info

    async def move(self, check: Callable[[KubeMQClient], Awaitable[str]]) -> dict[str, str]:
        """Use the next address that answers and that ``check`` has nothing against; per address passed over, why.

        Whatever is open at the address in use is cancelled then, all at once.  ``address`` tells whether it moved.
        """
        at = self.addresses.index(self.address) if self.address in self.addresses else 0
        refused: dict[str, str] = {}
        for address in (*self.addresses[at + 1 :], *self.addresses[:at]):
            other = KubeMQClient(address, self.client_id, connections=self._connections, call_timeout_s=_PROBE_S)
            other._metadata = self._metadata  # one of us
            try:
                await other.probe()
                refused[address] = await check(other)
                if not refused[address]:
                    self.address = address
                    self._channels, other._channels = other._channels, self._channels
                    self.health.reset()
                    del refused[address]
                    return refused
            except StoreError as error:
                refused[address] = str(error)
            finally:
                await other.close()
        return refused

    async def close(self) -> None:
        """Close all connections; whoever waits for an answer gets Unavailable."""
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.close()

    def open_upstream(self) -> grpc.aio.StreamStreamCall[pb.QueuesUpstreamRequest, pb.QueuesUpstreamResponse]:
        """Start a QueuesUpstream call.  Raises Unavailable when not connected."""
        return self._duplex("QueuesUpstream", pb.QueuesUpstreamRequest, pb.QueuesUpstreamResponse)

    def open_downstream(self) -> grpc.aio.StreamStreamCall[pb.QueuesDownstreamRequest, pb.QueuesDownstreamResponse]:
        """Start a QueuesDownstream call.  Raises Unavailable when not connected."""
        return self._duplex("QueuesDownstream", pb.QueuesDownstreamRequest, pb.QueuesDownstreamResponse)

    def open_events(self) -> grpc.aio.StreamStreamCall[pb.Event, pb.Result]:
        """Start a SendEventsStream call.  Raises Unavailable when not connected."""
        return self._duplex("SendEventsStream", pb.Event, pb.Result)

    def open_subscription(self, request: pb.Subscribe) -> grpc.aio.UnaryStreamCall[pb.Subscribe, pb.EventReceive]:
        """Start a SubscribeToEvents call.  Raises Unavailable when not connected."""
        call: grpc.aio.UnaryStreamMultiCallable[pb.Subscribe, pb.EventReceive] = self._channel().unary_stream(
            SERVICE + "SubscribeToEvents",
            request_serializer=pb.Subscribe.SerializeToString,
            response_deserializer=pb.EventReceive.FromString,
        )
        return call(request, metadata=self._metadata)

    async def ping(self) -> ServerInfo:
        """Ping; raises Unavailable or TimedOut."""
        return await self._ping(self._call_timeout_s)

    async def queues_info(self) -> list[ChannelInfo]:
        """QueuesInfo of all queues.  Raises Unavailable or TimedOut, Rejected where the server lacks the call."""
        request = QueuesInfoRequest(RequestID="q")
        try:
            response = await self._unary("QueuesInfo", request, QueuesInfoResponse, self._call_timeout_s)
        except grpc.aio.AioRpcError as error:
            self.health.bad(INFO, error_text(error))
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise Rejected(_NO_QUEUES_INFO.format(self.address)) from error
            raise store_error(error) from error
        self.health.good(INFO)
        return channel_infos(response)

    async def takes(self, size_bytes: int) -> bool:
        """Return whether the server takes calls of so many bytes: tried with a Ping of that size.

        Raises Unavailable or TimedOut.
        """
        padding = b"\x7a" + _varint(size_bytes - 5) + bytes(size_bytes - 5)  # a field that nobody knows
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel().unary_unary(SERVICE + "Ping")
        try:
            await answer(call(padding, timeout=_PADDED_TIMEOUT_S, metadata=self._metadata))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                return False
            raise store_error(error) from error
        return True

    async def send_batch(self, messages: Sequence[pb.QueueMessage]) -> list[str]:
        """SendQueueMessagesBatch, for what is no stream's business: per message "" or KubeMQ's error text."""
        request = pb.QueueMessagesBatchRequest(BatchID="b", Messages=messages)
        try:
            response = await self._unary(
                "SendQueueMessagesBatch", request, pb.QueueMessagesBatchResponse, self._call_timeout_s
            )
        except grpc.aio.AioRpcError as error:
            raise store_error(error) from error
        return [result.Error if result.IsError else "" for result in response.Results]

    def _channel(self) -> grpc.aio.Channel:
        """Return the channel for one more call."""
        if not self._channels:
            raise Unavailable("not connected to KubeMQ")
        return self._channels[next(self._turn) % len(self._channels)]

    def _duplex(
        self, name: str, request_class: type[Request], response_class: type[Response]
    ) -> grpc.aio.StreamStreamCall[Request, Response]:
        call: grpc.aio.StreamStreamMultiCallable[Request, Response] = self._channel().stream_stream(
            SERVICE + name,
            request_serializer=request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )
        return call(metadata=self._metadata)

    async def _ping(self, timeout_s: float) -> ServerInfo:
        try:
            result = await self._unary("Ping", pb.Empty(), pb.PingResult, timeout_s)
        except grpc.aio.AioRpcError as error:
            raise store_error(error) from error
        now = result.ServerStartTime + result.ServerUpTimeSeconds
        return ServerInfo(result.Host, result.Version, result.ServerStartTime, now)

    async def _unary(self, name: str, request: Any, response_class: Any, timeout_s: float) -> Any:
        call = self._channel().unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_class.FromString,
        )
        return await answer(call(request, timeout=timeout_s, metadata=self._metadata))

    async def _open(self, address: str) -> None:
        """Open fresh channels to an address, unless it is the one in use."""
        if self._channels and self.address == address:
            return
        await self.close()
        self.address = address
        self._channels = [
            grpc.aio.insecure_channel(address, options=(*OPTIONS, ("grpc.channel_no", number)))
            for number in range(self._connections)
        ]


def _varint(number: int) -> bytes:
    """Return protobuf's form of a length, always of four bytes (below 256 MiB)."""
    return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14 & 0x7F | 0x80, number >> 21 & 0x7F))


_NO_QUEUES_INFO = (
    "the KubeMQ server at {} has no QueuesInfo call, which the connector needs to know how many messages wait; "
    "use KubeMQ 2.4 or newer"
)

"""What connectors tell each other: KubeMQ's transient Events, one channel for each connector and one for all.

Owns the stream of what is sent and the subscriptions; knows no meaning.  Events may be lost: whoever needs more
numbers and repeats them (``broker/peer_link.py``).  A subscription that brings nothing for ``silence_s``, and a stream
that takes nothing for so long, count as broken: every connector sends to itself now and then.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator

import grpc.aio

from connector.backend.kubemq.calls import Duplex, Inbound
from connector.backend.kubemq.client import KubeMQClient
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from mapping.names import peer_channel

_FRAME = "frame"


class KubeMQPeerBus:
    """``ports.PeerBus``."""

    def __init__(self, client: KubeMQClient, *, silence_s: float = 5.0) -> None:
        self._client = client
        self._silence_s = silence_s
        self._sender: Duplex[pb.Event, pb.Result] | None = None

    async def send(self, to: str, data: bytes) -> None:
        """To one connector, or to all with ""; one after the other.  Raises Unavailable or TimedOut."""
        if self._sender is None or self._sender.is_gone:
            self._sender = Duplex(self._client.open_events)
        event = pb.Event(ClientID=self._client.client_id, Channel=peer_channel(to), Metadata=_FRAME, Body=data)
        sender = self._sender
        sender.start_deadline(self._silence_s)
        try:
            await sender.write(event)
        finally:
            sender.stop_deadline()

    async def listen(self, to: str) -> AsyncGenerator[bytes, None]:
        """What is sent to this connector, or to all with "", from now on.  Raises Unavailable or TimedOut."""
        subscription = Inbound(lambda: self._subscribe(to))
        try:
            while True:
                subscription.start_deadline(self._silence_s)
                event = await subscription.read()
                subscription.stop_deadline()
                yield event.Body
        finally:
            subscription.drop()

    def _subscribe(self, to: str) -> grpc.aio.UnaryStreamCall[pb.Subscribe, pb.EventReceive]:
        return self._client.open_subscription(
            pb.Subscribe(
                SubscribeTypeData=pb.Subscribe.Events,
                ClientID=f"{self._client.client_id}-{uuid.uuid4().hex}",
                Channel=peer_channel(to),
            )
        )

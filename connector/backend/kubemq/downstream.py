"""Reading: one QueuesDownstream stream.

Owns the requests Get, AckRange, CloseByClient and ActiveOffsets, which answer belongs to which, and how a stored
message becomes a ``Message``.  Knows nothing of leases: who may ask for what and when is the broker's.  Rules
(kubemq.md, checked in the server's source): a stream is served serially and in order; a Get is always answered, an ack
or a close only when it fails; ActiveOffsets is always answered, with an error for a transaction it does not know.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

import grpc.aio

from connector.backend.kubemq.calls import Duplex
from connector.backend.kubemq.health import GET, Health
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.message import Message
from connector.broker.ports import Answer, TimedOut, Unavailable
from mapping.attributes import native_header
from mapping.envelope import decode
from mapping.names import vhost_and_queue

#: The server's minimum: a Get that finds less than it asked for is answered after this time.
WAIT_TIMEOUT_MS = 1_000

#: A transaction that no server knows: what a barrier asks about.
_NO_TRANSACTION = "barrier"

_by_sequence = attrgetter("sequence")


class KubeMQQueueStream:
    """``ports.QueueStream``: one task at a time; ``timeout_s`` is the deadline of every request.

    Must be above the server's ``WAIT_TIMEOUT_MS``, which a short Get takes.  The tokens of ``ack_range`` are the
    numbers of its requests.
    """

    __slots__ = ("_client_id", "_duplex", "_failed_acks", "_health", "_numbers", "_timeout_s")

    def __init__(
        self,
        open_call: Callable[[], grpc.aio.StreamStreamCall[pb.QueuesDownstreamRequest, pb.QueuesDownstreamResponse]],
        client_id: str,
        timeout_s: float,
        health: Health | None = None,
    ) -> None:
        self._duplex = Duplex(open_call)
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._health = health or Health()
        self._numbers = itertools.count(1)
        self._failed_acks: list[int] = []

    async def get(self, kubemq_channel: str, max_items: int) -> Answer:
        """Read up to ``max_items`` in a new transaction; a refused Get is an answer with ``error``.

        Raises Unavailable, TimedOut or TooMuch; the stream is then gone.
        """
        try:
            response = await self._ask(
                pb.QueuesDownstreamRequest(
                    RequestTypeData=pb.Get, Channel=kubemq_channel, MaxItems=max_items, WaitTimeout=WAIT_TIMEOUT_MS
                )
            )
        except (Unavailable, TimedOut) as error:
            self._health.bad(GET, str(error))
            raise
        failed_acks = self._take_failed_acks()
        if response.IsError:
            self._health.bad(GET, response.Error)
            return Answer("", [], response.Error or "refused without a reason", failed_acks)
        self._health.good(GET)
        stored = response.Messages
        oldest_at = stored[0].Attributes.Timestamp / 1e9 if stored else 0.0
        return Answer(response.TransactionId, messages_of(kubemq_channel, stored), "", failed_acks, oldest_at)

    async def ack_range(self, transaction_id: str, sequences: list[int]) -> int:
        """Acknowledge exactly these Sequences; returns the token by which a failure is told later."""
        return await self._tell(
            pb.QueuesDownstreamRequest(
                RequestTypeData=pb.AckRange, RefTransactionId=transaction_id, SequenceRange=sequences
            )
        )

    async def close_transaction(self, transaction_id: str) -> None:
        """Give back what is unacknowledged; harmless when the transaction is complete or unknown."""
        await self._tell(pb.QueuesDownstreamRequest(RequestTypeData=pb.CloseByClient, RefTransactionId=transaction_id))

    async def barrier(self) -> Sequence[int]:
        """Return when all earlier requests were served, with the tokens of the acks that failed."""
        await self._ask(pb.QueuesDownstreamRequest(RequestTypeData=pb.ActiveOffsets, RefTransactionId=_NO_TRANSACTION))
        return self._take_failed_acks()

    def cancel(self) -> None:
        """Drop the stream; KubeMQ returns what is unacknowledged."""
        self._duplex.drop()

    async def _tell(self, request: pb.QueuesDownstreamRequest) -> int:
        """Send a request that is answered only when it fails; returns its number."""
        number = next(self._numbers)
        request.RequestID = str(number)
        request.ClientID = self._client_id
        duplex = self._duplex
        duplex.start_deadline(self._timeout_s)
        try:
            await duplex.write(request)
        finally:
            duplex.stop_deadline()
        return number

    async def _ask(self, request: pb.QueuesDownstreamRequest) -> pb.QueuesDownstreamResponse:
        """Send a request and return its answer; what failed of earlier requests comes before it."""
        request_id = str(next(self._numbers))
        request.RequestID = request_id
        request.ClientID = self._client_id
        duplex = self._duplex
        duplex.start_deadline(self._timeout_s)
        try:
            await duplex.write(request)
            while True:
                response = await duplex.read()
                if response.RefRequestId == request_id:
                    return response
                if response.IsError and response.RequestTypeData == pb.AckRange:
                    self._failed_acks.append(int(response.RefRequestId))
        finally:
            duplex.stop_deadline()

    def _take_failed_acks(self) -> list[int]:
        failed_acks = self._failed_acks
        if failed_acks:
            self._failed_acks = []
        return failed_acks


def messages_of(kubemq_channel: str, stored_messages: Iterable[pb.QueueMessage]) -> list[Message]:
    """Return what was read as messages, in Sequence order, each once.

    The server answers so, but for what it redelivers: that may come out of order, and twice in one answer (measured: 4
    of 40,000 messages that another connector had stored, on a busy machine).
    """
    messages = []
    last = 0
    is_ordered = True
    for stored in stored_messages:
        sequence = stored.Attributes.Sequence
        is_ordered = is_ordered and sequence > last
        last = sequence
        envelope = decode(stored.Metadata)
        if envelope is None:
            messages.append(_native_message(kubemq_channel, stored))
            continue
        messages.append(
            Message(
                envelope.exchange,
                envelope.routing_key,
                envelope.header,
                stored.Body,
                stored.MessageID,
                sequence,
                kubemq_channel,
                envelope.redelivered,
                envelope.delivery_count,
                envelope.text_bytes,
            )
        )
    if not is_ordered:
        messages = sorted({message.sequence: message for message in messages}.values(), key=_by_sequence)
    return messages


def _native_message(kubemq_channel: str, stored: pb.QueueMessage) -> Message:
    """Return a message that a native KubeMQ client stored, as if published to its queue by the default exchange."""
    names = vhost_and_queue(kubemq_channel)
    attributes = stored.Attributes
    header = native_header(stored.Tags, stored.MessageID, stored.Metadata, attributes.Timestamp)
    routing_key = names[1] if names else kubemq_channel
    return Message("", routing_key, header, stored.Body, stored.MessageID, attributes.Sequence, kubemq_channel)

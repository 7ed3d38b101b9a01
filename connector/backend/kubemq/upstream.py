"""Storing: one QueuesUpstream stream, one request in flight.

Owns how messages become a request, which result belongs to which, the size limits of a request and what is done about
a request that KubeMQ has served but never answers.  Rules (measured, and read in the server's source):

- a request over the server's limit kills it: see ``request_limit.py``;
- results come in the order of the messages; one with neither an error nor a time of storing was not stored;
- a request may never be answered though all in it is stored: the server misses the last result when it comes too soon
  (about 1 of 5,000 to 50,000 requests on two busy cores, of 1 as of 10 messages).  So when an answer takes many times
  as long as usual, a message is sent that is refused in any case; when that is answered and the request still is not,
  the request is sent once more.  (A server or link that stands still answers neither, and gets nothing twice.)
  Nothing overtakes it; its messages are then stored twice with the same MessageIDs, which ``Repeat.tell`` hears
  before, so that the reader keeps one of each (design.md section 3, point 9).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeAlias

import grpc.aio

from connector.backend.kubemq.calls import Duplex
from connector.backend.kubemq.health import STORE, Health
from connector.backend.kubemq.request_limit import RequestLimit
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.ports import NotSent, Outgoing, Rejected, StoreError, TooMuch, Unavailable
from mapping.envelope import encode, flagged

#: What a message of a request costs beside body and metadata, at most: channel, ids, policy and their tags.
_MESSAGE_BYTES = 1_024
#: The largest number of bytes of UTF-8 per character.
_CHARACTER_BYTES = 4
#: An answer is late after so many times the usual time, and not before so many seconds.
_LATE_FACTOR = 10.0
_LATE_S = 0.04
#: Part of the newest answer in the usual time.
_USUAL_WEIGHT = 0.1
#: How long an answer that is on its way may still take, once what was asked later is answered.
_LAST_LOOK_S = 0.02
#: A request is given a second more for so many bytes before it counts as unanswered.
_BYTES_PER_S = 20_000_000

_NO_REASON = "refused without a reason"
_NOT_STORED = "KubeMQ did not store the message and gave no reason"
_TOO_LARGE = "the message is larger than KubeMQ takes"


_Stream: TypeAlias = Duplex[pb.QueuesUpstreamRequest, pb.QueuesUpstreamResponse]
_Requests: TypeAlias = list[pb.QueuesUpstreamRequest]
_Refused: TypeAlias = list[tuple[int, str]]
"""(index, reason) of the messages that cannot be sent."""


class Repeat:
    """An answer is late after ``after_s`` seconds at the latest; ``tell`` hears what is sent again before it is."""

    __slots__ = ("after_s", "tell")

    def __init__(self, after_s: float, tell: Callable[[Sequence[Outgoing]], None]) -> None:
        self.after_s = after_s
        self.tell = tell


class KubeMQStoreLane:
    """``ports.StoreLane``; after Unavailable or TimedOut the next ``send`` opens a new stream.

    ``limit`` may be shared by all lanes; without ``repeat`` no request is sent again.
    """

    def __init__(
        self,
        open_call: Callable[[], grpc.aio.StreamStreamCall[pb.QueuesUpstreamRequest, pb.QueuesUpstreamResponse]],
        client_id: str,
        policy: pb.QueueMessagePolicy,
        timeout_s: float,
        limit: RequestLimit,
        repeat: Repeat | None = None,
        health: Health | None = None,
    ) -> None:
        self._open_call = open_call
        self._duplex = Duplex(open_call)
        self._client_id = client_id
        self._policy = policy
        self._timeout_s = timeout_s
        self._limit = limit
        self._repeat = repeat
        self._health = health or Health()
        self._repeat_timer: asyncio.TimerHandle | None = None
        self._usual_s = repeat.after_s / _LATE_FACTOR if repeat is not None else 0.0
        self._probe_id = ""
        self._repeating: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._awaited: tuple[str, ...] = ()
        self._is_cancelled = False

    async def send(self, batch: Sequence[Outgoing]) -> list[str]:
        """Store the batch in order; per message "" or why it is not stored.

        A batch over the server's size limit goes in several requests, one after the other.  Raises NotSent: nothing is
        stored; Unavailable or TimedOut: all results are unknown; TooMuch: the server was started anew with a smaller
        limit.
        """
        results: list[str] = []
        try:
            requests, refused = await self._proven_requests(batch)
            for request in requests:
                results += await self._exchange(request, batch)
        except NotSent as error:
            if results:  # of those before it
                raise Unavailable(str(error)) from error
            raise
        for index, reason in refused:
            results.insert(index, reason)
        return results

    def cancel(self) -> None:
        """Drop the stream for good."""
        self._is_cancelled = True
        self._duplex.drop()

    async def _proven_requests(self, batch: Sequence[Outgoing]) -> tuple[_Requests, _Refused]:
        """Return what ``_requests`` returns, of sizes that the server is known to take."""
        limit = self._limit
        while True:
            requests, refused, size_bytes = self._requests(batch)
            if size_bytes > limit.proven_bytes:
                size_bytes = max(request.ByteSize() for request in requests)
            if size_bytes <= limit.proven_bytes:
                return requests, refused
            try:
                await limit.prove(size_bytes)
            except Rejected:
                raise
            except StoreError as error:
                raise NotSent(str(error)) from error

    def _requests(self, batch: Sequence[Outgoing]) -> tuple[_Requests, _Refused, int]:
        """Return the requests, nearly always one, what cannot be sent, and the estimated size of the largest request.

        An estimate is never too small.  One message is the mould of all: setting what differs and copying it costs half
        of making each anew.
        """
        requests: _Requests = []
        refused: _Refused = []
        mould = pb.QueueMessage(ClientID=self._client_id, Policy=self._policy)
        append = pb.QueuesUpstreamRequest().Messages.append  # of none of them: the first message opens a request
        kubemq_channel = metadata = ""
        limit_bytes = size_bytes = self._limit.usable_bytes
        largest_bytes = 0
        for index, outgoing in enumerate(batch):
            message = outgoing.message
            try:
                if outgoing.kubemq_channel != kubemq_channel:
                    mould.Channel = kubemq_channel = outgoing.kubemq_channel
                text = encode(
                    message.exchange, message.routing_key, message.header, message.redelivered, message.delivery_count
                )
                if text is not metadata:
                    mould.Metadata = metadata = text
                mould.MessageID = message.message_id
                mould.Body = message.body
            except (TypeError, ValueError) as error:  # a text that is no UTF-8
                refused.append((index, f"cannot be stored: {error}"))
                continue
            cost_bytes = len(message.body) + _CHARACTER_BYTES * len(metadata) + _MESSAGE_BYTES
            size_bytes += cost_bytes
            if size_bytes > limit_bytes:
                if cost_bytes > limit_bytes and mould.ByteSize() > limit_bytes:
                    refused.append((index, _TOO_LARGE))
                    size_bytes -= cost_bytes
                    continue
                largest_bytes = max(largest_bytes, size_bytes - cost_bytes) if requests else 0
                size_bytes = cost_bytes
                requests.append(pb.QueuesUpstreamRequest())
                append = requests[-1].Messages.append
            append(mould)
        return requests, refused, max(largest_bytes, size_bytes) if requests else 0

    async def _exchange(self, request: pb.QueuesUpstreamRequest, batch: Sequence[Outgoing]) -> list[str]:
        """Send one request and return its results."""
        request.RequestID = str(next(self._numbers))
        self._awaited = (request.RequestID,)
        if self._is_cancelled:
            raise NotSent("the lane was dropped")
        if self._duplex.is_gone:
            self._duplex = Duplex(self._open_call)
        duplex = self._duplex
        duplex.start_deadline(self._timeout_s)
        try:
            await duplex.write(request)
            if self._repeat is None:
                response = await duplex.read()
            else:
                response = await self._read_answer(duplex, self._repeat, request, batch)
        except TooMuch:
            self._limit.forget()
            raise
        except StoreError as error:
            self._health.bad(STORE, str(error))
            raise
        finally:
            await self._stop_repeating()
            duplex.stop_deadline()
        if response.IsError:
            self._health.bad(STORE, response.Error)
        else:
            self._health.good(STORE)
        return _results(response, len(request.Messages))

    async def _read_answer(
        self, duplex: _Stream, repeat: Repeat, request: pb.QueuesUpstreamRequest, batch: Sequence[Outgoing]
    ) -> pb.QueuesUpstreamResponse:
        """The answer to the request, or to its repetition."""
        loop = asyncio.get_running_loop()
        written_at = loop.time()
        self._probe_id = ""
        late_s = min(repeat.after_s, max(_LATE_S, _LATE_FACTOR * self._usual_s))
        self._repeat_timer = loop.call_later(late_s, self._start, self._probe)
        while True:
            response = await duplex.read()
            if response.RefRequestID in self._awaited:
                break
            if response.RefRequestID == self._probe_id:  # else it is the late answer to what was sent twice
                more_s = max(_LAST_LOOK_S, request.ByteSize() / _BYTES_PER_S)
                self._repeat_timer = loop.call_later(more_s, self._on_overdue, repeat, request, batch)
        if len(self._awaited) == 1:
            self._usual_s += (loop.time() - written_at - self._usual_s) * _USUAL_WEIGHT
        return response

    def _start(self, send: Callable[[], Coroutine[None, None, None]]) -> None:
        self._repeating = asyncio.create_task(send(), name="kubemq repeat")

    async def _probe(self) -> None:
        """Ask something that is answered at once and stores nothing: a negative delay is refused."""
        self._probe_id = str(next(self._numbers))
        refused = pb.QueueMessage(
            MessageID="~probe",
            ClientID=self._client_id,
            Channel="amqp.~probe",
            Metadata="probe",
            Policy=pb.QueueMessagePolicy(DelaySeconds=-1),
        )
        with contextlib.suppress(StoreError):  # the one who waits for the answer is told
            await self._duplex.write(pb.QueuesUpstreamRequest(RequestID=self._probe_id, Messages=[refused]))

    def _on_overdue(self, repeat: Repeat, request: pb.QueuesUpstreamRequest, batch: Sequence[Outgoing]) -> None:
        repeat.tell(batch)
        self._start(lambda: self._send_again(request))

    async def _send_again(self, request: pb.QueuesUpstreamRequest) -> None:
        request.RequestID = str(next(self._numbers))
        self._awaited += (request.RequestID,)
        for message in request.Messages:  # second copies say so: a reader that starts anew cannot know the first
            message.Metadata = flagged(message.Metadata)
        with contextlib.suppress(StoreError):  # the one who waits for the answer is told
            await self._duplex.write(request)

    async def _stop_repeating(self) -> None:
        if self._repeat_timer is not None:
            self._repeat_timer.cancel()
            self._repeat_timer = None
        if self._repeating is not None:
            repeating, self._repeating = self._repeating, None
            await repeating


def _results(response: pb.QueuesUpstreamResponse, count: int) -> list[str]:
    """Return per message "" or KubeMQ's error.  Raises Unavailable for an answer that does not fit the request."""
    if response.IsError:
        return [response.Error or _NO_REASON] * count
    results = [
        (result.Error or _NO_REASON) if result.IsError else "" if result.SentAt else _NOT_STORED
        for result in response.Results
    ]
    if len(results) != count:
        raise Unavailable(f"KubeMQ answered {len(results)} results to {count} messages")
    return results

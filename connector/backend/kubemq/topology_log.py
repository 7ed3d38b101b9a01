"""The declarations' log in KubeMQ's Events Store.

Owns appending, following from the first event, and the end of what existed.  Rules (measured, and read in the server's
source; docs/adr/0003): one channel has one total order; a ClientID is durable, so every replay needs a new one; "sent"
means that the server has taken the event, not yet that it is stored: what comes back through ``follow`` is stored; a
subscriber that is slow for 2 s loses events silently, seen as a gap in the Sequences.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncGenerator

from connector.backend.kubemq.calls import Duplex, Inbound
from connector.backend.kubemq.client import KubeMQClient
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.ports import NotSent, Rejected, StoreError, TimedOut, Unavailable
from mapping.names import TOPOLOGY_CHANNEL, TOPOLOGY_START

#: Metadata of an event, and of a marker: an event by which a reader finds the end of what existed.
_EVENT = "event"
_MARKER = "marker"

#: Where to begin is looked for in so many events at the end, then in so many times more.
_LOOK_BACK, _LOOK_BACK_FACTOR = 64, 16

#: An event that exists comes in milliseconds.
_READ_S = 2.0

_GONE = "the stream of appends has ended"
_NO_REASON = "refused without a reason"


class KubeMQTopologyLog:
    """``ports.TopologyLog``; ``append_timeout_s`` is the deadline of an append.

    ``silence_s`` is how long a replay may bring nothing before it counts as broken; later on, silence is normal.
    """

    def __init__(
        self,
        client: KubeMQClient,
        kubemq_channel: str = TOPOLOGY_CHANNEL,
        *,
        append_timeout_s: float = 10.0,
        silence_s: float = 10.0,
    ) -> None:
        self._client = client
        self._kubemq_channel = kubemq_channel
        self._append_timeout_s = append_timeout_s
        self._silence_s = silence_s
        self._appender: _Appender | None = None
        self._start = 0

    async def append(self, event: bytes, start: int = 0) -> None:
        """Append one event; appends that overlap keep the order of their calls.

        Raises Unavailable or TimedOut (it may still come back through ``follow``), NotSent (it may not), or Rejected.
        """
        self._start = max(self._start, start)
        await self._append(_EVENT, event)

    async def close(self) -> None:
        """Drop the stream of appends; whoever waits gets Unavailable."""
        if self._appender is not None:
            await self._appender.close()

    async def follow(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """Every event as (Sequence, bytes) from where it is enough, then live; ``(0, b"")`` once after what existed.

        It begins at the ``start`` that the newest events name, else at the first kept event.  What existed ends at a
        marker of our own, appended before the subscription; nobody's markers are yielded.
        Raises Unavailable when the link breaks or an event was lost on the way: call again to start over.  Close the
        iterator (``contextlib.aclosing``), which ends the subscription.
        """
        marker = uuid.uuid4().bytes
        subscription = None
        is_complete = False
        last = 0
        try:
            await self._append(_MARKER, marker)
            subscription = self._open(self._start or await self._find_start())
            while True:
                if not is_complete:
                    subscription.start_deadline(self._silence_s)
                event = await subscription.read()
                subscription.stop_deadline()
                sequence = event.Sequence
                if sequence <= last:  # a redelivery
                    continue
                if last and sequence != last + 1:
                    raise Unavailable(f"the events {last + 1} to {sequence - 1} of the topology log were not delivered")
                last = sequence
                if event.Metadata != _MARKER:
                    yield sequence, event.Body
                elif event.Body == marker:
                    is_complete = True
                    yield 0, b""
        except (TimedOut, Rejected) as error:
            raise Unavailable(str(error)) from error
        finally:
            if subscription is not None:
                subscription.drop()

    async def _find_start(self) -> int:
        """The Sequence from which on the log is enough, by what its newest events say; 1 where none says anything.

        There is an event: our marker.
        """
        newest = await self._look(0, 0)
        count = _LOOK_BACK
        while True:
            first = max(1, newest[0] - count)
            _, start = await self._look(first, newest[0])
            if start or first == 1:
                return start if 1 < start <= newest[0] else 1
            count *= _LOOK_BACK_FACTOR

    async def _look(self, first: int, upto: int) -> tuple[int, int]:
        """Read from one Sequence to another (0: the last): (last Sequence read, the highest start that is named)."""
        subscription = self._open(first)
        start = 0
        try:
            while True:
                subscription.start_deadline(self._silence_s)
                event = await subscription.read()
                subscription.stop_deadline()
                named = event.Tags.get(TOPOLOGY_START, "")
                start = max(start, int(named) if named.isdecimal() else 0)
                if event.Sequence >= upto:
                    return event.Sequence, start
        finally:
            subscription.drop()

    async def read(self, sequence: int) -> bytes | None:
        """Return the event of this Sequence, or None when the log has none.  Raises Unavailable."""
        subscription = self._open(sequence)
        subscription.start_deadline(_READ_S)
        try:
            event = await subscription.read()
        except TimedOut:
            return None
        finally:
            subscription.drop()
        return event.Body if event.Sequence == sequence else None

    def _open(self, first: int) -> Inbound[pb.EventReceive]:
        """A subscription from this Sequence on; 0: from the last event on."""
        kind, value = pb.Subscribe.StartAtSequence, first
        if first <= 1:
            kind, value = (pb.Subscribe.StartFromFirst if first else pb.Subscribe.StartFromLast), 0
        request = pb.Subscribe(
            SubscribeTypeData=pb.Subscribe.EventsStore,
            ClientID=f"{self._client.client_id}-{uuid.uuid4().hex}",
            Channel=self._kubemq_channel,
            EventsStoreTypeData=kind,
            EventsStoreTypeValue=value,
        )
        return Inbound(lambda: self._client.open_subscription(request))

    async def _append(self, kind: str, body: bytes) -> None:
        if self._appender is None or self._appender.is_gone:
            self._appender = _Appender(self._client, self._kubemq_channel, self._append_timeout_s)
        await self._appender.append(kind, body, self._start)


class _Appender:
    """One SendEventsStream: events go out one after the other, results come back by EventID."""

    def __init__(self, client: KubeMQClient, kubemq_channel: str, timeout_s: float) -> None:
        self._client_id = client.client_id
        self._kubemq_channel = kubemq_channel
        self._timeout_s = timeout_s
        self._duplex = Duplex(client.open_events)
        self._turn = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._pending: dict[str, asyncio.Future[pb.Result]] = {}
        self._reader: asyncio.Task[None] | None = None

    @property
    def is_gone(self) -> bool:
        return self._duplex.is_gone

    async def append(self, kind: str, body: bytes, start: int) -> None:
        """Send one event and wait for its result.  Raises Unavailable, NotSent, TimedOut or Rejected."""
        event = pb.Event(
            EventID=str(next(self._numbers)),
            ClientID=self._client_id,
            Channel=self._kubemq_channel,
            Metadata=kind,
            Body=body,
            Store=True,
            Tags={TOPOLOGY_START: str(start)} if start else None,
        )
        waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._turn:
                    if self.is_gone:  # since an event before this one
                        raise NotSent(_GONE)
                    self._pending[event.EventID] = waiter
                    await self._duplex.write(event)
                    if self._reader is None:
                        self._reader = asyncio.create_task(self._read(), name="kubemq topology results")
                result = await waiter
        except TimeoutError:
            self._duplex.drop("another append was not answered in time")
            raise TimedOut(f"KubeMQ did not answer within {self._timeout_s:g} s") from None
        finally:
            self._pending.pop(event.EventID, None)
        if not result.Sent:
            raise Rejected(result.Error or _NO_REASON)

    async def close(self) -> None:
        """Drop the stream and wait for its reader to end."""
        self._duplex.drop()
        if self._reader is not None:
            await self._reader

    async def _read(self) -> None:
        """Hand out results until the stream breaks; then everybody who waits is told."""
        try:
            while True:
                result = await self._duplex.read()
                waiter = self._pending.get(result.EventID)
                if waiter is not None and not waiter.done():
                    waiter.set_result(result)
        except StoreError as error:
            for waiter in self._pending.values():
                if not waiter.done():
                    waiter.set_exception(type(error)(str(error)))
                    waiter.exception()  # whoever waits may have failed in writing

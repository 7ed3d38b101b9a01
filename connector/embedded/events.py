"""The event calls: SendEvent, SendEventsStream and SubscribeToEvents.

Owns their answers; the log and the fan do the work.  A stored event is answered when it is durable; a transient one on
a stream only when it was refused.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable

import grpc
from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded import rules
from connector.embedded.core import Core
from connector.embedded.event_fan import EventFan
from connector.embedded.event_log import Cursor, EventChannel, EventLog, received_event
from connector.embedded.streams import read_or_none

SendContext = grpc.aio.ServicerContext[pb.Event, pb.Result]
StreamContext = grpc.aio.ServicerContext[pb.Event, pb.Result]
SubscribeContext = grpc.aio.ServicerContext[pb.Subscribe, bytes]

_CHUNK = 256
_MAX_UNANSWERED = 1024
_TAKE_OVER_S = 0.5
_TAKE_OVER_POLL_S = 0.02


class EventCalls:
    """Serves the three calls."""

    def __init__(self, core: Core) -> None:
        self.log = EventLog(core)
        self._fan = EventFan()
        self._afterlife = core.afterlife
        self._clients: set[str] = set()

    async def send(self, event: pb.Event, context: SendContext) -> pb.Result:
        """SendEvent."""
        problem = rules.event_problem(event)
        if problem:
            await context.abort(grpc.StatusCode.INTERNAL, problem)
        _name(event)
        error = ""
        if event.Store:
            error = await self.log.submit(event)
        else:
            self._fan.publish(event)
        return pb.Result(EventID=event.EventID, Sent=not error, Error=error)

    async def send_stream(self, context: StreamContext) -> None:
        """SendEventsStream: results in the order of the events, many in flight."""
        unanswered: asyncio.Queue[tuple[str, Awaitable[str]] | None] = asyncio.Queue(_MAX_UNANSWERED)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_answer(unanswered, context), name="event results")
            while (event := await read_or_none(context)) is not None:
                problem = rules.event_problem(event)
                _name(event)
                if problem:
                    await unanswered.put((event.EventID, _known(problem)))
                elif event.Store:
                    await unanswered.put((event.EventID, self.log.submit(event)))
                else:
                    self._fan.publish(event)
            await unanswered.put(None)

    async def subscribe(self, request: pb.Subscribe, context: SubscribeContext) -> None:
        """SubscribeToEvents: transient or stored."""
        problem = rules.subscription_problem(request)
        if problem:
            await context.abort(grpc.StatusCode.INTERNAL, problem)
        if request.SubscribeTypeData == pb.Subscribe.EventsStore:
            await self._follow_log(request, context)
        else:
            await self._listen(request, context)

    async def _listen(self, request: pb.Subscribe, context: SubscribeContext) -> None:
        listener = self._fan.listen(request.Channel, request.Group)
        try:
            while True:
                await context.write(await listener.get())
        finally:
            self._fan.leave(listener)

    async def _follow_log(self, request: pb.Subscribe, context: SubscribeContext) -> None:
        client_id = request.ClientID
        if self._afterlife is not None:
            self._afterlife.drop(client_id)
        if not await self._claim(client_id):
            await context.abort(grpc.StatusCode.INTERNAL, rules.CLIENT_ID_IN_USE)
        try:
            channel, cursor, reader = await self.log.open_cursor(request)
            waker = asyncio.Event()
            channel.wakers.add(waker)
            try:
                await self._feed(channel, cursor, waker, reader, context, alone=not request.Group)
            finally:
                channel.wakers.discard(waker)
                self.log.close_cursor(channel, cursor, reader)
        finally:
            self._clients.discard(client_id)

    async def _claim(self, client_id: str) -> bool:
        """A ClientID has one Events Store subscription; one that is just ending is waited for."""
        deadline = asyncio.get_running_loop().time() + _TAKE_OVER_S
        while client_id in self._clients:
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(_TAKE_OVER_POLL_S)
        self._clients.add(client_id)
        return True

    async def _feed(
        self,
        channel: EventChannel,
        cursor: Cursor,
        waker: asyncio.Event,
        reader: str,
        context: SubscribeContext,
        *,
        alone: bool,
    ) -> None:
        """Send what the cursor has not passed yet, then whatever comes; in a group one event at a time."""
        while True:
            waker.clear()
            if alone:
                sent = await self._feed_chunk(channel, cursor, context)
            else:
                sent = await self._feed_one(channel, cursor, context)
            if sent:
                self.log.save(channel, cursor, reader)
            else:
                await waker.wait()

    async def _feed_chunk(self, channel: EventChannel, cursor: Cursor, context: SubscribeContext) -> bool:
        cursor.position = max(cursor.position, channel.first_sequence - 1)  # the rest was deleted meanwhile
        events = await self.log.read(channel, cursor.position + 1, _CHUNK)
        for sequence, record in events:
            await context.write(received_event(sequence, record))
            cursor.position = sequence
        return bool(events)

    async def _feed_one(self, channel: EventChannel, cursor: Cursor, context: SubscribeContext) -> bool:
        if cursor.returned:
            sequence = cursor.returned.pop(0)
        elif cursor.position < channel.last_sequence:
            cursor.position += 1
            sequence = cursor.position
        else:
            return False
        try:
            for _, record in await self.log.read(channel, sequence, 1):
                await context.write(received_event(sequence, record))
        except BaseException:
            cursor.returned.append(sequence)
            for other in channel.wakers:
                other.set()
            raise
        return True


async def _answer(unanswered: asyncio.Queue[tuple[str, Awaitable[str]] | None], context: StreamContext) -> None:
    while (entry := await unanswered.get()) is not None:
        event_id, outcome = entry
        error = await outcome
        await context.write(pb.Result(EventID=event_id, Sent=not error, Error=error))


def _known(error: str) -> asyncio.Future[str]:
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    outcome.set_result(error)
    return outcome


def _name(event: pb.Event) -> None:
    if not event.EventID:
        event.EventID = secrets.token_urlsafe(16)

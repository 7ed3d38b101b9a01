"""The Events Store: an ordered, durable log per channel, and readers that resume where they stood.

Owns positions: a reader is a ClientID, or a group shared by all who name it, and stands behind the last event it was
handed.  Its start position counts only the first time.  Rule: KubeMQ's durable subscriptions as measured; events are
kept for ever here, but for those that their writer calls superfluous (the tag ``amqp-start``).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded.core import Core
from connector.embedded.records import Record, varint
from connector.embedded.schema import EVENTS_STORE
from connector.embedded.store import Commit, StoredChannel

_TAIL_COUNT = 512
_TAIL_BYTES = 1024 * 1024
_CHUNK = 256
_NS_PER_S = 1_000_000_000
#: What a reader was handed is noted on disk this much later: a crash may give it some events again, as KubeMQ does.
_SAVE_S = 0.1
#: A tag: who reads the log from this Sequence on knows all.  What is before the one named until then is deleted.
_START = "amqp-start"


class EventChannel:
    """One log: what is stored, its newest events in memory, and who waits for more."""

    def __init__(self, stored: StoredChannel) -> None:
        self.stored = stored
        self.last_sequence = stored.last_sequence
        self.is_written = stored.used_at > 0
        self.first_sequence = 1
        self.start = 0
        self.wakers: set[asyncio.Event] = set()
        self._tail: deque[tuple[int, Record]] = deque()
        self._tail_bytes = 0
        stored.on_stored = self._on_stored

    def tail_from(self, sequence: int, limit: int) -> list[tuple[int, Record]] | None:
        """Up to ``limit`` events from a Sequence on, if memory reaches back that far."""
        if not self._tail or sequence < self._tail[0][0]:
            return None
        start = sequence - self._tail[0][0]
        return [self._tail[index] for index in range(start, min(start + limit, len(self._tail)))]

    def _on_stored(self, first: int, records: Sequence[Record]) -> None:
        self.is_written = True
        for sequence, record in enumerate(records, first):
            self._tail.append((sequence, record))
            self._tail_bytes += len(record.data)
            self.last_sequence = sequence
        while len(self._tail) > _TAIL_COUNT or (self._tail_bytes > _TAIL_BYTES and len(self._tail) > 1):
            self._tail_bytes -= len(self._tail.popleft()[1].data)
        for waker in self.wakers:
            waker.set()


class Cursor:
    """Where a reader stands; members of a group share one and take events in turn."""

    __slots__ = ("member_count", "position", "returned")

    def __init__(self, position: int) -> None:
        self.position = position
        self.returned: list[int] = []
        self.member_count = 0


class EventLog:
    """All logs and all readers."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._channels = {stored.name: EventChannel(stored) for stored in core.event_channels}
        for channel in self._channels.values():
            first = core.store.first_kept(channel.stored.channel_id)
            channel.first_sequence = first or channel.last_sequence + 1
        self._positions = core.event_positions
        self._groups: dict[tuple[int, str], Cursor] = {}
        self._unsaved: dict[tuple[int, str], int] = {}

    async def create(self, name: str) -> str:
        """Write a channel that has no event yet; "" or why that failed."""
        return await self._write(self.channel(name), [])

    def submit(self, event: pb.Event) -> asyncio.Future[str]:
        """Store a checked event; the future says "" when it is durable, else why not."""
        received = pb.EventReceive(
            EventID=event.EventID, Channel=event.Channel, Metadata=event.Metadata, Body=event.Body, Tags=event.Tags
        )
        channel, start = self.channel(event.Channel), event.Tags.get(_START, "")
        if start.isdecimal():
            self._shorten(channel, int(start))
        return self._write(channel, [Record(received.SerializeToString(), time.time_ns())])

    def _shorten(self, channel: EventChannel, start: int) -> None:
        """Delete what is before the start named until now: who has just read that one may still begin there."""
        if start <= channel.start:
            return
        before, channel.start = channel.start, min(start, channel.last_sequence + 1)
        if before > channel.first_sequence:
            self._core.store.forget(channel.stored.channel_id, range(channel.first_sequence, before))
            channel.first_sequence = before

    def channel(self, name: str) -> EventChannel:
        """The log of a checked name, made when it is new."""
        found = self._channels.get(name)
        if found is None:
            found = EventChannel(StoredChannel(self._core.catalog.reserve_id(), EVENTS_STORE, name))
            self._channels[name] = found
        return found

    def names(self) -> list[str]:
        """Every log there is."""
        return list(self._channels)

    async def open_cursor(self, request: pb.Subscribe) -> tuple[EventChannel, Cursor, str]:
        """The log, the position and the name of a checked subscription's reader.

        On a full disk a log that is not written yet is read all the same: there is nothing in it.
        """
        channel = self.channel(request.Channel)
        if not channel.is_written:
            await self._write(channel, [])
        reader = f"g:{request.Group}" if request.Group else f"c:{request.ClientID}"
        key = channel.stored.channel_id, reader
        cursor = self._groups.get(key)
        if cursor is None:
            position = self._positions.get(key)
            if position is None:
                position = await self._start(channel, request)
            cursor = self._groups.get(key) or Cursor(max(position, channel.first_sequence - 1))
        if request.Group:
            self._groups[key] = cursor
        cursor.member_count += 1
        self.save(channel, cursor, reader)
        return channel, cursor, reader

    def close_cursor(self, channel: EventChannel, cursor: Cursor, reader: str) -> None:
        """The subscription is over; its reader's position stays."""
        self.save(channel, cursor, reader)
        cursor.member_count -= 1
        if not cursor.member_count:
            self._groups.pop((channel.stored.channel_id, reader), None)

    def save(self, channel: EventChannel, cursor: Cursor, reader: str) -> None:
        """Remember the reader's position; on disk only if its channel is there, as its id is free until then."""
        position = min([cursor.position, *(sequence - 1 for sequence in cursor.returned)])
        key = channel.stored.channel_id, reader
        if channel.is_written and self._positions.get(key) != position:
            self._positions[key] = position
            if not self._unsaved:
                self._core.schedule(_SAVE_S, self.flush)
            self._unsaved[key] = position

    def flush(self) -> None:
        """Hand the store the positions that have changed."""
        for (channel_id, reader), position in self._unsaved.items():
            self._core.store.set_position(channel_id, reader, position)
        self._unsaved.clear()

    async def read(self, channel: EventChannel, first: int, limit: int) -> list[tuple[int, Record]]:
        """Up to ``limit`` events from a Sequence on, from memory or disk."""
        tail = channel.tail_from(first, limit)
        if tail is not None:
            return tail
        sequences = range(first, min(first + min(limit, _CHUNK), channel.last_sequence + 1))
        if not sequences:
            return []
        records = await asyncio.to_thread(self._core.store.read, channel.stored.channel_id, sequences)
        return sorted(records.items())

    def _write(self, channel: EventChannel, records: list[Record]) -> asyncio.Future[str]:
        stored: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        commit = Commit()
        commit.appends = [(channel.stored, records)]
        commit.done = lambda: None if stored.done() else stored.set_result(commit.error)
        self._core.store.submit(commit)
        return stored

    async def _start(self, channel: EventChannel, request: pb.Subscribe) -> int:
        """The position a first subscription asks for: one less than the first Sequence it gets."""
        last, value = channel.last_sequence, request.EventsStoreTypeValue
        match request.EventsStoreTypeData:
            case pb.Subscribe.StartFromFirst:
                return 0
            case pb.Subscribe.StartFromLast:
                return max(0, last - 1)
            case pb.Subscribe.StartAtSequence:
                return min(value - 1, last)
            case pb.Subscribe.StartAtTime:
                since_ns = value
            case pb.Subscribe.StartAtTimeDelta:
                since_ns = time.time_ns() - value * _NS_PER_S
            case _:
                return last
        first = await asyncio.to_thread(self._core.store.first_at, channel.stored.channel_id, since_ns)
        return first - 1 if first else channel.last_sequence


def received_event(sequence: int, record: Record) -> bytes:
    """A serialized EventReceive: the stored bytes with Timestamp (5) and Sequence (6) appended."""
    return record.data + b"\x28" + varint(record.timestamp_ns) + b"\x30" + varint(sequence)

"""What the gRPC methods share: engine, store, catalog, publisher, and the inner clients Gets take turns on.

Owns nothing of its own but the wiring and the Get slots; it is built once per process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from connector.embedded.afterlife import Afterlife
from connector.embedded.cache import RecordCache
from connector.embedded.catalog import Catalog
from connector.embedded.delays import Delays
from connector.embedded.engine import Engine, QueueChannel
from connector.embedded.folder import DeliveryMarks
from connector.embedded.publishing import Publisher
from connector.embedded.quirks import Quirks
from connector.embedded.records import Record
from connector.embedded.schema import QUEUE
from connector.embedded.store import Store, StoredChannel

log = logging.getLogger("kubemq.embedded")

CACHE_BYTES = 64 * 1024 * 1024


class Core:
    """The server without its gRPC methods.  ``start`` must run in the event loop."""

    def __init__(
        self, folder: Path, quirks: Quirks, cache_bytes: int = CACHE_BYTES, *, has_afterlife: bool = False
    ) -> None:
        self.quirks = quirks
        self.store = Store(folder)
        self.marks = DeliveryMarks(folder, fresh=self.store.is_fresh)
        cache = RecordCache(cache_bytes)
        self.engine = Engine(_Disk(self.store, self.marks), quirks, self.schedule, cache)
        self.catalog = Catalog(self.store, self.engine, cache)
        delays = self.store.load_delays()
        self.publisher = Publisher(self.catalog, self.store, max((delay_id for _, delay_id in delays), default=0) + 1)
        self.delays = Delays(self.publisher, self.store, delays)
        self.slots = GetSlots(quirks.get_slots, self.schedule)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.event_channels = [stored for stored in self.store.load() if not self._recover(stored.kind, stored)]
        self.marks.trust()
        self.event_positions = self.store.load_positions()
        self.afterlife = Afterlife(folder, self.engine) if has_afterlife else None

    def start(self) -> None:
        """Begin to write, and to deliver what was delayed."""
        self._loop = asyncio.get_running_loop()
        self.store.start(self._loop.call_soon_threadsafe)
        self.delays.start(self._loop)

    def close(self) -> None:
        """Stop, with everything on disk.  Blocks for the last group."""
        self.delays.stop()
        if self.afterlife is not None:
            self.afterlife.close()
        self.store.close()
        self.marks.close()

    def schedule(self, delay_s: float, call: Callable[[], object]) -> None:
        """Call it later in the event loop."""
        if self._loop is not None:
            self._loop.call_later(delay_s, call)

    async def records(self, channel: QueueChannel, sequences: Sequence[int]) -> dict[int, Record]:
        """The records of stored Sequences, from memory or disk, in the given order; what is nowhere is dropped."""
        found = dict(zip(sequences, self.engine.records(channel, sequences), strict=True))
        missing = sorted(sequence for sequence, record in found.items() if record is None)
        if missing:
            found.update(await asyncio.to_thread(self.store.read, channel.channel_id, missing))
        records = {sequence: record for sequence, record in found.items() if record is not None}
        if len(records) != len(found):
            log.error("%d messages of %r are not in the database", len(found) - len(records), channel.name)
            self.engine.drop(channel, found.keys() - records.keys())
        return records

    def _recover(self, kind: int, stored: StoredChannel) -> bool:
        self.catalog.reserve_id(stored.channel_id)
        if kind == QUEUE:
            known = self.marks.recovered(stored.channel_id)
            last_sent = self.catalog.recover_queue(stored, known)
            if last_sent != known:
                self.marks.write(stored.channel_id, last_sent)
        return kind == QUEUE


class _Disk:
    """The engine's storage: deletes go to the database, marks to their file."""

    def __init__(self, store: Store, marks: DeliveryMarks) -> None:
        self.forget = store.forget
        self.mark = marks.write


class GetSlots:
    """KubeMQ's inner clients: every Get takes the next one in turn and keeps it until it answers."""

    def __init__(self, count: int, schedule: Callable[[float, Callable[[], object]], object]) -> None:
        self._locks = [asyncio.Lock() for _ in range(count)]
        self._turn = 0
        self._schedule = schedule

    def next(self) -> GetSlot:
        """The slot for one Get."""
        if not self._locks:
            return GetSlot(None, self._schedule)
        self._turn = (self._turn + 1) % len(self._locks)
        return GetSlot(self._locks[self._turn], self._schedule)


class GetSlot:
    """One Get's use of an inner client."""

    __slots__ = ("_kept", "_lock", "_schedule")

    def __init__(self, lock: asyncio.Lock | None, schedule: Callable[[float, Callable[[], object]], object]) -> None:
        self._lock = lock
        self._schedule = schedule
        self._kept = False

    async def take(self) -> None:
        """Wait for whoever has it."""
        if self._lock is not None:
            await self._lock.acquire()

    def keep_for(self, wait_s: float) -> None:
        """The Get's stream is gone, but the Get is not over yet."""
        if self._lock is not None:
            self._kept = True
            self._schedule(wait_s, self._lock.release)

    def give_back(self) -> None:
        """The Get is over."""
        if self._lock is not None and not self._kept:
            self._lock.release()

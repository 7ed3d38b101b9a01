"""Topology sync: applies everybody's events in the log's order, our own among them (``appends.py`` sends those).

Owns the following and its reconnects; what events mean is the broker's (``broker/topology.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

from connector.broker.broker import SKIPPED_CHARACTERS
from connector.broker.ports import StoreError
from connector.broker.topology import decode_event
from connector.runtime.appends import Appends
from connector.runtime.link import jittered
from connector.runtime.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.broker import Broker
    from connector.broker.ports import ReadEvent, TopologyLog

MIN_PAUSE_S = 0.05
MAX_PAUSE_S = 0.5
#: A snapshot is rewritten at least this often, well before the server's retention (24 h by default) ends it.
SNAPSHOT_S = 6 * 3600.0

log = structlog.get_logger(__name__)


class TopologySync:
    """Follows and feeds the topology log."""

    def __init__(
        self, topology_log: TopologyLog, broker: Broker, settle: Callable[[], None], outage: Outage | None = None
    ) -> None:
        self._log = topology_log
        self._broker = broker
        self._settle = settle
        self._outage = outage or Outage(broker.counters, broker.clock)
        self.appends = Appends(topology_log, broker, settle, self._outage, self._read_anew)
        self._again = asyncio.Event()
        self._pause_s = MIN_PAUSE_S
        self._reading: asyncio.Timeout | None = None  # the reading that is under way: its end is set when it must end
        self.loaded = asyncio.Event()
        self.is_following = False
        self.on_applied: Callable[[], None] = lambda: None
        self._last = (0, b"")  # the last event applied

    async def recognises(self, read: ReadEvent) -> bool:
        """Whether what is read is the log that is followed: it has the last event applied.  Raises StoreError."""
        sequence, data = self._last
        return not sequence or await read(sequence) == data

    def try_again(self) -> None:
        """KubeMQ is there again: a pause may end."""
        self._again.set()

    def _read_anew(self) -> None:
        """End the present reading: its server is gone, and what came since cannot be known from it."""
        if self._reading is not None:
            self._reading.reschedule(asyncio.get_running_loop().time())

    async def run_follow(self) -> None:
        """Apply events as they come; after a lost link from the start again, skipping what is known."""
        while True:
            reading = self._reading = asyncio.timeout(None)
            try:
                async with reading:
                    await self._follow()
            except TimeoutError:
                if not reading.expired():
                    raise
                self.is_following = False
                continue
            except StoreError as error:
                self._outage.on_loss("topology", error)
            finally:
                self._reading = None
            self.is_following = False
            self.appends.on_lost()
            self._again.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(jittered(self._pause_s)):
                    await self._again.wait()
            self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2)

    async def _follow(self) -> None:
        """Raises StoreError."""
        self.appends.on_reading()
        is_first = True
        async for sequence, data in self._log.follow():
            if sequence:
                if is_first:
                    self._check_gap(sequence)
                    is_first = False
                self._apply(sequence, data)
                continue
            self._pause_s = MIN_PAUSE_S
            self.is_following = True
            self.appends.on_followed()
            self._broker.on_loaded()
            self.check_loaded()
            self._settle()

    def _check_gap(self, first: int) -> None:
        """After a lost link the log begins with what is known already; else what came between is gone for us."""
        known = self._broker.topology.version
        if self._broker.is_loaded and 0 < known < first:
            log.error("declarations were lost, restart this connector", known=known, first=first)

    def _apply(self, sequence: int, data: bytes) -> None:
        """Whatever comes of one event: what comes after it must be applied."""
        is_new = sequence > self._last[0]
        if is_new:
            self._last = (sequence, data)
        event = decode_event(data)
        try:
            if event is not None:
                self._broker.on_event(sequence, event)
                self.on_applied()
                self.check_loaded()
            elif is_new:
                what = "topology event skipped: malformed, or of an unknown version"
                log.error(what, sequence=sequence, data=data[:SKIPPED_CHARACTERS])
                self._broker.on_malformed(data)
            self._settle()
        except Exception:
            self._broker.counters.internal_errors += 1
            log.exception("what follows from a topology event failed", sequence=sequence)

    def check_loaded(self) -> None:
        """Serve only when what does not survive a restart is gone, and the other connectors have told all."""
        if not self.loaded.is_set() and self._broker.is_serving:
            self.loaded.set()

    async def run_snapshots(self) -> None:
        """Rewrite the state now and then, so that retention never forgets a queue that still exists."""
        while True:
            await asyncio.sleep(SNAPSHOT_S)
            self._broker.write_snapshot()

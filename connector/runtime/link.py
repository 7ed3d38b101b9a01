"""Is KubeMQ there, and at which address: the Ping, the reconnect, the move to another address (HA-07, HA-09).

Owns when to move.  The server in use is unhealthy when it answers no Ping twice in a row, or answers them and refuses
the rest (``trouble``).  Any other address that is healthy, and has our declarations, takes over: everything moves at
once, and stays there; no address is preferred.  Must not know gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Protocol

import structlog

from connector.broker.ports import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from connector.broker.ports import ReadEvent, ServerInfo
    from connector.runtime.hub import Hub

PING_S = 1.0
RETRY_PING_S = 0.25
#: Fresh: KubeMQ has answered a Ping within this.
FRESH_S = 3.0
#: Pings without an answer until another address is looked for.
MISSED_PINGS = 2
#: A server that answers Pings is left no sooner than this after the last move, twice as long each time.
MIN_STAY_S = 10.0
MAX_STAY_S = 300.0

log = structlog.get_logger(__name__)


def jittered(pause_s: float) -> float:
    """Half to all of it, so that many connectors do not come back at the same moment."""
    return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 # no secret


class LinkedStore(Protocol):
    """The part of the store that has addresses."""

    @property
    def address(self) -> str:
        """The one in use."""

    async def start(self) -> ServerInfo:
        """Wait until a server answers; raises StoreError."""

    async def ping(self) -> ServerInfo:
        """Raises StoreError."""

    def trouble(self) -> str:
        """What the server refuses although it answers Pings, or ""."""

    async def move(self, is_ours: Callable[[ReadEvent], Awaitable[bool]]) -> dict[str, str]:
        """Use another address that is healthy and has our log; per address that has not, why. ``address`` tells."""


class Link:
    """The link of one connector."""

    def __init__(self, store: LinkedStore) -> None:
        self._store = store
        self._pinged_at = float("-inf")
        self._missed = 0
        self._stay_s = MIN_STAY_S
        self._stays_until = 0.0
        self._hub: Hub | None = None
        self.move_count = 0

    def state(self) -> tuple[bool, str]:
        """Whether KubeMQ can be used, and why not."""
        if self._hub is not None and self._hub.is_down:
            return False, "no answer"
        if time.monotonic() - self._pinged_at > FRESH_S:
            return False, "no answer"
        trouble = self._store.trouble()
        return not trouble, trouble

    async def connect(self) -> ServerInfo:
        """Until KubeMQ answers: no crash loop, not ready meanwhile."""
        while True:
            try:
                server = await self._store.start()
            except StoreError as error:
                log.warning("KubeMQ does not answer", kubemq=self._store.address, error=str(error))
                await asyncio.sleep(jittered(PING_S))
            else:
                self._pinged_at = time.monotonic()
                return server

    async def run(self, hub: Hub) -> None:
        """Ping, and move when need be, until cancelled."""
        self._hub = hub
        noticed = hub.outage.noticed
        while True:
            noticed.clear()
            await self._look(hub)
            hub.settle()
            if not hub.is_reachable:
                await asyncio.sleep(jittered(RETRY_PING_S))
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(jittered(PING_S)):
                    await noticed.wait()

    async def _look(self, hub: Hub) -> None:
        try:
            server = await self._store.ping()
        except StoreError as error:
            hub.outage.on_loss("pings", error, kubemq=self._store.address)
            hub.on_ping(None)
            self._missed += 1
            if self._missed >= MISSED_PINGS:
                await self._move(hub, str(error))
            return
        self._missed = 0
        self._pinged_at = time.monotonic()
        hub.on_ping(server)
        trouble = self._store.trouble()
        if trouble and time.monotonic() >= self._stays_until and await self._move(hub, trouble):
            self._stays_until = time.monotonic() + self._stay_s
            self._stay_s = min(MAX_STAY_S, 2 * self._stay_s)

    async def _move(self, hub: Hub, reason: str) -> bool:
        before = self._store.address
        refused = await self._store.move(hub.sync.recognises)
        for address, why in refused.items():
            log.warning("KubeMQ address cannot take over", kubemq=address, reason=why)
        if self._store.address == before:
            return False
        log.warning("moved to another KubeMQ address", kubemq=self._store.address, left=before, reason=reason)
        self.move_count += 1
        self._missed = 0
        return True

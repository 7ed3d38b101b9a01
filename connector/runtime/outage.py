"""An outage of KubeMQ or of the link, as operators read of it: a line when it begins, one when it is over.

Owns what is told and counted of lost links, however many readers and lanes notice one, and has KubeMQ asked at once
whether it is there.  Must not know who waits for it: that is the hub's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.counters import Counters

#: An outage is over when KubeMQ has answered and nothing was interrupted for so long.
CALM_S = 1.0

log = structlog.get_logger(__name__)


class Outage:
    """One replica's view of the link; ``noticed`` is set when something was interrupted."""

    def __init__(self, counters: Counters, now: Callable[[], float]) -> None:
        self._counters = counters
        self._now = now
        self._began_at = self._last_at = 0.0
        self._interrupted: Counter[str] = Counter()
        self.noticed = asyncio.Event()

    @property
    def is_on(self) -> bool:
        """From the first interruption until it is calm again."""
        return bool(self._interrupted)

    def on_loss(self, what: str, error: Exception, count: int = 1, **facts: object) -> None:
        """So many of ``what`` were interrupted; only the first interruption of an outage has a line of its own."""
        self._counters.link_losses += 1
        self._last_at = self._now()
        if not self.is_on:
            self._began_at = self._last_at
            log.warning("KubeMQ or the link to it is lost", interrupted=what, error=str(error), **facts)
        self._interrupted[what] += count
        self.noticed.set()

    def on_answer(self) -> None:
        """KubeMQ has answered a Ping."""
        if self.is_on and self._now() - self._last_at >= CALM_S:
            seconds = round(self._last_at - self._began_at, 2)
            log.warning("KubeMQ is there again", seconds=seconds, interrupted=dict(self._interrupted))
            self._interrupted.clear()

"""Renews queues whose oldest message nears the server's retention: they move to a new channel, as after a crash.

Owns when it is looked and how ages are learned: each answer of KubeMQ tells the age of the oldest message in it, and
where nothing is read one message is read ahead.  KubeMQ deletes what is older than its retention, read or not.  Rule:
design.md section 3, point 13.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.broker import Broker

#: A queue moves when its oldest message has reached this part of the retention.
DUE = 0.75
#: It is looked so often in that time, and at least once a minute.
LOOKS = 100
MAX_PAUSE_S = 60.0


class Renewal:
    """One task; ``retention_s`` 0: KubeMQ keeps everything, and nothing is ever due."""

    def __init__(self, broker: Broker, settle: Callable[[], None], retention_s: float) -> None:
        self._broker = broker
        self._settle = settle
        self._retention_s = retention_s

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(min(MAX_PAUSE_S, self._retention_s * DUE / LOOKS) if self._retention_s else MAX_PAUSE_S)
            if self._retention_s:
                self.look()
                self._settle()

    def look(self) -> None:
        """Begin the moves that are due, and have unknown ages read."""
        due_before = self._broker.clock() - DUE * self._retention_s
        for source in list(self._broker.sources()):
            lease, queue = source.lease, source.queue
            if not queue.is_owned or queue.is_deleted or queue.is_moving or lease.is_doubtful:
                continue
            if not (lease.ready_count or lease.mine_count):
                lease.oldest_since = None
            since = lease.oldest_since
            if since is not None and since <= due_before:
                self._broker.recovery.renew(source)
            elif since is None and lease.backlog and not lease.mine_count:
                lease.peek()
                self._broker.mark_dirty(queue)

    def oldest_age_s(self) -> float:
        """Age of the oldest message known, in seconds; 0 when there is none."""
        now = self._broker.clock()
        known = [s.lease.oldest_since for s in self._broker.sources() if s.lease.ready_count or s.lease.mine_count]
        return max((now - since for since in known if since is not None), default=0.0)

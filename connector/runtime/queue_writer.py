"""A writer lane: takes what waits in its outbox, stores it in one request, reports the results.

Owns the upstream stream and the pause after a lost link; order, retry and refusal are the outbox's rules
(``broker/outbox.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import structlog

from connector.broker.outbox import announce, end_coming, on_results, on_unknown
from connector.broker.ports import NotSent, Rejected, StoreError
from connector.runtime.link import jittered
from connector.runtime.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from connector.broker.counters import Counters
    from connector.broker.outbox import Outbox, Submission
    from connector.broker.ports import QueueStore, ServerInfo, StoreLane
    from connector.broker.queue import StoredQueue

MIN_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0
#: A request that takes so long may never be answered: what waits behind it counts as waiting for KubeMQ.
STALL_S = 5.0
#: How often a connector that may have been taken for dead looks whether it knows what happened.
LAPSE_S = 0.05
NOT_AVAILABLE = "KubeMQ is not available"

log = structlog.get_logger(__name__)


class QueueWriter:
    """One lane's task; one request in flight, so batches grow with load."""

    def __init__(
        self,
        outbox: Outbox,
        store: QueueStore,
        counters: Counters,
        settle: Callable[[], None],
        on_link: Callable[[], None],
        deadline_s: float,
        on_server: Callable[[ServerInfo], None] | None = None,
        outage: Outage | None = None,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        self._outbox = outbox
        self._store = store
        self._counters = counters
        self._settle = settle
        self._on_link = on_link
        self._wake = asyncio.Event()
        self._lane: StoreLane | None = None
        self._pause_s = MIN_PAUSE_S
        self._deadline_s = deadline_s
        self._waiting_since: float | None = None  # the oldest that waits, and since when it makes no progress
        self._held_since: dict[StoredQueue, float] = {}
        self._on_server = on_server
        self._may_send = may_send
        self._outage = outage or Outage(counters, time.monotonic)
        self._again = asyncio.Event()
        self._asks_first = False
        self.is_failing = False  # since the last batch could not be sent
        self.is_busy = False

    def ask_first(self) -> None:
        """The link is in doubt: before the next batch, ask whether KubeMQ was restarted."""
        self._asks_first = True

    def try_again(self) -> None:
        """KubeMQ is there again: a pause may end."""
        self._again.set()

    def wake(self) -> None:
        """The outbox is no longer empty."""
        self._waiting_since = time.monotonic()
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                if not len(self._outbox):
                    await self._wait()
                    continue
                if self._asks_first and not await self._is_answered():
                    continue
                if not self._may_send():  # a queue may have been deleted and declared anew while we were out of touch
                    await asyncio.sleep(LAPSE_S)
                    continue
                batch = self._outbox.take()
                self.is_busy = bool(batch)
                bugs, self._outbox.bugs = self._outbox.bugs, []
                self._report(bugs)
                if batch:
                    await self._send(batch)
                    self.is_busy = False
                self._settle()
        finally:
            self._drop_lane()

    async def _wait(self) -> None:
        """Return when something may wait; a failing lane looks for KubeMQ by itself, since publishers are blocked."""
        if not self.is_failing:
            self._wake.clear()
            await self._wake.wait()
            return
        try:
            await self._ask()
        except StoreError:
            await self._pause()
        else:
            self._on_answer()
            self._settle()

    async def _is_answered(self) -> bool:
        """Ask; what waits stays in the outbox meanwhile, where its deadline is seen."""
        try:
            await self._ask()
        except StoreError as error:
            await self._on_loss(error, 0)
            return False
        return True

    async def _ask(self) -> None:
        """A restarted KubeMQ may withhold what is stored: who holds queues back is told before anything is sent.

        Raises StoreError.
        """
        server = await self._store.ping()
        self._asks_first = False
        if self._on_server is not None:
            self._on_server(server)

    def _on_answer(self) -> None:
        self._pause_s = MIN_PAUSE_S
        self._waiting_since = time.monotonic() if self._outbox else None
        if self.is_failing:
            self.is_failing = False
            self._on_link()

    async def _pause(self) -> None:
        self._again.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(jittered(self._pause_s)):
                await self._again.wait()
        self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2)

    async def _send(self, batch: list[Submission]) -> None:
        if self._lane is None:
            self._lane = self._store.open_lane()
        self._counters.kubemq_requests += 1
        since = self._waiting_since
        try:
            coming = announce(batch)
            try:
                errors = await self._lane.send(batch)
            finally:
                end_coming(coming)
        except Rejected as error:
            self._tell(on_results, batch, [str(error)] * len(batch))
        except NotSent as error:
            self._outbox.keep(batch)
            self._waiting_since = since
            await self._on_loss(error, 0)
        except StoreError as error:
            if any(submission.receipt.retry for submission in batch):
                self._waiting_since = since
            self._tell(on_unknown, self._outbox, batch, str(error))
            await self._on_loss(error, len(batch))
        else:
            self._on_answer()
            self._tell(on_results, batch, errors)

    async def _on_loss(self, error: StoreError, interrupted_count: int) -> None:
        self._drop_lane()
        self._outage.on_loss("publishes", error, interrupted_count)
        self._asks_first = True
        if not self.is_failing:
            self.is_failing = True
            self._on_link()
        self.check_deadlines(time.monotonic())
        self._settle()
        await self._pause()

    def _tell(self, tell: Callable[..., None], *arguments: object) -> None:
        """One receipt that fails is a bug of its own: it is logged, and everything else goes on."""
        try:
            tell(*arguments)
        except ExceptionGroup as group:
            self._report(group.exceptions)

    def _report(self, bugs: Sequence[BaseException]) -> None:
        for bug in bugs:
            self._counters.internal_errors += 1
            log.error("a result could not be told", exc_info=bug)

    def check_deadlines(self, now: float) -> None:
        """Now and then: refuse what waits, once the oldest has waited for the deadline; what comes later may as long.

        So too, for each queue that is held, what waits for that.
        """
        since = self._waiting_since
        deadline_s = self._deadline_s if self.is_failing else max(self._deadline_s, STALL_S)
        if since is not None and now - since >= deadline_s:
            self._waiting_since = None
            self._refuse_all()
        self._check_held(now)

    def _refuse_all(self) -> None:
        if not self._outbox:
            return
        while batch := self._outbox.take():
            self._refuse(batch)
        for queue in self._outbox.held_queues:
            self._refuse(self._outbox.take_held(queue))

    def _check_held(self, now: float) -> None:
        waiting = self._outbox.held_queues
        since = {queue: at for queue, at in self._held_since.items() if queue.is_held}
        for queue in waiting:
            if now - since.setdefault(queue, now) >= self._deadline_s:
                self._refuse(self._outbox.take_held(queue))
        self._held_since = since

    def _refuse(self, batch: list[Submission]) -> None:
        self._tell(on_results, batch, [NOT_AVAILABLE] * len(batch))

    def _drop_lane(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.cancel()

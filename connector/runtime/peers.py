"""Carries what connectors tell each other: sends frames and beats, takes what comes.

Owns the tasks; who is dead, what is repeated and what messages mean is ``broker/group.py`` and what it uses.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import structlog

from connector.broker.peers import beat
from connector.broker.ports import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.broker import Broker
    from connector.broker.group import Identity
    from connector.broker.ports import PeerBus
    from connector.runtime.tasks import Tasks

PAUSE_S = 0.1
TICK_S = 0.25

log = structlog.get_logger(__name__)


class PeerTasks:
    """The group's way to the other connectors."""

    def __init__(
        self,
        bus: PeerBus,
        broker: Broker,
        settle: Callable[[], None],
        identity: Identity,
        timeout_s: float,
        *,
        is_alone: bool,
    ) -> None:
        self._bus = bus
        self._broker = broker
        self._settle = settle
        self._wake = asyncio.Event()
        self._told_version = 0
        self._beat_at = 0.0
        self.group = broker.enter(identity, timeout_s, self._wake.set, is_alone=is_alone)

    def start(self, tasks: Tasks) -> None:
        """Start the tasks."""
        tasks.keep("peers send", self.run_send)
        tasks.keep("peers all", lambda: self.run_listen(""))
        tasks.keep("peers own", lambda: self.run_listen(self._broker.replica))
        tasks.keep("peers tick", self.run_tick)

    def on_applied(self) -> None:
        """Something of the topology log is applied here: others wait for that."""
        if self._broker.drains.applied_upto > self._told_version and len(self.group.peers):
            self._wake.set()

    async def run_send(self) -> None:
        """Frames when there are some, beats when it is time, or when there is something new to say."""
        while True:
            await self._wait()
            try:
                await self._send()
            except StoreError as error:
                log.debug("not told to the other connectors", error=str(error))
                await asyncio.sleep(PAUSE_S)

    async def _wait(self) -> None:
        """Until a wake-up, the next beat, or a repetition."""
        due = self.group.peers.due_at()
        until = self._beat_at if due is None else min(due, self._beat_at)
        timer = asyncio.get_running_loop().call_later(max(0.0, until - self._broker.clock()), self._wake.set)
        await self._wake.wait()
        timer.cancel()
        self._wake.clear()

    async def _send(self) -> None:
        group, now = self.group, self._broker.clock()
        frames = group.peers.next_frames()
        for member, frame in frames:
            await self._bus.send(member.partition("-")[0], frame)
        if frames:
            self._wake.set()  # there may be more
        is_due = now >= self._beat_at
        applied_upto = self._broker.drains.applied_upto
        if group.me and (is_due or (applied_upto > self._told_version and len(group.peers))):
            self._told_version = applied_upto
            data = beat(group.me, group.tenure.beat(now), self._told_version)
            await self._bus.send("", data)
            if is_due:
                await self._bus.send(self._broker.replica, data)
        if is_due:
            self._beat_at = now + group.tenure.beat_s

    async def run_listen(self, to: str) -> None:
        """Take what comes, until the link breaks; one line in the log for each time that it worked before."""
        was_heard = False
        try:
            async for data in self._bus.listen(to):
                was_heard = True
                self._take(data)
        except StoreError as error:
            if was_heard:
                log.warning("other connectors cannot be heard", error=str(error))

    def _take(self, data: bytes) -> None:
        group = self.group
        if data.startswith(b'{"beat"'):
            facts = json.loads(data)
            if facts["from"] == group.me:
                group.tenure.on_own(facts["beat"], self._broker.clock())
            else:
                group.on_heard(facts["from"])
                group.peers.on_applied(facts["from"], facts["version"])
        else:
            group.peers.on_frame(data)
        self._settle()

    async def run_tick(self) -> None:
        """What only time brings."""
        while True:
            await asyncio.sleep(TICK_S)
            self.group.tick()
            self._settle()

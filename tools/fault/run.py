"""One scenario from start to verdict.

Owns the order of things: start, declare, workload and faults together, heal, drain, restart once more, look for what
should not be there, judge.  Must not know the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pamqp import commands

from tests.support.ledger import Ledger, Session, Settlement
from tests.support.server import NotReady
from tools.fault.actors import Actor, Consumer, Poller, Publisher, Stage
from tools.fault.client import Channel, Connection, Gone
from tools.fault.faults import Faults
from tools.fault.rig import Rig, RigError, Target
from tools.fault.scenario import Backend, FaultKind, Scenario
from tools.fault.verdict import LAST_LOOK, Judge, Verdict

#: What is owed after the faults must have come within this; a real server takes up to 9 s to come back.
DRAIN_LIMIT_S = 20.0
#: All queues empty and nothing arriving for this long: drained.  The connector looks for strangers once a second.
QUIET_S = 1.25
RETRY_S = 0.05
#: Log messages of the connector that tell of a bug, whatever the ledger says.
BUGS = ("internal error", "task failed", "timer failed")
#: A SIGTERM withholds only what went to a client that had just been killed and is not found out yet.
_WITHHOLDING = (FaultKind.BACKEND_KILL, FaultKind.BACKEND_TERM)


@dataclass(slots=True)
class Outcome:
    """What one run brought."""

    scenario: Scenario
    verdict: Verdict
    ledger: Ledger
    seconds: float = 0.0
    losses: dict[str, int] = field(default_factory=dict)


async def perform(scenario: Scenario, folder: Path, target: Target, run: Run | None = None) -> Outcome:
    """Run one scenario; logs stay in ``folder``."""
    (folder / "scenario.txt").write_text(scenario.describe() + "\n", encoding="utf-8")
    run = run or Run(scenario, Ledger())
    ledger = run.ledger
    started = ledger.now()
    try:
        async with Rig(scenario, folder, target) as rig:
            await run.perform(rig)
    except* (RigError, NotReady, Gone) as failed:
        for error in _leaves(failed):
            ledger.note("does not run", f"{type(error).__name__}: {error}")
    for text in _bugs_in(folder / "connector.log"):
        ledger.note("bug in the log", text)
    judge = Judge(
        ledger,
        requeues_to_tail=scenario.backend is not Backend.NONE,
        may_withhold=may_withhold(scenario),
        withheld_count=run.withheld_count,
    )
    verdict = judge.judge()
    verdict.counts.update(run.counts)
    return Outcome(scenario, verdict, ledger, ledger.now() - started, dict(run.stage.losses))


def may_withhold(scenario: Scenario) -> bool:
    """Whether a real KubeMQ is ended, which may keep messages to itself then (docs/faults.md)."""
    return scenario.backend is Backend.REAL and any(fault.kind in _WITHHOLDING for fault in scenario.faults)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _bugs_in(log: Path) -> list[str]:
    """What the connector's log says of bugs, each once."""
    found: Counter[str] = Counter()
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else ():
        if line.startswith("{"):
            entry = json.loads(line)
            if entry.get("message") in BUGS:
                last = str(entry.get("exception", ""))[-300:]
                found[f"{entry['message']} {entry.get('task', '')}: {last}"] += 1
    return [f"{count} x {text}" for text, count in found.items()]


class Run:
    """One run; ``ledger`` has what came of it."""

    drain_limit_s = DRAIN_LIMIT_S

    def __init__(self, scenario: Scenario, ledger: Ledger) -> None:
        mark = uuid.uuid4().hex[:8]
        exchanges = {exchange for exchange, _ in scenario.routes if exchange}
        self._names = {name: f"fault-{scenario.seed}-{mark}-{name}" for name in (*scenario.queues, *exchanges)}
        self.scenario = scenario
        self.ledger = ledger
        ledger.auto_ack_queues = set(scenario.auto_ack_queues)
        self.stage = Stage(scenario.seed, self._names)
        self.withheld_count = 0
        self.counts: Counter[str] = Counter()

    async def perform(self, rig: Rig) -> None:
        """All of it; problems are in the ledger."""
        await self._declare(rig)
        ledger, stage = self.ledger, self.stage
        ledger.began_at = ledger.now()
        faults = Faults(rig, ledger)
        publishers, receivers = self._actors(rig)
        async with asyncio.TaskGroup() as everything:
            receiving = [everything.create_task(actor.run(), name=actor.name) for actor in receivers]
            try:
                async with asyncio.TaskGroup() as acting:
                    for actor in publishers:
                        acting.create_task(actor.run(), name=actor.name)
                    await self._disturb(rig, faults)
                    await rig.wait_ready()
                    stage.is_publishing = False
                stage.is_draining = True
                await self._drain_with_rescue(rig)
            finally:
                stage.is_over = True
            await asyncio.wait(receiving)
        await self._look_again(rig)

    async def _disturb(self, rig: Rig, faults: Faults) -> None:
        """All faults at their times."""
        del rig
        async with asyncio.TaskGroup() as disturbing:
            for fault in self.scenario.faults:
                disturbing.create_task(faults.run(fault), name=str(fault))
            disturbing.create_task(asyncio.sleep(self.scenario.seconds))

    def _actors(self, rig: Rig) -> tuple[list[Actor], list[Actor]]:
        scenario, ledger, stage = self.scenario, self.ledger, self.stage

        def port(name: str) -> int:
            return rig.proxies[name].port

        publishers: list[Actor] = [
            Publisher(plan, scenario.routes[plan.route], lambda name=plan.name: port(name), ledger, stage)  # type: ignore[misc]
            for plan in scenario.publishers
        ]
        receivers: list[Actor] = [
            Consumer(plan, lambda name=plan.name: port(name), ledger, stage)  # type: ignore[misc]
            for plan in scenario.consumers
        ]
        receivers += [
            Poller(plan, lambda name=plan.name: port(name), ledger, stage)  # type: ignore[misc]
            for plan in scenario.pollers
        ]
        return publishers, receivers

    # ------------------------------------------------------------------ with a connection of its own

    @contextlib.asynccontextmanager
    async def _channel(self, rig: Rig) -> AsyncIterator[Channel]:
        connection = await Connection.open(rig.amqp_port)
        try:
            yield await connection.channel()
        finally:
            connection.abort("done")

    async def _declare(self, rig: Rig) -> None:
        """Durable queues, one direct exchange, its bindings."""
        async with self._channel(rig) as channel:
            for queue in self.scenario.queues:
                await channel.call(commands.Queue.Declare(queue=self._names[queue], durable=True))
            for exchange, key in self.scenario.routes:
                if exchange:
                    await channel.call(
                        commands.Exchange.Declare(exchange=self._names[exchange], exchange_type="direct", durable=True)
                    )
                    for queue in self.scenario.routes[exchange, key]:
                        await channel.call(
                            commands.Queue.Bind(
                                queue=self._names[queue], exchange=self._names[exchange], routing_key=key
                            )
                        )

    async def _counts(self, channel: Channel) -> dict[str, int]:
        counts = {}
        for queue in self.scenario.queues:
            answer, _ = await channel.call(commands.Queue.Declare(queue=self._names[queue], passive=True, durable=True))
            counts[queue] = answer.message_count
        return counts

    async def _drain_with_rescue(self, rig: Rig) -> None:
        """What a killed KubeMQ withholds is missing and nothing else; it comes after a rescue, if that can be done."""
        if not may_withhold(self.scenario):
            await self._drain(rig)
            return
        withheld = await self._drain(rig, less_withheld=True)
        self.counts["withheld"] = withheld
        if not rig.can_rescue:
            self.withheld_count = withheld
        elif withheld:
            self.ledger.rescue()
            await rig.rescue()
            await self._drain(rig)
            self.counts["rescued"] = withheld

    async def _drain(self, rig: Rig, *, less_withheld: bool = False) -> int:
        """Return when nothing is owed, all queues say they are empty and nothing arrives any more.

        ``less_withheld``: as many may be owed as the connector says are withheld; returns how many that are.
        """
        ledger = self.ledger
        limit = ledger.now() + self.drain_limit_s
        counts: dict[str, int] = {}
        withheld = 0
        async with self._channel(rig) as channel:
            while ledger.now() < limit:
                counts = await self._counts(channel)
                withheld = await rig.withheld() if less_withheld else 0
                if ledger.owed_count <= withheld and not any(counts.values()):
                    before = len(ledger.deliveries)
                    await asyncio.sleep(QUIET_S)
                    if len(ledger.deliveries) == before:
                        return withheld
                await asyncio.sleep(RETRY_S)
        for queue, count in counts.items():
            if count or ledger.owed(queue):
                text = f"{queue} says {count} ready, {ledger.owed(queue)} owed; {withheld} withheld in all"
                ledger.note("stuck", text)
        return withheld

    async def _look_again(self, rig: Rig) -> None:
        """Restart in order: what was acknowledged must not come back."""
        connector = rig.connector
        if connector is not None:
            noted = self.ledger.disturb("connector", "LAST_RESTART")
            await asyncio.to_thread(connector.terminate)
            if rig.server is not None and self.scenario.backend is Backend.PROXIED:
                await rig.server.end(signal.SIGTERM)
                await rig.server.start()
            await asyncio.to_thread(connector.start, wait=False)
            await rig.wait_ready()
            self.ledger.heal(noted)
        session = self.ledger.open_session(LAST_LOOK)
        for queue in self.scenario.queues:
            try:
                async with self._channel(rig) as channel:
                    while await self._take(channel, session, queue):
                        pass
            except Gone as gone:
                self.ledger.note("stuck", f"{queue} after the last restart: {gone}")
        self.ledger.end_session(session, "left")
        if self.scenario.backend in {Backend.REAL, Backend.NONE} and not may_withhold(self.scenario):
            async with self._channel(rig) as channel:
                for name in self.scenario.queues:
                    await channel.call(commands.Queue.Delete(queue=self._names[name]))

    async def _take(self, channel: Channel, session: Session, queue: str) -> bool:
        method, content = await channel.call(commands.Basic.Get(queue=self._names[queue]))
        if not isinstance(method, commands.Basic.GetOk):
            return False
        ledger = self.ledger
        message_id = content.partition(b"|")[0].decode("ascii", "replace")
        delivery = ledger.deliver(queue, message_id, session, "", redelivered=bool(method.redelivered))
        if delivery is not None:
            ledger.settle(delivery, Settlement.DONE, is_certain=True)
        channel.send(commands.Basic.Ack(method.delivery_tag or 0))
        return True

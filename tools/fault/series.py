"""``python -m tools.fault.series``: the same fault again and again on one data set, under confirmed load.

Owns the load of a series, what is measured around each fault, and its verdict; the promise itself is judged by the
ledger as in every run (``verdict.py``).  Exit codes: 0 all as it must be, 1 something is not.

- ``connector-kill``: what was unacknowledged comes back flagged as soon as the connector is up again;
- ``backend-term``, ``backend-kill`` and ``backend-stop`` (SIGSTOP for 5, 10 and 20 s): clients stay connected,
  ``/readyz`` is not 200 until the backend is back, confirms resume soon and at the rate of before; what a killed KubeMQ
  withholds is as much as the connector says, and comes back with a rescue.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from zlib import crc32

from pamqp import commands

from connector.backend.kubemq.client import KubeMQClient
from connector.broker.ports import StoreError
from tests.support.ledger import Delivery, Disturbance, Fate, Ledger, Publish
from tools.fault import report
from tools.fault.client import Connection
from tools.fault.faults import Faults
from tools.fault.rig import Rig, Target
from tools.fault.run import Outcome, Run, perform
from tools.fault.scenario import FOREVER_S, Backend, ConsumerPlan, Fault, FaultKind, PublisherPlan, Scenario

KINDS = {
    "connector-kill": FaultKind.CONNECTOR_KILL,
    "backend-term": FaultKind.BACKEND_TERM,
    "backend-kill": FaultKind.BACKEND_KILL,
    "backend-stop": FaultKind.BACKEND_STOP,
}
#: How long a backend is stopped, in turn.
FROZEN_S = (5.0, 10.0, 20.0)
QUEUE = "q1"
FILLER = "filler"
FILL_WINDOW = 500
SIZE = 100
#: Load before a fault and, at least, after it; rates are compared over this.
CALM_S = 3.0
AFTER_S = 4.0
#: So much later confirms must come as fast as before.
FULL_LIMIT_S = 10.0
RATE_S = 2.0
#: What must be so: confirms come again within, at this part of the rate; not ready is noticed within.
CONFIRM_LIMIT_S = 3.0
RATE_SHARE = 0.8
NOTICE_LIMIT_S = 1.0
NOTICE_FROZEN_LIMIT_S = 4.0
READY_LIMIT_S = 5.0
AWAIT_LIMIT_S = 30.0
#: The connector may see that the backend is back so much sooner than we.
RETURN_S = 0.5
PING_LIMIT_S = 0.5
POLL_S = 0.02
OK = 200


def draw_series(kind: FaultKind, times: int, backend: Backend) -> Scenario:
    """One queue with steady publishers, and consumers that are quick, slow, and hold what they have."""
    consumers = (
        _consumer("c1", prefetch=10, work_s=0.004),
        _consumer("c2", prefetch=5, work_s=0.05, hold_every=10, hold_s=2.0),
        _consumer("c3", prefetch=1, hold_every=1, hold_s=6.0),
        _consumer("c4", prefetch=50, work_s=0.004, batch=10, requeue_share=0.01),
    )
    publishers = (_publisher("p1", window=100, rate=200, burst=10), _publisher("p2", window=10, rate=100, burst=1))
    lasting = [FROZEN_S[number % len(FROZEN_S)] if kind is FaultKind.BACKEND_STOP else 0.0 for number in range(times)]
    faults = tuple(Fault(0.0, kind, seconds) for seconds in lasting)
    return Scenario(
        0, backend, False, 0.0, (QUEUE,), (), {("", QUEUE): (QUEUE,)}, publishers, consumers, (), faults
    )  # fmt: skip


def _publisher(name: str, *, window: int, rate: int, burst: int) -> PublisherPlan:
    return PublisherPlan(name, ("", QUEUE), True, window, rate, burst, 0, FOREVER_S, False)


def _consumer(
    name: str, *, prefetch: int, work_s: float = 0.0, batch: int = 1, requeue_share: float = 0.0, hold_every: int = 0,
    hold_s: float = 0.0,
) -> ConsumerPlan:  # fmt: skip
    return ConsumerPlan(
        name, QUEUE, prefetch, work_s, batch, requeue_share, 0.0, hold_every, hold_s, False,
        FOREVER_S, False, FOREVER_S, 0,
    )  # fmt: skip


@dataclass(slots=True)
class Round:
    """One fault and what followed, in seconds; None where it does not apply or never came.

    The end of a backend's fault is when it answers a Ping of ours.  ``notice_s`` from its begin to the first answer of
    ``/readyz`` that is not 200, ``ready_s`` from its end to the next that is; ``confirm_s`` and ``back_s`` from its end
    to the next confirm and the first redelivery.
    """

    depth: int
    down_s: float = 0.0
    notice_s: float | None = None
    was_ready_while_down: bool = False
    ready_s: float | None = None
    confirm_s: float | None = None
    back_s: float | None = None
    rate_before: float = 0.0
    rate_after: float = 0.0


class Readiness:
    """Asks ``/readyz`` all the time: (moment, status), 0 where nobody answers."""

    def __init__(self, url: str, ledger: Ledger) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._ledger = ledger
        self.seen: list[tuple[float, int]] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            status = await self._ask()
            self.seen.append((self._ledger.now(), status))
            await asyncio.sleep(POLL_S)

    async def _ask(self) -> int:
        try:
            async with asyncio.timeout(1.0):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    return int((await reader.readline()).split()[1])
                finally:
                    writer.close()
        except (OSError, TimeoutError, IndexError):
            return 0


class Presence:
    """Pings the backend all the time, on a link of its own: (moment, whether it answered)."""

    def __init__(self, address: tuple[str, int], ledger: Ledger) -> None:
        self._address = "{}:{}".format(*address)
        self._ledger = ledger
        self.seen: list[tuple[float, bool]] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            client = KubeMQClient(self._address, "presence", call_timeout_s=PING_LIMIT_S)
            try:
                await client.connect(PING_LIMIT_S)
                is_there = True
            except StoreError:
                is_there = False
            finally:
                await client.close()
            self.seen.append((self._ledger.now(), is_there))
            await asyncio.sleep(POLL_S)

    def returned_at(self, since: float) -> float | None:
        """When it answered again, after it did not."""
        later = [(at, is_there) for at, is_there in self.seen if at >= since]
        away = next((number for number, (_, is_there) in enumerate(later) if not is_there), len(later))
        return next((at for at, is_there in later[away:] if is_there), None)


class Series(Run):
    """A run whose faults come one after the other, each when the one before is over."""

    drain_limit_s = 120.0

    def __init__(self, scenario: Scenario, ledger: Ledger, depth: int) -> None:
        super().__init__(scenario, ledger)
        self._depth = depth
        self.rounds: list[Round] = []

    async def _disturb(self, rig: Rig, faults: Faults) -> None:
        for fault in self.scenario.faults:
            await self._fill(rig)
            await asyncio.sleep(CALM_S)
            self.rounds.append(await self._round(rig, faults, fault))
            sys.stdout.write(line(len(self.rounds), self.rounds[-1]) + "\n")
            sys.stdout.flush()

    async def _round(self, rig: Rig, faults: Faults, fault: Fault) -> Round:
        assert rig.connector is not None  # noqa: S101
        ledger = self.ledger
        found = Round(ledger.owed(QUEUE))
        assert rig.server is not None  # noqa: S101
        readiness = Readiness(rig.connector.ops_url, ledger)
        presence = Presence(rig.server.address(), ledger)
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(readiness.run()), group.create_task(presence.run())]
            began_at = ledger.now()
            await faults.run(fault)
            await rig.wait_ready()
            await self._until(
                lambda: self._confirms(began=ledger.disturbances[-1].ended_at or 0.0, seconds=AWAIT_LIMIT_S)
            )
            await asyncio.sleep(AFTER_S)
            wanted = self._wanted_rate(ledger.disturbances[-1].began_at)
            await self._until(lambda: self._rate(ledger.now()) >= wanted, FULL_LIMIT_S - AFTER_S)
            for task in asking:
                task.cancel()
        end = ledger.disturbances[-1].ended_at or ledger.now()
        if ledger.disturbances[-1].what == "backend":
            end = min(end, presence.returned_at(began_at) or end)
        self._measure(found, ledger.disturbances[-1], readiness, end)
        self._check(found, fault)
        return found

    async def _until(self, condition: Callable[[], object], limit_s: float = AWAIT_LIMIT_S) -> None:
        limit = self.ledger.now() + limit_s
        while self.ledger.now() < limit and not condition():  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    def _confirms(self, began: float, seconds: float) -> list[float]:
        """When publishers of the load had confirms, within these seconds."""
        found = []
        for publish in reversed(self.ledger.publishes.values()):
            if publish.at < began - AWAIT_LIMIT_S:
                break
            if _is_of_load(publish) and began < (publish.fate_at or 0.0) <= began + seconds:
                found.append(publish.fate_at or 0.0)
        return found

    def _rate(self, until: float) -> float:
        return len(self._confirms(until - RATE_S, RATE_S)) / RATE_S

    def _wanted_rate(self, began_at: float) -> float:
        return RATE_SHARE * min(self._rate(began_at), sum(each.rate for each in self.scenario.publishers))

    def _measure(self, found: Round, fault: Disturbance, readiness: Readiness, end: float) -> None:
        began_at = fault.began_at
        found.down_s = end - fault.began_at
        not_ready = [at for at, status in readiness.seen if began_at <= at <= end and status != OK]
        found.notice_s = not_ready[0] - began_at if not_ready else None
        ready = [at for at, status in readiness.seen if status == OK]
        found.was_ready_while_down = bool(not_ready) and any(not_ready[0] < at < end - RETURN_S for at in ready)
        found.ready_s = min((at - end for at in ready if at >= end), default=None)
        confirms = self._confirms(end, AWAIT_LIMIT_S)
        found.confirm_s = min(confirms) - end if confirms else None
        found.back_s = min((each.at - end for each in self._returns(end)), default=None)
        found.rate_before = self._rate(fault.began_at)
        found.rate_after = self._rate(self.ledger.now())

    def _returns(self, since: float) -> list[Delivery]:
        found = []
        for delivery in reversed(self.ledger.deliveries):
            if delivery.at < since:
                break
            if delivery.redelivered:
                found.append(delivery)
        return found

    def _check(self, found: Round, fault: Fault) -> None:
        note, number = self.ledger.note, len(self.rounds) + 1
        if fault.kind is FaultKind.CONNECTOR_KILL:
            if found.back_s is None:
                note("not back", f"round {number}: nothing was redelivered")
            return
        if found.rate_after < self._wanted_rate(self.ledger.disturbances[-1].began_at):
            note(
                "slower", f"round {number}: {found.rate_before:g} confirms a second before, {found.rate_after:g} after"
            )
        if found.confirm_s is None or found.confirm_s > CONFIRM_LIMIT_S:
            note("confirms late", f"round {number}: {_seconds(found.confirm_s)} after the return")
        limit_s = NOTICE_FROZEN_LIMIT_S if fault.kind is FaultKind.BACKEND_STOP else NOTICE_LIMIT_S
        if found.notice_s is None or found.notice_s > limit_s or found.was_ready_while_down:
            text = f"round {number}: not ready after {_seconds(found.notice_s)}"
            note("ready without a backend", text + (", and ready again before its return" * found.was_ready_while_down))
        if found.ready_s is None or found.ready_s > READY_LIMIT_S:
            note("not ready again", f"round {number}: {_seconds(found.ready_s)} after the return")

    async def _fill(self, rig: Rig) -> None:
        """Publish until so many are owed."""
        missing = self._depth - self.ledger.owed(QUEUE)
        if missing <= 0:
            return
        ledger = self.ledger
        session = ledger.open_session(FILLER)
        connection = await Connection.open(rig.amqp_port)
        try:
            channel = await connection.channel()
            await channel.call(commands.Confirm.Select())
            waiting: dict[int, Publish] = {}

            def on_confirm(tag: int, multiple: bool, is_ack: bool) -> None:
                for number in [each for each in waiting if each == tag or (multiple and each < tag)]:
                    (ledger.confirm if is_ack else ledger.refuse)(waiting.pop(number))

            channel.on_confirm = on_confirm
            for number in range(1, missing + 1):
                await self._until(lambda: len(waiting) < FILL_WINDOW)
                message_id = f"0.{session.name}.{number}"
                waiting[number] = publish = ledger.publish(message_id, session, number, (QUEUE,), confirming=True)
                publish.digest = crc32(content := f"{message_id}|".encode() + bytes(SIZE))
                properties = commands.Basic.Properties(message_id=message_id, delivery_mode=2)
                channel.publish("", self.stage.real_name(QUEUE), properties, content)
            await self._until(lambda: not waiting)
        finally:
            connection.abort("left")
            ledger.end_session(session, "left")


def _is_of_load(publish: Publish) -> bool:
    return publish.fate is Fate.CONFIRMED and publish.session.client != FILLER


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


def line(number: int, found: Round) -> str:
    """One line about one fault."""
    return (
        f"{number:3}: {found.depth} in the queue, down {found.down_s:.2f} s; /readyz not 200 after "
        f"{_seconds(found.notice_s)}, 200 again {_seconds(found.ready_s)} after the return; first confirm "
        f"{_seconds(found.confirm_s)}, first redelivery {_seconds(found.back_s)}; confirms a second "
        f"{found.rate_before:.0f} before, {found.rate_after:.0f} after"
    )


def summary(outcome: Outcome, rounds: Sequence[Round]) -> str:
    """The verdict and the figures over all rounds."""
    lines = [report.summary(outcome.verdict.counts, [outcome.verdict], [] if outcome.verdict.is_good else [0])]
    for name in ("notice_s", "ready_s", "confirm_s", "back_s"):
        values = sorted(value for found in rounds if (value := getattr(found, name)) is not None)
        if values:
            lines.append(
                f"  {name}: median {values[len(values) // 2]:.2f}, longest {values[-1]:.2f}, {len(values)} times"
            )
    sessions = [session for session in outcome.ledger.sessions if session.client[0] in "pc"]
    lines.append(f"  sessions of the load: {len(sessions)} of {len({session.client for session in sessions})} clients")
    lines.append(report.failure(outcome) or "  no problems")
    lines.append("as it must be" if outcome.verdict.is_good else "NOT as it must be")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one series; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.fault.series", description="One fault, again and again.")
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--times", type=int, default=10, help="how often (default %(default)s)")
    parser.add_argument(
        "--depth", type=int, default=10_000, help="messages in the queue before each (default %(default)s)"
    )
    parser.add_argument("--backend", choices=("child", "proxied"), default="child", help="without KUBEMQ_ADDRESS")
    for which in ("start", "stop", "signal", "monitor"):
        parser.add_argument(f"--kubemq-{which}", default="", help="as for python -m tools.fault")
    options = parser.parse_args(arguments)
    address = os.environ.get("KUBEMQ_ADDRESS", "")
    target = Target(
        kubemq_address=address,
        kubemq_start=options.kubemq_start,
        kubemq_stop=options.kubemq_stop,
        kubemq_signal=options.kubemq_signal,
        kubemq_monitor=options.kubemq_monitor,
    )
    backend = Backend.REAL if address else Backend[options.backend.upper()]
    series = Series(draw_series(KINDS[options.kind], options.times, backend), Ledger(), options.depth)
    folder = Path(tempfile.mkdtemp(prefix=f"series-{options.kind}-"))
    outcome = asyncio.run(perform(series.scenario, folder, target, series))
    sys.stdout.write(summary(outcome, series.rounds) + "\n")
    if outcome.verdict.is_good:
        shutil.rmtree(folder)
        return 0
    report.write_story(outcome, folder)
    sys.stdout.write(f"logs and all problems: {folder}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())

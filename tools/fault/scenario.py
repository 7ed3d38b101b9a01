"""What happens for one seed: the workload, the faults and their times, drawn from the seed alone.

Owns the drawing; the same seed, backend and version of this file give the same scenario.  Must not know how anything is
carried out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum


class Backend(Enum):
    """Where the connector's messages live."""

    CHILD = "embedded server as the connector's child"
    PROXIED = "embedded server of its own behind a proxy"
    REAL = "KubeMQ at KUBEMQ_ADDRESS behind a proxy"
    NONE = "another AMQP broker at AMQP_URL: only the clients' links are disturbed"


class FaultKind(Enum):
    """What can be done; the name's first word says to whom."""

    CONNECTOR_KILL = "SIGKILL of the connector, then start"
    CONNECTOR_TERM = "SIGTERM of the connector, then start"
    CONNECTOR_STOP = "SIGSTOP of the connector, then SIGCONT"
    BACKEND_KILL = "SIGKILL of the backend, then start"
    BACKEND_TERM = "SIGTERM of the backend, then start"
    BACKEND_STOP = "SIGSTOP of the backend, then SIGCONT"
    BACKEND_CUT = "the connector's link is reset and refused for a while"
    BACKEND_BLINK = "the connector's link is reset once"
    BACKEND_HALF_UP = "the connector's link is closed towards the backend"
    BACKEND_HALF_DOWN = "the connector's link is closed towards the connector"
    BACKEND_STALL_UP = "nothing gets through to the backend for a while"
    BACKEND_STALL_DOWN = "nothing gets through from the backend for a while"
    BACKEND_DELAY = "everything between connector and backend takes longer for a while"
    CLIENT_CUT = "a client's link is reset"
    CLIENT_HALF_UP = "a client's link is closed towards the connector"
    CLIENT_HALF_DOWN = "a client's link is closed towards the client"
    CLIENT_STALL_UP = "nothing gets through from a client for a while"
    CLIENT_STALL_DOWN = "nothing gets through to a client for a while"
    CLIENT_DELAY = "everything between a client and the connector takes longer for a while"
    CLIENT_CUT_ALL = "all clients' links are reset at once"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: ``seconds`` is how long it lasts (before the restart, for a kill), ``client`` whom it meets."""

    at_s: float
    kind: FaultKind
    seconds: float
    client: str = ""

    def __str__(self) -> str:
        whom = f" of {self.client}" if self.client else ""
        return f"at {self.at_s:.2f} s {self.kind.name.lower()}{whom} for {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class PublisherPlan:
    """One publisher: ``route`` is (exchange's short name, routing key); ``window`` limits what is unconfirmed.

    ``session_s`` is how long it keeps a connection, ``is_abrupt`` how it leaves.
    """

    name: str
    route: tuple[str, str]
    confirming: bool
    window: int
    rate: int
    burst: int
    large_bytes: int
    session_s: float
    is_abrupt: bool


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """One consumer: ``work_s`` per message; ``batch`` messages are acknowledged with one multiple ack.

    ``requeue_share`` is nacked with requeue, ``drop_share`` rejected for good; ``hold_s`` is how long each
    ``hold_every``-th message is kept; ``recancel_s`` is how often it cancels and consumes again.
    """

    name: str
    queue: str
    prefetch: int
    work_s: float
    batch: int
    requeue_share: float
    drop_share: float
    hold_every: int
    hold_s: float
    no_ack: bool
    session_s: float
    is_abrupt: bool
    recancel_s: float
    heartbeat_s: int


@dataclass(frozen=True, slots=True)
class PollerPlan:
    """One client that uses basic.get every ``pause_s``; it keeps up to ``keep`` messages before it acknowledges."""

    name: str
    queue: str
    pause_s: float
    keep: int
    requeue_share: float
    session_s: float
    is_abrupt: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    """All of one seed; ``routes`` maps (exchange, routing key) to the queues bound."""

    seed: int
    backend: Backend
    has_quirks: bool
    seconds: float
    queues: tuple[str, ...]
    auto_ack_queues: tuple[str, ...]
    routes: dict[tuple[str, str], tuple[str, ...]]
    publishers: tuple[PublisherPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    pollers: tuple[PollerPlan, ...]
    faults: tuple[Fault, ...]

    @property
    def clients(self) -> list[str]:
        """Names of all clients."""
        return _names(self.publishers, self.consumers, self.pollers)

    def describe(self) -> str:
        """Text for people: one line per client and fault."""
        lines = [f"seed {self.seed}: {self.backend.value}, quirks {'on' if self.has_quirks else 'off'}"]
        lines += [f"  {plan}" for plan in (*self.publishers, *self.consumers, *self.pollers)]
        lines += [f"  {fault}" for fault in self.faults]
        return "\n".join(lines)


#: The direct exchange of every scenario, and its key that reaches two queues.
EXCHANGE = "pairs"
FOREVER_S = 1e9

_CONNECTOR = (FaultKind.CONNECTOR_KILL,) * 4 + (FaultKind.CONNECTOR_TERM, FaultKind.CONNECTOR_STOP)
_PROCESS = (FaultKind.BACKEND_KILL,) * 3 + (FaultKind.BACKEND_TERM, FaultKind.BACKEND_STOP)
_RESTARTS = (FaultKind.BACKEND_KILL, FaultKind.BACKEND_TERM)
_LINK = (
    FaultKind.BACKEND_CUT,
    FaultKind.BACKEND_BLINK,
    FaultKind.BACKEND_HALF_UP,
    FaultKind.BACKEND_HALF_DOWN,
    FaultKind.BACKEND_STALL_UP,
    FaultKind.BACKEND_STALL_DOWN,
    FaultKind.BACKEND_DELAY,
)
_CLIENT = (
    FaultKind.CLIENT_CUT,
    FaultKind.CLIENT_CUT,
    FaultKind.CLIENT_HALF_UP,
    FaultKind.CLIENT_HALF_DOWN,
    FaultKind.CLIENT_STALL_UP,
    FaultKind.CLIENT_STALL_DOWN,
    FaultKind.CLIENT_DELAY,
    FaultKind.CLIENT_CUT_ALL,
)


def draw(
    seed: int, backend: Backend | None = None, *, seconds: float = 4.0, only: tuple[FaultKind, ...] = (),
    can_restart: bool = True,
) -> Scenario:  # fmt: skip
    """Return the scenario of a seed; ``backend`` None lets the seed choose one of the two embedded kinds.

    ``only`` limits the kinds of fault; ``can_restart`` False leaves out those that need a restart of the backend.
    """
    dice = random.Random(seed)  # noqa: S311 # repeatable, not secret
    drawn = dice.choice((Backend.CHILD, Backend.PROXIED))
    has_quirks = dice.random() < 0.7
    backend = backend or drawn
    queues = tuple(f"q{number}" for number in range(1, dice.randint(3, 5) + 1))
    auto = queues[-1:] if dice.random() < 0.25 else ()
    acked = [queue for queue in queues if queue not in auto]
    routes: dict[tuple[str, str], tuple[str, ...]] = {("", queue): (queue,) for queue in queues}
    routes[EXCHANGE, "both"] = tuple(dice.sample(acked, 2))
    publishers = _publishers(dice, queues)
    consumers = _consumers(dice, acked, auto)
    pollers = tuple(_poller(dice, number, dice.choice(acked)) for number in range(1, dice.randint(1, 2) + 1))
    clients = _names(publishers, consumers, pollers)
    kinds = only or _kinds(backend, can_restart=can_restart)
    faults = _faults(dice, kinds, clients, seconds)
    return Scenario(
        seed, backend, has_quirks, seconds, queues, auto, routes, publishers, consumers, pollers, faults
    )  # fmt: skip


def _names(
    publishers: tuple[PublisherPlan, ...], consumers: tuple[ConsumerPlan, ...], pollers: tuple[PollerPlan, ...]
) -> list[str]:
    return [plan.name for plan in publishers] + [plan.name for plan in consumers] + [plan.name for plan in pollers]


def _kinds(backend: Backend, *, can_restart: bool) -> tuple[FaultKind, ...]:
    """The kinds that can happen there, each as often as it is to be drawn."""
    if backend is Backend.NONE:
        return _CLIENT
    if backend is Backend.CHILD:
        return _CONNECTOR * 2 + _PROCESS + _CLIENT
    if backend is Backend.PROXIED:
        return _CONNECTOR + _PROCESS + _LINK + _CLIENT
    return _CONNECTOR + _LINK + _CLIENT + (_RESTARTS if can_restart else ())


def _session(dice: random.Random) -> tuple[float, bool]:
    """How long a client keeps its connection, and whether it leaves abruptly."""
    return (round(dice.uniform(0.3, 1.5), 2) if dice.random() < 0.35 else FOREVER_S, dice.random() < 0.5)


def _publishers(dice: random.Random, queues: tuple[str, ...]) -> tuple[PublisherPlan, ...]:
    plans: list[PublisherPlan] = []
    routes = [("", queue) for queue in queues] + [(EXCHANGE, "both")]
    routes += dice.choices(routes, k=dice.randint(0, 2))
    for number, route in enumerate(routes, 1):
        session_s, is_abrupt = _session(dice)
        plans.append(
            PublisherPlan(
                name=f"p{number}",
                route=route,
                confirming=dice.random() < 0.75,
                window=dice.choice((1, 10, 100, 500)),
                rate=dice.choice((20, 50, 100, 200, 300)),
                burst=dice.choice((1, 1, 10, 50)),
                large_bytes=dice.choice((0, 0, 0, 20_000, 200_000)),
                session_s=session_s,
                is_abrupt=is_abrupt,
            )
        )
    return tuple(plans)


def _consumers(dice: random.Random, acked: list[str], auto: tuple[str, ...]) -> tuple[ConsumerPlan, ...]:
    queues = [*acked, *auto, *dice.choices(acked, k=dice.randint(1, 3))]
    return tuple(_consumer(dice, number, queue, no_ack=queue in auto) for number, queue in enumerate(queues, 1))


def _consumer(dice: random.Random, number: int, queue: str, *, no_ack: bool) -> ConsumerPlan:
    session_s, is_abrupt = _session(dice)
    prefetch = dice.choice((1, 2, 5, 10, 50, 200, 0))
    batch = dice.choice((1, 1, 3, 10))
    return ConsumerPlan(
        name=f"c{number}",
        queue=queue,
        prefetch=prefetch,
        work_s=dice.choice((0.0, 0.0, 0.001, 0.003, 0.01, 0.05)),
        batch=min(batch, prefetch) if prefetch else batch,
        requeue_share=dice.choice((0.0, 0.0, 0.02, 0.1, 0.3)),
        drop_share=dice.choice((0.0, 0.0, 0.05)),
        hold_every=dice.choice((0, 0, 10, 50)) if batch == 1 else 0,
        hold_s=round(dice.uniform(0.3, 3.0), 2),
        no_ack=no_ack,
        session_s=session_s,
        is_abrupt=is_abrupt,
        recancel_s=round(dice.uniform(0.2, 1.0), 2) if dice.random() < 0.2 else FOREVER_S,
        heartbeat_s=dice.choice((0, 0, 2, 10)),
    )


def _poller(dice: random.Random, number: int, queue: str) -> PollerPlan:
    session_s, is_abrupt = _session(dice)
    return PollerPlan(
        name=f"g{number}",
        queue=queue,
        pause_s=dice.choice((0.0, 0.01, 0.05)),
        keep=dice.choice((1, 1, 5)),
        requeue_share=dice.choice((0.0, 0.1)),
        session_s=session_s,
        is_abrupt=is_abrupt,
    )


def _faults(dice: random.Random, kinds: tuple[FaultKind, ...], clients: list[str], seconds: float) -> tuple[Fault, ...]:
    faults = []
    for _ in range(dice.randint(2, 4)):
        kind = dice.choice(kinds)
        at_s = round(dice.uniform(0.3, seconds * 0.85), 2)
        is_wait = kind.name.endswith(("KILL", "TERM"))
        lasting_s = round(dice.choice((0.0, 0.0, 0.3)) if is_wait else dice.uniform(0.1, 1.5), 2)
        client = dice.choice(clients)
        needs_client = kind.name.startswith("CLIENT") and kind is not FaultKind.CLIENT_CUT_ALL
        faults.append(Fault(at_s, kind, lasting_s, client if needs_client else ""))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))

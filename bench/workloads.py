"""The fixed list of workloads, as PerfTest's arguments, and what is wanted of each.

Owns names, arguments and goals.  Must not know targets.  All queues are durable and all messages persistent, so that
RabbitMQ and KubeMQ make the same promise; prefetch equals the confirm window where both bound the load.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

EXCHANGE = "bench"
_DURABLE = ("--flag", "persistent", "--auto-delete", "false", "--exchange", EXCHANGE)
#: Connections open, queues are declared, the load settles.
WARM_UP_S = 5
#: PerfTest's JVM compiles for some ten seconds, on the cores of those whose latency is measured.
_COMPILED_S = 15
#: Few threads for many channels; they wait most of the time.
MANY = ("--nio-threads", "4", "--consumers-thread-pools", "4", "--heartbeat-sender-threads", "1")


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload: ``counts`` says which of PerfTest's rates is the rate, and whose latency the latency.

    ``warm_up_s``: seconds before it counts, where nobody says otherwise.  ``rate_goal`` is a multiple of RabbitMQ's
    rate, ``median_goal_ms`` and ``p99_goal_ms`` are absolute; None: no goal.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    counts: Literal["received", "confirmed"] = "received"
    queues: int = 1
    rate_goal: float | None = None
    median_goal_ms: float | None = None
    p99_goal_ms: float | None = None
    warm_up_s: int = WARM_UP_S

    def perftest_arguments(self, token: str) -> list[str]:
        """PerfTest's arguments but for the target and the time; ``token`` makes the names of queues unique."""
        if self.queues == 1:
            where = ["--queue", self.queue_names(token)[0]]
        else:
            where = ["--queue-pattern", f"{self._stem(token)}-%d", "--queue-pattern-from", "1"]
            where += ["--queue-pattern-to", str(self.queues)]
        return [*_DURABLE, *where, *self.arguments]

    def queue_names(self, token: str) -> list[str]:
        """The queues that PerfTest declares."""
        if self.queues == 1:
            return [self._stem(token)]
        return [f"{self._stem(token)}-{number}" for number in range(1, self.queues + 1)]

    def _stem(self, token: str) -> str:
        return f"bench-{token}-{self.name}"


def _load(producers: int, consumers: int, confirm: int, prefetch: int | None, *more: str) -> tuple[str, ...]:
    arguments = ["--producers", str(producers), "--consumers", str(consumers), "--confirm", str(confirm), *more]
    return (*arguments, *(("--qos", str(prefetch)) if prefetch is not None else ()))


WORKLOADS: tuple[Workload, ...] = (
    Workload("window-100", "confirm + ack, 1x1, window 100", _load(1, 1, 100, 100), rate_goal=1.0),
    Workload("window-500", "confirm + ack, 1x1, window 500", _load(1, 1, 500, 500), rate_goal=1.2),
    Workload("four-by-four", "confirm + ack, 4x4, window 100", _load(4, 4, 100, 100), rate_goal=1.0),
    Workload(
        "publish", "publish only, confirms, window 500", _load(1, 0, 500, None), counts="confirmed", rate_goal=2.0
    ),
    Workload("auto-ack", "auto-ack, confirms, window 500", _load(1, 1, 500, None, "--autoack"), rate_goal=0.5),
    Workload("4-kib", "bodies of 4 KiB, 1x1, window 100", _load(1, 1, 100, 100, "--size", "4096")),
    Workload("1-mib", "bodies of 1 MiB, 1x1, window 10", _load(1, 1, 10, 10, "--size", "1048576")),
    Workload(
        "latency",
        "1,000 msg/s, confirms 10, prefetch 10",
        _load(1, 1, 10, 10, "--rate", "1000"),
        median_goal_ms=2.0,
        p99_goal_ms=15.0,
        warm_up_s=_COMPILED_S,
    ),
    Workload("50-consumers", "one queue, 50 consumers, window 500", _load(1, 50, 500, 10, *MANY)),
    Workload(
        "500-queues",
        "500 queues, a producer and consumer each",
        _load(50, 50, 10, 10, "--producer-channel-count", "10", "--consumer-channel-count", "10", *MANY),
        queues=500,
    ),
)


def chosen(names: Iterable[str]) -> list[Workload]:
    """The workloads of these names, all of none; raises ValueError for a name that is not there."""
    known = {workload.name: workload for workload in WORKLOADS}
    wanted = list(names) or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"no workload {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in wanted]

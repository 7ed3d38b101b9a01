# ruff: noqa: INP001 - a script, in no package
"""Microbenchmark of routing: ``python bench/micro_routing.py`` prints one JSON object.

Every exchange has 10,000 bindings of 10,000 queues.  Times are microseconds of processor time per routed message, best
of several rounds; each message has a key (or headers) not seen just before, so no route cache helps.
``bytes_per_binding`` is what binding allocates, the names of queues and keys included.
"""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence

from connector.amqp.wire import Table
from connector.broker.exchanges.binding import BindingKey, canonical_arguments
from connector.broker.exchanges.exchange import Exchange
from connector.broker.routing import TYPES, resolve
from connector.broker.topology import ExchangeRecord

BINDINGS = 10_000
ROUNDS = 7


class View:
    """A virtual host with one exchange and all the queues."""

    def __init__(self, exchange: Exchange) -> None:
        self.title = "/"
        self.exchanges = {"x": exchange}
        self.queues = {f"queue-{n}" for n in range(BINDINGS)}


def literal(n: int) -> str:
    """A key of four words."""
    return f"site-{n % 50}.line-{n % 200}.device-{n}.state"


def pattern(n: int) -> str:
    """One of four kinds of patterns, all with a wildcard."""
    return (
        f"site-{n % 50}.*.device-{n}.state",
        f"*.*.device-{n}.#",
        f"site-{n % 50}.line-{n % 200}.device-{n}.*",
        f"#.device-{n}.state",
    )[n % 4]


def arguments(n: int) -> Table:
    """A condition that many share, and one of its own."""
    return {"x-match": ("S", b"all"), "kind": ("S", b"state"), "device": ("I", n)}


def fill(kind: str, key: Callable[[int], str], table: Callable[[int], Table] | None = None) -> Exchange:
    """An exchange with all bindings."""
    exchange = TYPES[kind](ExchangeRecord("default", "x", kind))
    for n in range(BINDINGS):
        packed = canonical_arguments(table(n) if table is not None else {})
        exchange.bind(BindingKey("x", f"queue-{n}", key(n), packed))
    return exchange


def best(run: Callable[[], object], count: int) -> float:
    """Microseconds of processor time per item of the fastest round."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return round(min(times) / count * 1e6, 3)


def route(exchange: Exchange, keys: Sequence[str], tables: Sequence[Table] = ({},)) -> float:
    """Time of one whole resolution, over all keys and headers."""
    view = View(exchange)
    wanted = [(key, table) for table in tables for key in keys]
    if not resolve(view, "x", wanted[0][0], lambda: wanted[0][1]):
        raise SystemExit("nothing is routed")

    def run() -> None:
        for key, table in wanted:
            resolve(view, "x", key, lambda table=table: table)  # type: ignore[misc]

    return best(run, len(wanted))


def bind_and_unbind(kind: str, key: Callable[[int], str], table: Callable[[int], Table] | None = None) -> float:
    """Time of binding and unbinding one more."""
    exchange = fill(kind, key, table)
    packed = canonical_arguments(table(1) if table is not None else {})
    extra = [BindingKey("x", "one more", key(n) + ".x", packed) for n in range(2_000)]

    def run() -> None:
        for binding in extra:
            exchange.bind(binding)
        for binding in extra:
            exchange.unbind(binding)

    return best(run, len(extra))


def memory(kind: str, key: Callable[[int], str], table: Callable[[int], Table] | None = None) -> int:
    """Bytes per binding."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    exchange = fill(kind, key, table)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) // BINDINGS if exchange.is_used else 0


def main() -> None:
    """Measure and print."""
    keys = [literal(n) for n in range(BINDINGS)]
    tables = [arguments(n) for n in range(BINDINGS)]
    results = {
        "route_us": {
            "direct": route(fill("direct", literal), keys),
            "topic_literal_patterns": route(fill("topic", literal), keys),
            "topic_wildcard_patterns": route(fill("topic", pattern), keys),
            "headers": route(fill("headers", lambda _n: "", arguments), [""], tables),
        },
        "bind_and_unbind_us": {
            "direct": bind_and_unbind("direct", literal),
            "topic_wildcard_patterns": bind_and_unbind("topic", pattern),
            "headers": bind_and_unbind("headers", literal, arguments),
        },
        "bytes_per_binding": {
            "direct": memory("direct", literal),
            "fanout": memory("fanout", lambda _n: ""),
            "topic_literal_patterns": memory("topic", literal),
            "topic_wildcard_patterns": memory("topic", pattern),
            "headers": memory("headers", lambda _n: "", arguments),
        },
    }
    json.dump({"python": sys.version.split()[0], "bindings": BINDINGS, **results}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

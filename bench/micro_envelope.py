# ruff: noqa: INP001 - a script, in no package
"""Microbenchmark of the envelope: ``python bench/micro_envelope.py`` prints one JSON object.

``us``: microseconds per message, best of several rounds, checking and parsing of the header included.
``bytes``: what some ordinary messages take as Metadata, beside the AMQP header it stands for.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from itertools import count
from typing import TypeVar

from connector.amqp import header as content_header
from connector.amqp.wire import Table
from mapping import envelope

T = TypeVar("T")

COUNT = 20_000
ROUNDS = 7

HEADERS: Table = {
    "x-retry": ("I", 3),
    "trace-id": ("S", b"4bf92f3577b34da6a3ce929d0e0e4736"),
    "tenant": ("S", b"acme"),
}
_round = count()


def typical(number: int, headers: Table | None = None) -> bytes:
    """Make a header with content type, delivery mode, an own message id and timestamp, and three headers."""
    return content_header.build(
        {
            "content_type": b"application/json",
            "delivery_mode": 2,
            "message_id": b"3f2c9a7e-5b1d-4d8e-9c55-%012d" % number,
            "timestamp": 1_700_000_000 + number,
        },
        headers or HEADERS,
    )


def own_headers(number: int) -> bytes:
    """Make a header as ``typical`` does, with a value of its own in the table too."""
    return typical(number, HEADERS | {"trace-id": ("S", b"4bf92f3577b34da6a3ce%012d" % number)})


def best(prepare: Callable[[], Iterable[T]], run: Callable[[T], object]) -> float:
    """Microseconds per item of the fastest round; each round gets items of its own."""
    times = []
    for _ in range(ROUNDS):
        items = list(prepare())
        start = time.perf_counter()
        for item in items:
            run(item)
        times.append(time.perf_counter() - start)
    return round(min(times) / COUNT * 1e6, 2)


def measure(make: Callable[[int], bytes]) -> dict[str, float]:
    """Time messages whose header was never seen before."""

    def headers() -> list[bytes]:
        start = next(_round) * COUNT
        return [make(start + number) for number in range(COUNT)]

    return {
        "encode": best(headers, _encode_one),
        "decode": best(lambda: [_encode_one(header) for header in headers()], _decode_one),
    }


def measure_repeated() -> dict[str, float]:
    """Time messages that repeat one header; the bytes and text are fresh objects, as they are from a socket."""
    header = typical(0)
    metadata = envelope.encode("orders", "new", header)
    return {
        "encode": best(lambda: [bytes(bytearray(header)) for _ in range(COUNT)], _encode_one),
        "encode, requeued": best(lambda: [bytes(bytearray(header)) for _ in range(COUNT)], _encode_requeued),
        "decode": best(lambda: [metadata.encode().decode() for _ in range(COUNT)], _decode_one),
    }


def _encode_one(header: bytes) -> str:
    return envelope.encode("orders", "new", header)


def _encode_requeued(header: bytes) -> str:
    return envelope.encode("orders", "new", header, redelivered=True, delivery_count=1)


def _decode_one(metadata: str) -> object:
    return envelope.decode(metadata)


def sizes() -> dict[str, dict[str, int]]:
    """Bytes of the header and of the Metadata for some ordinary messages, to a queue named ``tasks``."""
    celery: Table = {
        "lang": ("S", b"py"),
        "task": ("S", b"shop.tasks.charge"),
        "id": ("S", b"0c1b3a52-7d0e-4c39-9a06-5a4c6b5c2d11"),
        "shadow": ("V", None),
        "eta": ("V", None),
        "expires": ("V", None),
        "group": ("V", None),
        "group_index": ("V", None),
        "retries": ("I", 0),
        "timelimit": ("A", [("V", None), ("V", None)]),
        "root_id": ("S", b"0c1b3a52-7d0e-4c39-9a06-5a4c6b5c2d11"),
        "parent_id": ("V", None),
        "argsrepr": ("S", b"(42,)"),
        "kwargsrepr": ("S", b"{}"),
        "origin": ("S", b"gen1234@web-1"),
        "ignore_result": ("t", False),
    }
    task = {
        "content_type": b"application/json",
        "content_encoding": b"utf-8",
        "delivery_mode": 2,
        "priority": 0,
        "correlation_id": b"0c1b3a52-7d0e-4c39-9a06-5a4c6b5c2d11",
        "reply_to": b"9c1f0e5e-2a55-3c7e-8a53-0d6f5f0f6d1c",
    }
    death: Table = {
        "x-death": (
            "A",
            [
                (
                    "F",
                    {
                        "count": ("l", 1),
                        "reason": ("S", b"expired"),
                        "queue": ("S", b"tasks.retry"),
                        "time": ("T", 1_700_000_000),
                        "exchange": ("S", b""),
                        "routing-keys": ("A", [("S", b"tasks.retry")]),
                    },
                )
            ],
        ),
        "x-first-death-exchange": ("S", b""),
        "x-first-death-queue": ("S", b"tasks.retry"),
        "x-first-death-reason": ("S", b"expired"),
    }
    examples = {
        "no properties": content_header.EMPTY,
        "delivery_mode": content_header.build({"delivery_mode": 2}),
        "content_type, delivery_mode": content_header.build({"content_type": b"application/json", "delivery_mode": 2}),
        "content_type, delivery_mode, message_id, timestamp, 3 headers": typical(1),
        "a Celery task": content_header.build(task, celery),
        "dead-lettered once": content_header.build({"delivery_mode": 2}, death),
        "correlation_id of 16 random bytes": content_header.build({"correlation_id": bytes(range(0xF0, 0x100))}),
        "a header table with a duplicate key": b"\x20\x00\x00\x00\x00\x08\x01at\x01\x01at\x00",
    }
    return {
        name: {"header": len(header), "metadata": len(envelope.encode("", "tasks", header).encode())}
        for name, header in examples.items()
    }


def main() -> int:
    """Measure and print."""
    report = {
        "us": {
            "own message_id and timestamp": measure(typical),
            "own message_id, timestamp and headers": measure(own_headers),
            "repeated header": measure_repeated(),
        },
        "bytes": sizes(),
    }
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

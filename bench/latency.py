"""Measure two latencies at AMQP_URL: an empty basic.get, and a message to a consumer that waits on an idle queue.

``AMQP_URL=amqp://... python bench/latency.py [--count N]``; one line each: median, 99 % and the worst, in ms.  Both
ends are in this process and one thread, so no thread switch is measured; what pika itself takes is included.  The
limits of ``--check`` are the product's promises for an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/")
GET_EMPTY_LIMIT_MS = 50.0
DELIVER_LIMIT_MS = 5.0
#: The queue is idle for so long before each message.
IDLE_S = 0.02
WARM_UP = 20


def measured(count: int, once: Callable[[], float]) -> list[float]:
    """Seconds of each of ``count`` runs, after a warm-up."""
    for _ in range(WARM_UP):
        once()
    return sorted(once() for _ in range(count))


def report(title: str, times: Sequence[float]) -> float:
    """Print a line and return the median in ms."""
    median, p99, worst = (
        1000 * value for value in (statistics.median(times), times[len(times) * 99 // 100], times[-1])
    )
    sys.stdout.write(f"{title:<28} median {median:7.2f} ms   99 % {p99:7.2f} ms   worst {worst:7.2f} ms\n")
    return median


def get_empty(channel: Any, queue: str) -> Callable[[], float]:
    """One basic.get of an empty queue."""

    def once() -> float:
        start = time.perf_counter()
        method, _, _ = channel.basic_get(queue)
        took = time.perf_counter() - start
        if method is not None:
            raise RuntimeError("the queue is not empty")
        return took

    return once


def publish_to_deliver(publisher: Any, consumer: Any, queue: str, properties: Any) -> Callable[[], float]:
    """One message from basic.publish to its delivery at a consumer that waits."""
    arrived: list[float] = []

    def on_message(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        arrived.append(time.perf_counter())
        channel.basic_ack(method.delivery_tag)

    consumer.basic_qos(prefetch_count=10)
    consumer.basic_consume(queue, on_message)

    def once() -> float:
        consumer.connection.process_data_events(IDLE_S)
        arrived.clear()
        start = time.perf_counter()
        publisher.basic_publish("", queue, b"x" * 100, properties)
        while not arrived:
            consumer.connection.process_data_events(1)
        return arrived[0] - start

    return once


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when ``--check`` is given and a limit is exceeded."""
    parser = argparse.ArgumentParser(description="Latencies at AMQP_URL.")
    parser.add_argument("--count", type=int, default=500, help="runs of each (default %(default)s)")
    parser.add_argument("--check", action="store_true", help="fail when a median is over its limit")
    options = parser.parse_args(arguments)
    connections = [pika.BlockingConnection(pika.URLParameters(URL)) for _ in range(2)]
    publisher, consumer = (connection.channel() for connection in connections)
    queue = f"latency-{uuid.uuid4().hex[:12]}"
    publisher.queue_declare(queue, durable=True)
    memory_queue = publisher.queue_declare("", exclusive=False, auto_delete=True).method.queue
    persistent, transient = pika.BasicProperties(delivery_mode=2), pika.BasicProperties(delivery_mode=1)
    try:
        get_ms = report("get of an empty queue", measured(options.count, get_empty(publisher, queue)))
        once = publish_to_deliver(publisher, consumer, queue, persistent)
        deliver_ms = report("publish to deliver, durable", measured(options.count, once))
        once = publish_to_deliver(publisher, connections[1].channel(), memory_queue, transient)
        report("publish to deliver, in memory", measured(options.count, once))
    finally:
        publisher.queue_delete(queue)
        for connection in connections:
            connection.close()
    is_good = get_ms <= GET_EMPTY_LIMIT_MS and deliver_ms <= DELIVER_LIMIT_MS
    return 1 if options.check and not is_good else 0


if __name__ == "__main__":
    sys.exit(main())

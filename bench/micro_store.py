# ruff: noqa: INP001 - a script, in no package
"""Microbenchmark of the KubeMQ adapter: ``python bench/micro_store.py [--address HOST:PORT]`` prints one JSON object.

For batches of 1 to 1,000 messages of 100 bytes: microseconds of the client's CPU time (all threads) per message and
messages per second, for storing and for reading with acknowledgement.  Needs a running server; its own CPU is not in
the figures, but takes from the same cores.  ``repeated_requests`` were not answered in time and sent twice
(docs/adr/0003): half a second each in the rates.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import uuid

import uvloop

from connector.backend.kubemq import KubeMQClient, KubeMQStore
from connector.broker.message import Message

BATCHES = (1, 10, 100, 1000)
MESSAGES = {1: 3_000, 10: 20_000, 100: 50_000, 1000: 100_000}
#: Persistent, text/plain: what PerfTest and pika send.
HEADER = b"\x90\x00\x0atext/plain\x02"


class Outgoing:
    """What a lane takes."""

    __slots__ = ("kubemq_channel", "message")

    def __init__(self, message: Message, kubemq_channel: str) -> None:
        self.message = message
        self.kubemq_channel = kubemq_channel


class Stopwatch:
    """CPU of this process and the clock's time from its making on."""

    def __init__(self) -> None:
        self._cpu_s, self._s = time.process_time(), time.perf_counter()

    def figures(self, messages: int) -> dict[str, float]:
        """Return what each message cost so far."""
        cpu_s, seconds = time.process_time() - self._cpu_s, time.perf_counter() - self._s
        return {"cpu_us": round(cpu_s / messages * 1e6, 2), "per_s": round(messages / seconds)}


async def measure(store: KubeMQStore, size: int) -> dict[str, dict[str, float]]:
    """Store and read in batches of ``size``."""
    kubemq_channel = f"amqp.default.bench-{uuid.uuid4().hex[:8]}"
    total = MESSAGES[size]
    batches = [
        [
            Outgoing(Message("", "bench", HEADER, bytes(100), f"~0123456789ab.{number}"), kubemq_channel)
            for number in range(start, start + size)
        ]
        for start in range(0, total, size)
    ]
    lane = store.open_lane()
    await lane.send([batches[0][0]])  # makes the channel
    watch = Stopwatch()
    for batch in batches:
        if any(await lane.send(batch)):
            raise SystemExit("a message was refused")
    figures = {"send": watch.figures(total)}
    lane.cancel()

    stream = store.open_stream()
    first = await stream.get(kubemq_channel, 1)
    await stream.ack_range(first.transaction_id, [1])
    watch = Stopwatch()
    for _ in batches:
        answer = await stream.get(kubemq_channel, size)
        if len(answer.messages) != size or answer.failed_acks:
            raise SystemExit(f"asked for {size}, got {len(answer.messages)}, failed {answer.failed_acks}")
        await stream.ack_range(answer.transaction_id, [message.sequence for message in answer.messages])
    figures["get_and_ack"] = watch.figures(total)
    await stream.barrier()
    stream.cancel()
    return figures


async def run(address: str, connections: int) -> None:
    """Measure all batch sizes and print them."""
    client = KubeMQClient(address, f"bench-{uuid.uuid4().hex}", connections=connections)
    store = KubeMQStore(client, on_repeat=lambda _: None)
    info = await store.start(10)
    try:
        figures = {f"batch_{size}": await measure(store, size) for size in BATCHES}
    finally:
        await store.close()
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    head = {"server": info.version, "peak_mb": memory_mb, "repeated_requests": store.repeated_count}
    json.dump({**head, **figures}, sys.stdout, indent=2)
    sys.stdout.write("\n")


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="127.0.0.1:50000")
    parser.add_argument("--connections", type=int, default=1)
    arguments = parser.parse_args()
    uvloop.run(run(arguments.address, arguments.connections))


if __name__ == "__main__":
    main()

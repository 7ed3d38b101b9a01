# ruff: noqa: INP001 - a script, in no package
"""Microbenchmark of the hot codec: ``python bench/micro_codec.py`` prints one JSON object, microseconds per message.

Best of several rounds, so that what else runs on the machine counts little.  The handler does nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable

from pamqp import base, commands, frame, header
from pamqp import body as content_body

from connector.amqp import header as content_header
from connector.amqp.frames import DeliverEncoder, FrameReader, encode_ack

FRAME_MAX = 131072
ROUNDS = 7


class Nothing:
    """A handler that does nothing."""

    def on_publish(
        self, channel_no: int, exchange: str, routing_key: str, bits: int, header: bytes, body: bytes
    ) -> None:
        """Ignore it."""

    def on_ack(self, channel_no: int, delivery_tag: int, multiple: bool) -> None:
        """Ignore it."""

    def on_nack(self, channel_no: int, delivery_tag: int, multiple: bool, requeue: bool) -> None:
        """Ignore it."""

    def on_reject(self, channel_no: int, delivery_tag: int, requeue: bool) -> None:
        """Ignore it."""

    def on_get(self, channel_no: int, queue: str, no_ack: bool) -> None:
        """Ignore it."""

    def on_method(self, channel_no: int, method: base.Frame, size: int) -> None:
        """Ignore it."""

    def on_heartbeat(self) -> None:
        """Ignore it."""

    def on_content_too_large(self, channel_no: int, size: int) -> None:
        """Ignore it."""


def best(run: Callable[[], object], count: int) -> float:
    """Microseconds per item of the fastest round."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return round(min(times) / count * 1e6, 3)


def publish(routing_key: str, properties: commands.Basic.Properties, body: bytes) -> bytes:
    """One basic.publish as pamqp writes it."""
    frames: list[frame.FrameTypes] = [
        commands.Basic.Publish(exchange="", routing_key=routing_key),
        header.ContentHeader(body_size=len(body), properties=properties),
    ]
    step = FRAME_MAX - 8
    frames += [content_body.ContentBody(body[i : i + step]) for i in range(0, len(body), step)]
    return b"".join(frame.marshal(item, 1) for item in frames)


def feed(messages: Iterable[bytes], chunk_bytes: int = 65536) -> Callable[[], None]:
    """A run that feeds the messages in reads of ``chunk_bytes``."""
    stream = b"".join(messages)
    chunks = [stream[i : i + chunk_bytes] for i in range(0, len(stream), chunk_bytes)]

    def run() -> None:
        reader = FrameReader(Nothing(), FRAME_MAX)
        for chunk in chunks:
            reader.feed(chunk)

    return run


def encode(count: int, headers: list[bytes], body: bytes) -> Callable[[], None]:
    """A run that encodes ``count`` deliveries, the headers in turn."""

    def run() -> None:
        encoder = DeliverEncoder(1, "amq.ctag-0123456789")
        turns = len(headers)
        for tag in range(count):
            encoder.encode(tag, False, "", "tasks", headers[tag % turns], body, FRAME_MAX)

    return run


def main() -> None:
    """Measure and print."""
    persistent = commands.Basic.Properties(delivery_mode=2)
    body = bytes(100)
    same = publish("tasks", persistent, body)
    own_ids = [
        publish("tasks", commands.Basic.Properties(delivery_mode=2, message_id=f"id-{n}"), body) for n in range(20_000)
    ]
    own_keys = [publish(f"tasks.{n}", persistent, body) for n in range(20_000)]
    acks = [encode_ack(1, tag, False) for tag in range(20_000)]
    large = publish("tasks", persistent, bytes(1_000_000))
    headers = [content_header.build({"delivery_mode": 2, "message_id": f"id-{n}"}) for n in range(1000)]
    results = {
        "publish_100_bytes": best(feed([same] * 20_000), 20_000),
        "publish_100_bytes_reads_of_1500": best(feed([same] * 20_000, 1500), 20_000),
        "publish_own_message_id": best(feed(own_ids), 20_000),
        "publish_own_routing_key": best(feed(own_keys), 20_000),
        "publish_1_mb": best(feed([large] * 20), 20),
        "ack": best(feed(acks), 20_000),
        "deliver_100_bytes": best(encode(20_000, headers[:1], body), 20_000),
        "deliver_own_message_id": best(encode(20_000, headers, body), 20_000),
        "deliver_1_mb": best(encode(20, headers[:1], bytes(1_000_000)), 20),
    }
    json.dump({"unit": "microseconds", "python": sys.version.split()[0], **results}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

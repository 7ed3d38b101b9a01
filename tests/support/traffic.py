"""Plain traffic for tests and tools: many confirmed messages in, all messages out.

Owns nothing of what is tested.  In goes through aio-pika, many confirms awaited at once; out through pika.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aio_pika
import pika
import pika.exceptions

IN_FLIGHT = 500
LIMIT_S = 15.0


@dataclass(frozen=True, slots=True)
class Received:
    """A message that came out."""

    body: bytes
    is_redelivered: bool


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Bodies that tell their place."""
    return [b"%d" % number for number in range(start, start + count)]


def publish_confirmed(url: str, queue: str, bodies: Sequence[bytes], exchange: str = "") -> None:
    """Publish persistent messages and return when each is confirmed; raises what aio-pika raises for a nack."""
    asyncio.run(_publish(url, queue, bodies, exchange))


async def _publish(url: str, key: str, bodies: Sequence[bytes], exchange: str) -> None:
    async with await aio_pika.connect(url, timeout=LIMIT_S) as connection:
        channel = await connection.channel(publisher_confirms=True)
        target = await channel.get_exchange(exchange, ensure=False) if exchange else channel.default_exchange
        for start in range(0, len(bodies), IN_FLIGHT):
            await asyncio.gather(*(
                target.publish(aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), key)
                for body in bodies[start : start + IN_FLIGHT]
            ))  # fmt: skip


@contextlib.contextmanager
def channel_of(url: str) -> Iterator[Any]:
    """A pika channel on a connection of its own, which may have died by the end."""
    connection = connect(url)
    try:
        yield connection.channel()
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def connect(url: str) -> Any:
    """A pika connection."""
    parameters = pika.URLParameters(url)
    parameters.blocked_connection_timeout = LIMIT_S
    return pika.BlockingConnection(parameters)


def declare(url: str, *queues: str) -> None:
    """Declare durable queues."""
    with channel_of(url) as channel:
        for queue in queues:
            channel.queue_declare(queue, durable=True)


def delete(url: str, *queues: str) -> None:
    """Delete queues."""
    with channel_of(url) as channel:
        for queue in queues:
            channel.queue_delete(queue)


def collect(channel: Any, queue: str, count: int, *, prefetch: int = 0, limit_s: float = LIMIT_S) -> list[Any]:
    """Consume until ``count`` have come; list of (method, properties, body), none acknowledged."""
    got: list[Any] = []
    channel.basic_qos(prefetch_count=prefetch)
    channel.basic_consume(queue, lambda _channel, *message: got.append(message))
    await_count(channel, got, count, limit_s)
    return got


def await_count(channel: Any, got: Sequence[Any], count: int, limit_s: float = LIMIT_S) -> None:
    """Let the channel's connection work until ``got`` has so many; raises AssertionError when it does not."""
    pump(channel, lambda: len(got) >= count, limit_s, lambda: f"{len(got)} of {count} have come")


def pump(
    channel: Any, condition: Callable[[], object], limit_s: float = LIMIT_S, state: Callable[[], str] = str
) -> None:
    """Let the channel's connection work until the condition holds; raises AssertionError when it does not."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {limit_s:g} s; {state()}"
        channel.connection.process_data_events(0.05)


def drain(url: str, queue: str, count: int, limit_s: float = LIMIT_S) -> list[Received]:
    """Consume and acknowledge ``count`` messages, and see with a get that no more are there."""
    with channel_of(url) as channel:
        got = collect(channel, queue, count, limit_s=limit_s)
        channel.basic_ack(0, multiple=True)
        for tag in list(channel.consumer_tags):
            channel.basic_cancel(tag)
        extra, _, body = channel.basic_get(queue)
        assert extra is None, f"one too many: {body!r}, redelivered {extra.redelivered}"
        assert channel.queue_declare(queue, passive=True).method.message_count == 0
    return [Received(body, method.redelivered) for method, _, body in got]


def bodies_of(received: Iterable[Received]) -> list[bytes]:
    """The bodies alone."""
    return [one.body for one in received]

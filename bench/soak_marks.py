"""Whether the marks bound the connector's memory when one client does its worst.

Owns the two ways: a consumer that stops reading its socket, and bodies of 16 MiB on 50 channels of one connection.  The
allowance is what the connector had before and twice the sum of the marks it tells: each byte exists twice while it is
handed on.  Rules: PC-17, PU-09, CO-23.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pamqp import commands

from bench import processes
from bench.growth import Report
from bench.raw_client import ClientError, RawClient
from bench.results import CONNECTOR
from bench.targets import Endpoint, Target, delete_queues

_MB = 1e6
_MARKS = ("outbox_high_bytes", "in_flight_high_bytes", "output_high_bytes", "client_bodies_size")
#: What the one queue may have in hand: an answer of KubeMQ (docs/compat.md).
_IN_HAND_BYTES = 90_000_000
_COPIES = 2
_BIG_BYTES, _BIG_CHANNELS, _BIG_LIMIT_S = 16 * 1024**2, 50, 240.0
_SMALL_BUFFER_BYTES = 4096
_TOO_LARGE = 311


def bounded(name: str, target: Target, endpoint: Endpoint, report: Report, disturb: Callable[[str, str], str]) -> None:
    """Run ``disturb(url, queue)`` and compare the connector's highest memory with the marks.

    ``disturb`` returns what it did.
    """
    queue = f"soak-{name}-{uuid.uuid4().hex[:8]}"
    before = processes.usage(endpoint.groups[CONNECTOR]()).rss_bytes / _MB
    start = time.monotonic()
    with processes.Watch(endpoint.groups, 0.1) as watch:
        try:
            done = disturb(endpoint.url, queue)
        except ClientError as error:
            done = f"ended by: {error}"
            report.bad.append(f"{target.name}, {name}: {error}")
    end = time.monotonic()
    most = watch.rss_bytes(CONNECTOR, start, end) / _MB
    allowed = before + _COPIES * marks_bytes(endpoint) / _MB
    sizes = ", ".join(f"{group} {watch.rss_bytes(group, start, end) / _MB:.0f} MB" for group in watch.groups)
    report.notes.append(
        f"{target.name}, {name}: {done}; connector before {before:.0f} MB, allowed {allowed:.0f} MB; the most: {sizes}"
    )
    if most > allowed:
        report.bad.append(f"{target.name}, {name}: the connector had {most:.0f} MB, the marks allow {allowed:.0f} MB")
    if target.keeps_queues:
        report.bad += filter(None, [delete_queues(endpoint.url, [queue])])


def marks_bytes(endpoint: Endpoint) -> float:
    """The sum of the marks that bound one client, as the connector tells them, and of what its queue has in hand."""
    assert endpoint.connector is not None  # noqa: S101
    metrics = endpoint.connector.metrics()
    return _IN_HAND_BYTES + sum(metrics.get(f'kubemq_amqp_high_mark{{setting="{mark}"}}', 0.0) for mark in _MARKS)


def slow_reader(seconds: float) -> Callable[[str, str], str]:
    """A consumer without a limit that reads nothing, and a publisher that fills its queue."""

    def disturb(url: str, queue: str) -> str:
        with RawClient(url, receive_buffer_bytes=_SMALL_BUFFER_BYTES) as reader, RawClient(url, 5.0) as publisher:
            for client in (reader, publisher):
                client.open_channel(1)
            publisher.call(1, commands.Queue.Declare(queue=queue, durable=True), commands.Queue.DeclareOk)
            reader.send(1, commands.Basic.Consume(queue=queue))
            message = b"".join(publisher.content_frames(1, queue, bytes(4096)))
            deadline = time.monotonic() + seconds
            sent = 0
            while time.monotonic() < deadline:
                publisher.send_bytes(message * 20)
                sent += 20
                publisher.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)
            return f"{sent:,} messages of 4 KiB published to a consumer that does not read"

    return disturb


def big_bodies(*, is_mixed: bool) -> Callable[[str, str], str]:
    """Bodies of 16 MiB on 50 channels of one connection, all confirmed; a consumer empties the queue.

    Bodies that begin beyond what one client may have under way are refused (311) and sent again, one after the other.
    """

    def disturb(url: str, queue: str) -> str:
        with RawClient(url, _BIG_LIMIT_S) as publisher:
            for channel_no in range(1, _BIG_CHANNELS + 1):
                publisher.open_channel(channel_no)
                publisher.call(channel_no, commands.Confirm.Select(), commands.Confirm.SelectOk)
            publisher.call(1, commands.Queue.Declare(queue=queue, durable=True), commands.Queue.DeclareOk)
            with _draining(url, queue) as drained:
                for data in _big_frames(publisher, queue, is_mixed=is_mixed):
                    publisher.send_bytes(data)
                confirmed, refused = _confirms(publisher, _BIG_CHANNELS)
                confirmed += _send_again(publisher, queue, refused)
                deadline = time.monotonic() + _BIG_LIMIT_S
                while drained[0] < confirmed and time.monotonic() < deadline:
                    time.sleep(0.05)
            if confirmed < _BIG_CHANNELS:
                raise ClientError(f"{confirmed} of {_BIG_CHANNELS} bodies confirmed")
            again = f" ({len(refused)} of them refused at first)" if refused else ""
            return f"{confirmed} bodies of 16 MiB confirmed{again}, {drained[0]} consumed"

    return disturb


def _big_frames(publisher: RawClient, queue: str, *, is_mixed: bool) -> Iterator[bytes]:
    """What is sent: per channel its frames in one piece, or one frame of each channel in turn."""
    content = bytes(_BIG_BYTES)
    if not is_mixed:
        for channel_no in range(1, _BIG_CHANNELS + 1):
            yield b"".join(publisher.content_frames(channel_no, queue, content))
        return
    by_channel = [publisher.content_frames(channel_no, queue, content) for channel_no in range(1, _BIG_CHANNELS + 1)]
    for frames in zip(*by_channel, strict=True):
        yield b"".join(frames)


def _confirms(publisher: RawClient, count: int) -> tuple[int, list[int]]:
    """Read until so many channels have an answer; returns how many acks, and the channels closed with 311."""
    answered = confirmed = 0
    refused: list[int] = []
    while answered + len(refused) < count:
        channel_no, value = publisher.read()
        if isinstance(value, commands.Basic.Ack | commands.Basic.Nack):
            answered += 1
            confirmed += isinstance(value, commands.Basic.Ack)
        elif isinstance(value, commands.Channel.Close) and value.reply_code == _TOO_LARGE:
            refused.append(channel_no)
            publisher.send(channel_no, commands.Channel.CloseOk())
        elif isinstance(value, commands.Channel.Close | commands.Connection.Close):
            raise ClientError(f"{value.name}: {value.reply_code} {value.reply_text}")
    return confirmed, refused


def _send_again(publisher: RawClient, queue: str, channels: list[int]) -> int:
    """Open the channels again and publish on one after the other; returns how many acks."""
    confirmed = 0
    for channel_no in channels:
        publisher.open_channel(channel_no)
        publisher.call(channel_no, commands.Confirm.Select(), commands.Confirm.SelectOk)
        publisher.send_bytes(b"".join(publisher.content_frames(channel_no, queue, bytes(_BIG_BYTES))))
        confirmed += _confirms(publisher, 1)[0]
    return confirmed


@contextmanager
def _draining(url: str, queue: str) -> Iterator[list[int]]:
    """A consumer in a thread, without acknowledgements; gives a list with the number of messages it has got."""
    drained = [0]
    with RawClient(url, _BIG_LIMIT_S) as consumer:
        consumer.open_channel(1)
        consumer.call(1, commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)

        def drain() -> None:
            try:
                while True:
                    _, value = consumer.read()
                    drained[0] += isinstance(value, commands.Basic.Deliver)
            except ClientError:
                return  # closed below

        thread = threading.Thread(target=drain, name="drain", daemon=True)
        thread.start()
        yield drained
        consumer.shut_down()
        thread.join(_BIG_LIMIT_S)

"""What one client can make the connector keep in memory stays within the marks, as /metrics tells (PC-17, PU-09)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands, frame, header

from bench.raw_client import RawClient
from tests.support.server import ConnectorProcess
from tests.support.waiting import wait_until

BODY_BYTES = 300_000
FLAGS = (
    "--client-bodies-size", "2MiB",
    "--output-high-bytes", "256KiB",
    "--in-flight-high-bytes", "1MiB",
    "--unread-high-bytes", "1MiB",
    "--memory-queues-high-bytes", "1MiB",
)  # fmt: skip
CHANNELS = range(1, 51)
CHUNK_BYTES = 131_072
TOO_LARGE = 311
GETS = 80


@pytest.fixture
def connector(tmp_path: Path) -> Iterator[ConnectorProcess]:
    with ConnectorProcess(tmp_path, os.environ.get("KUBEMQ_ADDRESS", ""), FLAGS) as connector:
        yield connector


def gauge(connector: ConnectorProcess, name: str) -> float:
    return connector.metrics()[f"kubemq_amqp_{name}"]


def mark(connector: ConnectorProcess, setting: str) -> float:
    return connector.metrics()[f'kubemq_amqp_high_mark{{setting="{setting}"}}']


def test_bodies_begun_on_fifty_channels(connector: ConnectorProcess) -> None:
    with RawClient(connector.url) as client:
        for channel_no in CHANNELS:
            client.open_channel(channel_no)
        client.call(1, commands.Queue.Declare(queue="bounds-bodies"), commands.Queue.DeclareOk)
        bodies = {number: client.content_frames(number, "bounds-bodies", bytes(BODY_BYTES)) for number in CHANNELS}
        for number in CHANNELS:
            client.send_bytes(b"".join(bodies[number][:-1]))
        refused = [client.read() for _ in CHANNELS[6:]]  # six of them are below 2 MiB
        assert {getattr(method, "reply_code", 0) for _, method in refused} == {TOO_LARGE}
        assert {number for number, _ in refused} == set(CHANNELS[6:])
        kept = 6 * (BODY_BYTES - BODY_BYTES % CHUNK_BYTES)
        assert kept * 0.9 < gauge(connector, "partial_bytes") <= mark(connector, "client_bodies_size")
        for number in CHANNELS[:6]:
            client.send_bytes(bodies[number][-1])
        wait_until(lambda: gauge(connector, "partial_bytes") == 0)
        answer = client.call(1, commands.Queue.Declare(queue="bounds-bodies"), commands.Queue.DeclareOk)
        assert answer.message_count == 6
        client.call(1, commands.Queue.Delete(queue="bounds-bodies"), commands.Queue.DeleteOk)


def test_a_consumer_that_stops_reading(connector: ConnectorProcess) -> None:
    with RawClient(connector.url, receive_buffer_bytes=4096) as reader, RawClient(connector.url) as publisher:
        for client in (reader, publisher):
            client.open_channel(1)
        publisher.call(1, commands.Queue.Declare(queue="bounds-reader"), commands.Queue.DeclareOk)
        reader.send(1, commands.Basic.Consume(queue="bounds-reader"))
        size = 10_000
        for _ in range(60):
            publisher.send_bytes(b"".join(publisher.content_frames(1, "bounds-reader", bytes(size))) * 20)
            publisher.call(1, commands.Basic.Qos(), commands.Basic.QosOk)
            # gathered in a turn up to the mark, and below the mark in the socket's buffer when it is handed over
            assert gauge(connector, "output_bytes") <= 2 * mark(connector, "output_high_bytes") + 2 * size
            assert gauge(connector, "in_flight_bytes") <= mark(connector, "in_flight_high_bytes") + 40 * size
        wait_until(lambda: gauge(connector, "output_bytes") > mark(connector, "output_high_bytes") / 2)
        reader.shut_down()

        def ready() -> int:
            answer = publisher.call(1, commands.Queue.Declare(queue="bounds-reader"), commands.Queue.DeclareOk)
            return int(answer.message_count)

        wait_until(lambda: ready() == 1200)  # what it held is back, though nobody empties its socket
        wait_until(lambda: gauge(connector, "output_bytes") == 0)
        publisher.call(1, commands.Queue.Delete(queue="bounds-reader"), commands.Queue.DeleteOk)


def large_header(channel_no: int, queue: str, size: int, body_bytes: int = 0) -> bytes:
    """A publish up to its body; the header table takes so many bytes."""
    properties = commands.Basic.Properties(headers={"note": "x" * size})
    publish = frame.marshal(commands.Basic.Publish(exchange="", routing_key=queue), channel_no)
    return publish + frame.marshal(header.ContentHeader(0, body_bytes, properties), channel_no)


def test_headers_without_their_bodies_on_fifty_channels(connector: ConnectorProcess) -> None:
    size = 120_000
    with RawClient(connector.url) as client:
        for channel_no in CHANNELS:
            client.open_channel(channel_no)
        for channel_no in CHANNELS:
            client.send_bytes(large_header(channel_no, "nowhere", size, 10))
        refused = [client.read() for _ in CHANNELS[17:]]  # so many are below 2 MiB
        assert {(number, getattr(method, "reply_code", 0)) for number, method in refused} == {
            (number, TOO_LARGE) for number in CHANNELS[17:]
        }
        assert 17 * size < gauge(connector, "partial_bytes") <= mark(connector, "client_bodies_size")


def test_headers_in_a_queue_in_memory(connector: ConnectorProcess) -> None:
    size = 100_000
    with RawClient(connector.url) as client:
        client.open_channel(1)
        client.call(1, commands.Queue.Declare(queue="bounds-memory", exclusive=True), commands.Queue.DeclareOk)
        client.send_bytes(large_header(1, "bounds-memory", size) * 10)
        client.call(1, commands.Basic.Qos(), commands.Basic.QosOk)
        assert gauge(connector, "memory_queues_bytes") > 10 * size
        client.send_bytes(large_header(1, "bounds-memory", size))
        client.call(1, commands.Basic.Qos(), commands.Basic.QosOk)
        client.send_bytes(large_header(1, "bounds-memory", size))  # the first above the mark
        assert client.read()[1].name == "Connection.Blocked"


def test_gets_whose_answers_are_not_read(connector: ConnectorProcess) -> None:
    size = 100_000
    with RawClient(connector.url, receive_buffer_bytes=4096) as reader, RawClient(connector.url) as publisher:
        for client in (reader, publisher):
            client.open_channel(1)
        publisher.call(1, commands.Queue.Declare(queue="bounds-gets"), commands.Queue.DeclareOk)
        for number in range(GETS):
            publisher.send_bytes(b"".join(publisher.content_frames(1, "bounds-gets", b"%02d" % number + bytes(size))))
        get = frame.marshal(commands.Basic.Get(queue="bounds-gets", no_ack=True), 1)
        reader.send_bytes(get * GETS)
        wait_until(lambda: gauge(connector, "paused_connections") == 1)
        assert gauge(connector, "output_bytes") <= 2 * mark(connector, "unread_high_bytes") + 2 * size
        answer = publisher.call(1, commands.Queue.Declare(queue="bounds-gets"), commands.Queue.DeclareOk)
        assert answer.message_count > GETS // 4
        bodies = [reader.read()[1] for _ in range(3 * GETS)][2::3]
        assert [getattr(part, "value", b"")[:2] for part in bodies] == [b"%02d" % number for number in range(GETS)]
        publisher.call(1, commands.Queue.Delete(queue="bounds-gets"), commands.Queue.DeleteOk)

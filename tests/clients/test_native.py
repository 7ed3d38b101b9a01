"""KubeMQ's own SDK on one side, AMQP clients on the other (KI-02, KI-03)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest
from kubemq.queues import Client as NativeClient
from kubemq.queues import QueueMessage

from mapping.names import kubemq_channel
from tests.clients.driver import Connection
from tests.support.server import ConnectorProcess
from tests.support.waiting import wait_until

Connect = Callable[..., Connection]


@pytest.fixture
def native(connector: ConnectorProcess) -> Iterator[NativeClient]:
    """KubeMQ's SDK, connected to the server behind the connector."""
    with NativeClient(address=connector.kubemq_address, client_id="native-test") as native:
        yield native


@pytest.mark.parametrize("way", ["consume", "get"])
def test_a_native_message_reaches_an_amqp_client(connect: Connect, queue: str, native: NativeClient, way: str) -> None:
    connection = connect()
    channel = connection.channel()
    consumer = channel.consume(queue) if way == "consume" else None
    sent = native.send_queue_message(
        QueueMessage(
            channel=kubemq_channel("/", queue), id="native-1", body=b"\x00native\xff", metadata="about it",
            tags={"colour": "red", "größe": "XL"},
        )
    )  # fmt: skip
    assert not sent.is_error, sent.error
    start = time.monotonic()
    arrived = consumer.deliveries if consumer else []
    while not arrived:
        assert time.monotonic() < start + 5, "did not come"
        if consumer is None and (answer := channel.get(queue)) is not None:
            arrived = [answer]
        connection.pump_for(0.02)
    got = arrived[0]
    assert time.monotonic() - start < 2
    assert (got.body, got.exchange, got.routing_key, got.redelivered) == (b"\x00native\xff", "", queue, False)
    headers = got.properties["headers"]
    assert {name: headers[name] for name in ("colour", "größe", "x-kubemq-metadata")} == {
        "colour": "red", "größe": "XL", "x-kubemq-metadata": "about it",
    }  # fmt: skip
    assert got.properties["message_id"] == "native-1"
    assert got.properties["timestamp"] is not None
    channel.ack(got.tag)
    assert channel.get(queue) is None


def test_a_native_message_can_be_requeued(connect: Connect, queue: str, native: NativeClient) -> None:
    connection = connect()
    channel = connection.channel()
    consumer = channel.consume(queue)
    native.send_queue_message(QueueMessage(channel=kubemq_channel("/", queue), body=b"once more", tags={"a": "b"}))
    connection.pump(lambda: consumer.deliveries)
    first = consumer.deliveries[0]
    channel.nack(first.tag, requeue=True)
    connection.pump(lambda: len(consumer.deliveries) == 2)
    second = consumer.deliveries[1]
    channel.ack(second.tag)
    assert second.redelivered
    assert second.properties["headers"].pop("x-delivery-count") == 1
    assert (second.body, second.properties) == (first.body, first.properties)


def test_an_amqp_message_reaches_a_native_client(connect: Connect, queue: str, native: NativeClient) -> None:
    channel = connect().channel()
    channel.publish(
        "", queue, b"\x00amqp\xff", delivery_mode=2, content_type="application/x-test", message_id="m-1",
        correlation_id="c-1", headers={"colour": "red", "count": 3},
    )  # fmt: skip
    channel.publish("", queue, b"", delivery_mode=2)
    response = native.receive_queue_messages(
        channel=kubemq_channel("/", queue), max_messages=2, wait_timeout_in_seconds=2, auto_ack=True
    )
    assert not response.is_error, response.error
    first, second = response.messages
    assert first.body == b"\x00amqp\xff"
    about = json.loads(first.metadata)
    assert (about["v"], about["x"], about["k"]) == (1, "", queue)
    expected = {"content_type": "application/x-test", "delivery_mode": 2, "correlation_id": "c-1", "message_id": "m-1"}
    assert {name: about["p"][name] for name in expected} == expected
    assert about["h"]["colour"] == "red"
    assert second.body == b""
    wait_until(lambda: channel.declare_queue(queue, passive=True).message_count == 0)


def test_an_amqp_queue_counts_native_messages(connect: Connect, queue: str, native: NativeClient) -> None:
    for number in range(3):
        native.send_queue_message(QueueMessage(channel=kubemq_channel("/", queue), body=b"%d" % number))
    connection = connect()
    channel = connection.channel()
    deadline = time.monotonic() + 5
    while channel.declare_queue(queue, passive=True).message_count < 3:
        assert time.monotonic() < deadline
        connection.pump_for(0.1)
    assert channel.purge_queue(queue) == 3

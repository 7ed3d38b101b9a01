"""Publishing through client libraries: confirms, returns, bodies, properties, and what a close or a crash leaves."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.conftest import Target
from tests.clients.driver import Channel, ChannelClosed, Client, Connection, Returned
from tests.support.server import ROOT
from tests.support.waiting import wait_until

Connect = Callable[..., Connection]
NewName = Callable[..., str]

MANY = 500


def take_all(connection: Connection, queue: str, count: int) -> list[bytes]:
    """Consume ``count`` messages, and see that they were all."""
    channel = connection.channel()
    consumer = channel.consume(queue, no_ack=True)
    connection.pump(lambda: len(consumer.deliveries) >= count)
    channel.cancel(consumer)
    assert channel.get(queue) is None
    return consumer.bodies


def in_order(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_confirmed_message_is_there(connect: Connect, queue: str) -> None:
    channel = connect().channel()
    for body in in_order(20):
        channel.publish("", queue, body, mandatory=True, delivery_mode=2)
    assert connect().channel().declare_queue(queue, passive=True).message_count == 20
    assert take_all(connect(), queue, 20) == in_order(20)


def test_an_unroutable_mandatory_message_comes_back_whole(connect: Connect, new_name: NewName) -> None:
    channel = connect().channel()
    headers = {"x-dotnet-pub-seq-no": b"\0\0\0\0\0\0\0\7".decode(), "n": 1}
    with pytest.raises(Returned) as returned:
        channel.publish("", new_name(), b"to nobody", mandatory=True, headers=headers, message_id="m-1")
    assert returned.value.code == 312
    assert returned.value.body == b"to nobody"
    assert returned.value.properties["headers"] == headers
    assert returned.value.properties["message_id"] == "m-1"
    channel.publish("", new_name(), b"confirmed all the same")
    queue = channel.declare_queue(exclusive=True).name
    channel.publish("", queue, b"routed", mandatory=True)


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 3_000_000])
def test_bodies_of_any_size(connect: Connect, queue: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    connection = connect()
    channel = connection.channel()
    channel.publish("", queue, body, delivery_mode=2)
    got = channel.get(queue)
    assert got is not None
    assert got.body == body
    channel.reject(got.tag, requeue=True)
    consumer = channel.consume(queue)
    connection.pump(lambda: consumer.deliveries)
    assert consumer.bodies == [body]
    channel.ack(consumer.deliveries[0].tag)


def test_a_body_over_the_limit_closes_the_channel_only(connect: Connect, queue: str) -> None:
    connection = connect()
    channel = connection.channel(confirms=False)
    with contextlib.suppress(ChannelClosed):  # some hear of it while they still send
        channel.publish("", queue, bytes(150_000_000), delivery_mode=2)
    closed = channel.wait_closed()
    assert closed.code == 406
    assert closed.text.startswith("PRECONDITION_FAILED - message size 150000000 is larger than configured max size")
    other = connection.channel()
    other.publish("", queue, b"small", delivery_mode=2)
    assert take_all(connection, queue, 1) == [b"small"]


HEADERS: dict[str, Any] = {
    "text": "héé", "empty": "", "flag": True, "other flag": False, "small": -5, "int": 2**31 - 1, "long": 2**40,
    "negative long": -(2**50), "table": {"a": 1, "nested": {"b": [1, "two", None, {"c": True}]}}, "list": [],
    "void": None, "decimal": decimal.Decimal("-3.14"),
    "time": dt.datetime(2024, 2, 29, 12, 30, 15, tzinfo=dt.UTC), "no table": {},
}  # fmt: skip


def test_headers_keep_their_types(connect: Connect, queue: str, client: Client) -> None:
    channel = connect().channel()
    if client.name == "pika":
        headers = {**HEADERS, "bytes": b"\x00\xff"}  # and no floating point: pika sends none
    else:
        headers = dict(sorted({**HEADERS, "bytes": bytearray(b"\x00\xff"), "float": 2.5}.items()))  # as pamqp does
    channel.publish("", queue, b"x", headers=headers, delivery_mode=2)
    first = channel.get(queue)
    assert first is not None
    channel.nack(first.tag, requeue=True)
    second = channel.get(queue)
    assert second is not None
    assert second.redelivered
    channel.ack(second.tag)
    for got in (first, second):
        headers_got = got.properties["headers"]
        headers_got.pop("x-delivery-count", None)  # of the second (CO-37)
        assert list(headers_got) == list(headers), "and their order"
        for name, value in headers.items():
            seen = headers_got[name]
            if isinstance(value, dt.datetime) and seen.tzinfo is None:
                seen = seen.replace(tzinfo=dt.UTC)
            assert (isinstance(seen, bool), seen) == (isinstance(value, bool), value), name


def test_every_property_arrives(connect: Connect, queue: str, client: Client) -> None:
    properties: dict[str, Any] = {
        "content_type": "application/json", "content_encoding": "gzip", "delivery_mode": 2, "priority": 7,
        "correlation_id": "c-1", "reply_to": "answers", "message_id": "m-1", "type": "order.created",
        "app_id": "shop", "user_id": "guest",
    }  # fmt: skip
    if client.name == "pika":
        properties |= {"timestamp": 1_700_000_000, "cluster_id": "old"}
    channel = connect().channel()
    channel.publish("", queue, b"x", **properties)
    got = channel.get(queue, no_ack=True)
    assert got is not None
    assert {name: got.properties[name] for name in properties} == properties


def flood(channel: Channel, queue: str) -> None:
    for body in in_order(MANY):
        channel.publish("", queue, body, delivery_mode=2)


@pytest.mark.parametrize("what", ["connection", "channel"])
def test_publish_then_close_at_once_stores_everything(connect: Connect, queue: str, what: str) -> None:
    connection = connect()
    channel = connection.channel(confirms=False)
    flood(channel, queue)
    if what == "channel":
        channel.close()
        assert connection.channel().declare_queue(queue, passive=True).message_count == MANY
    connection.close()
    reader = connect()
    assert reader.channel().declare_queue(queue, passive=True).message_count == MANY
    assert take_all(reader, queue, MANY) == in_order(MANY)


def test_what_arrived_before_the_publisher_was_killed_is_stored(
    connect: Connect, queue: str, client: Client, target: Target
) -> None:
    command = [sys.executable, "-m", "tests.clients.doomed_publisher", client.name, target.url, queue, str(MANY)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as publisher:
        assert publisher.stdout is not None
        assert publisher.stdout.readline() == b"all sent\n"
        publisher.kill()
    reader = connect()
    channel = reader.channel()
    wait_until(lambda: channel.declare_queue(queue, passive=True).message_count == MANY)
    assert take_all(reader, queue, MANY) == in_order(MANY)


def test_two_publishers_keep_their_orders(connect: Connect, queue: str) -> None:
    first, second = connect(), connect()
    channels = [first.channel(confirms=False), second.channel(confirms=False)]
    for number in range(200):
        for name, channel in zip((b"a", b"b"), channels, strict=True):
            channel.publish("", queue, b"%s%d" % (name, number), delivery_mode=2)
    first.close()
    second.close()
    bodies = take_all(connect(), queue, 400)
    for name in (b"a", b"b"):
        assert [body for body in bodies if body.startswith(name)] == [b"%s%d" % (name, n) for n in range(200)]

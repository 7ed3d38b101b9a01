"""Queues through client libraries: declare, passive, exclusive, auto-delete, server-named, purge, delete."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.clients.driver import ChannelClosed, Client, Connection, Declared

Connect = Callable[..., Connection]
NewName = Callable[..., str]


def test_declare_tells_the_counts_and_may_be_repeated(connect: Connect, queue: str) -> None:
    connection = connect()
    channel = connection.channel()
    assert channel.declare_queue(queue, durable=True) == Declared(queue, 0, 0)
    for number in range(3):
        channel.publish("", queue, b"%d" % number, delivery_mode=2)
    assert channel.declare_queue(queue, durable=True) == Declared(queue, 3, 0)
    other = connection.channel()
    other.qos(2)
    consumer = other.consume(queue)
    connection.pump(lambda: len(consumer.deliveries) == 2)
    assert channel.declare_queue(queue, passive=True) == Declared(queue, 1, 1), "ready messages only"
    other.close()


def test_passive_declare_of_a_missing_queue_closes_only_its_channel(connect: Connect, new_name: NewName) -> None:
    connection = connect()
    bystander = connection.channel()
    for _ in range(5):
        channel = connection.channel()
        with pytest.raises(ChannelClosed, match="NOT_FOUND - no queue") as refused:
            channel.declare_queue(new_name(), passive=True)
        assert refused.value.code == 404
    assert connection.is_open
    name = bystander.declare_queue(exclusive=True).name
    bystander.publish("", name, b"still here")
    got = bystander.get(name, no_ack=True)
    assert got is not None
    assert got.body == b"still here"


def test_redeclare_with_other_flags_or_arguments_is_406(connect: Connect, new_name: NewName) -> None:
    connection = connect()
    name = new_name()
    connection.channel().declare_queue(name, durable=True, arguments={"x-queue-mode": "lazy", "x-note": "ignored"})
    try:
        for flags in ({"durable": False, "arguments": {"x-queue-mode": "lazy"}}, {"durable": True}):
            with pytest.raises(ChannelClosed, match="PRECONDITION_FAILED - inequivalent arg") as refused:
                connection.channel().declare_queue(name, **flags)
            assert refused.value.code == 406
        connection.channel().declare_queue(name, durable=True, arguments={"x-queue-mode": "lazy"})
    finally:
        connection.channel().delete_queue(name)


def test_server_named_queues_are_all_different(connect: Connect) -> None:
    channel = connect().channel()
    names = {channel.declare_queue(exclusive=True).name for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("amq.gen-") for name in names)


def test_an_exclusive_queue_is_its_connection_s(connect: Connect, new_name: NewName) -> None:
    owner = connect()
    name = new_name()
    owner.channel().declare_queue(name, exclusive=True)
    stranger = connect()
    with pytest.raises(ChannelClosed, match="RESOURCE_LOCKED") as refused:
        stranger.channel().declare_queue(name, passive=True)
    assert refused.value.code == 405
    with pytest.raises(ChannelClosed, match="RESOURCE_LOCKED"):
        stranger.channel().consume(name)
    with pytest.raises(ChannelClosed, match="RESOURCE_LOCKED"):
        stranger.channel().delete_queue(name)
    owner.close()
    with pytest.raises(ChannelClosed, match="NOT_FOUND"):
        stranger.channel().declare_queue(name, passive=True)
    assert stranger.channel().declare_queue(name, exclusive=True) == Declared(name, 0, 0), "free for the next owner"


def test_an_auto_delete_queue_goes_with_its_last_consumer(connect: Connect, new_name: NewName) -> None:
    connection = connect()
    channel = connection.channel()
    name = new_name()
    channel.declare_queue(name, auto_delete=True)
    channel.publish("", name, b"before the first consumer")
    first, second = channel.consume(name, no_ack=True), channel.consume(name, no_ack=True)
    connection.pump(lambda: first.deliveries or second.deliveries)
    channel.cancel(first)
    assert channel.declare_queue(name, passive=True).consumer_count == 1
    channel.cancel(second)
    with pytest.raises(ChannelClosed, match="NOT_FOUND"):
        channel.declare_queue(name, passive=True)


def test_purge_and_delete_tell_how_many_they_took(connect: Connect, new_name: NewName) -> None:
    connection = connect()
    channel = connection.channel()
    name = new_name()
    channel.declare_queue(name, durable=True)
    for number in range(7):
        channel.publish("", name, b"%d" % number, delivery_mode=2)
    held = channel.get(name)
    assert held is not None
    assert channel.purge_queue(name) == 6, "what is unacknowledged stays"
    assert channel.purge_queue(name) == 0
    assert channel.get(name) is None
    channel.ack(held.tag)
    for number in range(3):
        channel.publish("", name, b"%d" % number, delivery_mode=2)
    assert channel.delete_queue(name) == 3
    assert channel.delete_queue(name) == 0, "deleting what is not there succeeds"
    channel.declare_queue(name, durable=True)
    assert channel.get(name) is None, "a redeclared queue is a new one"
    channel.publish("", name, b"new", delivery_mode=2)
    got = channel.get(name, no_ack=True)
    assert got is not None
    assert (got.body, got.redelivered) == (b"new", False)
    channel.delete_queue(name)


def test_delete_if_unused_and_if_empty(connect: Connect, queue: str) -> None:
    connection = connect()
    channel = connection.channel()
    channel.publish("", queue, b"x", delivery_mode=2)
    with pytest.raises(ChannelClosed, match="PRECONDITION_FAILED") as refused:
        connection.channel().delete_queue(queue, if_empty=True)
    assert refused.value.code == 406
    channel.consume(queue)
    with pytest.raises(ChannelClosed, match="PRECONDITION_FAILED"):
        connection.channel().delete_queue(queue, if_unused=True)
    assert channel.declare_queue(queue, passive=True).consumer_count == 1


def test_consumers_are_told_when_their_queue_is_deleted(connect: Connect, new_name: NewName) -> None:
    connection = connect()
    channel = connection.channel()
    name = new_name()
    channel.declare_queue(name, durable=True)
    consumer = channel.consume(name)
    channel.publish("", name, b"held", delivery_mode=2)
    connection.pump(lambda: consumer.deliveries)
    connect().channel().delete_queue(name)
    connection.pump(lambda: consumer.is_cancelled)
    channel.ack(consumer.deliveries[0].tag)
    channel.qos(1)  # a round trip: the late ack was no error


@pytest.mark.parametrize(
    "name", ["tasks@{}", "a:b {}", "été.{}.", "trailing_QUES_{}_", "%2f{}", "~{}", "{}..", "{}" * 20]
)
def test_any_name_is_a_queue_of_its_own(connect: Connect, new_name: NewName, client: Client, name: str) -> None:
    if client.name == "aio-pika" and not re.fullmatch(r"[\w.:@ {}]+", name, re.ASCII):
        pytest.skip("aio-pika sends no such name")
    connection = connect()
    channel = connection.channel()
    name = name.replace("{}", new_name("x"))[:250]
    channel.declare_queue(name, durable=True)
    try:
        channel.publish("", name, name.encode(), mandatory=True, delivery_mode=2)
        got = channel.get(name, no_ack=True)
        assert got is not None
        assert (got.routing_key, got.body) == (name, name.encode())
        assert channel.get(name) is None
    finally:
        channel.delete_queue(name)

"""The default exchange and direct exchanges through client libraries."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clients.driver import Channel, ChannelClosed, Connection, Returned

Connect = Callable[..., Connection]
NewName = Callable[..., str]


def take_all(channel: Channel, queue: str) -> list[bytes]:
    bodies = []
    while (got := channel.get(queue, no_ack=True)) is not None:
        bodies.append(got.body)
    return bodies


def test_a_direct_exchange_gives_each_bound_queue_one_copy(connect: Connect, new_name: NewName) -> None:
    channel = connect().channel()
    exchange, first, second = new_name("exchange"), new_name("first"), new_name("second")
    channel.declare_exchange(exchange, durable=True)
    for name in (first, second):
        channel.declare_queue(name, durable=True)
    for name, key in ((first, "red"), (first, "blue"), (second, "red")):
        channel.bind_queue(name, exchange, key)
    channel.bind_queue(first, exchange, "red")  # the same binding again makes no second copy
    for key in ("red", "blue"):
        channel.publish(exchange, key, key.encode(), mandatory=True, delivery_mode=2)
    got = channel.get(second, no_ack=True)
    assert got is not None
    assert (got.exchange, got.routing_key) == (exchange, "red")
    assert take_all(channel, first) == [b"red", b"blue"]
    assert take_all(channel, second) == []

    channel.unbind_queue(first, exchange, "red")
    channel.publish(exchange, "red", b"for the second", delivery_mode=2)
    assert take_all(channel, first) == []
    assert take_all(channel, second) == [b"for the second"]

    channel.delete_queue(second)
    with pytest.raises(Returned):
        channel.publish(exchange, "red", b"to nobody", mandatory=True, delivery_mode=2)
    channel.delete_queue(first)
    channel.delete_exchange(exchange)


def test_the_default_exchange_creates_nothing(connect: Connect, new_name: NewName) -> None:
    connection = connect()
    channel = connection.channel()
    name = new_name()
    channel.publish("", name, b"dropped")
    with pytest.raises(ChannelClosed, match="NOT_FOUND"):
        channel.declare_queue(name, passive=True)
    with pytest.raises(ChannelClosed, match="ACCESS_REFUSED") as refused:
        connection.channel().bind_queue(connection.channel().declare_queue(exclusive=True).name, "", "key")
    assert refused.value.code == 403


def test_exchange_declare_passive_inequivalent_and_delete(connect: Connect, new_name: NewName) -> None:
    connection = connect()
    channel = connection.channel()
    exchange = new_name("exchange")
    with pytest.raises(ChannelClosed, match="NOT_FOUND - no exchange"):
        connection.channel().declare_exchange(exchange, passive=True)
    channel.declare_exchange(exchange)
    channel.declare_exchange(exchange)
    channel.declare_exchange(exchange, passive=True)
    with pytest.raises(ChannelClosed, match="PRECONDITION_FAILED - inequivalent arg 'durable'"):
        connection.channel().declare_exchange(exchange, durable=True)
    queue = channel.declare_queue(exclusive=True).name
    channel.bind_queue(queue, exchange, "key")
    with pytest.raises(ChannelClosed, match="PRECONDITION_FAILED"):
        connection.channel().delete_exchange(exchange, if_unused=True)
    channel.delete_exchange(exchange)
    channel.delete_exchange(exchange)


def test_bind_and_publish_to_what_is_missing_close_their_channel(connect: Connect, new_name: NewName) -> None:
    connection = connect()
    bystander = connection.channel()
    queue = bystander.declare_queue(exclusive=True).name
    with pytest.raises(ChannelClosed, match="NOT_FOUND - no exchange"):
        connection.channel().bind_queue(queue, new_name("exchange"), "key")
    with pytest.raises(ChannelClosed, match="NOT_FOUND - no exchange") as refused:
        connection.channel().publish(new_name("exchange"), "key", b"x")
    assert refused.value.code == 404
    silent = connection.channel(confirms=False)
    silent.publish(new_name("exchange"), "key", b"x")
    assert silent.wait_closed().code == 404
    bystander.publish("", queue, b"unharmed")
    assert take_all(bystander, queue) == [b"unharmed"]


def test_predeclared_exchanges_are_there(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    channel.declare_exchange("amq.direct", passive=True)
    queue = channel.declare_queue(exclusive=True).name
    channel.bind_queue(queue, "amq.direct", queue)
    channel.publish("amq.direct", queue, b"x", mandatory=True)
    assert take_all(channel, queue) == [b"x"]
    with pytest.raises(ChannelClosed, match="ACCESS_REFUSED"):
        connection.channel().delete_exchange("amq.direct")

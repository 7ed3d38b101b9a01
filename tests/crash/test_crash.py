"""Kill the connector, or its embedded server: nothing confirmed is lost, nothing comes twice, order is kept.

With KUBEMQ_ADDRESS the connector's half runs before a real server.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections.abc import Callable

import aio_pika
import aiormq.exceptions
import pika.exceptions
import pytest

from tests.support import traffic
from tests.support.server import ConnectorProcess, is_gone
from tests.support.traffic import Received, numbered
from tests.support.waiting import until, wait_until

NewName = Callable[[str], str]

MANY = 2000
BOTH_SIGNALS = pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])


def end_embedded(connector: ConnectorProcess, how: signal.Signals) -> None:
    """End the embedded server and wait for its successor."""
    if not connector.is_embedded:
        pytest.skip("KUBEMQ_ADDRESS names a real server")
    pid = connector.embedded_pid
    os.kill(pid, how)
    wait_until(lambda: connector.embedded_pid != pid)
    assert is_gone(pid)
    connector.wait_ready()


@BOTH_SIGNALS
def test_confirmed_messages_survive_the_connector(connector: ConnectorProcess, queue: str, how: signal.Signals) -> None:
    traffic.declare(connector.url, queue)
    traffic.publish_confirmed(connector.url, queue, numbered(MANY))
    connector.restart(how)
    assert traffic.drain(connector.url, queue, MANY) == [Received(body, False) for body in numbered(MANY)]
    traffic.delete(connector.url, queue)


@BOTH_SIGNALS
def test_confirmed_messages_survive_the_embedded_server(
    connector: ConnectorProcess, queue: str, how: signal.Signals
) -> None:
    traffic.declare(connector.url, queue)
    traffic.publish_confirmed(connector.url, queue, numbered(MANY))
    end_embedded(connector, how)
    traffic.publish_confirmed(connector.url, queue, numbered(100, MANY))
    expected = [Received(body, False) for body in numbered(MANY + 100)]
    assert traffic.drain(connector.url, queue, MANY + 100) == expected


@BOTH_SIGNALS
def test_not_ready_while_the_embedded_server_is_away(connector: ConnectorProcess, how: signal.Signals) -> None:
    if not connector.is_embedded:
        pytest.skip("KUBEMQ_ADDRESS names a real server")
    os.kill(connector.embedded_pid, how)
    wait_until(lambda: not connector.is_ready())
    connector.wait_ready()


@BOTH_SIGNALS
def test_confirmed_messages_survive_all_at_once(connector: ConnectorProcess, queue: str, how: signal.Signals) -> None:
    traffic.declare(connector.url, queue)
    traffic.publish_confirmed(connector.url, queue, numbered(MANY))
    if not connector.is_embedded:
        pytest.skip("KUBEMQ_ADDRESS names a real server")
    os.kill(connector.embedded_pid, how)
    connector.restart(how)
    assert traffic.drain(connector.url, queue, MANY) == [Received(body, False) for body in numbered(MANY)]


def test_unacknowledged_messages_of_a_killed_connector_come_first(connector: ConnectorProcess, queue: str) -> None:
    traffic.declare(connector.url, queue)
    traffic.publish_confirmed(connector.url, queue, numbered(300))
    with traffic.channel_of(connector.url) as channel:
        held = traffic.collect(channel, queue, 100, prefetch=100)
        assert [body for _, _, body in held] == numbered(100)
        connector.restart(signal.SIGKILL)
    expected = [Received(body, number < 100) for number, body in enumerate(numbered(300))]
    assert traffic.drain(connector.url, queue, 300) == expected
    traffic.delete(connector.url, queue)


def test_unacknowledged_messages_of_a_stopped_connector_come_back_flagged(
    connector: ConnectorProcess, queue: str
) -> None:
    traffic.declare(connector.url, queue)
    traffic.publish_confirmed(connector.url, queue, numbered(300))
    with traffic.channel_of(connector.url) as channel:
        held = traffic.collect(channel, queue, 100, prefetch=100)
        assert [body for _, _, body in held] == numbered(100)
        connector.begin_end()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            wait_until(lambda: channel.connection.process_data_events(0.05))
        assert closed.value.reply_code == 320
    assert connector.wait_end() == 0
    connector.start()
    received = traffic.drain(connector.url, queue, 300)
    bodies = [one.body for one in received]
    assert [body for body in bodies if int(body) < 100] == numbered(100)
    assert [body for body in bodies if int(body) >= 100] == numbered(200, 100)
    flagged = {one.body for one in received if one.is_redelivered}
    assert flagged >= set(numbered(100))
    if connector.is_embedded:  # a real server may have handed out more, to nobody
        assert flagged == set(numbered(100))
    traffic.delete(connector.url, queue)


def test_acknowledged_messages_stay_acknowledged(connector: ConnectorProcess, queue: str) -> None:
    traffic.declare(connector.url, queue)
    traffic.publish_confirmed(connector.url, queue, numbered(300))
    with traffic.channel_of(connector.url) as channel:
        got = traffic.collect(channel, queue, 100, prefetch=100)
        channel.basic_ack(60, multiple=True)
        traffic.await_count(channel, got, 160)
    connector.restart(signal.SIGTERM)
    received = traffic.drain(connector.url, queue, 240)
    assert sorted(int(one.body) for one in received) == list(range(60, 300))
    traffic.delete(connector.url, queue)


def test_messages_held_while_the_embedded_server_dies_are_settled_once(connector: ConnectorProcess, queue: str) -> None:
    traffic.declare(connector.url, queue)
    traffic.publish_confirmed(connector.url, queue, numbered(200))
    with traffic.channel_of(connector.url) as channel:
        got = traffic.collect(channel, queue, 50, prefetch=50)
        end_embedded(connector, signal.SIGKILL)
        for method, _, _ in got[:25]:
            channel.basic_ack(method.delivery_tag)
        for expected in (75, 125, 175, 200):
            traffic.await_count(channel, got, expected)
            channel.basic_ack(0, multiple=True)
    assert [body for _, _, body in got] == numbered(200)
    assert not any(method.redelivered for method, _, _ in got)
    assert traffic.drain(connector.url, queue, 0) == []


def test_what_was_confirmed_under_way_is_there(connector: ConnectorProcess, queue: str) -> None:
    traffic.declare(connector.url, queue)
    confirmed = asyncio.run(publish_until_killed(connector, queue))
    connector.start()
    with traffic.channel_of(connector.url) as channel:
        count = channel.queue_declare(queue, passive=True).method.message_count
    numbers = [int(one.body) for one in traffic.drain(connector.url, queue, count)]
    assert numbers == sorted(set(numbers)), "once each, in order"
    assert confirmed <= set(numbers), "nothing confirmed is lost"
    traffic.delete(connector.url, queue)


async def publish_until_killed(connector: ConnectorProcess, queue: str, kill_after: int = 500) -> set[int]:
    """Publish without end, kill the connector after some confirms; the numbers that were confirmed."""
    confirmed: set[int] = set()
    connection = await aio_pika.connect(connector.url)
    exchange = (await connection.channel()).default_exchange

    async def publish(number: int) -> None:
        try:
            message = aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await exchange.publish(message, queue)
            confirmed.add(number)
        except (aiormq.exceptions.AMQPError, aiormq.exceptions.ChannelInvalidStateError, OSError):
            pass  # not confirmed: the publisher would send it again

    async with asyncio.TaskGroup() as group:
        number = 0
        while len(confirmed) < kill_after:
            for _ in range(100):
                group.create_task(publish(number))
                number += 1
            await asyncio.sleep(0.005)
        connector.kill()
    await connection.close()
    return confirmed


def test_the_embedded_server_neither_outlives_nor_blocks(connector: ConnectorProcess, queue: str) -> None:
    if not connector.is_embedded:
        pytest.skip("KUBEMQ_ADDRESS names a real server")
    traffic.declare(connector.url, queue)
    for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        child = connector.embedded_pid
        started = time.monotonic()
        connector.restart(how)
        assert time.monotonic() - started < 5, "the predecessor's child is in the way"
        assert connector.embedded_pid != child
        wait_until(functools.partial(is_gone, child), 2)
    child = connector.embedded_pid
    connector.kill()
    wait_until(functools.partial(is_gone, child), 2)


def test_a_hung_embedded_server_dies_with_its_connector(connector: ConnectorProcess) -> None:
    if not connector.is_embedded:
        pytest.skip("KUBEMQ_ADDRESS names a real server")
    child = connector.embedded_pid
    os.kill(child, signal.SIGSTOP)
    connector.restart(signal.SIGKILL)
    assert is_gone(child)


@BOTH_SIGNALS
def test_declarations_survive(connector: ConnectorProcess, new_name: NewName, how: signal.Signals) -> None:
    exchange, plain, lazy, gone = (new_name(kind) for kind in ("exchange", "plain", "lazy", "gone"))
    arguments = {"x-queue-mode": "lazy", "x-note": "mine"}
    with traffic.channel_of(connector.url) as channel:
        channel.exchange_declare(exchange, "direct", durable=True)
        channel.queue_declare(plain, durable=True)
        channel.queue_declare(lazy, durable=True, arguments=arguments)
        for queue, key in ((plain, "red"), (lazy, "red"), (lazy, "blue")):
            channel.queue_bind(queue, exchange, key)
        channel.queue_unbind(lazy, exchange, "red")
        channel.queue_declare(gone, durable=True)
        channel.queue_delete(gone)
        channel.queue_declare(new_name("exclusive"), exclusive=True)
        if how == signal.SIGKILL:
            connector.kill()
    if how == signal.SIGTERM:
        connector.terminate()
    connector.start()
    with traffic.channel_of(connector.url) as channel:
        channel.exchange_declare(exchange, "direct", passive=True)
        channel.queue_declare(lazy, durable=True, arguments=arguments)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="inequivalent arg 'x-queue-mode'"):
            channel.connection.channel().queue_declare(lazy, durable=True)
        for missing in (gone, new_name("exclusive")):
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
                channel.connection.channel().queue_declare(missing, passive=True)
        channel.confirm_delivery()
        for key in ("red", "blue"):
            channel.basic_publish(exchange, key, key.encode(), mandatory=True)
        assert channel.basic_get(plain, auto_ack=True)[2] == b"red"
        assert channel.basic_get(lazy, auto_ack=True)[2] == b"blue"
        assert channel.basic_get(lazy, auto_ack=True)[0] is None
        channel.exchange_delete(exchange)
        for queue in (plain, lazy):
            channel.queue_delete(queue)


async def test_a_robust_consumer_goes_on_after_a_crash(connector: ConnectorProcess, queue: str) -> None:
    bodies = numbered(200)
    await asyncio.to_thread(traffic.declare, connector.url, queue)
    await asyncio.to_thread(traffic.publish_confirmed, connector.url, queue, bodies[:100])
    done: set[bytes] = set()
    unmarked: list[bytes] = []

    async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        async with message.process(ignore_processed=True):
            if message.body in done and not message.redelivered:
                unmarked.append(message.body)
            done.add(message.body)

    async with await aio_pika.connect_robust(connector.url, reconnect_interval=0.1) as connection:
        channel = await connection.channel()
        await channel.set_qos(10)
        await (await channel.declare_queue(queue, durable=True)).consume(on_message)
        await until(lambda: len(done) == 100)
        await asyncio.to_thread(connector.restart, signal.SIGKILL)
        await asyncio.to_thread(traffic.publish_confirmed, connector.url, queue, bodies[100:])
        await until(lambda: done == set(bodies))
    assert not unmarked, "what comes twice says so"
    await asyncio.to_thread(traffic.delete, connector.url, queue)

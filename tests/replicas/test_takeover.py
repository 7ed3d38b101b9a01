"""A connector dies, hangs or stops: the other one takes over, nothing is lost (HA-05, HA-06, QU-05 to QU-07)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.replicas.conftest import Pair
from tests.replicas.test_sharing import collect, receive
from tests.support.backend import kubemq_server
from tests.support.server import ConnectorProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(120)  # starts processes, waits until one is missed

Connect = Callable[..., Any]

#: The promise is 10 s from SIGKILL to service.
TAKEOVER_S = 10.0


class Worker:
    """A consumer that acknowledges what it is told to."""

    def __init__(self, channel: Any, queue: str, prefetch: int) -> None:
        self.channel = channel
        self.got: list[tuple[int, bool]] = []
        self.held: list[int] = []
        self.acked: list[int] = []
        channel.basic_qos(prefetch_count=prefetch)
        channel.basic_consume(queue, self._on_message)

    def _on_message(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self.got.append((int(body), method.redelivered))
        self.held.append(method.delivery_tag)

    def ack(self, count: int) -> None:
        """Acknowledge the oldest so many of what is held."""
        for tag in self.held[:count]:
            self.channel.basic_ack(tag)
        self.acked += [number for number, _ in self.got[len(self.acked) : len(self.acked) + count]]
        del self.held[:count]

    def turn(self) -> None:
        """Let it receive for a moment."""
        with contextlib.suppress(pika.exceptions.AMQPError):
            self.channel.connection.process_data_events(0.02)


def publish(channel: Any, queue: str, numbers: range) -> None:
    for number in numbers:
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2), mandatory=True)


def work_off(worker: Worker, wanted: set[int], limit_s: float = 30.0) -> None:
    """Receive and acknowledge until all these have come, and perhaps others."""

    def done() -> bool:
        worker.turn()
        worker.ack(len(worker.held))
        return wanted <= {number for number, _ in worker.got}

    wait_until(done, limit_s)


def test_the_other_one_serves_a_busy_queue_within_ten_seconds_of_a_kill(
    doomed: Pair, connect: Connect, name: str
) -> None:
    publisher, owner = connect(doomed.b), connect(doomed.a)
    owner.queue_declare(name, durable=True)
    first = Worker(owner, name, 20)
    publish(publisher, name, range(200))

    def busy() -> bool:
        first.turn()
        return len(first.held) == 20

    wait_until(busy)
    for _ in range(4):
        first.ack(10)
        wait_until(busy)
    second = Worker(connect(doomed.b), name, 50)
    held = [number for number, _ in first.got[len(first.acked) :]]
    doomed.a.kill()
    publish(publisher, name, range(200, 250))

    def served() -> bool:
        second.turn()
        return bool(second.got)

    wait_until(served, TAKEOVER_S)
    work_off(second, set(range(250)) - set(first.acked))
    numbers = {number for number, _ in second.got}
    flagged = {number for number, redelivered in second.got if redelivered}
    assert set(held) <= flagged
    again = numbers & set(first.acked)
    assert again <= flagged
    assert [entry["member"] for entry in doomed.b.entries("connector is taken for dead")] == [
        entry["member"] for entry in doomed.b.entries("connector is gone")
    ]


def test_an_owner_that_stops_in_order_is_followed_at_once(doomed: Pair, connect: Connect, name: str) -> None:
    owner, second = connect(doomed.a), connect(doomed.b)
    owner.queue_declare(name, durable=True)
    collect(owner, name)
    bodies = collect(second, name)
    doomed.a.terminate()
    publisher = connect(doomed.b)
    publisher.basic_publish("", name, b"after", mandatory=True)
    receive(second, bodies, 1)
    assert bodies == [b"after"]
    assert not doomed.b.entries("connector is taken for dead")
    assert doomed.b.metrics()["kubemq_amqp_members"] == 1


def test_an_owner_that_hangs_is_buried_and_comes_back(doomed: Pair, connect: Connect, name: str) -> None:
    """It wakes as another member; what its client acknowledges then of what others have changes nothing."""
    publisher, owner = connect(doomed.b), connect(doomed.a)
    owner.queue_declare(name, durable=True)
    first = Worker(owner, name, 10)
    publish(publisher, name, range(50))

    def busy() -> bool:
        first.turn()
        return len(first.held) == 10

    wait_until(busy)
    second = Worker(connect(doomed.b), name, 20)
    os.kill(doomed.a.pid, signal.SIGSTOP)
    try:

        def served() -> bool:
            second.turn()
            return bool(second.got)

        wait_until(served, 20.0)
    finally:
        os.kill(doomed.a.pid, signal.SIGCONT)
    first.ack(5)
    publish(publisher, name, range(50, 80))

    def all_there() -> bool:
        first.turn()
        first.ack(len(first.held))
        second.turn()
        second.ack(len(second.held))
        return {number for number, _ in first.got} | {number for number, _ in second.got} >= set(range(80))

    wait_until(all_there, 30.0)
    wait_until(lambda: doomed.a.entries("other connectors took us for dead: what clients hold is delivered again"))
    wait_until(lambda: all(connector.metrics()["kubemq_amqp_members"] == 2 for connector in doomed.both))
    seen_twice = {n for n, _ in second.got} & {n for n, _ in first.got}
    assert seen_twice <= {number for number, redelivered in (*first.got, *second.got) if redelivered}
    counting = connect(doomed.a)
    wait_until(lambda: counting.queue_declare(name, passive=True).method.message_count == 0)  # some came again


def test_what_a_hung_one_had_not_stored_is_not_in_the_next_queue(doomed: Pair, connect: Connect, name: str) -> None:
    """It goes on with what its client had sent, for a queue that was deleted and declared anew meanwhile."""
    keeper, late = connect(doomed.a), connect(doomed.b, confirms=False)
    keeper.queue_declare(name, durable=True)
    os.kill(doomed.b.pid, signal.SIGSTOP)
    try:
        publish(late, name, range(20))
        keeper.queue_delete(name)
    finally:
        os.kill(doomed.b.pid, signal.SIGCONT)
    late.basic_qos(prefetch_count=1)  # what was published before is accepted
    keeper.queue_declare(name, durable=True)
    wait_until(lambda: doomed.b.entries("other connectors took us for dead: what clients hold is delivered again"))
    wait_until(lambda: all(connector.metrics()["kubemq_amqp_members"] == 2 for connector in doomed.both))
    wait_until(lambda: doomed.b.metrics()["kubemq_amqp_outbox_messages"] == 0)
    connect(doomed.b).basic_publish("", name, b"new", mandatory=True)
    assert keeper.basic_get(name, auto_ack=True)[2] == b"new"
    assert keeper.basic_get(name)[0] is None


def test_exclusive_queues_of_a_dead_connector_are_gone(doomed: Pair, connect: Connect, name: str) -> None:
    client, other = connect(doomed.a), connect(doomed.b)
    client.queue_declare(name, exclusive=True)
    client.exchange_declare(f"{name}-x", "fanout", durable=True, auto_delete=True)
    client.queue_bind(name, f"{name}-x")
    client.queue_declare(f"{name}-auto", durable=True, auto_delete=True)
    collect(client, f"{name}-auto")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="RESOURCE_LOCKED"):
        connect(doomed.b).queue_declare(name, exclusive=True)
    doomed.a.kill()

    def is_free() -> bool:
        try:
            connect(doomed.b).queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            return bool(error.reply_code == 404)
        return False

    wait_until(is_free, TAKEOVER_S)
    other.queue_declare(name, exclusive=True)
    for kind, what in (("queue", f"{name}-auto"), ("exchange", f"{name}-x")):

        def is_gone(kind: str = kind, what: str = what) -> bool:
            declare = getattr(connect(doomed.b), f"{kind}_declare")
            try:
                declare(what, passive=True)
            except pika.exceptions.ChannelClosedByBroker as error:
                return bool(error.reply_code == 404)
            return False

        wait_until(is_gone)


def test_what_is_not_durable_goes_with_the_last_connector(doomed: Pair, connect: Connect, name: str) -> None:
    channel = connect(doomed.a)
    channel.queue_declare(name)
    channel.exchange_declare(name, "fanout")
    channel.queue_declare(f"{name}-durable", durable=True)
    channel.basic_publish("", name, b"kept", mandatory=True)
    doomed.a.restart()
    doomed.b.restart(signal.SIGKILL)
    channel = connect(doomed.b)
    channel.exchange_declare(name, passive=True)
    assert channel.queue_declare(name, passive=True).method.message_count == 1
    doomed.a.kill()
    doomed.b.kill()
    doomed.b.start()
    doomed.a.start()
    for connector in doomed.both:
        connect(connector).queue_declare(f"{name}-durable", passive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
            connect(connector).queue_declare(name, passive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
            connect(connector).exchange_declare(name, "fanout", passive=True)


def test_a_connector_that_was_killed_alone_is_followed_at_once(doomed: Pair, connect: Connect, name: str) -> None:
    """Its process is known not to run: nobody waits for its beats."""
    doomed.b.terminate()
    channel = connect(doomed.a)
    channel.queue_declare(name, durable=True)
    channel.basic_publish("", name, b"x", mandatory=True)
    successor: ConnectorProcess = doomed.a
    successor.restart(signal.SIGKILL)
    assert connect(successor).basic_get(name, auto_ack=True)[2] == b"x"
    assert successor.entries("listening")[-1]["seconds"] < 4  # below the time after which it is missed


def test_a_connector_of_the_same_name_does_not_wait_for_its_predecessor(
    tmp_path: Path, connect: Connect, name: str
) -> None:
    """The first one is hung and would be missed after ten minutes; when it goes on it is another member."""
    flags = ["--member-timeout-seconds", "600", "--member-name", "pod-0"]
    with kubemq_server(tmp_path / "kubemq") as address, ConnectorProcess(tmp_path / "a", address, flags) as a:
        owner = connect(a)
        owner.queue_declare(name, durable=True)
        publish(owner, name, range(3))
        os.kill(a.pid, signal.SIGSTOP)
        try:
            with ConnectorProcess(tmp_path / "b", address, flags) as b:
                second = Worker(connect(b), name, 10)
                work_off(second, {0, 1, 2})
                os.kill(a.pid, signal.SIGCONT)
                wait_until(lambda: a.metrics()["kubemq_amqp_members"] == b.metrics()["kubemq_amqp_members"] == 2)
                publish(owner, name, range(3, 5))
                work_off(second, {3, 4})
                assert [entry["name"] for entry in a.entries("another connector has the same member_name")] == ["pod-0"]
        finally:
            os.kill(a.pid, signal.SIGCONT)

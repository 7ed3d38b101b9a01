"""A killed KubeMQ withholds messages in subscriptions of its dead self: queues move away, and nobody else is fed.

On the embedded server with what a real one does (``--afterlife``); tools/kubemq_crash.py does it to a real one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika.exceptions
import pytest

from tests.support import traffic
from tests.support.server import ConnectorProcess
from tests.support.traffic import numbered
from tests.support.waiting import wait_until
from tests.unit.embedded.process import EmbeddedProcess

QUEUE = "afterlife"
#: A foreign reader counts as gone after ten seconds without a sign of it.
FORGET_LIMIT_S = 20.0


@pytest.fixture
def kubemq(tmp_path: Path) -> Iterator[EmbeddedProcess]:
    with EmbeddedProcess(tmp_path / "kubemq", "--quirks", "on", "--afterlife") as process:
        yield process


@pytest.fixture
def connector(tmp_path: Path, kubemq: EmbeddedProcess) -> Iterator[ConnectorProcess]:
    with ConnectorProcess(tmp_path / "connector", kubemq.address) as connector:
        yield connector


def _crash(kubemq: EmbeddedProcess) -> None:
    this_second = int(time.time())  # a start within it is not told from the one before
    wait_until(lambda: int(time.time()) > this_second)
    kubemq.kill()
    kubemq.start()


def test_a_queue_moves_away_from_what_a_killed_server_withholds(
    kubemq: EmbeddedProcess, connector: ConnectorProcess
) -> None:
    traffic.declare(connector.url, QUEUE)
    traffic.publish_confirmed(connector.url, QUEUE, numbered(40))
    with traffic.channel_of(connector.url) as channel:
        got = traffic.collect(channel, QUEUE, 10, prefetch=10)
        _crash(kubemq)
        wait_until(lambda: connector.entries("queue has moved to a new channel"))
        assert "withholds" in kubemq.log
        for wanted in (20, 30, 40):
            for method, _, _ in got[wanted - 20 : wanted - 10]:
                channel.basic_ack(method.delivery_tag)
            traffic.await_count(channel, got, wanted)
        channel.basic_ack(0, multiple=True)
    assert sorted(int(body) for _, _, body in got) == list(range(40)), "nothing is lost or doubled"
    traffic.publish_confirmed(connector.url, QUEUE, numbered(5, 40))
    assert traffic.bodies_of(traffic.drain(connector.url, QUEUE, 5)) == numbered(5, 40)


@pytest.mark.timeout(60)
def test_a_foreign_subscriber_is_noticed_and_not_fed(kubemq: EmbeddedProcess, connector: ConnectorProcess) -> None:
    """QueuesInfo says 2 with ours open: what clients hold is not given back as long as that lasts."""
    traffic.declare(connector.url, QUEUE)
    traffic.publish_confirmed(connector.url, QUEUE, numbered(10))
    with traffic.channel_of(connector.url) as channel, contextlib.ExitStack() as foreign:
        got: list[Any] = traffic.collect(channel, QUEUE, 3, prefetch=3)
        stream = foreign.enter_context(_native_reader(connector.kubemq_address))
        wait_until(lambda: connector.entries("channel is read by others"))
        wait_until(lambda: connector.metrics()["kubemq_amqp_shared_queues"] == 1)
        [entry] = connector.entries("channel is read by others")
        assert (entry["kubemq_channel"], entry["subscribers"]) == (f"amqp.default.{QUEUE}", 2)
        foreign.close()
        del stream
        for method, _, _ in got:
            channel.basic_ack(method.delivery_tag)
        wait_until(lambda: connector.entries("channel is read by us alone"), FORGET_LIMIT_S)
        traffic.await_count(channel, got, 6)


@pytest.mark.timeout(60)
def test_a_queue_deleted_right_after_a_kill_can_be_declared_again(
    kubemq: EmbeddedProcess, connector: ConnectorProcess
) -> None:
    traffic.declare(connector.url, QUEUE)
    traffic.publish_confirmed(connector.url, QUEUE, numbered(40))
    with traffic.channel_of(connector.url) as channel:
        traffic.collect(channel, QUEUE, 10, prefetch=10)
        _crash(kubemq)
        wait_until(lambda: _is_deleted(connector), 30.0)
    traffic.declare(connector.url, QUEUE)
    traffic.publish_confirmed(connector.url, QUEUE, numbered(5, 40))
    assert traffic.bodies_of(traffic.drain(connector.url, QUEUE, 5)) == numbered(5, 40)


def _is_deleted(connector: ConnectorProcess) -> bool:
    try:
        traffic.delete(connector.url, QUEUE)
    except pika.exceptions.AMQPError:  # KubeMQ is not back yet
        return False
    return True


@pytest.mark.timeout(60)
def test_what_a_native_client_holds_keeps_nobody_waiting(connector: ConnectorProcess) -> None:
    """Neither a purge nor a deletion; and it never shows up in the next queue of the name."""
    traffic.declare(connector.url, QUEUE)
    traffic.publish_confirmed(connector.url, QUEUE, numbered(3))
    with traffic.channel_of(connector.url) as channel, contextlib.ExitStack() as foreign:
        stream = foreign.enter_context(_native_reader(connector.kubemq_address))
        assert [message.Body for message in next(stream).Messages] == [b"0"]
        channel.queue_purge(QUEUE)
        traffic.publish_confirmed(connector.url, QUEUE, [b"3"])
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True)
        foreign.close()
    traffic.publish_confirmed(connector.url, QUEUE, [b"4"])
    assert traffic.bodies_of(traffic.drain(connector.url, QUEUE, 1)) == [b"4"]
    with traffic.channel_of(connector.url) as channel:
        assert channel.basic_get(QUEUE)[0] is None


@contextlib.contextmanager
def _native_reader(address: str) -> Iterator[Any]:
    """A native client that waits for a message of the queue's channel."""
    import grpc
    from kubemq.grpc import kubemq_pb2 as pb
    from kubemq.grpc import kubemq_pb2_grpc

    with grpc.insecure_channel(address) as link:
        request = pb.QueuesDownstreamRequest(
            RequestID="1", ClientID="native", RequestTypeData=pb.Get, Channel=f"amqp.default.{QUEUE}",
            MaxItems=1, WaitTimeout=60_000,
        )  # fmt: skip
        call = kubemq_pb2_grpc.kubemqStub(link).QueuesDownstream(iter([request]))
        yield call
        call.cancel()

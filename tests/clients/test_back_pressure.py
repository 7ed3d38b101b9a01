"""Publishers to queues kept in memory are blocked at the mark, not closed (PU-09, PC-19)."""

from __future__ import annotations

import threading
from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.server import ConnectorProcess
from tests.support.waiting import wait_until

MARK_BYTES = 1024 * 1024
COUNT = 60


def publish(url: str, queue: str, states: list[str]) -> None:
    """Far more than the mark, without confirms."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.add_on_connection_blocked_callback(lambda *_: states.append("blocked"))
    connection.add_on_connection_unblocked_callback(lambda *_: states.append("unblocked"))
    channel = connection.channel()
    for number in range(COUNT):
        channel.basic_publish("", queue, b"%3d" % number + bytes(100_000))
    connection.close()
    states.append("done")


def test_a_fast_publisher_is_held_and_loses_nothing(tmp_path: Path) -> None:
    with ConnectorProcess(tmp_path, flags=("--memory-queues-high-bytes", str(MARK_BYTES))) as connector:
        connection = pika.BlockingConnection(pika.URLParameters(connector.url))
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        states: list[str] = []
        publisher = threading.Thread(target=publish, args=(connector.url, queue, states))
        publisher.start()
        wait_until(lambda: connector.entries("publishers blocked"))
        got = [body[:3] for _, _, body in _take(channel, queue)]
        publisher.join(10)
        connection.close()
        assert got == [b"%3d" % number for number in range(COUNT)]
        assert states[-1] == "done"


def _take(channel: BlockingChannel, queue: str) -> list[tuple[object, object, bytes]]:
    taken: list[tuple[object, object, bytes]] = []
    for method, properties, body in channel.consume(queue, auto_ack=True):
        taken.append((method, properties, body))
        if len(taken) == COUNT:
            return taken
    return taken

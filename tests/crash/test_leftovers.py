"""What is not durable is gone before anybody can use it again (QU-07): a redeclaration right after a restart stays."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pika

from tests.support.server import ConnectorProcess

COUNT = 60


def test_a_transient_queue_that_is_declared_again_at_once_stays(tmp_path: Path) -> None:
    names = [f"transient-{number}" for number in range(COUNT)]
    with ConnectorProcess(tmp_path) as connector:
        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(connector.url))) as connection:
            channel = connection.channel()
            for name in names:
                channel.queue_declare(name)
                channel.basic_publish("", name, b"of an earlier life")
        connector.restart()
        connection = pika.BlockingConnection(pika.URLParameters(connector.url))
        channel = connection.channel()
        channel.confirm_delivery()
        for name in names:
            assert channel.queue_declare(name).method.message_count == 0
            channel.basic_publish("", name, b"new", mandatory=True)
        for name in names:
            _method, _properties, body = channel.basic_get(name, auto_ack=True)
            assert body == b"new"
        connection.close()


def test_a_second_signal_at_once_is_the_same_request(tmp_path: Path) -> None:
    with ConnectorProcess(tmp_path) as connector:
        connector.begin_end()
        connector.begin_end()
        assert connector.wait_end() == 0

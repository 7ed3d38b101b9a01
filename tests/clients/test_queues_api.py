"""Queues over HTTP, as monitoring tools and autoscalers ask for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.clients.driver import Connection
from tests.support.server import ConnectorProcess
from tests.support.waiting import wait_until


@pytest.fixture
def ask(connector: ConnectorProcess) -> Callable[[str], Any]:
    def ask(path: str) -> Any:
        request = Request(f"{connector.ops_url}/api/queues{path}", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
        with urlopen(request, timeout=10) as answer:
            return json.load(answer)

    return ask


def test_a_queue_is_shown_with_its_counts_and_its_channel(
    connect: Callable[..., Connection], new_name: Callable[..., str], ask: Callable[[str], Any]
) -> None:
    name = new_name("shown/queue")
    channel = connect().channel()
    channel.declare_queue(name, durable=True, arguments={"x-queue-type": "classic"})
    for body in (b"one", b"two", b"three"):
        channel.publish("", name, body)
    assert channel.get(name) is not None

    path = f"/%2F/{quote(name, '')}"
    row: dict[str, Any] = {}

    def is_counted() -> bool:
        row.update(ask(path))
        return (row["messages_ready"], row["messages_unacknowledged"]) == (2, 1)

    wait_until(is_counted)
    assert (row["vhost"], row["durable"], row["exclusive"]) == ("/", True, False)
    assert (row["messages"], row["consumers"], row["arguments"]) == (3, 0, {"x-queue-type": "classic"})
    assert [part["name"] for part in row["kubemq"]["channels"]] == [row["kubemq"]["channel"]]
    assert name in [row["name"] for row in ask("")]
    assert name in [row["name"] for row in ask("/%2F")]


def test_a_queue_in_memory_has_no_channel(connect: Callable[..., Connection], ask: Callable[[str], Any]) -> None:
    connection = connect()
    name = connection.channel().declare_queue("", exclusive=True).name
    row = ask(f"/%2F/{name}")
    assert (row["exclusive"], row["kubemq"]) == (True, None)
    assert connection.is_open


@pytest.mark.parametrize("path", ["/%2F/there-is-none", "/nowhere", "/nowhere/queue"])
def test_what_does_not_exist_is_not_found(ask: Callable[[str], Any], path: str) -> None:
    with pytest.raises(HTTPError) as refused:
        ask(path)
    with refused.value:
        assert refused.value.code == 404

"""Random declarations over two connectors: equal exports; after a kill of both, what was answered (HA-02 to HA-04)."""

from __future__ import annotations

import base64
import json
import random
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pika.exceptions
import pytest

from tests.replicas.conftest import Pair
from tests.support.server import ConnectorProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)  # a thousand operations, and processes that start

Connect = Callable[..., Any]
OPERATIONS = 1000
LOGIN = base64.b64encode(b"guest:guest").decode("ascii")


def export(connector: ConnectorProcess) -> dict[str, Any]:
    """The definitions, in no particular order."""
    request = urllib.request.Request(
        f"{connector.ops_url}/api/definitions", headers={"Authorization": f"Basic {LOGIN}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        document = json.load(answer)
    return {
        key: sorted(document[key], key=lambda entry: json.dumps(entry, sort_keys=True))
        for key in ("queues", "exchanges", "bindings")
    }


def operate(channel: Any, chance: random.Random, name: str) -> None:
    """One declaration, or its reverse."""
    queue, exchange = f"{name}-q{chance.randrange(8)}", f"{name}-x{chance.randrange(5)}"
    auto_delete = chance.random() < 0.2
    operations: list[Callable[[], object]] = [
        lambda: channel.queue_declare(queue, durable=True, auto_delete=auto_delete),
        lambda: channel.exchange_declare(exchange, "topic", durable=True, auto_delete=auto_delete),
        lambda: channel.queue_bind(queue, exchange, f"k{chance.randrange(3)}"),
        lambda: channel.exchange_bind(f"{name}-x{chance.randrange(5)}", exchange, f"k{chance.randrange(3)}"),
        lambda: channel.queue_unbind(queue, exchange, f"k{chance.randrange(3)}"),
        lambda: channel.exchange_unbind(f"{name}-x{chance.randrange(5)}", exchange, f"k{chance.randrange(3)}"),
        lambda: channel.queue_delete(queue),
        lambda: channel.exchange_delete(exchange, if_unused=chance.random() < 0.5),
    ]
    chance.choices(operations, weights=[4, 4, 6, 3, 2, 1, 1, 1])[0]()


def test_a_thousand_operations_leave_equal_exports(steady: Pair, connect: Connect, name: str) -> None:
    chance = random.Random(5)
    channels = [connect(connector) for connector in steady.both]
    codes: set[int] = set()
    for _ in range(OPERATIONS):
        index = chance.randrange(2)
        try:
            operate(channels[index], chance, name)
        except pika.exceptions.ChannelClosedByBroker as error:
            codes.add(error.reply_code)
            channels[index] = channels[index].connection.channel()
        assert channels[index].is_open
    assert codes <= {404, 406}
    first = export(steady.a)
    assert [entry for entry in first["bindings"] if entry["source"].startswith(name)]
    wait_until(lambda: export(steady.a) == export(steady.b))


class Declarer(threading.Thread):
    """Declares and deletes queues until its connector is gone; remembers what was answered."""

    def __init__(self, channel: Any, name: str) -> None:
        super().__init__()
        self._channel = channel
        self._name = name
        self.there: set[str] = set()
        self.gone: set[str] = set()
        self.open: set[str] = set()  # asked, and not answered

    def run(self) -> None:
        number = 0
        try:
            while True:
                number += 1
                queue = f"{self._name}-{number}"
                self.open = {queue}
                self._channel.queue_declare(queue, durable=True)
                self.there.add(queue)
                if number % 3 == 0:
                    self.open = {queue}
                    self._channel.queue_delete(queue)
                    self.there.discard(queue)
                    self.gone.add(queue)
        except pika.exceptions.AMQPError:
            return


def test_after_a_kill_of_both_there_is_what_was_answered(doomed: Pair, connect: Connect, name: str) -> None:
    chance = random.Random(7)
    declarers: list[Declarer] = []
    for life in range(2):
        for letter, connector in zip("ab", doomed.both, strict=True):
            declarers.append(Declarer(connect(connector), f"{name}-{life}{letter}"))
            declarers[-1].start()
        wanted = chance.randrange(10, 40)

        def are_busy(wanted: int = wanted) -> bool:
            return all(len(each.there) >= wanted for each in declarers[-2:])

        wait_until(are_busy, 60)
        for connector in chance.sample(doomed.both, 2):
            connector.kill()
        for declarer in declarers:
            declarer.join()
        for connector in doomed.both:
            connector.start()
        unsure = {queue for declarer in declarers for queue in declarer.open}
        for connector in doomed.both:
            names = {entry["name"] for entry in export(connector)["queues"]}
            for declarer in declarers:
                assert declarer.there - unsure <= names
                assert not (declarer.gone - unsure) & names

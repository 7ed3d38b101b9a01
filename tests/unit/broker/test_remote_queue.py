"""A queue in another connector's memory: what its messages take of the mark here."""

from __future__ import annotations

from typing import Any

from connector.broker.away import Away
from connector.broker.message import Message
from connector.broker.outbox import OVERHEAD_BYTES
from connector.broker.remote_queue import RemoteQueue
from connector.broker.topology import QueueRecord
from tests.support.broker_model import BrokerModel, Publisher

HEADER = bytes(1000)
COST = len(HEADER) + 1 + OVERHEAD_BYTES


class Peers:
    """One other connector that takes everything."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}
        self.told: list[dict[str, Any]] = []

    def __contains__(self, member: str) -> bool:
        return member == "other"

    def tell(self, _member: str, facts: dict[str, Any], *_blobs: bytes) -> None:
        self.told.append(facts)


def make() -> tuple[BrokerModel, RemoteQueue, Any]:
    model = BrokerModel(memory_limit_bytes=2 * COST)
    peers: Any = Peers()
    away = Away(model.broker, peers)
    return model, RemoteQueue(QueueRecord("default", "q"), model.broker, away, "other", 1), peers


def test_headers_of_what_is_on_its_way_count() -> None:
    model, queue, peers = make()
    receipt = Publisher()
    for token in (1, 2, 3):
        queue.publish(Message("", "q", HEADER, b"x"), receipt, token)
    assert [token for token, _ in receipt.refused] == [3]
    assert model.broker.memory_bytes == 2 * COST
    peers.handlers["done"]("other", {"n": [1, 2], "refused": []}, [])
    assert receipt.stored == [1, 2]
    assert model.broker.memory_bytes == 0


def test_headers_of_what_the_owner_has_sent_count() -> None:
    model, queue, _ = make()
    message = Message("", "q", HEADER, b"x", sequence=1)
    queue.on_lent(message)
    assert model.broker.memory_bytes == COST
    queue.settle(queue._take())
    assert model.broker.memory_bytes == 0

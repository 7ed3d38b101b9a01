"""What tests of consumers do over and over: fill a queue through channel 2, and read off what has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connector.amqp import header as content_header
from tests.support.dialogue import Dialogue


def fill(client: Dialogue, queue: str, count: int, first: int = 0) -> None:
    """Publish so many messages whose bodies are numbers, ascending."""
    for number in range(first, first + count):
        client.publish(2, queue, b"%d" % number)


def bodies(contents: Sequence[Any]) -> list[bytes]:
    """What is in them."""
    return [content.body for content in contents]


def tags_of(client: Dialogue) -> list[str]:
    """Who has got what came on channel 1."""
    return [item.method.consumer_tag for item in client.deliveries()]


def rest(client: Dialogue, queue: str) -> list[bytes]:
    """What is ready, in its order; takes it."""
    found = []
    while (content := client.get(queue, 2, no_ack=True)) is not None:
        found.append(content.body)
    return found


def number_of(content: Any) -> object:
    """Its x-delivery-count, 0 when it has none."""
    return content_header.parse(content.header).headers().get("x-delivery-count", ("l", 0))[1]

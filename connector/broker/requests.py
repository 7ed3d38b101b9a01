"""What a client asks the broker to declare, and what it is told: plain values.

Owns no rule; ``arguments`` are field tables as ``connector.amqp.wire`` reads them, so every integer keeps its width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.amqp.wire import Table


@dataclass(slots=True)
class QueueDeclare:
    """A ``queue.declare``; an empty ``name`` asks for a server-named queue.

    ``is_restored``: a definitions file names it, perhaps by what a server once made up.
    """

    name: str
    passive: bool = False
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Table = field(default_factory=dict)
    is_restored: bool = False


@dataclass(slots=True)
class ExchangeDeclare:
    """An ``exchange.declare``; ``type`` is checked only when the exchange is not passive."""

    name: str
    type: str = "direct"
    passive: bool = False
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = field(default_factory=dict)


@dataclass(slots=True)
class DeclaredQueue:
    """The answer to ``queue.declare``: counts are ready messages and consumers (QU-01)."""

    name: str
    message_count: int
    consumer_count: int

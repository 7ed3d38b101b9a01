"""What a scenario may ask of an AMQP client library, whichever it is.

Owns the words (``Channel``, ``Connection``, ``Client``) and the few errors scenarios expect; each driver says them in
its library's own way, as that library's users do.  Everything blocks; while nothing is asked of a connection, what
arrives for it waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message, delivered or got."""

    body: bytes
    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: dict[str, Any]
    """Properties by AMQP's names, ``headers`` among them; absent ones are absent or None."""
    message_count: int | None = None
    """With get only: ready messages left."""


@dataclass(slots=True)
class Consumer:
    """A consumer and what came to it."""

    tag: str
    deliveries: list[Delivery] = field(default_factory=list)
    is_cancelled: bool = False
    """The broker has cancelled it."""

    @property
    def bodies(self) -> list[bytes]:
        """What came, oldest first."""
        return [delivery.body for delivery in self.deliveries]


@dataclass(frozen=True, slots=True)
class Declared:
    """A declare-ok."""

    name: str
    message_count: int
    consumer_count: int


class ChannelClosed(Exception):
    """The broker has closed the channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class Returned(Exception):
    """A mandatory message came back (and was confirmed)."""

    def __init__(self, code: int, body: bytes, properties: dict[str, Any]) -> None:
        super().__init__(f"returned with {code}")
        self.code = code
        self.body = body
        self.properties = properties


class LoginRefused(Exception):
    """User or password are wrong; must not tell which."""


class Channel(Protocol):
    """One channel.  Channels are in confirm mode unless opened without; publish then waits for the confirm."""

    def declare_queue(
        self, name: str = "", *, passive: bool = False, durable: bool = False, exclusive: bool = False,
        auto_delete: bool = False, arguments: dict[str, Any] | None = None,
    ) -> Declared: ...  # fmt: skip

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int: ...

    def purge_queue(self, name: str) -> int: ...

    def declare_exchange(
        self, name: str, type: str = "direct", *, passive: bool = False, durable: bool = False
    ) -> None: ...

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None: ...

    def bind_queue(self, queue: str, exchange: str, routing_key: str) -> None: ...

    def unbind_queue(self, queue: str, exchange: str, routing_key: str) -> None: ...

    def publish(
        self, exchange: str, routing_key: str, body: bytes, *, mandatory: bool = False, **properties: Any
    ) -> None: ...

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None: ...

    def qos(self, prefetch_count: int) -> None: ...

    def consume(self, queue: str, *, no_ack: bool = False, exclusive: bool = False) -> Consumer: ...

    def cancel(self, consumer: Consumer) -> None: ...

    def ack(self, tag: int, *, multiple: bool = False) -> None: ...

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None: ...

    def reject(self, tag: int, *, requeue: bool = True) -> None: ...

    def recover(self) -> None: ...

    def close(self) -> None: ...

    def wait_closed(self) -> ChannelClosed:
        """Wait until the broker closes the channel, and return why."""


class Connection(Protocol):
    """One connection."""

    @property
    def is_open(self) -> bool: ...

    def channel(self, *, confirms: bool = True) -> Channel: ...

    def pump(self, until: Callable[[], object], limit_s: float = 10.0) -> None:
        """Let things happen until the condition holds; raises AssertionError when it does not."""

    def pump_for(self, duration_s: float) -> None:
        """Let things happen for a while: the one way to see that nothing comes."""

    def close(self) -> None: ...


class Client(Protocol):
    """A client library."""

    name: str

    def connect(self, url: str, vhost: str | None = None) -> Connection:
        """Connect, to another vhost than the URL's where one is given; raises LoginRefused."""

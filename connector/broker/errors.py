"""The broker's own exceptions: what went wrong in the model, without AMQP reply codes.

``session/reply_map.py`` is the only place that turns them into codes.  The text is what RabbitMQ says after
``NAME - ``.
"""

from __future__ import annotations


class BrokerError(Exception):
    """A refused operation; ``str(error)`` is the reason shown to the client."""


class NotFound(BrokerError):
    """No such queue, exchange or virtual host."""


class AccessRefused(BrokerError):
    """A reserved name, the default exchange, or a consumer in exclusive use."""


class Locked(BrokerError):
    """An exclusive queue of another connection."""


class Inequivalent(BrokerError):
    """A redeclaration that differs, an invalid argument, or a thing that is in use or not empty."""


class NotAllowed(BrokerError):
    """Forbidden for the whole connection (RabbitMQ's 530)."""


class NotImplementedHere(BrokerError):
    """A known feature that is not built yet or never will be (540)."""


class ResourceExhausted(BrokerError):
    """A memory mark was reached and held past its deadline (506)."""

"""The direct exchange: every queue bound with exactly the message's routing key (EX-03).

Owns the bindings of one exchange.  Knows queue names, not queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.broker.exchanges.exchange import Exchange, Targets, add_target, remove_target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from connector.amqp.wire import Table
    from connector.broker.exchanges import binding
    from connector.broker.topology import BindingKey, ExchangeRecord


class Direct(Exchange):
    """Destinations by routing key."""

    def __init__(self, record: ExchangeRecord) -> None:
        super().__init__(record)
        self._by_key: dict[str, Targets] = {}

    def route(self, routing_key: str, headers: Callable[[], Table]) -> Collection[binding.Destination]:  # noqa: ARG002
        """See ``Exchange``."""
        return self._by_key.get(routing_key, ())

    def _add(self, key: binding.BindingKey, destination: binding.Destination) -> None:
        add_target(self._by_key.setdefault(key.routing_key, {}), destination)

    def _remove(self, key: binding.BindingKey, destination: binding.Destination) -> None:
        targets = self._by_key[key.routing_key]
        remove_target(targets, destination)
        if not targets:
            del self._by_key[key.routing_key]


class DirectExchange:
    """Bindings by routing key; several bindings of one queue with one key give one copy (EX-07)."""

    def __init__(self, record: ExchangeRecord) -> None:
        self.record = record
        self._by_key: dict[str, dict[BindingKey, None]] = {}
        self.had_bindings = False

    def bind(self, key: BindingKey) -> None:
        """Add a binding; the same one again changes nothing."""
        self._by_key.setdefault(key.routing_key, {})[key] = None
        self.had_bindings = True

    def unbind(self, key: BindingKey) -> None:
        """Remove a binding if it is there."""
        bindings = self._by_key.get(key.routing_key)
        if bindings is not None:
            bindings.pop(key, None)
            if not bindings:
                del self._by_key[key.routing_key]

    def has_binding(self, key: BindingKey) -> bool:
        """True when exactly this binding exists."""
        return key in self._by_key.get(key.routing_key, ())

    def bindings_of(self, queue: str) -> list[BindingKey]:
        """All bindings of one queue."""
        return [key for bindings in self._by_key.values() for key in bindings if key.queue == queue]

    def route(self, routing_key: str) -> list[str]:
        """Names of the queues that get a copy, each once, in binding order."""
        return list(dict.fromkeys(key.queue for key in self._by_key.get(routing_key, ())))

    @property
    def is_used(self) -> bool:
        """True while anything is bound."""
        return bool(self._by_key)

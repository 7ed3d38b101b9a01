"""The direct exchange: every queue bound with exactly the message's routing key (EX-03).

Owns the bindings of one exchange.  Knows queue names, not queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.broker.exchanges.exchange import Exchange, Targets, add_target, remove_target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from connector.amqp.wire import Table
    from connector.broker.exchanges.binding import BindingKey, Destination
    from connector.broker.topology import ExchangeRecord


class Direct(Exchange):
    """Destinations by routing key."""

    def __init__(self, record: ExchangeRecord) -> None:
        super().__init__(record)
        self._by_key: dict[str, Targets] = {}

    def route(self, routing_key: str, headers: Callable[[], Table]) -> Collection[Destination]:  # noqa: ARG002
        """See ``Exchange``."""
        return self._by_key.get(routing_key, ())

    def _add(self, key: BindingKey, destination: Destination) -> None:
        add_target(self._by_key.setdefault(key.routing_key, {}), destination)

    def _remove(self, key: BindingKey, destination: Destination) -> None:
        targets = self._by_key[key.routing_key]
        remove_target(targets, destination)
        if not targets:
            del self._by_key[key.routing_key]

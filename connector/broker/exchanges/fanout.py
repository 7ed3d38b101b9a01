"""The fanout exchange: everything that is bound, whatever the key (EX-04)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.broker.exchanges.exchange import Exchange, Targets, add_target, remove_target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from connector.amqp.wire import Table
    from connector.broker.exchanges.binding import BindingKey, Destination
    from connector.broker.topology import ExchangeRecord


class Fanout(Exchange):
    """One list of destinations; keys and arguments only tell bindings apart."""

    def __init__(self, record: ExchangeRecord) -> None:
        super().__init__(record)
        self._targets: Targets = {}

    def route(self, routing_key: str, headers: Callable[[], Table]) -> Collection[Destination]:  # noqa: ARG002
        """See ``Exchange``; always everything."""
        return self._targets

    def _add(self, key: BindingKey, destination: Destination) -> None:  # noqa: ARG002
        add_target(self._targets, destination)

    def _remove(self, key: BindingKey, destination: Destination) -> None:  # noqa: ARG002
        remove_target(self._targets, destination)

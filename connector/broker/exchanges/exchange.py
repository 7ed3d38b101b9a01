"""What all exchange types have in common: the bindings of one exchange, by destination.

Owns identity (``has_binding``, ``bindings_of``) and what the record says; a type adds how it finds the bindings that
match (``_add``, ``_remove``, ``route``).  Knows names, not queues; never asks what a destination is bound to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from connector.broker.exchanges.binding import QUEUE, BindingKey, Destination

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from connector.amqp.wire import Table
    from connector.broker.exchanges.binding import Kind
    from connector.broker.topology import ExchangeRecord

#: Destinations with the number of bindings that lead there; iterating gives each destination once, in binding order.
Targets: TypeAlias = dict[Destination, int]


def add_target(targets: Targets, destination: Destination) -> None:
    """Count one more binding to this destination."""
    targets[destination] = targets.get(destination, 0) + 1


def remove_target(targets: Targets, destination: Destination) -> None:
    """Count one binding less; the last one takes the destination away."""
    left = targets[destination] - 1
    if left:
        targets[destination] = left
    else:
        del targets[destination]


class Exchange:
    """One exchange; several matching bindings of one destination give one copy (EX-07).

    ``alternate`` is the exchange that takes what has no route here (EX-15); ``had_bindings`` tells an auto-delete
    exchange that has lost its last binding from a new one.
    """

    def __init__(self, record: ExchangeRecord) -> None:
        self.record = record
        self.had_bindings = False
        self.alternate = _alternate(record)
        self._bindings: dict[Destination, dict[BindingKey, None]] = {}

    # ------------------------------------------------------------------ what a type adds

    @classmethod
    def check_arguments(cls, arguments: Table) -> None:
        """Refuse what a new binding of this type must not carry; raises Inequivalent."""

    def route(self, routing_key: str, headers: Callable[[], Table]) -> Collection[Destination]:
        """Destinations that get a copy, each once.

        ``headers`` reads the message's headers table; only a type that needs it calls it.  The result is to be used
        at once: it may be the exchange's own.
        """
        raise NotImplementedError

    def _add(self, key: BindingKey, destination: Destination) -> None:
        raise NotImplementedError

    def _remove(self, key: BindingKey, destination: Destination) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------------ bindings

    def bind(self, key: BindingKey) -> None:
        """Add a binding; the same one again changes nothing."""
        destination = Destination(key.destination, key.kind)
        bindings = self._bindings.setdefault(destination, {})
        if key not in bindings:
            bindings[key] = None
            self.had_bindings = True
            self._add(key, destination)

    def unbind(self, key: BindingKey) -> None:
        """Remove a binding if it is there."""
        destination = Destination(key.destination, key.kind)
        bindings = self._bindings.get(destination)
        if bindings is None or key not in bindings:
            return
        del bindings[key]
        if not bindings:
            del self._bindings[destination]
        self._remove(key, destination)

    def has_binding(self, key: BindingKey) -> bool:
        """True when exactly this binding exists."""
        return key in self._bindings.get(Destination(key.destination, key.kind), ())

    def bindings_of(self, name: str, kind: Kind = QUEUE) -> list[BindingKey]:
        """All bindings of one destination, oldest first."""
        return list(self._bindings.get(Destination(name, kind), ()))

    @property
    def is_used(self) -> bool:
        """True while anything is bound."""
        return bool(self._bindings)


def _alternate(record: ExchangeRecord) -> str | None:
    letter, name = record.arguments.get("alternate-exchange", ("V", None))
    return name.decode("utf-8", "surrogateescape") if letter == "S" and isinstance(name, bytes) else None

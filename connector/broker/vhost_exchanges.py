"""The exchanges and bindings of a virtual host, of queues in the log, in our memory, and in others' memories.

Owns the names, equivalence and life of exchanges, and who may bind; ``vhost.py`` adds the queues.  Shared entities
change only when their event comes back in the topology log; bindings of throw-away queues live with these.  Every
operation calls ``done`` exactly once, with its result or an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from connector.broker.arguments import check_name, compare_tables
from connector.broker.errors import AccessRefused, BrokerError, Inequivalent, Locked, NotFound
from connector.broker.exchanges.binding import EXCHANGE, QUEUE, BindingKey, canonical_arguments
from connector.broker.remote_queue import RemoteQueue
from connector.broker.routing import PREDECLARED, TYPES
from connector.broker.topology import (
    ExchangeRecord,
    binding_event,
    exchange_declared,
    name_event,
    unused_exchange_event,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from connector.amqp.wire import Table
    from connector.broker.counters import Counters
    from connector.broker.exchanges.binding import Kind
    from connector.broker.exchanges.exchange import Exchange
    from connector.broker.ports import Done
    from connector.broker.queue import Hub, Queue, StoredQueue
    from connector.broker.requests import ExchangeDeclare
    from connector.broker.topology import QueueRecord


class Shared(Protocol):
    """What a virtual host needs to change what all replicas share."""

    @property
    def hub(self) -> Hub:
        """What queues need."""

    @property
    def counters(self) -> Counters:
        """What is counted."""

    def append(self, event: dict[str, Any], done: Done) -> None:
        """Write to the topology log; ``done(changed)`` when it has come back and was applied, or an exception."""

    def stored_queue(self, record: QueueRecord) -> StoredQueue:
        """A queue object over this record's KubeMQ channel."""

    def count_new(self, queue: StoredQueue) -> None:
        """The queue was made this moment, by us: count it if that takes no time."""

    def drain(self, queue: StoredQueue) -> None:
        """The queue is deleted: empty its channel, then note it in the log."""

    def when_drained(self, vhost: str, name: str, done: Callable[[], None]) -> bool:
        """False when no deleted queue of this name is being emptied; else ``done`` follows when it is empty."""

    @property
    def others(self) -> Others:
        """The other connectors."""


class Others(Protocol):
    """The other connectors on the same KubeMQ; without any, everything is done at once."""

    def announce(self, queue: Queue, done: Callable[[], None]) -> None:
        """A queue is in our memory; it is deleted again when another one has the name."""

    def withdraw(self, queue: Queue, done: Callable[[], None]) -> None:
        """It is gone."""

    def announce_binding(self, queue: Queue, key: BindingKey, is_bound: bool, done: Callable[[], None]) -> None:
        """It was bound, or unbound."""

    def bind(self, queue: Queue, key: BindingKey, is_bound: bool, done: Done) -> None:
        """Have the owner of a queue in its memory bind or unbind it."""

    def delete(self, queue: Queue, if_unused: bool, if_empty: bool, done: Done, again: Callable[[], None]) -> None:
        """Have the owner of a queue delete it; ``again`` when there is none."""


class Exchanges:
    """One virtual host's; ``title`` is what texts show."""

    def __init__(self, name: str, shared: Shared) -> None:
        self.name = name
        self.title = "/" if name == "default" else name
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self._shared = shared
        self._routes: dict[tuple[str, str], tuple[Queue, ...]] = {}
        self._local_bindings: dict[str, dict[BindingKey, None]] = {}
        self._remote: dict[RemoteQueue, None] = {}
        self._ending: set[str] = set()
        self._when_ended: list[Callable[[], None]] = []
        for exchange, kind in PREDECLARED.items():
            self.exchanges[exchange] = TYPES[kind](ExchangeRecord(name, exchange, kind, durable=True))

    def _append(self, event: dict[str, Any], done: Done) -> None:
        """Append where only failure matters: ``done`` gets None or the exception."""
        self._shared.append(event, lambda result: done(result if isinstance(result, Exception) else None))

    # ------------------------------------------------------------------ looking up

    def _label(self, kind: str, name: str) -> str:
        return f"{kind} '{name}' in vhost '{self.title}'"

    def _exchange(self, name: str) -> Exchange:
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no {self._label('exchange', name)}")
        return exchange

    def find_queue(self, name: str, owner: object) -> Queue:
        """The queue of this name; raises NotFound, or Locked when it is exclusive to another owner."""
        queue = self.queues.get(name)
        if queue is None:
            raise NotFound(f"no {self._label('queue', name)}")
        if queue.owner is not None and queue.owner is not owner:
            raise self._locked(name)
        return queue

    def _locked(self, name: str) -> Locked:
        return Locked(
            f"cannot obtain exclusive access to locked {self._label('queue', name)}. It could be originally declared "
            "on another connection or the exclusive property value does not match that of the original declaration."
        )

    # ------------------------------------------------------------------ exchanges

    def declare_exchange(self, request: ExchangeDeclare, done: Done) -> None:
        """``done`` gets None (EX-02, EX-08, EX-09)."""
        try:
            record = self._check_exchange(request)
        except BrokerError as error:
            done(error)
            return
        if record is None:
            done(None)
            return

        def answer(result: object) -> None:
            if isinstance(result, Exception):
                done(result)
            else:  # compare with what the log has made of it
                self.declare_exchange(request, done)

        self._shared.append(exchange_declared(record), answer)

    def _check_exchange(self, request: ExchangeDeclare) -> ExchangeRecord | None:
        """The record to create, or None when it exists and agrees."""
        name = request.name = request.name.replace("\r", "").replace("\n", "")
        if not request.passive and request.type not in TYPES:
            raise Inequivalent(f"unknown exchange type '{request.type}'")
        if not name:
            raise AccessRefused("operation not permitted on the default exchange")
        if request.passive:
            self._exchange(name)
            return None
        label = self._label("exchange", name)
        exchange = self.exchanges.get(name)
        if exchange is not None:
            current = exchange.record
            for flag, asked, now in (
                ("type", request.type, current.type),
                ("durable", request.durable, current.durable),
                ("auto_delete", request.auto_delete, current.auto_delete),
                ("internal", request.internal, current.internal),
            ):
                if asked != now:
                    raise Inequivalent(
                        f"inequivalent arg '{flag}' for {label}: received '{str(asked).lower()}' "
                        f"but current is '{str(now).lower()}'"
                    )
            compare_tables(("alternate-exchange",), request.arguments, current.arguments, label)
            return None
        if name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        check_name(request.arguments, "alternate-exchange", label)
        return ExchangeRecord(
            self.name, name, request.type, request.durable, request.auto_delete, request.internal, request.arguments
        )

    def delete_exchange(self, name: str, if_unused: bool, done: Done) -> None:
        """``done`` gets None; deleting what is missing succeeds (EX-11)."""
        if not name:
            done(AccessRefused("operation not permitted on the default exchange"))
        elif name.startswith("amq."):
            done(AccessRefused(f"deletion of system {self._label('exchange', name)} not allowed"))
        elif name not in self.exchanges:
            done(None)
        elif if_unused and self.exchanges[name].is_used:
            done(Inequivalent(f"{self._label('exchange', name)} in use"))
        elif if_unused:

            def answer(result: object) -> None:
                if result is False:  # it is gone already, or was bound meanwhile
                    self.delete_exchange(name, if_unused, done)
                else:
                    self._after_unbinding(done)(result)

            self._shared.append(unused_exchange_event(self.exchanges[name].record), answer)
        else:
            self._append(name_event("exchange.deleted", self.name, name), self._after_unbinding(done))

    def _check_auto_delete(self, exchange: Exchange) -> None:
        """An auto-delete exchange goes with its last binding; whoever took that away is answered afterwards."""
        name = exchange.record.name
        if exchange.is_used or not exchange.record.auto_delete or name in self._ending:
            return

        def ended(_result: object) -> None:
            self._ending.discard(name)
            if not self._ending:
                waiting, self._when_ended = self._when_ended, []
                for answer in waiting:
                    answer()

        self._ending.add(name)
        self._shared.append(unused_exchange_event(exchange.record), ended)

    def _settle(self, answer: Callable[[], None]) -> None:
        """Answer once no auto-delete exchange is on its way out."""
        if self._ending:
            self._when_ended.append(answer)
        else:
            answer()

    def _after_unbinding(self, done: Done) -> Done:
        return lambda result: done(result) if isinstance(result, Exception) else self._settle(lambda: done(None))

    # ------------------------------------------------------------------ bindings

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str, arguments: Table, owner: object, done: Done
    ) -> None:
        """``done`` gets None; binding again succeeds (EX-13)."""
        self._bind(BindingKey(exchange, queue, routing_key, canonical_arguments(arguments)), arguments, owner, done)

    def bind_exchange(self, destination: str, source: str, routing_key: str, arguments: Table, done: Done) -> None:
        """``done`` gets None; binding again succeeds (EX-12)."""
        key = BindingKey(source, destination, routing_key, canonical_arguments(arguments), EXCHANGE)
        self._bind(key, arguments, None, done)

    def _bind(self, key: BindingKey, arguments: Table, owner: object, done: Done) -> None:
        try:
            self._refuse_default(key)
            source = self._exchange(key.exchange)
            self._find_destination(key.kind, key.destination)
            source.check_arguments(arguments)
            is_shared = self._is_shared(key, owner)
        except BrokerError as error:
            done(error)
            return
        if source.has_binding(key):
            done(None)
        elif is_shared:

            def answer(result: object) -> None:
                if result is False:  # one of the two went before, or somebody else was faster: look again
                    self._bind(key, arguments, owner, done)
                else:
                    done(result if isinstance(result, Exception) else None)

            self._shared.append(binding_event("queue.bound", self.name, key), answer)
        else:
            self._bind_local(key, done)

    def _bind_local(self, key: BindingKey, done: Done) -> None:
        queue = self.queues[key.destination]
        if isinstance(queue, RemoteQueue):
            self._shared.others.bind(queue, key, True, done)
            return
        self._local_bindings.setdefault(key.destination, {})[key] = None
        self.on_bound(key)
        self._shared.others.announce_binding(queue, key, True, lambda: done(None))

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str, arguments: Table, owner: object, done: Done
    ) -> None:
        """``done`` gets None; unbinding what is not bound succeeds, missing queue or exchange too."""
        self._unbind(BindingKey(exchange, queue, routing_key, canonical_arguments(arguments)), owner, done)

    def unbind_exchange(self, destination: str, source: str, routing_key: str, arguments: Table, done: Done) -> None:
        """``done`` gets None; likewise."""
        self._unbind(BindingKey(source, destination, routing_key, canonical_arguments(arguments), EXCHANGE), None, done)

    def _unbind(self, key: BindingKey, owner: object, done: Done) -> None:
        source = self.exchanges.get(key.exchange)
        try:
            self._refuse_default(key)
            is_bound = source is not None and source.has_binding(key)
            is_shared = is_bound and self._is_shared(key, owner)
        except BrokerError as error:
            done(error)
            return
        if not is_bound:
            done(None)
        elif is_shared:
            self._append(binding_event("queue.unbound", self.name, key), self._after_unbinding(done))
        else:
            self._unbind_local(key, done)

    def _unbind_local(self, key: BindingKey, done: Done) -> None:
        queue = self.queues[key.destination]
        if isinstance(queue, RemoteQueue):
            self._shared.others.bind(queue, key, False, done)
            return
        self._local_bindings.get(key.destination, {}).pop(key, None)
        self.on_unbound(key)
        self._shared.others.announce_binding(queue, key, False, lambda: self._settle(lambda: done(None)))

    def _refuse_default(self, key: BindingKey) -> None:
        if not key.exchange or (key.kind == EXCHANGE and not key.destination):
            raise AccessRefused("operation not permitted on the default exchange")

    def _find_destination(self, kind: Kind, name: str) -> None:
        found: object = self.queues.get(name) if kind == QUEUE else self.exchanges.get(name)
        if found is None:
            raise NotFound(f"no {self._label(kind, name)}")

    def _is_shared(self, key: BindingKey, owner: object) -> bool:
        """Whether all replicas know this binding; raises Locked for a queue that is exclusive to another owner."""
        return key.kind == EXCHANGE or self.find_queue(key.destination, owner).is_stored

    # ------------------------------------------------------------------ queues in others' memories

    def _add_queue(self, queue: Queue) -> None:
        self.queues[queue.name] = queue
        self._routes.clear()

    def add_remote(self, queue: RemoteQueue) -> None:
        """Another connector has a queue in its memory."""
        self._remote[queue] = None
        self._add_queue(queue)

    def remove_remote(self, queue: RemoteQueue) -> None:
        """It is gone, or its connector is."""
        self._remote.pop(queue, None)
        if self.queues.get(queue.name) is queue:
            del self.queues[queue.name]
            self._routes.clear()
        for key in queue.bindings:
            self.on_unbound(key)
        queue.close(lambda: None)

    def bind_remote(self, queue: RemoteQueue, exchange: str) -> None:
        """It was bound, or the exchange that it is bound to has come: bindings are of one exchange, not of its name."""
        known = self.exchanges.get(exchange)
        if known is not None:
            for key, exchange_id in queue.bindings.items():
                if key.exchange == exchange and exchange_id == known.record.id and not known.has_binding(key):
                    self.on_bound(key)

    def exchange_id(self, name: str) -> int:
        """Which exchange of this name there is."""
        return self.exchanges[name].record.id if name in self.exchanges else 0

    def local_bindings(self, name: str) -> list[BindingKey]:
        """Of a queue in our memory."""
        return list(self._local_bindings.get(name, ()))

    # ------------------------------------------------------------------ what the topology log says

    def on_exchange_created(self, record: ExchangeRecord) -> None:
        """A shared exchange exists from now on; it has no bindings yet."""
        self.exchanges[record.name] = TYPES[record.type](record)
        self._routes.clear()
        for queue in self._remote:
            self.bind_remote(queue, record.name)

    def on_exchange_deleted(self, record: ExchangeRecord) -> None:
        """The exchange is gone."""
        self.exchanges.pop(record.name, None)
        self._routes.clear()
        for queue in self._remote:
            queue.bindings = {
                key: i for key, i in queue.bindings.items() if (key.exchange, i) != (record.name, record.id)
            }
        for keys in self._local_bindings.values():
            for key in [key for key in keys if key.exchange == record.name]:
                del keys[key]

    def on_bound(self, key: BindingKey) -> None:
        """A binding exists from now on."""
        self.exchanges[key.exchange].bind(key)
        self._routes.clear()

    def on_unbound(self, key: BindingKey) -> None:
        """A binding is gone, unless its exchange went before."""
        exchange = self.exchanges.get(key.exchange)
        if exchange is not None and exchange.has_binding(key):
            exchange.unbind(key)
            self._routes.clear()
            self._check_auto_delete(exchange)

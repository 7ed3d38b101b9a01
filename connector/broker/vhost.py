"""A virtual host: its queues and exchanges at run time, routing, and every declaration a client can make.

Owns name rules, equivalence, exclusive ownership and the route cache.  Shared entities change only when their event
comes back in the topology log (``on_*`` methods of ``Observer``); throw-away queues and their bindings live here
alone (design.md section 6).  Every operation calls ``done`` exactly once, with its result or an exception.
"""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING, Protocol

from connector.broker.arguments import check_equivalent, check_name, check_queue, compare_tables
from connector.broker.errors import (
    AccessRefused,
    BrokerError,
    Inequivalent,
    Locked,
    NotFound,
)
from connector.broker.exchanges.binding import EXCHANGE, QUEUE, BindingKey, canonical_arguments
from connector.broker.memory_queue import MemoryQueue
from connector.broker.message import Message
from connector.broker.queue import Queue, StoredQueue
from connector.broker.replies import Replies, is_reply_name
from connector.broker.requests import DeclaredQueue, ExchangeDeclare, QueueDeclare
from connector.broker.routing import PREDECLARED, TYPES, HeaderReader, resolve, source_of, split_copies
from connector.broker.topology import (
    ExchangeRecord,
    QueueRecord,
    binding_event,
    exchange_declared,
    name_event,
    queue_declared,
    queue_deleted,
    unused_exchange_event,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from connector.amqp.wire import Table
    from connector.broker.counters import Counters
    from connector.broker.exchanges.binding import Kind
    from connector.broker.exchanges.exchange import Exchange
    from connector.broker.ports import Done, Receipt
    from connector.broker.queue import Hub

#: The beginning of what servers call queues whose clients do not care.
GENERATED = "amq.gen-"
#: The deletion of an auto-delete queue that could not be logged is tried again after this.
UNUSED_RETRY_S = 1.0
#: The route cache is dropped when it has this many entries.
ROUTES_MAX = 20_000


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


class VirtualHost:
    """One virtual host; ``name`` is ``default`` for "/" and "", ``title`` is what texts show."""

    def __init__(self, name: str, shared: Shared) -> None:
        self.name = name
        self.title = "/" if name == "default" else name
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self._shared = shared
        self.replies = Replies(name, shared.hub)
        self._routes: dict[tuple[str, str], tuple[Queue, ...]] = {}
        self._exclusive: dict[object, dict[str, Queue]] = {}
        self._creating: dict[str, list[Callable[[], None]]] = {}
        self._leaving: dict[str, tuple[StoredQueue, list[Callable[[], None]]]] = {}
        self._local_bindings: dict[str, dict[BindingKey, None]] = {}
        self._ending: set[str] = set()
        self._when_ended: list[Callable[[], None]] = []
        for exchange, kind in PREDECLARED.items():
            self.exchanges[exchange] = TYPES[kind](ExchangeRecord(name, exchange, kind, durable=True))

    # ------------------------------------------------------------------ publishing

    def publish(self, exchange: str, routing_key: str, header: bytes, body: bytes, receipt: Receipt, token: int) -> int:
        """Route one message and hand a copy to every queue; returns how many (0: unroutable).

        Exactly that many ``receipt`` calls with ``token`` follow, some perhaps before the return.  Raises NotFound,
        AccessRefused (internal exchange) and Inequivalent (CC or BCC that is no array).
        """
        if b"CC" in header:
            queues, header = self.route(exchange, routing_key, header)
        else:
            found = self._routes.get((exchange, routing_key))
            queues = self._route(exchange, routing_key, header, ()) if found is None else found
        for queue in queues:
            queue.publish(Message(exchange, routing_key, header, body), receipt, token)
        return len(queues)

    def route(self, exchange: str, routing_key: str, header: bytes) -> tuple[tuple[Queue, ...], bytes]:
        """Where a message goes as things stand now, and the header it goes with; raises as ``publish``."""
        source_of(self, exchange)
        copies, header = split_copies(header)
        queues = None if copies else self._routes.get((exchange, routing_key))
        return self._route(exchange, routing_key, header, copies) if queues is None else queues, header

    def publish_to(
        self,
        queues: tuple[Queue, ...],
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
        receipt: Receipt,
        token: int,
    ) -> int:
        """As ``publish``, to those of the queues that ``route`` gave which still exist."""
        queues = tuple([queue for queue in queues if not queue.is_deleted])
        for queue in queues:
            queue.publish(Message(exchange, routing_key, header, body), receipt, token)
        return len(queues)

    def _route(self, exchange: str, routing_key: str, header: bytes, copies: tuple[str, ...]) -> tuple[Queue, ...]:
        """Resolve, and remember what depends on exchange and key alone."""
        headers = HeaderReader(header)
        queues = tuple(self.queues[name] for name in resolve(self, exchange, routing_key, headers, copies))
        if not exchange and len(self.replies):
            queues += self.replies.find((routing_key, *copies))
        if copies or headers.was_read or is_reply_name(routing_key):
            return queues
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[exchange, routing_key] = queues
        return queues

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

    # ------------------------------------------------------------------ queues

    def declare_queue(self, request: QueueDeclare, owner: object, done: Done) -> None:
        """``done`` gets a DeclaredQueue (QU-01 to QU-06)."""
        try:
            self._declare_queue(request, owner, done)
        except BrokerError as error:
            done(error)

    def _declare_queue(self, request: QueueDeclare, owner: object, done: Done) -> None:
        name = request.name = request.name.replace("\r", "").replace("\n", "")
        if is_reply_name(name):
            done(self.replies.declare(name) or NotFound(f"no {self._label('queue', name)}"))
            return
        if request.passive:
            self._answer_declare(self.find_queue(name, owner), done)
            return
        if name.startswith("amq.") and not (request.is_restored and name.startswith(GENERATED)):
            raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        if name in self._creating:  # theirs is on its way: compare with it
            self._creating[name].append(lambda: self.declare_queue(request, owner, done))
            return
        if name in self._leaving:  # the old one is on its way out
            self._leaving[name][1].append(lambda: self.declare_queue(request, owner, done))
            return
        queue = self.queues.get(name) if name else None
        if queue is not None:
            if queue.owner is not (owner if request.exclusive else None):
                raise self._locked(name)
            check_equivalent(queue.record, request, self._label("queue", name))
            self._shared.counters.queues_declared += 1
            self._answer_declare(queue, done)
            return
        if not name:
            name = GENERATED + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode("ascii").rstrip("=")
        check_queue(request, self._label("queue", name))
        if self._shared.when_drained(self.name, name, lambda: self.declare_queue(request, owner, done)):
            return
        record = self._record(name, request)
        if request.exclusive or (not request.durable and (request.auto_delete or not request.name)):
            self._create_local(record, owner if request.exclusive else None, done)
        else:
            self._create_shared(record, request, owner, done)

    def _record(self, name: str, request: QueueDeclare) -> QueueRecord:
        return QueueRecord(
            self.name,
            name,
            durable=request.durable and not request.exclusive,
            exclusive=request.exclusive,
            auto_delete=request.auto_delete,
            arguments=request.arguments,
        )

    def _create_local(self, record: QueueRecord, owner: object, done: Done) -> None:
        queue = MemoryQueue(record, self._shared.hub, owner)
        self._add_queue(queue)
        if owner is not None:
            self._exclusive.setdefault(owner, {})[record.name] = queue
        self._count_created()
        self._answer_declare(queue, done)

    def _create_shared(self, record: QueueRecord, request: QueueDeclare, owner: object, done: Done) -> None:
        def answer(result: object) -> None:
            waiting = self._creating.pop(record.name, [])
            if isinstance(result, Exception):
                done(result)
            elif result:
                self._count_created()
                queue = self.queues[record.name]
                if isinstance(queue, StoredQueue):
                    self._shared.count_new(queue)
                self._answer_declare(queue, done)
            else:  # somebody else was faster: compare with theirs
                self.declare_queue(request, owner, done)
            for declare in waiting:
                declare()

        self._creating[record.name] = []
        self._shared.append(queue_declared(record), answer)

    def _count_created(self) -> None:
        self._shared.counters.queues_created += 1
        self._shared.counters.queues_declared += 1

    def _answer_declare(self, queue: Queue, done: Done) -> None:
        queue.when_counted(lambda: done(DeclaredQueue(queue.name, queue.ready_count, len(queue.consumers))))

    def _add_queue(self, queue: Queue) -> None:
        self.queues[queue.name] = queue
        self._routes.clear()

    def delete_queue(self, name: str, owner: object, if_unused: bool, if_empty: bool, done: Done) -> None:
        """``done`` gets the number of ready messages deleted, 0 when there is no such queue (QU-09)."""
        try:
            queue = self.find_queue(name, owner)
        except NotFound:
            done(0)
            return
        except Locked as error:
            done(error)
            return
        if if_unused and queue.consumers:
            done(Inequivalent(f"{self._label('queue', name)} in use"))
            return
        queue.when_counted(lambda: self._delete_counted(queue, if_unused, if_empty, done))

    def _delete_counted(self, queue: Queue, if_unused: bool, if_empty: bool, done: Done) -> None:
        label = self._label("queue", queue.name)
        count = queue.ready_count
        if queue.is_deleted or self.queues.get(queue.name) is not queue:
            done(0)
        elif if_unused and queue.consumers:
            done(Inequivalent(f"{label} in use"))
        elif if_empty and count:
            done(Inequivalent(f"{label} not empty"))
        elif isinstance(queue, StoredQueue):
            self._remove_shared(queue, lambda result: self._after_delete(queue.name, count, result, done))
        else:
            self._remove_local(queue)
            self._settle(lambda: done(count))

    def _after_delete(self, name: str, count: int, result: object, done: Done) -> None:
        if isinstance(result, Exception):
            done(result)
        elif not self._shared.when_drained(self.name, name, lambda: self._settle(lambda: done(count))):
            self._settle(lambda: done(count))

    def _remove_shared(self, queue: StoredQueue, done: Done) -> None:
        """Delete through the log; from this moment nobody here finds the queue, and a declare of its name waits."""
        name = queue.name

        def answer(result: object) -> None:
            _, waiting = self._leaving.pop(name)
            if isinstance(result, Exception) and name not in self.queues:  # it stays
                self._add_queue(queue)
            done(result)
            for declare in waiting:
                declare()

        del self.queues[name]
        self._routes.clear()
        self._leaving[name] = (queue, [])
        self._shared.append(queue_deleted(queue.record), answer)

    def _remove_local(self, queue: Queue) -> None:
        if self.queues.get(queue.name) is not queue:
            return
        del self.queues[queue.name]
        self._routes.clear()
        if queue.owner is not None:
            self._exclusive.get(queue.owner, {}).pop(queue.name, None)
        for key in self._local_bindings.pop(queue.name, ()):
            self.on_unbound(key)
        self._shared.counters.queues_deleted += 1
        queue.close(lambda: None)

    def purge_queue(self, name: str, owner: object, done: Done) -> None:
        """``done`` gets the number of ready messages dropped (QU-10)."""
        try:
            self.find_queue(name, owner).purge(done)
        except BrokerError as error:
            done(error)

    def on_owner_gone(self, owner: object) -> None:
        """A connection ended: its exclusive queues go (QU-05)."""
        for queue in list(self._exclusive.pop(owner, {}).values()):
            self._remove_local(queue)

    def on_unused(self, queue: Queue) -> None:
        """An auto-delete queue lost its last consumer (QU-06)."""
        if is_reply_name(queue.name):
            self.replies.close(queue)
        elif not isinstance(queue, StoredQueue):
            self._remove_local(queue)
        elif self.queues.get(queue.name) is queue and not queue.consumers:
            self._remove_shared(queue, lambda result: self._retry_unused(queue, result))

    def _retry_unused(self, queue: StoredQueue, result: object) -> None:
        """The log did not take the deletion: again later, if nobody has come meanwhile."""
        if isinstance(result, Exception):
            self._shared.hub.call_later(UNUSED_RETRY_S, lambda: self.on_unused(queue))

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

            self._shared.append(unused_exchange_event(self.name, name), answer)
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
        self._shared.append(unused_exchange_event(self.name, name), ended)

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
            self._local_bindings.setdefault(key.destination, {})[key] = None
            self.on_bound(key)
            done(None)

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
            self._local_bindings.get(key.destination, {}).pop(key, None)
            self.on_unbound(key)
            self._settle(lambda: done(None))

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

    # ------------------------------------------------------------------ what the topology log says

    def on_queue_created(self, record: QueueRecord) -> None:
        """A shared queue exists from now on."""
        local = self.queues.get(record.name)
        if local is not None:  # a throw-away queue of this name gives way to what all replicas know
            self._remove_local(local)
        self._add_queue(self._shared.stored_queue(record))

    def on_queue_deleted(self, record: QueueRecord) -> None:
        """The shared queue is gone; its channel is emptied."""
        queue = self._leaving[record.name][0] if record.name in self._leaving else self.queues.pop(record.name, None)
        if isinstance(queue, StoredQueue):
            self._routes.clear()
            self._shared.counters.queues_deleted += 1
            self._shared.drain(queue)

    def on_exchange_created(self, record: ExchangeRecord) -> None:
        """A shared exchange exists from now on; it has no bindings yet."""
        self.exchanges[record.name] = TYPES[record.type](record)
        self._routes.clear()

    def on_exchange_deleted(self, record: ExchangeRecord) -> None:
        """The exchange is gone."""
        self.exchanges.pop(record.name, None)
        self._routes.clear()

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

"""A virtual host: its queues, routing, and with ``vhost_exchanges.py`` every declaration a client can make.

Owns name rules, equivalence, exclusive ownership and the route cache.  Shared entities change only when their event
comes back in the topology log (``on_*`` methods of ``Observer``); throw-away queues and their bindings live here
alone (design.md section 6).  Every operation calls ``done`` exactly once, with its result or an exception.
"""

from __future__ import annotations

import base64
import secrets
from functools import partial
from typing import TYPE_CHECKING

from connector.broker.arguments import check_equivalent, check_queue
from connector.broker.errors import AccessRefused, BrokerError, Inequivalent, Locked, NotFound
from connector.broker.memory_queue import MemoryQueue
from connector.broker.message import Message
from connector.broker.queue import Queue, StoredQueue
from connector.broker.remote_queue import RemoteQueue
from connector.broker.replies import Replies, is_reply_name
from connector.broker.requests import DeclaredQueue, QueueDeclare
from connector.broker.routing import HeaderReader, resolve, source_of, split_copies
from connector.broker.topology import QueueRecord, queue_declared, queue_deleted
from connector.broker.vhost_exchanges import Exchanges

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.ports import Done, Receipt
    from connector.broker.vhost_exchanges import Shared

#: The beginning of what servers call queues whose clients do not care.
GENERATED = "amq.gen-"
#: The deletion of an auto-delete queue that could not be logged is tried again after this.
UNUSED_RETRY_S = 1.0
#: A queue that was deleted while it was declared is declared again after this.
DELETED_RETRY_S = 0.05
#: The route cache is dropped when it has this many entries.
ROUTES_MAX = 20_000


class VirtualHost(Exchanges):
    """One virtual host; ``name`` is ``default`` for "/" and "", ``title`` is what texts show."""

    def __init__(self, name: str, shared: Shared) -> None:
        super().__init__(name, shared)
        self.replies = Replies(name, shared.hub)
        self._exclusive: dict[object, dict[str, Queue]] = {}
        self._creating: dict[str, list[Callable[[], None]]] = {}
        self._leaving: dict[str, tuple[StoredQueue, list[Callable[[], None]]]] = {}
        self._unused: set[StoredQueue] = set()  # could not be deleted: tried again soon

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
        if not exchange and (copies or is_reply_name(routing_key)):
            queues += self.replies.find((routing_key, *copies))
        if copies or headers.was_read or is_reply_name(routing_key):
            return queues
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[exchange, routing_key] = queues
        return queues

    # ------------------------------------------------------------------ queues

    def find_queue(self, name: str, owner: object) -> Queue:
        """As above; one that is on its way out is not found."""
        if name in self._leaving and self._leaving[name][0] is self.queues.get(name):
            raise NotFound(f"no {self._label('queue', name)}")
        return super().find_queue(name, owner)

    def _when_left(self, name: str, done: Callable[[], None]) -> bool:
        """False when no queue of this name is on its way out; else ``done`` follows when that is decided."""
        if name not in self._leaving:
            return False
        self._leaving[name][1].append(done)
        return True

    def declare_queue(self, request: QueueDeclare, owner: object, done: Done) -> None:
        """``done`` gets a DeclaredQueue (QU-01 to QU-06)."""
        try:
            self._declare_queue(request, owner, done)
        except BrokerError as error:
            done(error)

    def _declare_queue(self, request: QueueDeclare, owner: object, done: Done) -> None:
        name = request.name = request.name.replace("\r", "").replace("\n", "")
        if is_reply_name(name) and not request.is_restored:
            unknown = NotFound(f"no {self._label('queue', name)}")
            self.replies.declare(name, lambda declared: done(declared or unknown))
            return
        known = self.queues.get(name)
        if isinstance(known, RemoteQueue) and known.owner is not None:
            known.when_sure(lambda: self._declare_locked(request, owner, done))
            return
        if request.passive:
            self._answer_declare(self.find_queue(name, owner), done)
            return
        if name.startswith("amq.") and not (request.is_restored and name.startswith(GENERATED)):
            raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        if name in self._creating:  # theirs is on its way: compare with it
            self._creating[name].append(lambda: self.declare_queue(request, owner, done))
            return
        if self._when_left(name, lambda: self.declare_queue(request, owner, done)):
            return
        queue = self.queues.get(name) if name else None
        if queue is not None:
            if queue.owner is not (owner if request.exclusive else None):
                raise self._locked(name)
            check_equivalent(queue.record, request, self._label("queue", name))
            self._shared.counters.queues_declared += 1
            again = lambda: self.declare_queue(request, owner, done)  # noqa: E731
            self._answer_declare(queue, done, lambda: self._shared.hub.call_later(DELETED_RETRY_S, again))
            return
        if not name:
            name = GENERATED + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode("ascii").rstrip("=")
        check_queue(request, self._label("queue", name))
        if self._shared.when_drained(self.name, name, lambda: self.declare_queue(request, owner, done)):
            return
        record = self._record(name, request)
        if request.exclusive or (not request.durable and (request.auto_delete or not request.name)):
            self._create_local(record, request, owner if request.exclusive else None, done)
        else:
            self._create_shared(record, request, owner, done)

    def _declare_locked(self, request: QueueDeclare, owner: object, done: Done) -> None:
        """The name is taken by an exclusive queue on another connector, unless that has just gone."""
        if isinstance(self.queues.get(request.name), RemoteQueue):
            done(self._locked(request.name))
        else:
            self.declare_queue(request, owner, done)

    def _record(self, name: str, request: QueueDeclare) -> QueueRecord:
        return QueueRecord(
            self.name,
            name,
            durable=request.durable and not request.exclusive,
            exclusive=request.exclusive,
            auto_delete=request.auto_delete,
            arguments=request.arguments,
        )

    def _create_local(self, record: QueueRecord, again: QueueDeclare, owner: object, done: Done) -> None:
        queue = MemoryQueue(record, self._shared.hub, owner)
        self._add_queue(queue)
        if owner is not None:
            self._exclusive.setdefault(owner, {})[record.name] = queue

        def announced() -> None:
            waiting = self._creating.pop(record.name, [])
            if queue.is_deleted:  # another connector has one of this name
                self.declare_queue(again, owner, done)
            else:
                self._count_created()
                self._answer_declare(queue, done)
            for declare in waiting:
                declare()

        self._creating[record.name] = []
        self._shared.others.announce(queue, announced)

    def _create_shared(self, record: QueueRecord, request: QueueDeclare, owner: object, done: Done) -> None:
        def answer(result: object) -> None:
            waiting = self._creating.pop(record.name, [])
            if isinstance(result, Exception):
                done(result)
            elif result:
                self._count_created()
                queue = self.queues.get(record.name)
                if isinstance(queue, StoredQueue):
                    self._shared.count_new(queue)
                    self._answer_declare(queue, done, lambda: done(DeclaredQueue(record.name, 0, 0)))
                else:  # somebody was faster at deleting it than all at hearing of it
                    done(DeclaredQueue(record.name, 0, 0))
            else:  # somebody else was faster: compare with theirs
                self.declare_queue(request, owner, done)
            for declare in waiting:
                declare()

        self._creating[record.name] = []
        self._shared.append(queue_declared(record), answer)

    def when_shared(self, name: str, done: Callable[[], None]) -> bool:
        """False when no queue of this name is on its way into the log; else ``done`` follows when that is known."""
        if name not in self._creating or name in self.queues:
            return False
        self._creating[name].append(done)
        return True

    def _count_created(self) -> None:
        self._shared.counters.queues_created += 1
        self._shared.counters.queues_declared += 1

    def _answer_declare(self, queue: Queue, done: Done, is_gone: Callable[[], None] | None = None) -> None:
        """``is_gone`` is called where it is deleted before it is counted; without it, that is NotFound."""

        def failed(error: object) -> None:
            if is_gone is not None and isinstance(error, NotFound):
                is_gone()
            else:
                done(error)

        queue.count(lambda ready, consumers: done(DeclaredQueue(queue.name, ready, consumers)), failed)

    def delete_queue(
        self, name: str, owner: object, if_unused: bool, if_empty: bool, done: Done, meant: Queue | None = None
    ) -> None:
        """``done`` gets the number of ready messages deleted, 0 when there is no such queue (QU-09).

        ``meant``: what was found under the name before; a later queue of the name is another one.
        """
        again = partial(self.delete_queue, name, owner, if_unused, if_empty, done)
        if self._when_left(name, partial(again, meant)):
            return
        try:
            queue = self.find_queue(name, owner)
        except NotFound:
            done(0)
            return
        except Locked as error:
            done(error)
            return
        if meant not in (None, queue):
            done(0)
            return
        if not queue.is_owned:
            self._shared.others.delete(queue, if_unused, if_empty, done, partial(again, queue))
            return
        if if_unused and queue.consumer_count:
            done(Inequivalent(f"{self._label('queue', name)} in use"))
            return
        when_counted = queue.when_counted_anew if if_empty else queue.when_counted
        when_counted(lambda: self._delete_counted(queue, if_unused, if_empty, done))

    def _delete_counted(self, queue: Queue, if_unused: bool, if_empty: bool, done: Done) -> None:
        label = self._label("queue", queue.name)
        count = queue.ready_count
        if queue.is_deleted or self.queues.get(queue.name) is not queue:
            done(0)
        elif not queue.is_owned or queue.name in self._leaving:  # its reader knows, or who deletes it
            self.delete_queue(queue.name, queue.owner, if_unused, if_empty, done)
        elif if_unused and queue.consumer_count:
            done(Inequivalent(f"{label} in use"))
        elif if_empty and (count or queue.unreadable_count):
            done(Inequivalent(f"{label} not empty"))
        elif isinstance(queue, StoredQueue):
            self._remove_shared(queue, lambda result: self._after_delete(queue.name, count, result, done))
        else:
            self.remove_local(queue, lambda: self._settle(lambda: done(count)))

    def _after_delete(self, name: str, count: int, result: object, done: Done) -> None:
        if isinstance(result, Exception):
            done(result)
        elif not self._shared.when_drained(self.name, name, lambda: self._settle(lambda: done(count))):
            self._settle(lambda: done(count))

    def _remove_shared(self, queue: StoredQueue, done: Done) -> None:
        """Delete through the log; from this moment no client here finds the queue, and a declare of its name waits.

        What is published waits until it is known whether it stays.  Clients of other connectors find it until then:
        what they count, purge or attach was before the deletion; their deletions wait, and their gets as long as for
        any queue in use.
        """
        name = queue.name

        def answer(result: object) -> None:
            _, waiting = self._leaving.pop(name)
            if isinstance(result, Exception):
                queue.end_leaving()
            done(result)
            for declare in waiting:
                declare()

        self._leaving[name] = (queue, [])
        queue.begin_leaving()
        self._shared.append(queue_deleted(queue.record), answer)

    def remove_local(self, queue: Queue, done: Callable[[], None] = lambda: None) -> None:
        """A queue in our memory goes; ``done`` when the other connectors know."""
        if self.queues.get(queue.name) is not queue:
            done()
            return
        del self.queues[queue.name]
        self._routes.clear()
        if queue.owner is not None:
            self._exclusive.get(queue.owner, {}).pop(queue.name, None)
        for key in self._local_bindings.pop(queue.name, ()):
            self.on_unbound(key)
        self._shared.counters.queues_deleted += 1
        queue.close(lambda: None)
        self._shared.others.withdraw(queue, done)

    def purge_queue(self, name: str, owner: object, done: Done) -> None:
        """``done`` gets the number of ready messages dropped (QU-10)."""
        try:
            self.find_queue(name, owner).purge(done)
        except BrokerError as error:
            done(error)

    def on_owner_gone(self, owner: object) -> None:
        """A connection ended: its exclusive queues go (QU-05)."""
        for queue in list(self._exclusive.pop(owner, {}).values()):
            self.remove_local(queue)

    def on_unused(self, queue: Queue) -> None:
        """An auto-delete queue lost its last consumer (QU-06)."""
        if is_reply_name(queue.name):
            self.replies.close(queue)
        elif queue.consumer_count or isinstance(queue, RemoteQueue):
            return
        elif not isinstance(queue, StoredQueue):
            self.remove_local(queue)
        elif self.queues.get(queue.name) is queue and not self._when_left(queue.name, lambda: self._look_later(queue)):
            self._remove_shared(queue, lambda _result: self._look_later(queue))

    def _look_later(self, queue: StoredQueue) -> None:
        """A deletion has ended; where the log did not take it: again, if nobody has come meanwhile."""

        def look() -> None:
            self._unused.discard(queue)
            self.on_unused(queue)

        if self.queues.get(queue.name) is queue and queue not in self._unused:
            self._unused.add(queue)
            self._shared.hub.call_later(UNUSED_RETRY_S, look)

    # ------------------------------------------------------------------ what the topology log says

    def on_queue_created(self, record: QueueRecord) -> None:
        """A shared queue exists from now on."""
        local = self.queues.get(record.name)
        if isinstance(local, RemoteQueue):
            self.remove_remote(local)
        elif local is not None:  # a throw-away queue of this name gives way to what all replicas know
            self.remove_local(local)
        self._add_queue(self._shared.stored_queue(record))

    def on_queue_deleted(self, record: QueueRecord) -> None:
        """The shared queue is gone; its channel is emptied."""
        queue = self.queues.pop(record.name, None)
        if isinstance(queue, StoredQueue):
            self._routes.clear()
            self._shared.counters.queues_deleted += 1
            self._shared.drain(queue)

"""Queues that another connector reads, or keeps in its memory: asking the owner, or becoming it.

Owns the questions under way, what was published to queues in others' memories and has no answer yet, and which queues
this connector waits for.  Implements ``ports.QueueOwner``.  When an owner is gone, what was asked of it is asked again
of whoever follows; a queue in its memory is gone with it.  Rules: docs/adr/0007-replicas.md.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from connector.broker import errors
from connector.broker.errors import BrokerError, NotFound
from connector.broker.members import queue_claimed
from connector.broker.outbox import OVERHEAD_BYTES
from connector.broker.ports import TimedOut
from connector.broker.remote_queue import RemoteQueue, RemoteReply

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.exchanges.binding import BindingKey
    from connector.broker.message import Message
    from connector.broker.peers import Facts, Peers
    from connector.broker.ports import Clock, Done, Receipt
    from connector.broker.queue import Queue, StoredQueue
    from connector.broker.topology import Topology

#: What was refused or overtaken is asked again after this.
RETRY_S = 0.05
#: A queue that its owner uses is asked for again after this.
ASK_AGAIN_S = 1.0
#: Whoever wants a message or a purge waits so long for the owner to let go, then is told where the queue is.
PATIENCE_S = 2.0
#: What an owner answers: the queue is not its; it uses the queue.
MOVED = "moved"
BUSY = "busy"


class Around(Protocol):
    """What is needed of the broker."""

    clock: Clock
    topology: Topology
    memory_bytes: int
    memory_limit_bytes: int

    def append(self, event: dict[str, Any], done: Done) -> None:
        """Write to the topology log."""

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run ``action`` later."""

    def report(self, what: str, **facts: object) -> None:
        """Tell an operator."""


class Published(NamedTuple):
    """A copy on its way to another one's memory; ``message`` of a reply, which may have no reader."""

    member: str
    receipt: Receipt
    token: int
    size: int
    message: Message | None


class Wish:
    """A queue that this connector wants to read."""

    __slots__ = ("is_asking", "is_told", "waiters")

    def __init__(self) -> None:
        self.is_asking = False
        self.is_told = False  # the log has a line
        self.waiters: list[tuple[float, Callable[[bool], None]]] = []


class Away:
    """What this connector asks of the owners."""

    def __init__(self, around: Around, peers: Peers) -> None:
        self._around = around
        self._peers = peers
        self.wishes: dict[Queue, Wish] = {}
        self._grown: dict[StoredQueue, int] = {}
        self._publishes: dict[int, Published] = {}
        self._last = 0
        peers.handlers["done"] = self._on_stored

    def owner_of(self, queue: Queue) -> str:
        """The member that has the queue."""
        if isinstance(queue, RemoteQueue):
            return queue.member_id
        return self._around.topology.members.owner_of(queue.record)

    # ------------------------------------------------------------------ publishing

    def publish(self, queue: RemoteQueue, message: Message, receipt: Receipt, token: int) -> None:
        """To a queue in another one's memory; refused at the process's mark, as by a queue here."""
        around = self._around
        size = len(message.body) + len(message.header) + OVERHEAD_BYTES
        if around.memory_bytes + size > around.memory_limit_bytes:
            receipt.on_refused(token, "memory mark of throw-away queues reached")
            return
        if queue.member_id not in self._peers:
            receipt.on_stored(token)  # gone with its owner: the message has no queue any more
            return
        around.memory_bytes += size
        self._last += 1
        reply = message if isinstance(queue, RemoteReply) else None
        self._publishes[self._last] = Published(queue.member_id, receipt, token, size, reply)
        facts = {"t": "publish", "q": key_of(queue), "n": self._last, "x": message.exchange, "k": message.routing_key}
        self._peers.tell(queue.member_id, facts, message.header, message.body)

    def _on_stored(self, _member: str, facts: Facts, _blobs: list[bytes]) -> None:
        receipts = {}
        refused, unrouted = dict(facts["refused"]), set(facts.get("unrouted", ()))
        for number in facts["n"]:
            published = self._publishes.pop(number, None)
            if published is None:
                continue
            _, receipt, token, size, message = published
            self._around.memory_bytes -= size
            if number in refused:
                receipt.on_refused(token, refused[number])
            elif message is not None and number in unrouted:
                receipt.on_unrouted(token, message)
            else:
                receipt.on_stored(token)
            receipts[id(receipt)] = receipt
        for receipt in receipts.values():
            receipt.flush()

    def on_gone(self, member: str) -> None:
        """What it has not confirmed is lost with its queues: nacked, where somebody waits for a confirm."""
        for number, (owner, receipt, token, size, message) in list(self._publishes.items()):
            if owner != member:
                continue
            del self._publishes[number]
            self._around.memory_bytes -= size
            if not receipt.retry:
                receipt.on_refused(token, "the connector that had the queue is gone")
            elif message is not None:
                receipt.on_unrouted(token, message)
            else:
                receipt.on_stored(token)
            receipt.flush()

    def look_for(self, queue: RemoteQueue, done: Callable[[bool], None]) -> None:
        """Whether there is a reader behind an address for direct replies: not when its connector is gone, too."""
        question = {"t": "do", "q": key_of(queue), "op": "count"}
        self._peers.call(queue.member_id, question, lambda facts: done(facts is not None and "error" not in facts))

    def on_grown(self, queue: StoredQueue) -> None:
        """We have stored a message: the owner is told with the next frame."""
        if not self._grown:
            self._peers.wake()
        self._grown[queue] = self._grown.get(queue, 0) + 1

    def watch_repeated(self, queue: StoredQueue, message_ids: list[str]) -> None:
        """We store these a second time: the owner drops what it reads twice."""
        self._peers.tell(self.owner_of(queue), {"t": "repeated", "q": key_of(queue), "ids": message_ids})

    def note_unknown(self, queue: StoredQueue, message_ids: list[str]) -> None:
        """We have refused these, but they may be stored: the owner has not counted them."""
        facts = {"t": "repeated", "q": key_of(queue), "ids": message_ids, "refused": True}
        self._peers.tell(self.owner_of(queue), facts)

    def tell_grown(self) -> None:
        """Tell the owners what we have stored in their queues since the last time."""
        grown, self._grown = self._grown, {}
        by_owner: dict[str, list[list[Any]]] = {}
        for queue, count in grown.items():
            owner = self.owner_of(queue)
            if owner in self._peers and not queue.is_deleted:
                by_owner.setdefault(owner, []).append([*key_of(queue), count])
        for owner, queues in by_owner.items():
            self._peers.tell(owner, {"t": "grew", "queues": queues})

    # ------------------------------------------------------------------ what the owner does for us

    def count(self, queue: Queue, done: Callable[[int, int], None], failed: Done) -> None:
        """Ready messages and consumers."""

        def answer(result: object) -> None:
            if isinstance(result, list):
                done(*result)
            else:
                failed(result)

        self._ask(queue, {"op": "count"}, answer, lambda: queue.count(done, failed))

    def when_sure(self, queue: RemoteQueue, done: Callable[[], None]) -> None:
        """Call ``done`` when the owner has said that the queue is still there, or that it is gone."""
        self._peers.call(queue.member_id, {"t": "do", "q": key_of(queue), "op": "count"}, lambda _facts: done())

    def purge(self, queue: Queue, done: Done) -> None:
        """The number dropped."""
        self._ask(queue, {"op": "purge"}, done, lambda: queue.purge(done))

    def delete(self, queue: Queue, if_unused: bool, if_empty: bool, done: Done, again: Callable[[], None]) -> None:
        """The number deleted; ``again`` begins anew, when the queue has another owner by now."""
        self._ask(queue, {"op": "delete", "if_unused": if_unused, "if_empty": if_empty}, done, again)

    def bind(self, queue: Queue, key: BindingKey, is_bound: bool, done: Done) -> None:
        """Bind a queue in another one's memory, or take the binding away."""
        arguments = base64.b64encode(key.arguments).decode("ascii")
        request = {"op": "bind" if is_bound else "unbind", "x": key.exchange, "k": key.routing_key, "a": arguments}
        self._ask(queue, request, done, lambda: self.bind(queue, key, is_bound, done))

    def admit(self, queue: Queue, is_exclusive: bool, done: Done, again: Callable[[], None]) -> None:
        """None when a consumer may attach here, else AccessRefused; ``again`` begins anew, with another owner."""
        self._ask(queue, {"op": "admit", "exclusive": is_exclusive}, done, again)

    def tell_room(self, queue: RemoteQueue, limit: int) -> None:
        """Consumers here take messages of a queue in another one's memory, up to this count of them from the start."""
        self._peers.tell(queue.member_id, {"t": "room", "q": key_of(queue), "limit": limit})

    def tell_settled(self, queue: RemoteQueue, op: str, sequences: list[int]) -> None:
        """What became of messages that its owner has sent: ``done``, ``requeue``, or ``back`` when nobody saw them."""
        self._peers.tell(queue.member_id, {"t": "settled", "q": key_of(queue), "op": op, "s": sequences})

    def _ask(self, queue: Queue, request: Facts, done: Done, again: Callable[[], None]) -> None:
        owner = self.owner_of(queue)
        if queue.is_deleted:
            done(NotFound(f"no {queue.label}"))
            return
        if owner not in self._peers:
            if isinstance(queue, RemoteQueue):
                self._around.call_later(RETRY_S, again)
            else:
                self.acquire(queue, lambda _is_ours: self._around.call_later(0.0, again))
            return

        def answer(facts: Facts | None) -> None:
            if facts is None or facts.get("error") == MOVED:
                self._around.call_later(RETRY_S, again)
            else:
                done(_result(facts))

        self._peers.call(owner, {"t": "do", "q": key_of(queue), **request}, answer)

    # ------------------------------------------------------------------ becoming the owner

    def want(self, queue: Queue) -> None:
        """Somebody consumes here: become the owner as soon as the present one lets go."""
        if isinstance(queue, RemoteQueue):
            if queue.waiting_count:
                self._report_waiting(queue)
        elif queue not in self.wishes:
            self._wish(queue)

    def acquire(self, queue: Queue, done: Callable[[bool], None]) -> None:
        """``done(True)`` when this connector reads the queue, ``done(False)`` when its owner does not let go of it."""
        wish = self.wishes.get(queue) or self._wish(queue)
        wish.waiters.append((self._around.clock() + PATIENCE_S, done))

    def _wish(self, queue: Queue) -> Wish:
        wish = self.wishes[queue] = Wish()
        self._around.call_later(0.0, lambda: self._pursue(queue))  # not inside of what asked
        return wish

    def _pursue(self, queue: Queue) -> None:
        """Ask for the queue, or claim it."""
        wish = self.wishes.get(queue)
        if wish is None or wish.is_asking:
            return
        if queue.is_deleted or not (wish.waiters or queue.consumers):
            self._grant(queue, is_ours=False)
            return
        owner = self.owner_of(queue)
        if owner in self._peers:
            wish.is_asking = True
            self._peers.call(owner, {"t": "release", "q": key_of(queue)}, lambda facts: self._on_release(queue, facts))
        elif not owner and self._peers.me in self._around.topology.members.living:
            wish.is_asking = True
            self._around.append(queue_claimed(queue.record, self._peers.me), lambda _result: self._on_claimed(queue))
        else:  # no member yet, or about to give it away
            self._around.call_later(RETRY_S, lambda: self._pursue(queue))

    def _on_claimed(self, queue: Queue) -> None:
        """The claim has come back; when it won, the wish is gone."""
        wish = self.wishes.get(queue)
        if wish is not None:
            wish.is_asking = False
            self._around.call_later(RETRY_S, lambda: self._pursue(queue))

    def _on_release(self, queue: Queue, facts: Facts | None) -> None:
        wish = self.wishes.get(queue)
        if wish is None:
            return
        wish.is_asking = False
        if facts is not None and facts["state"] == BUSY:
            if queue.consumers and not wish.is_told:
                wish.is_told = True
                self._report_waiting(queue)
            self._around.call_later(ASK_AGAIN_S, lambda: self._pursue(queue))
        else:
            self._around.call_later(RETRY_S, lambda: self._pursue(queue))

    def _report_waiting(self, queue: Queue) -> None:
        self._around.report(
            "consumers wait: another connector reads the queue",
            queue=queue.name,
            vhost=queue.record.vhost,
            reader=self.owner_of(queue),
        )

    def on_owned(self, queue: Queue) -> None:
        """The queue is ours."""
        self._grant(queue, is_ours=True)

    def _grant(self, queue: Queue, *, is_ours: bool) -> None:
        wish = self.wishes.pop(queue, None)
        if wish is not None:
            for _, done in wish.waiters:
                done(is_ours)

    def tick(self, now: float) -> None:
        """Whoever has waited long enough is told."""
        for wish in list(self.wishes.values()):
            late = [done for until, done in wish.waiters if until <= now]
            wish.waiters = [waiter for waiter in wish.waiters if waiter[0] > now]
            for done in late:
                done(False)


def key_of(queue: Queue) -> list[Any]:
    """How members name a queue to each other: virtual host, name, and which of that name."""
    number = queue.number if isinstance(queue, RemoteQueue) else queue.record.id
    return [queue.record.vhost, queue.name, number]


def _result(facts: Facts) -> object:
    """What an owner has answered: a value, or the exception it names."""
    if "error" not in facts:
        return facts["value"]
    kind = getattr(errors, facts["error"], None)
    if isinstance(kind, type) and issubclass(kind, BrokerError):
        return kind(facts["text"])
    return TimedOut(facts["text"])

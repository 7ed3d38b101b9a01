"""What other connectors ask of this one, and tell it: queues in their memory, consumers there, requests to an owner.

Owns the numbers under which queues in this connector's memory are known to the others, what is known of consumers
elsewhere, and who has asked for a queue that is in use here.  The operations themselves are the virtual host's.
Rules: docs/adr/0007-replicas.md.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Protocol

from connector.amqp.wire import read_table
from connector.broker.away import BUSY, MOVED, key_of
from connector.broker.errors import AccessRefused, BrokerError
from connector.broker.exchanges.binding import BindingKey
from connector.broker.lending import Lender
from connector.broker.memory_queue import MemoryQueue
from connector.broker.message import Message
from connector.broker.queue import StoredQueue
from connector.broker.remote_queue import RemoteQueue, RemoteReply
from connector.broker.replies import is_reply_name
from connector.broker.topology import QueueRecord, pack_table, unpack_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.away import Away
    from connector.broker.peers import Facts, Handler, Peers
    from connector.broker.ports import Clock, Done
    from connector.broker.queue import Hub, Queue
    from connector.broker.topology import Topology
    from connector.broker.vhost import VirtualHost

#: A queue that was asked for is looked at so often, for so long after it was asked for last.
LOOK_S = 0.05
ASKED_S = 3.0


class Around(Protocol):
    """What is needed of the broker."""

    clock: Clock
    topology: Topology

    @property
    def hub(self) -> Hub:
        """What queues need."""

    def host(self, name: str) -> VirtualHost:
        """A virtual host, made when it is not there."""

    def hosts(self) -> list[VirtualHost]:
        """All of them."""

    def give(self, queue: StoredQueue, taker: str) -> None:
        """Hand a queue over that nobody uses here."""

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run ``action`` later."""


class StoredElsewhere:
    """Tells a publisher's connector what became of its copies here; one per member."""

    retry = False
    __slots__ = ("_desk", "_done", "_member", "_refused", "_unrouted")

    def __init__(self, desk: PeerDesk, member: str) -> None:
        self._desk = desk
        self._member = member
        self._done: list[int] = []
        self._refused: list[tuple[int, str]] = []
        self._unrouted: list[int] = []

    def on_stored(self, token: int) -> None:
        """See ``ports.Receipt``."""
        self._done.append(token)

    def on_refused(self, token: int, reason: str) -> None:
        """See ``ports.Receipt``."""
        self._done.append(token)
        self._refused.append((token, reason))

    def on_doubt(self, token: int) -> None:
        """See ``ports.Receipt``; what is published for others goes into our memory, and no further."""

    def on_unrouted(self, token: int, message: Message) -> None:
        """See ``ports.Receipt``."""
        del message
        self._done.append(token)
        self._unrouted.append(token)

    def flush(self) -> None:
        """One message for all."""
        if self._done:
            facts = {"t": "done", "n": self._done, "refused": self._refused}
            self._desk.peers.tell(self._member, {**facts, "unrouted": self._unrouted} if self._unrouted else facts)
            self._done, self._refused, self._unrouted = [], [], []


class PeerDesk:
    """Serves the links of ``peers``."""

    def __init__(self, around: Around, peers: Peers, away: Away) -> None:
        self.peers = peers
        self._around = around
        self._away = away
        self._numbers: dict[Queue, int] = {}
        self._last = 0
        self._consumers: dict[tuple[Any, ...], dict[str, tuple[int, bool]]] = {}
        self._admitted: dict[tuple[Any, ...], str] = {}  # whose exclusive consumer is about to attach
        self._asked: dict[StoredQueue, tuple[str, float]] = {}
        self._receipts: dict[str, StoredElsewhere] = {}
        self._deferred: dict[tuple[Any, ...], list[Callable[[], None]]] = {}  # what is told of a queue that waits
        self.lender = Lender(peers, self._find, self.own_key)
        peers.handlers.update(
            {
                "lent": self._on_lent,
                "queue": self._on_queue,
                "gone": self._in_turn(self._on_queue_gone),
                "taken": self._on_taken,
                "bound": self._in_turn(self._on_bound),
                "unbound": self._in_turn(self._on_unbound),
                "consumers": self._on_consumers,
                "grew": self._on_grew,
                "repeated": self._on_repeated,
                "release": self._on_release,
                "publish": self._on_publish,
                "do": self._on_do,
            }
        )

    # ------------------------------------------------------------------ telling the others

    def greet(self, member: str) -> None:
        """Tell a new member all that is in no log."""
        for host in self._around.hosts():
            for queue in host.queues.values():
                if isinstance(queue, MemoryQueue):
                    self.peers.tell(member, self._queue_facts(queue))
                    for key in host.local_bindings(queue.name):
                        self.peers.tell(member, self._binding_facts("bound", host, queue, key))
                if queue.consumers:
                    self.peers.tell(member, self._consumer_facts(queue))

    def announce(self, queue: Queue, done: Callable[[], None]) -> None:
        """A queue is in our memory: ``done`` when all know; it is deleted by then if another one has the name."""
        facts = self._queue_facts(queue)

        def answered(answers: list[Facts]) -> None:
            host = self._around.host(queue.record.vhost)
            if any(answer["taken"] for answer in answers) and not queue.is_deleted:
                host.remove_local(queue)
            done()

        self.peers.call_all(facts, answered)

    def withdraw(self, queue: Queue, done: Callable[[], None]) -> None:
        """It is gone: ``done`` when all know."""
        self.lender.forget(queue)
        number = self._numbers.pop(queue, None)
        if number is None:
            done()
        else:
            self.peers.call_all({"t": "gone", "q": [queue.record.vhost, queue.name, number]}, lambda _answers: done())

    def announce_binding(self, queue: Queue, key: BindingKey, is_bound: bool, done: Callable[[], None]) -> None:
        """A queue in our memory was bound or unbound: ``done`` when all know."""
        host = self._around.host(queue.record.vhost)
        facts = self._binding_facts("bound" if is_bound else "unbound", host, queue, key)
        self.peers.call_all(facts, lambda _answers: done())

    def on_consumers_changed(self, queue: Queue) -> None:
        """One more here, or one less, or none any more."""
        if len(self.peers) and not is_reply_name(queue.name):
            self.peers.tell_all(self._consumer_facts(queue))

    def _queue_facts(self, queue: Queue) -> Facts:
        record = queue.record
        flags = [record.durable, record.exclusive, record.auto_delete]
        return {"t": "queue", "q": self.own_key(queue), "flags": flags, "arguments": pack_table(record.arguments)}

    def own_key(self, queue: Queue) -> list[Any]:
        """How the others know a queue that is in our memory, or stored."""
        if isinstance(queue, MemoryQueue):
            number = self._numbers.get(queue)
            if number is None:
                self._last += 1
                number = self._numbers[queue] = self._last
            return [queue.record.vhost, queue.name, number]
        return key_of(queue)

    def _binding_facts(self, kind: str, host: VirtualHost, queue: Queue, key: BindingKey) -> Facts:
        arguments = base64.b64encode(key.arguments).decode("ascii")
        return {
            "t": kind,
            "q": self.own_key(queue),
            "x": key.exchange,
            "k": key.routing_key,
            "a": arguments,
            "i": host.exchange_id(key.exchange),
        }

    def _consumer_facts(self, queue: Queue) -> Facts:
        is_exclusive = any(consumer.exclusive for consumer in queue.consumers)
        return {"t": "consumers", "q": self.own_key(queue), "n": len(queue.consumers), "exclusive": is_exclusive}

    # ------------------------------------------------------------------ what is known of the others

    def consumers_elsewhere(self, queue: Queue) -> tuple[int, bool]:
        """How many consumers the queue has on other connectors, and whether one of them is exclusive."""
        if not (self._consumers or self._admitted):
            return 0, False
        key = tuple(self.own_key(queue))
        known = self._consumers.get(key, {}).values()
        count, is_exclusive = sum(count for count, _ in known), any(exclusive for _, exclusive in known)
        return (count + 1, True) if key in self._admitted else (count, is_exclusive)

    def on_gone(self, member: str) -> None:
        """A member is gone, and with it what was in its memory and who consumed there."""
        self._receipts.pop(member, None)
        self.lender.on_gone(member)
        for key in [key for key, admitted in self._admitted.items() if admitted == member]:
            del self._admitted[key]
        for key in list(self._consumers):
            self._no_consumers(key, member)
        for host in self._around.hosts():
            for queue in [q for q in host.queues.values() if isinstance(q, RemoteQueue) and q.member_id == member]:
                host.remove_remote(queue)

    def _find(self, key: list[Any]) -> Queue | None:
        """The queue a member means, be it on its way out; None when it is not there, or not that one any more."""
        vhost, name, number = key
        host = self._around.host(vhost)
        queue = host.replies.by_name(name) if is_reply_name(name) else host.queues.get(name)
        if isinstance(queue, MemoryQueue):
            return queue if is_reply_name(name) or self._numbers.get(queue) == number else None
        if isinstance(queue, StoredQueue) and queue.record.id == number:
            return queue
        return None

    def _find_remote(self, member: str, key: list[Any]) -> RemoteQueue | None:
        queue = self._around.host(key[0]).queues.get(key[1])
        if isinstance(queue, RemoteQueue) and queue.member_id == member and queue.number == key[2]:
            return queue
        return None

    def _on_queue(self, member: str, facts: Facts, _blobs: list[bytes]) -> None:
        """Of two queues of one name the older member's stays, and before both one that is in the log or under way."""
        vhost, name, number = facts["q"]
        host = self._around.host(vhost)
        key = (member, vhost, name, number)
        if member not in self.peers:
            return
        if host.when_shared(name, lambda: self._resume(key, facts)):
            self._deferred[key] = []
            return
        known = host.queues.get(name)
        living = self._around.topology.members.living
        is_taken = isinstance(known, StoredQueue) or (
            isinstance(known, MemoryQueue) and living[self.peers.me].joined < living[member].joined
        )
        if is_taken:
            if "r" in facts:
                self.peers.answer(member, facts, taken=True)
            else:
                self.peers.tell(member, {"t": "taken", "q": facts["q"]})
            return
        durable, exclusive, auto_delete = facts["flags"]
        record = QueueRecord(vhost, name, durable, exclusive, auto_delete, unpack_table(facts["arguments"]))
        if isinstance(known, MemoryQueue):
            host.remove_local(known)
        elif isinstance(known, RemoteQueue):
            host.remove_remote(known)
        host.add_remote(RemoteQueue(record, self._around.hub, self._away, member, number))
        self.peers.answer(member, facts, taken=False)

    def _resume(self, key: tuple[Any, ...], facts: Facts) -> None:
        """The queue of its name is in the log, or will not be; then what was told of this one meanwhile."""
        waiting = self._deferred.pop(key)
        self._on_queue(key[0], facts, [])
        if key in self._deferred:
            self._deferred[key] += waiting
        else:
            for take in waiting:
                take()

    def _in_turn(self, handler: Handler) -> Handler:
        def take(member: str, facts: Facts, blobs: list[bytes]) -> None:
            waiting = self._deferred.get((member, *facts["q"]))
            if waiting is None:
                handler(member, facts, blobs)
            else:
                waiting.append(lambda: handler(member, facts, blobs))

        return take

    def _on_taken(self, _member: str, facts: Facts, _blobs: list[bytes]) -> None:
        queue = self._find(facts["q"])
        if isinstance(queue, MemoryQueue):
            self._around.host(queue.record.vhost).remove_local(queue)

    def _on_queue_gone(self, member: str, facts: Facts, _blobs: list[bytes]) -> None:
        queue = self._find_remote(member, facts["q"])
        if queue is not None:
            self._around.host(queue.record.vhost).remove_remote(queue)
        self.peers.answer(member, facts)

    def reply_queue(self, vhost: str, name: str) -> RemoteReply | None:
        """The queue behind an address for direct replies that another connector may have given out; None: none has."""
        replica = name.rpartition(".")[2]
        member = next((peer for peer in self.peers if peer.partition("-")[0] == replica), None)
        if member is None:
            return None
        record = QueueRecord(vhost, name, auto_delete=True)
        return RemoteReply(record, self._around.hub, self._away, member, 0)

    def _on_lent(self, member: str, facts: Facts, blobs: list[bytes]) -> None:
        """A message of a queue in its memory, for a consumer here."""
        queue = self._find_remote(member, facts["q"])
        if queue is None:
            self.peers.tell(member, {"t": "settled", "q": facts["q"], "op": "back", "s": [facts["s"]]})
            return
        header, body = blobs
        message = Message(facts["x"], facts["k"], header, body, sequence=facts["s"])
        message.redelivered, message.delivery_count = facts["again"], facts["count"]
        queue.on_lent(message)

    def _on_bound(self, member: str, facts: Facts, _blobs: list[bytes]) -> None:
        queue = self._find_remote(member, facts["q"])
        if queue is not None:
            queue.bindings[_binding(facts)] = facts["i"]
            self._around.host(queue.record.vhost).bind_remote(queue, facts["x"])
        self.peers.answer(member, facts)

    def _on_unbound(self, member: str, facts: Facts, _blobs: list[bytes]) -> None:
        queue = self._find_remote(member, facts["q"])
        if queue is not None and queue.bindings.pop(_binding(facts), None) is not None:
            self._around.host(queue.record.vhost).on_unbound(_binding(facts))
        self.peers.answer(member, facts)

    def _on_consumers(self, member: str, facts: Facts, _blobs: list[bytes]) -> None:
        key = tuple(facts["q"])
        if self._admitted.get(key) == member:
            del self._admitted[key]
        if facts["n"]:
            self._consumers.setdefault(key, {})[member] = (facts["n"], facts["exclusive"])
        else:
            self._no_consumers(key, member)

    def _no_consumers(self, key: tuple[Any, ...], member: str) -> None:
        """A member has none any more: an auto-delete queue may go if it was the last that had some (QU-06)."""
        known = self._consumers.get(key, {})
        if known.pop(member, None) is None or known:
            return
        del self._consumers[key]
        queue = self._find(list(key))
        if isinstance(queue, StoredQueue | MemoryQueue) and queue.record.auto_delete and not queue.consumers:
            self._around.hub.on_unused(queue)

    # ------------------------------------------------------------------ serving them

    def _on_publish(self, member: str, facts: Facts, blobs: list[bytes]) -> None:
        queue = self._find(facts["q"])
        receipt = self._receipts.setdefault(member, StoredElsewhere(self, member))
        header, body = blobs
        message = Message(facts["x"], facts["k"], header, body)
        if isinstance(queue, MemoryQueue):
            queue.publish(message, receipt, facts["n"])
        elif is_reply_name(facts["q"][1]):
            receipt.on_unrouted(facts["n"], message)
        else:
            receipt.on_stored(facts["n"])  # deleted under way (PU-17)

    def flush(self) -> None:
        """Tell what became of publishes since the last time."""
        for receipt in self._receipts.values():
            receipt.flush()

    def _on_grew(self, _member: str, facts: Facts, _blobs: list[bytes]) -> None:
        for *key, count in facts["queues"]:
            queue = self._find(key)
            if isinstance(queue, StoredQueue) and queue.is_owned:
                queue.on_grown(count)

    def _on_repeated(self, _member: str, facts: Facts, _blobs: list[bytes]) -> None:
        queue = self._find(facts["q"])
        if isinstance(queue, StoredQueue) and queue.is_owned:
            note = queue.note_unknown if facts.get("refused") else queue.watch_repeated
            note(facts["ids"])

    def _on_do(self, member: str, facts: Facts, _blobs: list[bytes]) -> None:
        queue = self._find(facts["q"])
        self.flush()  # what was published before is told first, too

        def done(result: object) -> None:
            if isinstance(result, Exception):
                kind = type(result).__name__ if isinstance(result, BrokerError) else ""
                self.peers.answer(member, facts, error=kind, text=str(result))
            else:
                self.peers.answer(member, facts, value=result)

        if queue is None or not queue.is_owned:
            self.peers.answer(member, facts, error=MOVED)
        else:
            self._do(member, queue, facts, done)

    def _do(self, member: str, queue: Queue, facts: Facts, done: Done) -> None:
        host = self._around.host(queue.record.vhost)
        op = facts["op"]
        if op == "count":
            queue.count(lambda ready, consumers: done([ready, consumers]), done)
        elif op == "purge":
            queue.purge(done)
        elif op == "admit":
            self._admit(member, queue, facts["exclusive"], done)
        elif op == "delete":
            host.delete_queue(queue.name, queue.owner, facts["if_unused"], facts["if_empty"], done)
        else:
            change = host.bind_queue if op == "bind" else host.unbind_queue
            arguments = read_table(base64.b64decode(facts["a"]), 0)[0]
            change(queue.name, facts["x"], facts["k"], arguments, queue.owner, done)

    def _admit(self, member: str, queue: Queue, is_exclusive: bool, done: Done) -> None:
        """Of exclusive consumers that come to several connectors at once the owner lets one attach (CO-28)."""
        count, has_exclusive = self.consumers_elsewhere(queue)
        has_exclusive = has_exclusive or any(consumer.exclusive for consumer in queue.consumers)
        if has_exclusive or (is_exclusive and (count or queue.consumers)):
            done(AccessRefused(f"{queue.label} in exclusive use"))
            return
        if is_exclusive:
            self._admitted[tuple(self.own_key(queue))] = member
        done(None)

    # ------------------------------------------------------------------ handing over

    def _on_release(self, member: str, facts: Facts, _blobs: list[bytes]) -> None:
        queue = self._find(facts["q"])
        if not isinstance(queue, StoredQueue) or not queue.is_owned:
            self.peers.answer(member, facts, state=MOVED)
        elif queue.is_unused:
            self.peers.answer(member, facts, state="given")
            self._around.give(queue, member)
        else:
            self.peers.answer(member, facts, state=BUSY)
            if not self._asked:
                self._around.call_later(LOOK_S, self._look)
            self._asked.setdefault(queue, (member, 0.0))
            first, _ = self._asked[queue]
            self._asked[queue] = (first, self._around.clock())

    def _look(self) -> None:
        """Give what was asked for, as soon as nobody uses it here."""
        now = self._around.clock()
        for queue, (member, asked_at) in list(self._asked.items()):
            if not queue.is_owned or queue.is_deleted or member not in self.peers or now - asked_at > ASKED_S:
                del self._asked[queue]
            elif queue.is_unused:
                del self._asked[queue]
                self._around.give(queue, member)
        if self._asked:
            self._around.call_later(LOOK_S, self._look)


def _binding(facts: Facts) -> BindingKey:
    return BindingKey(facts["x"], facts["q"][1], facts["k"], base64.b64decode(facts["a"]))

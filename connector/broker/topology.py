"""Declarations as a fold: the same events in the same order give the same state on every replica.

Owns the records of shared exchanges, queues and bindings, the JSON form of the events that change them, and
snapshots.  Pure: no queue objects, no clock.  Throw-away entities never come here (design.md sections 5 and 6).

An event is a JSON object: ``v`` (1), ``id`` (unique), ``member`` (who wrote it), ``type`` and the type's fields;
field tables travel as base64 of their AMQP encoding, so every width survives.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from connector.amqp.wire import read_table, write_table
from connector.broker.event_shapes import is_entry, is_well_formed
from connector.broker.exchanges.binding import EXCHANGE, QUEUE, BindingKey, Kind
from connector.broker.generations import Generations, Left, unpack_generations
from connector.broker.members import Member, Members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connector.amqp.wire import Table

VERSION = 1
#: A snapshot's lists, in the order in which they are loaded, with the type of event their entries are, if they are.
_LISTS = {
    "exchanges": "exchange.declared",
    "queues": "queue.declared",
    "bindings": "queue.bound",
    "undrained": "",
    "deletions": "",
    "left": "",
    "claims": "",
}


@dataclass(slots=True)
class QueueRecord:
    """A declared queue; ``id`` is the Sequence of the event that created it (0: local to this replica)."""

    vhost: str
    name: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Table = field(default_factory=dict)
    id: int = 0
    generations: Generations = field(default_factory=Generations)


@dataclass(slots=True)
class ExchangeRecord:
    """A declared exchange."""

    vhost: str
    name: str
    type: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = field(default_factory=dict)
    id: int = 0


def pack_table(table: Table) -> str:
    """A field table as text for an event."""
    return base64.b64encode(write_table(table)).decode("ascii")


def unpack_table(text: str) -> Table:
    """The reverse of ``pack_table``."""
    return read_table(base64.b64decode(text), 0)[0] if text else {}


def encode_event(event: dict[str, Any]) -> bytes:
    """An event as bytes for the log."""
    return json.dumps(event, separators=(",", ":")).encode("ascii")


def decode_event(data: bytes) -> dict[str, Any] | None:
    """The event in these bytes, or None for what is not ours, of an unknown version, or malformed."""
    event = _read(data)
    if event.get("v") != VERSION or not isinstance(event.get("type"), str):
        return None
    return event if is_well_formed(event) else None


def event_id(data: bytes) -> str:
    """The id in the bytes of an event, be it malformed; "" for none."""
    found = _read(data).get("id")
    return found if isinstance(found, str) else ""


def _read(data: bytes) -> dict[str, Any]:
    """The object in these bytes, an empty one where there is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def queue_declared(record: QueueRecord) -> dict[str, Any]:
    """The event that creates this queue."""
    return {
        "type": "queue.declared",
        "vhost": record.vhost,
        "name": record.name,
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "arguments": pack_table(record.arguments),
    }


def exchange_declared(record: ExchangeRecord) -> dict[str, Any]:
    """The event that creates this exchange."""
    return {
        "type": "exchange.declared",
        "vhost": record.vhost,
        "name": record.name,
        "kind": record.type,
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "internal": record.internal,
        "arguments": pack_table(record.arguments),
    }


def binding_event(kind: str, vhost: str, key: BindingKey) -> dict[str, Any]:
    """``kind`` is ``queue.bound`` or ``queue.unbound``.

    ``queue`` names the destination; ``kind`` stands in the event only where that is an exchange.
    """
    event = {
        "type": kind,
        "vhost": vhost,
        "exchange": key.exchange,
        "queue": key.destination,
        "routing_key": key.routing_key,
        "arguments": base64.b64encode(key.arguments).decode("ascii"),
    }
    return event if key.kind == QUEUE else {**event, "kind": key.kind}


def name_event(kind: str, vhost: str, name: str) -> dict[str, Any]:
    """An event that only names something: ``queue.deleted``, ``queue.drained``, ``exchange.deleted``."""
    return {"type": kind, "vhost": vhost, "name": name}


def queue_deleted(record: QueueRecord) -> dict[str, Any]:
    """``queue.deleted`` of exactly this queue: one of its name that is declared later stays."""
    return {**name_event("queue.deleted", record.vhost, record.name), "queue_id": record.id}


def unused_exchange_event(record: ExchangeRecord) -> dict[str, Any]:
    """``exchange.deleted`` of exactly this one, but only if nothing is bound to it when the event is applied."""
    return {**name_event("exchange.deleted", record.vhost, record.name), "exchange_id": record.id, "if_unused": True}


class Observer:
    """What changes while events are applied; the default ignores everything."""

    def on_queue_created(self, record: QueueRecord) -> None:
        """A queue exists from now on."""

    def on_queue_deleted(self, record: QueueRecord) -> None:
        """The queue is gone, and its bindings (reported before)."""

    def on_queue_moving(self, record: QueueRecord, source: int) -> None:
        """A move out of this generation has begun."""

    def on_queue_moved(self, record: QueueRecord, source: int) -> None:
        """The move out of this generation is done."""

    def on_queue_rescued(self, record: QueueRecord) -> None:
        """What older generations withheld may be read."""

    def on_queue_drained(self, vhost: str, name: str) -> None:
        """Nothing of the deleted queue of this name is left."""

    def on_members_changed(self) -> None:
        """A member has joined or left; queues may have changed hands."""

    def on_owner_changed(self, record: QueueRecord, seen: dict[str, int]) -> None:
        """The queue was claimed or given; ``seen`` is what its giver knew of what clients have had."""

    def on_exchange_created(self, record: ExchangeRecord) -> None:
        """An exchange exists from now on."""

    def on_exchange_deleted(self, record: ExchangeRecord) -> None:
        """The exchange is gone with all that was bound to it; bindings that led to it are reported afterwards."""

    def on_bound(self, vhost: str, key: BindingKey) -> None:
        """A binding exists from now on."""

    def on_unbound(self, vhost: str, key: BindingKey) -> None:
        """The binding is gone."""

    def on_skipped(self, sequence: int, what: object, error: Exception | None) -> None:
        """An event, or an entry of a snapshot, could not be applied: it does not fit, or this came of trying."""


class Topology:
    """The folded state; names are (vhost, name)."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.queues: dict[tuple[str, str], QueueRecord] = {}
        self.exchanges: dict[tuple[str, str], ExchangeRecord] = {}
        self.bindings: dict[tuple[str, BindingKey], None] = {}
        self._from: dict[tuple[str, str], dict[BindingKey, None]] = {}
        self._to: dict[tuple[str, Kind, str], dict[BindingKey, None]] = {}
        self.members = Members()
        #: deleted queues whose channel is not empty yet, and who empties it (the oldest member if that one is gone)
        self.undrained: dict[tuple[str, str], str] = {}
        #: the event that deleted each of them, where that is known
        self.deletions: dict[tuple[str, str], int] = {}
        #: of deleted queues that had moved: who declares one again goes on with its generations
        self.left: dict[tuple[str, str], Generations] = {}
        self.server_start = 0
        self.version = 0
        self.events_since_snapshot = 0

    def apply(self, sequence: int, event: dict[str, Any]) -> bool | None:
        """Fold one event in; True when it changed the state (unknown and outdated ones do not).

        None: it cannot be applied.  Then nothing of it stays, and the observer is told.
        """
        self.version = sequence
        self.events_since_snapshot += 1
        return self._fold(sequence, event)

    def _fold(self, sequence: int, event: dict[str, Any]) -> bool | None:
        handler = _HANDLERS.get(event["type"])
        if handler is None:
            return False
        try:
            return handler(self, sequence, event)
        except Exception as error:  # noqa: BLE001 - whatever it is: what comes after it must be applied
            self._take_back(event)
            self._observer.on_skipped(sequence, event, error)
            return None

    def _take_back(self, event: dict[str, Any]) -> None:
        """Forget what the event began to create: else the next snapshot has it, and every later start fails."""
        kind, key = event["type"], (event.get("vhost", ""), event.get("name", ""))
        if kind == "queue.declared":
            self.queues.pop(key, None)
            self.members.forget(key)
        elif kind == "exchange.declared":
            self.exchanges.pop(key, None)
        elif kind == "queue.bound":
            binding = _binding_key(event)
            if (key[0], binding) in self.bindings:
                self._forget_binding(key[0], binding)

    def _queue_declared(self, sequence: int, event: dict[str, Any]) -> bool:
        key = (event["vhost"], event["name"])
        if key in self.queues:
            return False
        record = QueueRecord(
            *key,
            durable=event["durable"],
            auto_delete=event["auto_delete"],
            arguments=unpack_table(event["arguments"]),
            id=event.get("queue_id") or sequence,
            generations=self.left.pop(key) if key in self.left else unpack_generations(event.get("generations")),
        )
        self.queues[key] = record
        self.deletions.pop(key, None)
        self.undrained.pop(key, None)  # nobody declares it again before it is empty
        self.members.declare(record, event.get("member", ""))
        self._observer.on_queue_created(record)
        return True

    def _queue_deleted(self, sequence: int, event: dict[str, Any]) -> bool:
        key = (event["vhost"], event["name"])
        record = self.queues.get(key)
        if record is None or event.get("queue_id", record.id) != record.id:
            return False
        for binding in list(self._to.get((key[0], QUEUE, key[1]), ())):
            self._drop_binding(key[0], binding)
        del self.queues[key]
        self.deletions[key] = sequence
        self.undrained[key] = self.members.owner_of(record) or event.get("member", "")
        self.members.forget(key)
        if record.generations.last or record.generations.left:
            record.generations.moving.clear()
            self.left[key] = record.generations
        self._observer.on_queue_deleted(record)
        return True

    def _queue_moving(self, _sequence: int, event: dict[str, Any]) -> bool:
        record = self.queues.get((event["vhost"], event["name"]))
        if record is None or not record.generations.begin(event["source"], event["generation"], event["reason"]):
            return False
        self._observer.on_queue_moving(record, event["source"])
        return True

    def _queue_moved(self, _sequence: int, event: dict[str, Any]) -> bool:
        record = self.queues.get((event["vhost"], event["name"]))
        left = Left(
            event["withheld"],
            event["copied"],
            event.get("upto", 0),
            known_at=event.get("known_at", 0),
            gone=event.get("gone", 0),
        )
        if record is None or not record.generations.finish(event["source"], event["generation"], left):
            return False
        self._observer.on_queue_moved(record, event["source"])
        return True

    def _queue_retired(self, _sequence: int, event: dict[str, Any]) -> bool:
        record = self.queues.get((event["vhost"], event["name"]))
        return record is not None and record.generations.retire(event["generation"])

    def _queue_rescued(self, _sequence: int, event: dict[str, Any]) -> bool:
        key = (event["vhost"], event["name"])
        record = self.queues.get(key)
        if record is None:  # the next one of its name begins with what is left
            return key in self.left and self.left[key].rescue()
        if not record.generations.rescue():
            return False
        self._observer.on_queue_rescued(record)
        return True

    def _server_started(self, _sequence: int, event: dict[str, Any]) -> bool:
        self.server_start = event["start_time"]
        return True

    def _queue_drained(self, _sequence: int, event: dict[str, Any]) -> bool:
        key = (event["vhost"], event["name"])
        known = self.deletions.get(key, 0)
        if key not in self.undrained or (known and event.get("deletion", known) != known):  # or it is an earlier one's
            return False
        del self.undrained[key]
        self.deletions.pop(key, None)
        if event.get("left"):
            self.left.setdefault(key, Generations()).outlive(event["left"], event.get("known_at", 0))
        self._observer.on_queue_drained(*key)
        return True

    def drainer_of(self, key: tuple[str, str]) -> str:
        """Who empties the channel of this deleted queue; "" when there is no group."""
        members = self.members
        return self.undrained[key] if self.undrained[key] in members.living else members.oldest

    def _member_joined(self, sequence: int, event: dict[str, Any]) -> bool:
        member = Member(event["who"], sequence, event["host"], event["process"], event.get("name", ""))
        if not self.members.join(member):
            return False
        self._observer.on_members_changed()
        return True

    def _member_left(self, _sequence: int, event: dict[str, Any]) -> bool:
        if not self.members.leave(event["who"]):
            return False
        self._observer.on_members_changed()
        return True

    def _named_queue(self, event: dict[str, Any]) -> QueueRecord | None:
        record = self.queues.get((event["vhost"], event["name"]))
        return None if record is None or record.id != event["queue_id"] else record

    def _queue_claimed(self, _sequence: int, event: dict[str, Any]) -> bool:
        record = self._named_queue(event)
        if record is None or not self.members.claim(record, event["who"]):
            return False
        self._observer.on_owner_changed(record, {})
        return True

    def _queue_given(self, _sequence: int, event: dict[str, Any]) -> bool:
        record = self._named_queue(event)
        if record is None or not self.members.give(record, event["giver"], event["taker"]):
            return False
        self._observer.on_owner_changed(record, event["seen"])
        return True

    def _exchange_declared(self, sequence: int, event: dict[str, Any]) -> bool:
        key = (event["vhost"], event["name"])
        if key in self.exchanges:
            return False
        record = ExchangeRecord(
            *key,
            type=event["kind"],
            durable=event["durable"],
            auto_delete=event["auto_delete"],
            internal=event["internal"],
            arguments=unpack_table(event["arguments"]),
            id=event.get("exchange_id") or sequence,
        )
        self.exchanges[key] = record
        self._observer.on_exchange_created(record)
        return True

    def _exchange_deleted(self, _sequence: int, event: dict[str, Any]) -> bool:
        key = (event["vhost"], event["name"])
        record = self.exchanges.get(key)
        bindings = list(self._from.get(key, ()))
        if record is None or event.get("exchange_id", record.id) != record.id:
            return False
        if bindings and event.get("if_unused", False):
            return False
        for binding in bindings:
            self._forget_binding(key[0], binding)
        del self.exchanges[key]
        self._observer.on_exchange_deleted(record)
        for binding in list(self._to.get((key[0], EXCHANGE, key[1]), ())):
            self._drop_binding(key[0], binding)
        return True

    def _bound(self, _sequence: int, event: dict[str, Any]) -> bool:
        vhost = event["vhost"]
        key = _binding_key(event)
        is_known = self._has_exchange(vhost, key.exchange) and (
            (vhost, key.destination) in self.queues if key.kind == QUEUE else self._has_exchange(vhost, key.destination)
        )
        if not is_known or (vhost, key) in self.bindings:
            return False
        self.bindings[vhost, key] = None
        self._from.setdefault((vhost, key.exchange), {})[key] = None
        self._to.setdefault((vhost, key.kind, key.destination), {})[key] = None
        self._observer.on_bound(vhost, key)
        return True

    def _has_exchange(self, vhost: str, name: str) -> bool:
        return (vhost, name) in self.exchanges or name.startswith("amq.")

    def _unbound(self, _sequence: int, event: dict[str, Any]) -> bool:
        return self._drop_binding(event["vhost"], _binding_key(event))

    def _drop_binding(self, vhost: str, key: BindingKey) -> bool:
        if (vhost, key) not in self.bindings:
            return False
        self._forget_binding(vhost, key)
        self._observer.on_unbound(vhost, key)
        return True

    def _forget_binding(self, vhost: str, key: BindingKey) -> None:
        del self.bindings[vhost, key]
        for index, place in ((self._from, (vhost, key.exchange)), (self._to, (vhost, key.kind, key.destination))):
            bindings = index[place]  # type: ignore[index]
            del bindings[key]
            if not bindings:
                del index[place]  # type: ignore[arg-type]

    # ------------------------------------------------------------------ snapshots

    def snapshot_event(self) -> dict[str, Any]:
        """The whole state as one event; ``upto`` is the last Sequence folded in."""
        self.events_since_snapshot = 0
        return {
            "type": "snapshot",
            "upto": self.version,
            "queues": [
                {**queue_declared(r), "queue_id": r.id, "generations": r.generations.pack()}
                for r in self.queues.values()
            ],
            "exchanges": [{**exchange_declared(r), "exchange_id": r.id} for r in self.exchanges.values()],
            "bindings": [binding_event("queue.bound", vhost, key) for vhost, key in self.bindings],
            "undrained": [[*key, drainer] for key, drainer in self.undrained.items()],
            "deletions": [[*key, sequence] for key, sequence in self.deletions.items()],
            "left": [[*key, generations.pack()] for key, generations in self.left.items()],
            "server_start": self.server_start,
            **self.members.pack(),
        }

    def load_snapshot(self, event: dict[str, Any]) -> None:
        """Start from a snapshot (only into an empty state); an entry that cannot be loaded is skipped."""
        entries = {section: list(self._fitting(event, section)) for section in _LISTS}
        for section, kind in _LISTS.items():
            if kind:
                for declared in entries[section]:
                    self._fold(event["upto"], declared)
        for vhost, name, *drainer in entries["undrained"]:
            self.undrained[vhost, name] = drainer[0] if drainer else ""
        for vhost, name, sequence in entries["deletions"]:
            self.deletions[vhost, name] = sequence
        for vhost, name, packed in entries["left"]:
            self.left[vhost, name] = unpack_generations(packed)
            self.left[vhost, name].moving.clear()  # an older version kept the moves of a deleted queue
        self.server_start = event.get("server_start", 0)
        self.members.load({**event, "claims": entries["claims"]})
        self.version = event["upto"]
        self.events_since_snapshot = 0

    def _fitting(self, event: dict[str, Any], section: str) -> Iterator[Any]:
        for entry in event.get(section, ()):
            if is_entry(section, entry):
                yield entry
            else:
                self._observer.on_skipped(event["upto"], entry, None)


def _binding_key(event: dict[str, Any]) -> BindingKey:
    arguments = base64.b64decode(event["arguments"])
    return BindingKey(
        event["exchange"], event["queue"], event["routing_key"], arguments, EXCHANGE if "kind" in event else QUEUE
    )


_HANDLERS: dict[str, Callable[[Topology, int, dict[str, Any]], bool]] = {
    "queue.declared": Topology._queue_declared,  # noqa: SLF001
    "queue.deleted": Topology._queue_deleted,  # noqa: SLF001
    "queue.drained": Topology._queue_drained,  # noqa: SLF001
    "queue.moving": Topology._queue_moving,  # noqa: SLF001
    "queue.moved": Topology._queue_moved,  # noqa: SLF001
    "queue.retired": Topology._queue_retired,  # noqa: SLF001
    "queue.rescued": Topology._queue_rescued,  # noqa: SLF001
    "queue.claimed": Topology._queue_claimed,  # noqa: SLF001
    "queue.given": Topology._queue_given,  # noqa: SLF001
    "member.joined": Topology._member_joined,  # noqa: SLF001
    "member.left": Topology._member_left,  # noqa: SLF001
    "server.started": Topology._server_started,  # noqa: SLF001
    "exchange.declared": Topology._exchange_declared,  # noqa: SLF001
    "exchange.deleted": Topology._exchange_deleted,  # noqa: SLF001
    "queue.bound": Topology._bound,  # noqa: SLF001
    "queue.unbound": Topology._unbound,  # noqa: SLF001
}
HANDLED_TYPES = _HANDLERS.keys()

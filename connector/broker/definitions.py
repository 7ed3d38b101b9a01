"""Definitions in RabbitMQ's JSON format: what is declared as a document, and a document declared (OP-14).

Owns reading and writing that format, the differences between two documents, and the order in which one is applied.
Applying only adds: it declares as a client would, so what exists and agrees stays, and what exists and differs is
reported, never changed.  Must not know where documents come from.  Queues in memory (exclusive ones, throw-away ones)
are not part of it: they are neither exported nor declared nor compared, nor are their bindings.  Source: RabbitMQ
3.10's ``rabbit_definitions``.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from connector.amqp.wire import MAX_DEPTH, SHORTSTR_MAX_BYTES, read_table, table_from_python, write_table
from connector.broker.errors import BrokerError, NotAllowed, NotFound
from connector.broker.exchanges.binding import EXCHANGE, QUEUE
from connector.broker.requests import ExchangeDeclare, QueueDeclare
from connector.broker.routing import PREDECLARED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from connector.amqp.wire import Field, Table
    from connector.broker.broker import Broker
    from connector.broker.exchanges.binding import BindingKey
    from connector.broker.ports import Done
    from connector.broker.topology import ExchangeRecord, QueueRecord

#: What a document may hold that has no meaning here.
IGNORED = ("users", "permissions", "topic_permissions", "policies", "parameters", "global_parameters")
#: Plain facts about where a document comes from.
_ABOUT = frozenset((
    "rabbit_version", "rabbitmq_version", "rabbitmq_definition_format", "product_name", "product_version",
    "original_cluster_name", "original_vhost_name", "explanation", "metadata",
))  # fmt: skip
#: Sections that are applied, in this order, with the required fields of an entry and the others with their defaults.
_SECTIONS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "exchanges": (("name", "type"), {"durable": True, "auto_delete": False, "internal": False, "arguments": {}}),
    "queues": (("name",), {"durable": True, "auto_delete": False, "arguments": {}}),
    "bindings": (("source", "destination"), {"destination_type": "queue", "routing_key": "", "arguments": {}}),
}


class DefinitionsError(Exception):
    """A document that cannot be read as definitions; the text says where it is wrong."""


class Entry(NamedTuple):
    """One exchange, queue or binding of a document; ``fields`` has every field of its section."""

    section: str
    vhost: str
    fields: dict[str, Any]

    @property
    def label(self) -> str:
        """What reports call it."""
        fields, vhost = self.fields, _shown(self.vhost)
        if self.section != "bindings":
            return f"{self.section[:-1]} '{_shown(fields['name'])}' in vhost '{vhost}'"
        arguments = f" {_text(fields['arguments'])}" if fields["arguments"] else ""
        kind, destination = _shown(fields["destination_type"]), _shown(fields["destination"])
        return (
            f"binding from '{_shown(fields['source'])}' to {kind} '{destination}' "
            f"by '{_shown(fields['routing_key'])}'{arguments} in vhost '{vhost}'"
        )

    @property
    def identity(self) -> str:
        """Equal for the same thing in two documents."""
        return self.label

    @property
    def queue(self) -> tuple[str, str] | None:
        """The queue that it is, or is bound."""
        fields = self.fields
        if self.section == "queues":
            return self.vhost, fields["name"]
        return (self.vhost, fields["destination"]) if fields.get("destination_type") == QUEUE else None


class Definitions(NamedTuple):
    """A document, read: its entries in the order in which they can be declared, and what of it is ignored.

    ``refused`` has a line for every row that nobody could declare, here or elsewhere.
    """

    entries: list[Entry]
    notes: list[str]
    refused: list[str]


@dataclass(slots=True)
class Report:
    """What came of applying: counts by section, and lines.

    ``notes`` say what has no meaning here, ``refused`` has a line for everything that should be there now and is not.
    ``may_retry``: for some of that the log could not be written; what is missing can be applied again.
    """

    created: Counter[str] = field(default_factory=Counter)
    unchanged: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    may_retry: bool = False


# ------------------------------------------------------------------------------------------------- writing
def export(broker: Broker, vhost: str | None = None) -> dict[str, Any]:
    """All that is declared and shared, or that of one virtual host; raises NotFound."""
    only = None if vhost is None else broker.virtual_host(vhost)
    titles = {host.name: host.title for host in broker.vhosts.values() if only in (None, host)}
    topology = broker.topology
    document: dict[str, Any] = {} if only else {"vhosts": [{"name": title} for title in sorted(titles.values())]}
    document["queues"] = [_queue(record, titles) for record in topology.queues.values() if record.vhost in titles]
    document["exchanges"] = [
        _exchange(record, titles) for record in topology.exchanges.values() if record.vhost in titles
    ]
    document["bindings"] = [_binding(key, titles[name]) for name, key in topology.bindings if name in titles]
    if only:
        for section in _SECTIONS:
            for entry in document[section]:
                del entry["vhost"]
    return document


def _queue(record: QueueRecord, titles: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": record.name,
        "vhost": titles[record.vhost],
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "arguments": table_to_json(record.arguments),
    }


def _exchange(record: ExchangeRecord, titles: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": record.name,
        "vhost": titles[record.vhost],
        "type": record.type,
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "internal": record.internal,
        "arguments": table_to_json(record.arguments),
    }


def _binding(key: BindingKey, title: str) -> dict[str, Any]:
    return {
        "source": key.exchange,
        "vhost": title,
        "destination": key.destination,
        "destination_type": key.kind,
        "routing_key": key.routing_key,
        "arguments": table_to_json(read_table(key.arguments, 0)[0]),
    }


def table_to_json(table: Mapping[str, Field]) -> dict[str, Any]:
    """An AMQP table as the document has it: bytes as text, a decimal as a number; widths and times are lost."""
    return {name: _value(field) for name, field in table.items()}


def _value(field: Field) -> Any:
    """A value as JSON has it: bytes as text, a decimal as a number; widths and times are lost, as in RabbitMQ's."""
    value: Any = field[1]
    match field[0]:
        case "F":
            return table_to_json(value)
        case "A":
            return [_value(item) for item in value]
        case "S" | "x":
            return value.decode("utf-8", "surrogateescape")
        case "D":
            return value[1] / 10 ** value[0]
        case _:
            return value


# ------------------------------------------------------------------------------------------------- reading
def read(document: object, vhost: str | None = None) -> Definitions:
    """Check a document and take it apart; with ``vhost``, all its entries belong there.  Raises DefinitionsError."""
    if not isinstance(document, dict):
        raise DefinitionsError("the document is not a JSON object")
    found = Definitions([], [], [])
    for name, content in document.items():
        if name in IGNORED and content:
            found.notes.append(f"{name} ignored: {len(content) if isinstance(content, list) else 1}")
        elif name not in _SECTIONS and name not in IGNORED and name != "vhosts" and name not in _ABOUT:
            found.notes.append(f"unknown section ignored: {_shown(name)}")
    for section in _SECTIONS:
        for entry in _read_section(document, section, vhost):
            reason = _why_unfit(entry)
            if reason:
                bare = Entry(section, entry.vhost, {**entry.fields, "arguments": {}})
                found.refused.append(f"{bare.label}: {reason}")
            else:
                found.entries.append(entry)
    return found


def _read_section(document: dict[str, Any], section: str, vhost: str | None) -> Iterator[Entry]:
    required, defaults = _SECTIONS[section]
    rows = document.get(section, [])
    if not isinstance(rows, list):
        raise DefinitionsError(f"{section} is not a list")
    for number, row in enumerate(rows):
        place = f"{section}[{number}]"
        if not isinstance(row, dict):
            raise DefinitionsError(f"{place} is not an object")
        values = {**defaults, **row}
        for name in required:
            if name not in values:
                raise DefinitionsError(f"{place} has no {name}")
        fields = {name: values[name] for name in (*required, *defaults)}
        for name, value in fields.items():
            kind = type(defaults.get(name, ""))
            if not isinstance(value, kind):
                raise DefinitionsError(f"{place}: {name} is not a {_KINDS[kind]}")
        home = values.get("vhost", "/") if vhost is None else vhost
        if not isinstance(home, str):
            raise DefinitionsError(f"{place}: vhost is not a string")
        if "name" in fields:  # as a declaration reads it
            fields["name"] = fields["name"].replace("\r", "").replace("\n", "")
        if section != "bindings" or fields["source"]:  # the default exchange's bindings are everywhere anyway
            yield Entry(section, "/" if home in {"", "default"} else home, fields)


_KINDS = {str: "string", bool: "boolean", dict: "object"}


def _why_unfit(entry: Entry) -> str:
    """Why AMQP has no words for this row; "" if it has."""
    fields = entry.fields
    for name in ("name",) if "name" in fields else ("source", "destination", "routing_key"):
        try:
            size = len(fields[name].encode("utf-8"))
        except UnicodeEncodeError:
            return f"{name} is not UTF-8"
        if size > SHORTSTR_MAX_BYTES:
            return f"{name} has {size} bytes, which are more than {SHORTSTR_MAX_BYTES}"
    if entry.section == "queues" and not fields["name"]:
        return "name is empty"
    if fields.get("destination_type", QUEUE) not in {QUEUE, EXCHANGE}:
        return "destination_type is neither queue nor exchange"
    return _why_no_table(fields["arguments"]) if fields["arguments"] else ""


def _why_no_table(arguments: dict[str, Any]) -> str:
    if _is_deep(arguments):
        return f"arguments are nested deeper than {MAX_DEPTH}"
    try:
        write_table(table_from_python(arguments))
    except UnicodeEncodeError:
        return "arguments have text that is not UTF-8"
    except ValueError as error:
        return f"arguments: {error}"
    return ""


def _is_deep(arguments: object) -> bool:
    """Whether tables and lists lie deeper in one another than anybody reads; without recursion, as they may be."""
    level: list[Any] = [arguments]
    for _ in range(MAX_DEPTH):
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return False
    return True


def _shown(text: str) -> str:
    """A name as it can be written anywhere."""
    text = text[:SHORTSTR_MAX_BYTES]
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


# ------------------------------------------------------------------------------------------------- comparing
def identities(definitions: Definitions) -> set[str]:
    """What a document has."""
    return {entry.identity for entry in definitions.entries}


def without_throw_away(wanted: Definitions, present: set[str]) -> Definitions:
    """The document without the queues that would live in a connector's memory, and with a note of that.

    ``present`` has the identities of what is declared: a queue of that name which is, and so is another one, stays to
    be compared.
    """
    thrown = {entry.queue for entry in wanted.entries if _is_throw_away(entry) and entry.identity not in present}
    left_out = Counter(entry.section for entry in wanted.entries if entry.queue in thrown)
    if not left_out:
        return wanted
    counts = ", ".join(f"{section}: {count}" for section, count in left_out.items())
    note = f"left out, as clients declare their own queues that are auto-delete and not durable: {counts}"
    entries = [entry for entry in wanted.entries if entry.queue not in thrown]
    return Definitions(entries, [*wanted.notes, note], wanted.refused)


def _is_throw_away(entry: Entry) -> bool:
    return entry.section == "queues" and entry.fields["auto_delete"] and not entry.fields["durable"]


def differences(here: Definitions, wanted: Definitions) -> list[str]:
    """Lines that say how two documents differ; empty when they agree."""
    lines = []
    present = {entry.identity: entry for entry in here.entries}
    named = {entry.identity: entry for entry in wanted.entries}
    for identity, entry in named.items():
        current = present[identity].fields if identity in present else _predeclared(entry)
        if current is None:
            lines.append(f"only in the file: {entry.label}")
            continue
        lines += [
            f"differs: {entry.label}: {name} is {_text(current[name])}, in the file {_text(value)}"
            for name, value in entry.fields.items()
            if current[name] != value and _text(current[name]) != _text(value)  # NaN is not NaN, 1 is 1.0
        ]
    lines += [f"only here: {entry.label}" for identity, entry in present.items() if identity not in named]
    return lines


def _predeclared(entry: Entry) -> dict[str, Any] | None:
    """What every virtual host has under this name, though no export says so."""
    kind = PREDECLARED.get(entry.fields["name"]) if entry.section == "exchanges" else None
    required, defaults = _SECTIONS["exchanges"]
    return None if kind is None else dict(zip(required, (entry.fields["name"], kind), strict=True)) | defaults


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


# ------------------------------------------------------------------------------------------------- applying
class Import:
    """Declares what a document has, stage by stage; ``done`` gets the report, once."""

    def __init__(self, broker: Broker, definitions: Definitions, done: Callable[[Report], None]) -> None:
        self._broker = broker
        self._done = done
        self._known = identities(read(export(broker)))
        definitions = without_throw_away(definitions, self._known)
        self._entries = definitions.entries
        self._stages = list(_SECTIONS)
        self._left = 0
        self._owner = object()
        self._left_out: Counter[str] = Counter()
        self.report = Report(notes=list(definitions.notes), refused=list(definitions.refused))

    def start(self) -> None:
        """Begin; what has to wait for the log goes on when its answers come."""
        self._next_stage()

    def _next_stage(self) -> None:
        if not self._stages:
            for vhost, count in self._left_out.items():
                self.report.refused.append(f"vhost '{_shown(vhost)}' is not in the settings (vhosts): {count} left out")
            self._done(self.report)
            return
        section = self._stages.pop(0)
        entries = [entry for entry in self._entries if entry.section == section]
        self._left = len(entries) + 1
        for entry in entries:
            self._declare(entry)
        self._end_one()

    def _end_one(self) -> None:
        self._left -= 1
        if not self._left:
            self._next_stage()

    def _declare(self, entry: Entry) -> None:
        def done(result: object) -> None:
            if isinstance(result, Exception):
                self.report.may_retry |= not isinstance(result, BrokerError)
                self.report.refused.append(f"{entry.label}: {result}")
            else:
                identity = entry.identity
                is_known = was_there or identity in self._known
                (self.report.unchanged if is_known else self.report.created)[entry.section] += 1
                self._known.add(identity)
            self._end_one()

        was_there = False
        try:
            vhost = self._broker.virtual_host(entry.vhost)
        except NotFound:
            self._left_out[entry.vhost] += 1
            self._end_one()
            return
        entry = Entry(entry.section, vhost.title, entry.fields)
        if entry.section != "bindings":
            was_there = entry.fields["name"] in (vhost.queues if entry.section == "queues" else vhost.exchanges)
        else:
            bound = vhost.queues.get(entry.fields["destination"]) if entry.queue else None
            if bound is not None and not bound.is_stored:
                done(NotAllowed(f"queue '{bound.name}' lives in a connector's memory: its clients bind it"))
                return
            if entry.identity in self._known:
                done(None)  # the widths of its arguments do not show in the document
                return
        self._declare_one(entry, table_from_python(entry.fields["arguments"]), done)

    def _declare_one(self, entry: Entry, arguments: Table, done: Done) -> None:
        vhost, fields = self._broker.virtual_host(entry.vhost), entry.fields
        if entry.section == "exchanges":
            flags = {name: fields[name] for name in ("durable", "auto_delete", "internal")}
            vhost.declare_exchange(ExchangeDeclare(fields["name"], fields["type"], arguments=arguments, **flags), done)
        elif entry.section == "queues":
            flags = {name: fields[name] for name in ("durable", "auto_delete")}
            request = QueueDeclare(fields["name"], arguments=arguments, is_restored=True, **flags)
            vhost.declare_queue(request, self._owner, done)
        else:
            source, destination, key = fields["source"], fields["destination"], fields["routing_key"]
            if fields["destination_type"] == QUEUE:
                vhost.bind_queue(destination, source, key, arguments, self._owner, done)
            else:
                vhost.bind_exchange(destination, source, key, arguments, done)

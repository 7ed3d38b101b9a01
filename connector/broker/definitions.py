"""Definitions in RabbitMQ's JSON format: what is declared as a document, and a document declared (OP-14).

Owns reading and writing that format, the differences between two documents, and the order in which one is applied.
Applying only adds: it declares as a client would, so what exists and agrees stays, and what exists and differs is
reported, never changed.  Must not know where documents come from.  Queues in memory (exclusive ones, throw-away ones)
are not part of it.  Source: RabbitMQ 3.10's ``rabbit_definitions``.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from connector.amqp.wire import read_table, table_from_python
from connector.broker.errors import BrokerError, NotFound
from connector.broker.exchanges.binding import QUEUE
from connector.broker.requests import ExchangeDeclare, QueueDeclare

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
        fields = self.fields
        if self.section != "bindings":
            return f"{self.section[:-1]} '{fields['name']}' in vhost '{self.vhost}'"
        arguments = f" {_text(fields['arguments'])}" if fields["arguments"] else ""
        return (
            f"binding from '{fields['source']}' to {fields['destination_type']} '{fields['destination']}' "
            f"by '{fields['routing_key']}'{arguments} in vhost '{self.vhost}'"
        )

    @property
    def identity(self) -> str:
        """Equal for the same thing in two documents."""
        return self.label


class Definitions(NamedTuple):
    """A document, read: its entries in the order in which they can be declared, and what of it is ignored."""

    entries: list[Entry]
    notes: list[str]


@dataclass(slots=True)
class Report:
    """What came of applying: counts by section, and a line for everything that did not come out as the document says.

    ``has_failed``: the log could not be written; what is missing can be applied again.
    """

    created: Counter[str] = field(default_factory=Counter)
    unchanged: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    has_failed: bool = False


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
    notes = []
    for name, content in document.items():
        if name in IGNORED and content:
            notes.append(f"{name} ignored: {len(content)}")
        elif name not in _SECTIONS and name not in IGNORED and name != "vhosts" and name not in _ABOUT:
            notes.append(f"unknown section ignored: {name}")
    entries = [entry for section in _SECTIONS for entry in _read_section(document, section, vhost)]
    return Definitions(entries, notes)


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
        if section != "bindings" or fields["source"]:  # the default exchange's bindings are everywhere anyway
            yield Entry(section, str(home), fields)


_KINDS = {str: "string", bool: "boolean", dict: "object"}


# ------------------------------------------------------------------------------------------------- comparing
def differences(here: Definitions, wanted: Definitions) -> list[str]:
    """Lines that say how two documents differ; empty when they agree."""
    lines = []
    present = {entry.identity: entry for entry in here.entries}
    named = {entry.identity: entry for entry in wanted.entries}
    for identity, entry in named.items():
        if identity not in present:
            lines.append(f"only in the file: {entry.label}")
            continue
        current = present[identity].fields
        lines += [
            f"differs: {entry.label}: {name} is {_text(current[name])}, in the file {_text(value)}"
            for name, value in entry.fields.items()
            if current[name] != value and _text(current[name]) != _text(value)  # NaN is not NaN, 1 is 1.0
        ]
    lines += [f"only here: {entry.label}" for identity, entry in present.items() if identity not in named]
    return lines


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


# ------------------------------------------------------------------------------------------------- applying
class Import:
    """Declares what a document has, stage by stage; ``done`` gets the report, once."""

    def __init__(self, broker: Broker, definitions: Definitions, done: Callable[[Report], None]) -> None:
        self._broker = broker
        self._done = done
        self._entries = definitions.entries
        self._stages = list(_SECTIONS)
        self._left = 0
        self._owner = object()
        self._known = {entry.identity for entry in read(export(broker)).entries}
        self._left_out: Counter[str] = Counter()
        self.report = Report(notes=list(definitions.notes))

    def start(self) -> None:
        """Begin; what has to wait for the log goes on when its answers come."""
        self._next_stage()

    def _next_stage(self) -> None:
        if not self._stages:
            for vhost, count in self._left_out.items():
                self.report.notes.append(f"vhost '{vhost}' is not in the settings (vhosts): {count} left out")
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
                self.report.has_failed |= not isinstance(result, BrokerError)
                self.report.notes.append(f"{entry.label}: {result}")
            else:
                (self.report.unchanged if entry.identity in self._known else self.report.created)[entry.section] += 1
            self._end_one()

        try:
            vhost = self._broker.virtual_host(entry.vhost)
        except NotFound:
            self._left_out[entry.vhost] += 1
            self._end_one()
            return
        entry = Entry(entry.section, vhost.title, entry.fields)
        fields = entry.fields
        if entry.section == "bindings" and entry.identity in self._known:
            done(None)  # the widths of its arguments do not show in the document
            return
        try:
            arguments = table_from_python(fields["arguments"])
        except ValueError as error:
            self.report.notes.append(f"{entry.label}: {error}")
            self._end_one()
            return
        self._declare_one(entry, arguments, done)

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

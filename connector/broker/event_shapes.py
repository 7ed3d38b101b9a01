"""What an event of the topology log must look like to be folded.

Owns the fields of every type of event: which must be there, which may, and what may be in them.  An event that does
not fit is skipped by every replica alike, so the fold (``topology.py``) need not doubt what it reads; so is an entry of
a snapshot's lists, but not the snapshot.  What does not fit is never written (``Broker.append``).  Types that are not
known fit: they are of a later version, and mean nothing here.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, TypeAlias

from connector.amqp.wire import is_table
from connector.broker.routing import PREDECLARED, TYPES
from mapping.names import MAX_GENERATION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Check: TypeAlias = Callable[[Any], bool]

_NO_ARGUMENTS = "AAAAAA=="
_RESERVED = "amq."


def is_well_formed(event: Mapping[str, Any]) -> bool:
    """Whether the event has all fields of its type, with values of their kinds."""
    shape = SHAPES.get(event["type"])
    has_writer = _is_text(event.get("id", "")) and _is_text(event.get("member", ""))
    return has_writer and (shape is None or _fits(event, shape))


def is_entry(section: str, value: object) -> bool:
    """Whether this can be loaded from one of a snapshot's lists."""
    return _ENTRIES[section](value)


def _fits(value: Mapping[str, Any], shape: Mapping[str, Check]) -> bool:
    """A name that ends with ``?`` may be missing."""
    for name, check in shape.items():
        key = name.removesuffix("?")
        if key in value:
            if not check(value[key]):
                return False
        elif key == name:
            return False
    return True


def _is_text(value: Any) -> bool:
    """Text with a form in bytes: a surrogate that stands for no byte has none."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or value.encode("utf-8", "surrogateescape") != b""
    except UnicodeEncodeError:
        return False


def _is_name(value: Any) -> bool:
    return value != "" and _is_text(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_generation(value: Any) -> bool:
    return _is_count(value) and value <= MAX_GENERATION


def _is_table(value: Any) -> bool:
    if value == _NO_ARGUMENTS:
        return True
    if not isinstance(value, str):
        return False
    try:
        raw = base64.b64decode(value, validate=True)
    except ValueError:
        return False
    return not raw or is_table(raw)


def _is_bound_exchange(value: Any) -> bool:
    """One of ours, or one that every virtual host has."""
    return _is_name(value) and (not value.startswith(_RESERVED) or value in PREDECLARED)


def _is_new_exchange(value: Any) -> bool:
    return _is_name(value) and not value.startswith(_RESERVED)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _tuple_of(*checks: Check) -> Check:
    def check_all(value: Any) -> bool:
        is_list = isinstance(value, list) and len(value) == len(checks)
        return is_list and all(check(item) for check, item in zip(checks, value, strict=True))

    return check_all


def _event_of(kind: str) -> Check:
    """An object inside a snapshot: an event of this type."""
    shape = SHAPES[kind]
    return lambda value: isinstance(value, dict) and value.get("type") == kind and _fits(value, shape)


def _is_generations(value: Any) -> bool:
    return isinstance(value, dict) and _fits(value, _GENERATIONS)


def _by_generation(*checks: Check) -> Check:
    """An object with a generation's number as each name, and a list with these values."""
    value_fits = _tuple_of(*checks)
    return lambda value: (
        isinstance(value, dict) and all(_is_number(number) and value_fits(item) for number, item in value.items())
    )


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= len(str(MAX_GENERATION))


def _is_order(value: Any) -> bool:
    return _list_of(_is_generation)(value) and value != []


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_seen(value: Any) -> bool:
    """Sequences by generation."""
    return isinstance(value, dict) and all(map(_is_count, value.values()))


def _is_undrained(value: Any) -> bool:
    """Virtual host, name, and in later versions who empties it."""
    return _tuple_of(_is_name, _is_name)(value) or _tuple_of(_is_name, _is_name, _is_text)(value)


def _is_left(value: Any) -> bool:
    """By generation: withheld, copied Sequences, and in one version a deleted queue's last Sequence and count."""
    copied = _list_of(_is_count)
    first, later = _by_generation(_is_count, copied), _by_generation(_is_count, copied, _is_count, _is_count)
    return isinstance(value, dict) and all(
        first({number: left}) or later({number: left}) for number, left in value.items()
    )


_GENERATIONS: dict[str, Check] = {
    "order": _is_order,
    "last": _is_generation,
    "moving": _by_generation(_is_generation, _is_text, _is_flag),
    "left": _is_left,
    "ends?": _by_generation(_is_count, _is_count, _is_count),
    "gone?": _by_generation(_is_count),
}
_NAMED: dict[str, Check] = {"vhost": _is_name, "name": _is_name}
_BINDING: dict[str, Check] = {
    "vhost": _is_name,
    "exchange": _is_bound_exchange,
    "queue": _is_name,
    "routing_key": _is_text,
    "arguments": _is_table,
    "kind?": lambda value: value == "exchange",
}

#: The type of an event -> its fields.
SHAPES: dict[str, dict[str, Check]] = {
    "queue.declared": {
        **_NAMED,
        "durable": _is_flag,
        "auto_delete": _is_flag,
        "arguments": _is_table,
        "queue_id?": _is_count,
        "generations?": _is_generations,
    },
    "queue.deleted": {**_NAMED, "queue_id?": _is_count},
    "queue.drained": {
        **_NAMED,
        "left?": _by_generation(_is_count, _is_count),
        "known_at?": _is_count,
        "deletion?": _is_count,
    },
    "queue.moving": {**_NAMED, "source": _is_generation, "generation": _is_generation, "reason": _is_text},
    "queue.moved": {
        **_NAMED,
        "source": _is_generation,
        "generation": _is_generation,
        "withheld": _is_count,
        "copied": _list_of(_is_count),
        "upto?": _is_count,
        "known_at?": _is_count,
        "gone?": _is_count,
    },
    "queue.retired": {**_NAMED, "generation": _is_generation},
    "queue.rescued": _NAMED,
    "queue.claimed": {**_NAMED, "queue_id": _is_count, "who": _is_name},
    "queue.given": {**_NAMED, "queue_id": _is_count, "giver": _is_name, "taker": _is_name, "seen": _is_seen},
    "member.joined": {"who": _is_name, "host": _is_text, "process": _is_text, "name?": _is_text},
    "member.left": {"who": _is_name},
    "server.started": {"start_time": _is_count},
    "exchange.declared": {
        "vhost": _is_name,
        "name": _is_new_exchange,
        "kind": lambda value: isinstance(value, str) and value in TYPES,
        "durable": _is_flag,
        "auto_delete": _is_flag,
        "internal": _is_flag,
        "arguments": _is_table,
        "exchange_id?": _is_count,
    },
    "exchange.deleted": {**_NAMED, "exchange_id?": _is_count, "if_unused?": _is_flag},
    "queue.bound": _BINDING,
    "queue.unbound": _BINDING,
}
_OBJECTS = ("queues", "exchanges", "bindings")
#: A snapshot's lists whose entries are looked at one by one, when it is loaded.
_ENTRIES: dict[str, Check] = {
    "queues": _event_of("queue.declared"),
    "exchanges": _event_of("exchange.declared"),
    "bindings": _event_of("queue.bound"),
    "undrained": _is_undrained,
    "deletions": _tuple_of(_is_name, _is_name, _is_count),
    "claims": _tuple_of(_is_name, _is_name, _is_name),
    "left": _tuple_of(_is_name, _is_name, _is_generations),
}
SHAPES["snapshot.part"] = {"snapshot": _is_name, **{f"{name}?": _is_list for name in _OBJECTS}}
SHAPES["snapshot"] = {
    "upto": _is_count,
    **dict.fromkeys(_OBJECTS, _is_list),
    "undrained": _is_list,
    "deletions?": _is_list,
    "members?": _list_of(_tuple_of(_is_name, _is_count, _is_text, _is_text)),
    "names?": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    "claims?": _is_list,
    "heir?": _tuple_of(_is_text, _is_count),
    "left?": _is_list,
    "server_start?": _is_count,
    "snapshot?": _is_name,
    "parts?": _is_count,
}

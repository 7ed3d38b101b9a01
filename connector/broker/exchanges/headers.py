"""The headers exchange: bindings whose arguments agree with the message's headers (EX-06).

Owns ``x-match`` and the comparison of values.  Rules are those of RabbitMQ 3.10's ``rabbit_exchange_type_headers``:

- ``x-match`` is ``all`` (also when missing), ``any``, ``all-with-x`` or ``any-with-x``; other values are refused.
- Arguments whose names begin with ``x-`` count only with the last two; ``x-match`` itself never does.
- A void argument asks only for presence.  Otherwise the values must be equal, whatever their types are called: 1 is
  1.0 and also the timestamp 1, a long string equals a byte array of the same bytes, an empty array an empty table; a
  boolean equals only a boolean.  Inside arrays and tables the types must agree too, and the order of a table matters.
- Without conditions ``all`` matches everything and ``any`` nothing.

Bindings are found by what a message says (each of its headers is a fact), never one by one: a binding of ``all``
waits under one of its conditions, the one with the fewest others, and is then checked as a whole; a binding of ``any``
waits under each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, cast

from connector.amqp.wire import read_table
from connector.broker.arguments import TYPE_NAMES
from connector.broker.errors import Inequivalent
from connector.broker.exchanges.exchange import Exchange, Targets, add_target, remove_target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from connector.amqp.wire import Field, Table
    from connector.broker.exchanges.binding import BindingKey, Destination
    from connector.broker.topology import ExchangeRecord

#: A header's name and what its value is compared by; the second is None for "it is there".
Condition: TypeAlias = "tuple[str, Hashable]"

X_MATCH: Final = "x-match"
_MODES = (b"all", b"any", b"all-with-x", b"any-with-x")


class Rule:
    """What one or more bindings ask for, and where they lead; ``found_under`` are its places in the index."""

    __slots__ = ("conditions", "found_under", "is_any", "targets")

    def __init__(self, is_any: bool, conditions: frozenset[Condition]) -> None:
        self.is_any = is_any
        self.conditions = conditions
        self.found_under: list[Condition] = []
        self.targets: Targets = {}


def comparable(field: Field) -> Hashable:
    """What a value is compared by: equal for two values exactly when RabbitMQ takes them for equal.

    Never None for anything but void.  RabbitMQ cannot read a NaN; here every NaN equals every other.
    """
    letter, value = field
    match letter:
        case "t":
            return ("t", value)
        case "D":
            return ("D", value)
        case "A":
            return tuple((_type(item), comparable(item)) for item in cast("list[Field]", value))
        case "F":
            return tuple((name, _type(item), comparable(item)) for name, item in cast("Table", value).items())
        case "d" | "f" if value != value:  # noqa: PLR0124 - is it NaN?
            return ("NaN",)
        case _:
            return value


def _type(field: Field) -> str:
    return "l" if field[0] == "L" else field[0]


def parse_arguments(arguments: Table) -> tuple[bool, frozenset[Condition]]:
    """Read (matches any, conditions) from a binding's arguments; an ``x-match`` that is not known counts as all."""
    letter, word = arguments.get(X_MATCH, ("S", b"all"))
    mode = word if letter == "S" else b"all"
    with_x = mode in {b"all-with-x", b"any-with-x"}
    conditions = frozenset(
        (name, comparable(field))
        for name, field in arguments.items()
        if name != X_MATCH and (with_x or not name.startswith("x-"))
    )
    return mode in {b"any", b"any-with-x"}, conditions


class Headers(Exchange):
    """Bindings by the headers they ask for; bindings that ask for the same share a rule."""

    def __init__(self, record: ExchangeRecord) -> None:
        super().__init__(record)
        self._rules: dict[tuple[bool, frozenset[Condition]], Rule] = {}
        self._index: dict[Condition, dict[Rule, None]] = {}

    @classmethod
    def check_arguments(cls, arguments: Table) -> None:
        """Refuse an ``x-match`` that is not one of the four words; texts are RabbitMQ 3.10's."""
        field = arguments.get(X_MATCH)
        if field is None:
            return
        if field[0] != "S":
            raise Inequivalent(
                f"Invalid x-match field type {TYPE_NAMES[field[0]]} (value {erlang_text(field)}); expected longstr"
            )
        if field[1] not in _MODES:
            raise Inequivalent(
                f"Invalid x-match field value {erlang_text(field)}; expected all, any, all-with-x, or any-with-x"
            )

    def route(self, routing_key: str, headers: Callable[[], Table]) -> Collection[Destination]:  # noqa: ARG002
        """See ``Exchange``; the key plays no part."""
        if not self._rules:
            return ()
        facts: dict[Condition, None] = {}
        for name, field in headers().items():
            facts[name, comparable(field)] = None
            facts[name, None] = None
        matched = [rule for rule in self._candidates(facts) if rule.is_any or facts.keys() >= rule.conditions]
        if len(matched) == 1:
            return matched[0].targets
        return {destination: 1 for rule in matched for destination in rule.targets}

    def _candidates(self, facts: dict[Condition, None]) -> dict[Rule, None]:
        everything = self._rules.get((False, frozenset()))
        candidates: dict[Rule, None] = {everything: None} if everything is not None else {}
        for fact in facts:
            found = self._index.get(fact)
            if found is not None:
                candidates.update(found)
        return candidates

    def _add(self, key: BindingKey, destination: Destination) -> None:
        identity = parse_arguments(read_table(key.arguments, 0)[0])
        rule = self._rules.get(identity)
        if rule is None:
            rule = self._rules[identity] = Rule(*identity)
            for condition in self._places(rule):
                rule.found_under.append(condition)
                self._index.setdefault(condition, {})[rule] = None
        add_target(rule.targets, destination)

    def _places(self, rule: Rule) -> list[Condition]:
        """Where the index leads to a rule: every condition for any, the most telling one for all."""
        conditions = sorted(rule.conditions, key=lambda condition: condition[0])
        if rule.is_any or not conditions:
            return conditions
        return [min(conditions, key=lambda found: (found[1] is None, len(self._index.get(found, ()))))]

    def _remove(self, key: BindingKey, destination: Destination) -> None:
        identity = parse_arguments(read_table(key.arguments, 0)[0])
        rule = self._rules[identity]
        remove_target(rule.targets, destination)
        if rule.targets:
            return
        del self._rules[identity]
        for condition in rule.found_under:
            rules = self._index[condition]
            del rules[rule]
            if not rules:
                del self._index[condition]


def erlang_text(field: Field) -> str:
    """A value as RabbitMQ's texts show it (Erlang's ``~p``)."""
    letter, value = field
    match letter:
        case "S" | "x":
            return _erlang_binary(cast("bytes", value))
        case "t":
            return "true" if value else "false"
        case "V":
            return "undefined"
        case "D":
            scale, unscaled = cast("tuple[int, int]", value)
            return f"{{{scale},{unscaled}}}"
        case "A":
            items = cast("list[Field]", value)
            return "[" + ",".join(f"{{{TYPE_NAMES[i[0]]},{erlang_text(i)}}}" for i in items) + "]"
        case "F":
            table = cast("Table", value).items()
            return "[" + ",".join(
                f"{{{_erlang_binary(name.encode('utf-8', 'surrogateescape'))},{TYPE_NAMES[i[0]]},{erlang_text(i)}}}"
                for name, i in table
            ) + "]"  # fmt: skip
        case _:
            return str(value)


def _erlang_binary(raw: bytes) -> str:
    if not all(32 <= octet < 127 or octet >= 160 for octet in raw):
        return "<<" + ",".join(map(str, raw)) + ">>"
    text = raw.decode("utf-8", "surrogateescape").replace("\\", "\\\\").replace('"', '\\"')
    return f'<<"{text}">>' if text else "<<>>"

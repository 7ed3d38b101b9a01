"""The headers exchange: RabbitMQ's answers on values of every type, the four modes, refused arguments."""

from __future__ import annotations

import pytest

from connector.amqp.wire import Field, Table
from connector.broker.errors import Inequivalent
from connector.broker.exchanges.binding import BindingKey, canonical_arguments
from connector.broker.exchanges.headers import Headers
from connector.broker.topology import ExchangeRecord

ALL: Table = {"x-match": ("S", b"all")}
ANY: Table = {"x-match": ("S", b"any")}
ALL_X: Table = {"x-match": ("S", b"all-with-x")}
ANY_X: Table = {"x-match": ("S", b"any-with-x")}
A: Table = {"a": ("I", 1)}
B: Table = {"b": ("S", b"t")}
X: Table = {"x-c": ("I", 3)}


def exchange(*arguments: Table) -> Headers:
    """A headers exchange with queues q0, q1, ... bound with these arguments."""
    made = Headers(ExchangeRecord("default", "x", "headers"))
    for number, table in enumerate(arguments):
        made.bind(BindingKey("x", f"q{number}", "", canonical_arguments(table)))
    return made


def matched(made: Headers, headers: Table) -> list[str]:
    return sorted(target.name for target in made.route("", lambda: headers))


@pytest.mark.parametrize(
    ("arguments", "headers", "is_match"),
    [
        ({}, {}, True),
        ({}, A, True),
        (ALL, {}, True),
        (ANY, {}, False),
        (ANY, A, False),
        (ANY | X, X, False),
        (ALL_X, {}, True),
        (ANY_X, A, False),
        (A, A, True),
        (A | B, A, False),
        (A | B, A | B | X, True),
        (ALL | A | B, A | B, True),
        (ANY | A | B, B, True),
        (ANY | A | B, X, False),
        (ALL | A | X, A, True),
        (ALL_X | A | X, A, False),
        (ALL_X | A | X, A | X, True),
        (ANY_X | A | X, X, True),
        (ANY | A | X, X, False),
        ({"X-c": ("I", 3)}, {}, False),
        (ALL_X, ANY, True),
        (ANY_X, ANY_X, False),
        ({"x-match": ("I", 1)} | A, A, True),
    ],
)
def test_modes(arguments: Table, headers: Table, is_match: bool) -> None:
    assert bool(matched(exchange(arguments), headers)) == is_match


@pytest.mark.parametrize(
    ("wanted", "sent", "is_match"),
    [
        (("I", 1), ("l", 1), True),
        (("I", 1), ("b", 1), True),
        (("I", 1), ("d", 1.0), True),
        (("f", 1.5), ("d", 1.5), True),
        (("I", 1), ("T", 1), True),
        (("I", 1), ("t", True), False),
        (("I", 1), ("S", b"1"), False),
        (("l", 2**53 + 1), ("d", float(2**53)), False),
        (("S", b"a"), ("x", b"a"), True),
        (("S", b"a"), ("S", b"A"), False),
        (("S", b""), ("V", None), False),
        (("t", True), ("t", True), True),
        (("t", True), ("t", False), False),
        (("V", None), ("S", b"anything"), True),
        (("V", None), ("V", None), True),
        (("D", (1, 10)), ("D", (1, 10)), True),
        (("D", (0, 1)), ("I", 1), False),
        (("D", (1, 10)), ("D", (0, 1)), False),
        (("A", []), ("F", {}), True),
        (("A", [("I", 1)]), ("A", [("I", 1)]), True),
        (("A", [("I", 1)]), ("A", [("l", 1)]), False),
        (("A", [("L", 1)]), ("A", [("l", 1)]), True),
        (("A", [("l", 1)]), ("A", [("L", 1)]), True),
        (("A", [("d", 1.0)]), ("A", [("I", 1)]), False),
        (("A", [("V", None)]), ("A", [("I", 1)]), False),
        (("F", {"p": ("I", 1)}), ("F", {"p": ("I", 1)}), True),
        (("F", {"p": ("I", 1), "q": ("I", 2)}), ("F", {"q": ("I", 2), "p": ("I", 1)}), False),
        (("d", float("nan")), ("f", float("nan")), True),
    ],
)
def test_values(wanted: Field, sent: Field, is_match: bool) -> None:
    assert bool(matched(exchange({"h": wanted}), {"h": sent})) == is_match
    assert bool(matched(exchange({"h": wanted} | ANY), {"h": sent})) == is_match
    made = exchange({"h": wanted})
    made.unbind(BindingKey("x", "q0", "", canonical_arguments({"h": wanted})))
    assert not made._rules


def test_every_matching_binding_once() -> None:
    made = exchange(A, A | B, ANY | A | B, ANY | X | B, {}, {"a": ("V", None)})
    made.bind(BindingKey("x", "q0", "another key", canonical_arguments(ANY | A)))
    assert matched(made, A) == ["q0", "q2", "q4", "q5"]
    assert matched(made, A | B) == ["q0", "q1", "q2", "q3", "q4", "q5"]
    assert matched(made, {}) == ["q4"]


def test_an_all_binding_waits_under_its_most_telling_condition() -> None:
    made = exchange(*(A | {"id": ("I", number)} for number in range(100)))
    assert max(len(rules) for rules in made._index.values()) == 1
    assert matched(made, A | {"id": ("d", 42.0)}) == ["q42"]
    assert matched(made, {"id": ("I", 42)}) == []


def test_headers_are_read_only_when_something_is_bound() -> None:
    def fail() -> Table:
        raise AssertionError

    assert list(exchange().route("k", fail)) == []


@pytest.mark.parametrize("mode", [b"all", b"any", b"all-with-x", b"any-with-x"])
def test_the_four_modes_may_be_bound(mode: bytes) -> None:
    Headers.check_arguments({"x-match": ("S", mode), "a": ("I", 1)})
    Headers.check_arguments({"a": ("I", 1)})


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (("S", b"foo"), 'value <<"foo">>; expected all, any, all-with-x, or any-with-x'),
        (("S", b""), "value <<>>; expected all, any, all-with-x, or any-with-x"),
        (("S", "ü".encode()), 'value <<"ü">>; expected all, any, all-with-x, or any-with-x'),
        (("S", b"\x00\x01"), "value <<0,1>>; expected all, any, all-with-x, or any-with-x"),
        (("S", b'a"b\\'), 'value <<"a\\"b\\\\">>; expected all, any, all-with-x, or any-with-x'),
        (("I", 5), "type signedint (value 5); expected longstr"),
        (("d", 1.5), "type double (value 1.5); expected longstr"),
        (("t", True), "type bool (value true); expected longstr"),
        (("t", False), "type bool (value false); expected longstr"),
        (("V", None), "type void (value undefined); expected longstr"),
        (("D", (1, 2)), "type decimal (value {1,2}); expected longstr"),
        (("x", b"all"), 'type binary (value <<"all">>); expected longstr'),
        (("A", []), "type array (value []); expected longstr"),
        (
            ("A", [("I", 1), ("S", b"a")]),
            'type array (value [{signedint,1},{longstr,<<"a">>}]); expected longstr',
        ),
        (("F", {"k": ("I", 1)}), 'type table (value [{<<"k">>,signedint,1}]); expected longstr'),
    ],
)
def test_other_modes_are_refused_in_rabbitmqs_words(field: Field, text: str) -> None:
    with pytest.raises(Inequivalent) as error:
        Headers.check_arguments({"x-match": field})
    assert str(error.value) == f"Invalid x-match field {text}"

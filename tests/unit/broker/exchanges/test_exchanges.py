"""Direct and fanout, and what all exchange types share: identity, order, copies, the last binding."""

from __future__ import annotations

import pytest

from connector.amqp.wire import Table
from connector.broker.exchanges.binding import (
    EXCHANGE,
    NO_ARGUMENTS,
    QUEUE,
    BindingKey,
    Destination,
    canonical_arguments,
)
from connector.broker.exchanges.exchange import Exchange
from connector.broker.routing import TYPES
from connector.broker.topology import ExchangeRecord


def make(kind: str, **arguments: bytes) -> Exchange:
    table: Table = {name.replace("_", "-"): ("S", value) for name, value in arguments.items()}
    return TYPES[kind](ExchangeRecord("default", "x", kind, arguments=table))


def names(exchange: Exchange, routing_key: str, headers: Table | None = None) -> list[str]:
    return [target.name for target in exchange.route(routing_key, lambda: headers or {})]


def test_direct_gives_a_copy_to_every_queue_with_that_key() -> None:
    direct = make("direct")
    for queue, key in (("q2", "k"), ("q1", "k"), ("q3", "other"), ("q4", "")):
        direct.bind(BindingKey("x", queue, key))
    assert names(direct, "k") == ["q2", "q1"]
    assert names(direct, "") == ["q4"]
    assert names(direct, "K") == []


def test_fanout_ignores_the_key() -> None:
    fanout = make("fanout")
    fanout.bind(BindingKey("x", "q1", "a"))
    fanout.bind(BindingKey("x", "q2", "b"))
    assert names(fanout, "whatever") == ["q1", "q2"]


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_several_bindings_of_one_queue_give_one_copy_until_the_last_goes(kind: str) -> None:
    exchange = make(kind)
    keys = [BindingKey("x", "q", "k"), BindingKey("x", "q", "k", canonical_arguments({"n": ("V", None)}))]
    for key in keys * 2:
        exchange.bind(key)
    for key in keys:
        assert exchange.has_binding(key)
        assert names(exchange, "k", {"n": ("I", 1)}) == ["q"]
        exchange.unbind(key)
        exchange.unbind(key)
        assert not exchange.has_binding(key)
    assert names(exchange, "k", {"n": ("I", 1)}) == []
    assert not exchange.is_used


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_a_queue_and_an_exchange_of_one_name_are_two_destinations(kind: str) -> None:
    exchange = make(kind)
    exchange.bind(BindingKey("x", "same", "k"))
    exchange.bind(BindingKey("x", "same", "k", NO_ARGUMENTS, EXCHANGE))
    assert list(exchange.route("k", dict)) == [Destination("same", QUEUE), Destination("same", EXCHANGE)]
    assert exchange.bindings_of("same") == [BindingKey("x", "same", "k")]
    exchange.unbind(BindingKey("x", "same", "k"))
    assert list(exchange.route("k", dict)) == [Destination("same", EXCHANGE)]
    assert exchange.bindings_of("same") == []
    assert len(exchange.bindings_of("same", EXCHANGE)) == 1


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_had_bindings_stays_true_and_a_missing_binding_is_no_change(kind: str) -> None:
    exchange = make(kind)
    exchange.unbind(BindingKey("x", "q", "k"))
    assert (exchange.had_bindings, exchange.is_used) == (False, False)
    exchange.bind(BindingKey("x", "q", "k"))
    exchange.unbind(BindingKey("x", "q", "other"))
    assert (exchange.had_bindings, exchange.is_used) == (True, True)
    exchange.unbind(BindingKey("x", "q", "k"))
    assert (exchange.had_bindings, exchange.is_used) == (True, False)


def test_the_alternate_exchange_comes_from_the_record() -> None:
    assert make("direct").alternate is None
    assert make("direct", alternate_exchange=b"ae\xff").alternate == "ae\udcff"
    assert (
        TYPES["topic"](ExchangeRecord("v", "x", "topic", arguments={"alternate-exchange": ("I", 1)})).alternate is None
    )


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({"a": ("I", 1), "b": ("I", 2)}, {"b": ("I", 2), "a": ("I", 1)}, True),
        ({"a": ("L", 1)}, {"a": ("l", 1)}, True),
        ({"a": ("A", [("L", 1)])}, {"a": ("A", [("l", 1)])}, True),
        ({"a": ("d", 0.0)}, {"a": ("d", -0.0)}, True),
        ({"a": ("I", 1)}, {"a": ("l", 1)}, False),
        ({"a": ("S", b"x")}, {"a": ("x", b"x")}, False),
        ({"a": ("F", {"p": ("I", 1), "q": ("I", 1)})}, {"a": ("F", {"q": ("I", 1), "p": ("I", 1)})}, False),
        ({}, {"a": ("V", None)}, False),
    ],
)
def test_binding_arguments_are_the_same_when_rabbitmq_says_so(one: Table, other: Table, is_same: bool) -> None:
    assert (canonical_arguments(one) == canonical_arguments(other)) == is_same


def test_a_type_must_say_how_it_matches() -> None:
    exchange = Exchange(ExchangeRecord("v", "x", "none"))
    key = BindingKey("x", "q", "k")
    with pytest.raises(NotImplementedError):
        exchange.route("k", dict)
    with pytest.raises(NotImplementedError):
        exchange.bind(key)
    with pytest.raises(NotImplementedError):
        exchange._remove(key, Destination("q"))
    exchange.check_arguments({"x-match": ("I", 1)})

"""Topic patterns: the table of RabbitMQ's answers, the trie's shape, and costs that do not explode."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

import pytest

from connector.broker.exchanges.binding import BindingKey
from connector.broker.exchanges.topic import Topic, simplify
from connector.broker.topology import ExchangeRecord

TraceFunction: TypeAlias = Callable[[FrameType, str, Any], Any]


def topic(*patterns: str) -> Topic:
    """A topic exchange with one queue per pattern, named after it."""
    exchange = Topic(ExchangeRecord("default", "x", "topic"))
    for pattern in patterns:
        exchange.bind(BindingKey("x", pattern, pattern))
    return exchange


def matched(exchange: Topic, key: str) -> list[str]:
    return [target.name for target in exchange.route(key, dict)]


@pytest.mark.parametrize(
    ("pattern", "key", "is_match"),
    [
        ("a.*.c.#", "a.b.c", True),
        ("a.*.c.#", "a.b.c.d", True),
        ("a.*.c.#", "a.b.c.d.e", True),
        ("a.*.c.#", "a.c", False),
        ("#", "", True),
        ("#", "x.y", True),
        ("*", "", False),
        ("*", "x", True),
        ("*", "x.y", False),
        ("#.a", "a", True),
        ("#.a", "x.y.a", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("a.#.b", "a.b.b", True),
        ("a.#.b", "a.b.c", False),
        ("*.*", "a", False),
        ("*.*", ".", True),
        ("a.*", "a.", True),
        ("a.*", "a", False),
        ("#.#", "", True),
        ("#.*", "", False),
        ("#.*", "a.b", True),
        ("*.#", "a", True),
        ("#.a.#", "x.a.y", True),
        ("#.a.#.a.#", "a", False),
        ("#.a.#.a.#", "a.a", True),
        ("", "", True),
        ("", ".", False),
        ("..", "..", True),
        ("a..b", "a..b", True),
        ("a..b", "a.b", False),
        ("a", "A", False),
        ("a#", "ab", False),
        ("a*", "ab", False),
        ("a*.#", "a*", True),
        ("*", "*", True),
        ("*", "#", True),
        ("#.b", "#.b", True),
        ("é.*", "é.日本", True),
        ("\udce9.#", "\udce9", True),
    ],
)
def test_patterns(pattern: str, key: str, is_match: bool) -> None:
    assert bool(matched(topic(pattern), key)) == is_match


def test_every_matching_pattern_once() -> None:
    exchange = topic("a.b", "a.*", "#", "*.b", "a.#", "a.b.#", "#.b", "b.*", "a", "*.*.*")
    assert sorted(matched(exchange, "a.b")) == sorted(["a.b", "a.*", "#", "*.b", "a.#", "a.b.#", "#.b"])
    assert matched(topic("x.#"), "a") == []


def test_one_queue_with_several_matching_patterns_gets_one_copy() -> None:
    exchange = Topic(ExchangeRecord("default", "x", "topic"))
    for pattern in ("a.b", "a.*", "#", "#.#"):
        exchange.bind(BindingKey("x", "q", pattern))
    assert matched(exchange, "a.b") == ["q"]
    exchange.unbind(BindingKey("x", "q", "#"))
    assert matched(exchange, "zz") == ["q"]
    exchange.unbind(BindingKey("x", "q", "#.#"))
    assert matched(exchange, "zz") == []
    assert matched(exchange, "a.b") == ["q"]


@pytest.mark.parametrize(
    ("pattern", "simple"),
    [
        ("a.b", "a.b"),
        ("#.#", "#"),
        ("#.*", "*.#"),
        ("*.#.*.#", "*.*.#"),
        ("#.a.#", "#.a.#"),
        ("#.*.a.*.#.*", "*.#.a.*.*.#"),
        ("*.*", "*.*"),
    ],
)
def test_runs_of_special_words_have_one_form(pattern: str, simple: str) -> None:
    assert ".".join(simplify(pattern.split("."))) == simple


@pytest.mark.parametrize(
    ("gone", "left", "key"),
    [
        ("a.*", "a.#", "a"),
        ("a.#", "a.*", "a.x"),
        ("a.*.b", "a.*", "a.x"),
        ("a.*", "a.*.b", "a.x.b"),
        ("#", "#.b", "b"),
        ("#.b", "#", "x"),
        ("*.b", "*.c", "x.c"),
        ("*", "#", "x"),
        ("#.b.*", "#.b.c.*", "b.c.x"),
    ],
)
def test_unbinding_one_pattern_leaves_those_that_share_its_way(gone: str, left: str, key: str) -> None:
    exchange = topic(gone, left)
    exchange.unbind(BindingKey("x", gone, gone))
    assert matched(exchange, key) == [left]


def test_unbinding_leaves_nothing_behind() -> None:
    patterns = ["a.*.b", "a.*", "a.#", "#", "a.*.b.#.c", "x.y", "a.*.c", "*.a"]
    exchange = topic(*patterns)
    for pattern in patterns:
        exchange.unbind(BindingKey("x", pattern, pattern))
        assert not exchange.has_binding(BindingKey("x", pattern, pattern))
    assert not exchange._root.has_children
    assert not exchange._literal


def lines_run(action: Callable[[], object]) -> int:
    """How many lines of Python ``action`` runs: a cost that a loaded machine does not change."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # what others do when garbage is collected is no cost of ours
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def test_hostile_patterns_cost_words_times_patterns() -> None:
    pattern = ".".join(["#", "a"] * 30)
    exchange = topic(pattern)
    key = ".".join(["a"] * 120)
    assert matched(exchange, key) == [pattern]
    assert matched(exchange, key + ".b") == []
    assert lines_run(lambda: exchange.route(key, dict)) < 120 * 30 * 20


def test_routing_does_not_look_at_every_binding() -> None:
    small, large = (topic(*(f"device.{n}.*.state" for n in range(count))) for count in (10, 10_000))
    assert matched(large, "device.77.x.state") == ["device.77.*.state"]
    costs = [lines_run(lambda e=e: e.route("device.7.x.state", dict)) for e in (small, large)]  # type: ignore[misc]
    assert costs[0] == costs[1]
    binding = BindingKey("x", "q", "device.5.*.state")
    assert lines_run(lambda: large.bind(binding)) < 100
    assert lines_run(lambda: large.unbind(binding)) < 100

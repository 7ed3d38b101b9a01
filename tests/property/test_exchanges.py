"""Exchanges against oracles that look at every binding: patterns, headers, and whole graphs of exchanges."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import cast

from hypothesis import example, given
from hypothesis import strategies as st

from connector.amqp import header
from connector.amqp.wire import Field, Table, read_table
from connector.broker.exchanges.binding import EXCHANGE, QUEUE, BindingKey, Destination, Kind, canonical_arguments
from connector.broker.exchanges.exchange import Exchange
from connector.broker.exchanges.headers import Headers
from connector.broker.exchanges.topic import Topic
from connector.broker.routing import TYPES, HeaderReader, resolve, split_copies
from connector.broker.topology import ExchangeRecord
from tests.support.tables import fields


def record(kind: str, name: str = "x", **values: object) -> ExchangeRecord:
    return ExchangeRecord("default", name, kind, **values)  # type: ignore[arg-type]


def no_headers() -> Table:
    raise AssertionError("only a headers exchange reads headers")


# ------------------------------------------------------------------------------------------------- topic
def words_of(text: str) -> tuple[str, ...]:
    return tuple(text.split(".")) if text else ()


def naive_topic(pattern: str, key: str) -> bool:
    """Match as the definition reads: try every number of words for every ``#``."""

    @cache
    def match(wanted: tuple[str, ...], words: tuple[str, ...]) -> bool:
        if not wanted:
            return not words
        if wanted[0] == "#":
            return match(wanted[1:], words) or (bool(words) and match(wanted, words[1:]))
        return bool(words) and wanted[0] in {"*", words[0]} and match(wanted[1:], words[1:])

    return match(words_of(pattern), words_of(key))


WORDS = st.sampled_from(["a", "b", "ab", "", "*", "#", "a#", "**", "é", "日本", "\udce9", "A"])
DULL_WORDS = st.sampled_from(["a", "b", "*", "#"])
PATTERNS = st.one_of(
    st.lists(WORDS, max_size=6).map(".".join),
    st.lists(DULL_WORDS, max_size=9).map(".".join),
    st.text(st.sampled_from("ab.*#é"), max_size=8),
)
QUEUES = st.sampled_from(["q1", "q2", "q3"])
ARGUMENTS = st.sampled_from([canonical_arguments({}), canonical_arguments({"n": ("I", 1)})])
#: Patterns that share most of their way with others.
NEAR_PATTERNS = st.lists(st.sampled_from(["a", "*", "#"]), min_size=1, max_size=4).map(".".join)
TOPIC_BINDINGS = st.builds(
    BindingKey, st.just("x"), QUEUES, NEAR_PATTERNS | PATTERNS, ARGUMENTS, st.sampled_from([QUEUE, EXCHANGE])
)
NEAR_KEYS = ["", "a", "a.a", "a.b", "b.a", "a.a.a", "a.b.a", "b.a.a.b"]


@given(PATTERNS, st.lists(PATTERNS, max_size=5))
@example("a.*.c.#", ["a.b.c", "a.b.c.d", "a.c"])
@example("#.a.#.a.#", ["a.a", "a", "b.a.b.a.b", "a.b.b"])
@example("*.#.*", ["", "a", "a.b", "..", "."])
@example("", ["", ".", "a"])
@example("#.#.*.#", ["", "a"])
def test_a_pattern_matches_what_the_definition_says(pattern: str, keys: list[str]) -> None:
    topic = Topic(record("topic"))
    topic.bind(BindingKey("x", "q", pattern))
    for key in keys:
        assert bool(topic.route(key, no_headers)) == naive_topic(pattern, key)


@given(st.lists(TOPIC_BINDINGS, max_size=12), st.data())
def test_a_topic_exchange_finds_every_binding_and_forgets_what_is_unbound(
    bindings: list[BindingKey], data: st.DataObject
) -> None:
    topic = Topic(record("topic"))
    for key in bindings:
        topic.bind(key)
    gone = data.draw(st.lists(st.sampled_from(bindings), unique=True)) if bindings else []
    for key in gone:
        topic.unbind(key)
        topic.unbind(key)
    left = set(bindings) - set(gone)
    for routing_key in [*NEAR_KEYS, *data.draw(st.lists(PATTERNS, max_size=4))]:
        found = list(topic.route(routing_key, no_headers))
        assert len(found) == len(set(found))
        assert set(found) == {
            Destination(key.destination, key.kind) for key in left if naive_topic(key.routing_key, routing_key)
        }
    for key in bindings:
        assert topic.has_binding(key) == (key in left)
    for key in left:
        topic.unbind(key)
    assert not topic.is_used
    assert not topic._literal
    assert not topic._root.has_children


# ------------------------------------------------------------------------------------------------- headers
def erlang_equal(one: Field, other: Field) -> bool:
    """Compare as Erlang compares the terms RabbitMQ makes of two fields, by kinds of terms."""
    kind = {"S": "binary", "x": "binary", "t": "atom", "V": "void", "D": "decimal", "A": "list", "F": "list"}
    first, second = kind.get(one[0], "number"), kind.get(other[0], "number")
    if first != second:
        return False
    if first != "list":
        both_nan = one[1] != one[1] and other[1] != other[1]
        return one[1] == other[1] or both_nan
    if not one[1] or not other[1]:
        return not one[1] and not other[1]
    if one[0] != other[0]:
        return False
    if one[0] == "A":
        left: list[tuple[str, Field]] = [("", item) for item in cast("list[Field]", one[1])]
        right: list[tuple[str, Field]] = [("", item) for item in cast("list[Field]", other[1])]
    else:
        left, right = list(cast("Table", one[1]).items()), list(cast("Table", other[1]).items())
    return len(left) == len(right) and all(
        name == name2 and item[0].replace("L", "l") == item2[0].replace("L", "l") and erlang_equal(item, item2)
        for (name, item), (name2, item2) in zip(left, right, strict=True)
    )


def naive_headers(arguments: Table, headers: Table) -> bool:
    """Compare argument by argument."""
    _, mode = arguments.get("x-match", ("S", b"all"))
    with_x = mode in (b"all-with-x", b"any-with-x")
    verdicts = [
        name in headers and (wanted[0] == "V" or erlang_equal(wanted, headers[name]))
        for name, wanted in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    ]
    return any(verdicts) if mode in (b"any", b"any-with-x") else all(verdicts)


NAMES = st.sampled_from(["a", "b", "c", "x-a", "x-", "X-a", "é"])
FEW_FIELDS: st.SearchStrategy[Field] = st.sampled_from(
    [("I", 1), ("l", 1), ("d", 1.0), ("T", 1), ("t", True), ("S", b"1"), ("x", b"1"), ("V", None), ("A", []), ("F", {}),
     ("A", [("I", 1)]), ("A", [("l", 1)]), ("A", [("L", 1)]), ("F", {"a": ("I", 1), "b": ("t", True)}), ("t", False),
     ("F", {"b": ("t", True), "a": ("I", 1)}), ("D", (0, 1)), ("f", float("nan")), ("d", float("nan")), ("d", -0.0),
     ("b", 0)]
)  # fmt: skip
HEADERS: st.SearchStrategy[Table] = st.dictionaries(NAMES, FEW_FIELDS | fields, max_size=5)
MODES: st.SearchStrategy[Table] = st.sampled_from(
    [{}, *({"x-match": ("S", mode)} for mode in (b"all", b"any", b"all-with-x", b"any-with-x"))]
)
CONDITIONS = st.dictionaries(NAMES, FEW_FIELDS, max_size=3) | st.dictionaries(NAMES, fields, max_size=3)
HEADER_ARGUMENTS: st.SearchStrategy[Table] = st.builds(lambda mode, wanted: {**mode, **wanted}, MODES, CONDITIONS)


@st.composite
def nearly(draw: st.DrawFn, arguments: Table) -> Table:
    """Make headers that just match, or just do not: one condition may be missing or have another value."""
    headers = dict(arguments)
    if draw(st.booleans()) and headers:
        name = draw(st.sampled_from(sorted(headers)))
        del headers[name]
        if draw(st.booleans()):
            headers[name] = draw(FEW_FIELDS)
    return headers


@given(st.lists(HEADER_ARGUMENTS, max_size=8), st.lists(HEADERS, max_size=4), st.data())
def test_a_headers_exchange_finds_every_binding_and_forgets_what_is_unbound(
    asked: list[Table], messages: list[Table], data: st.DataObject
) -> None:
    exchange = Headers(record("headers"))
    bindings = {BindingKey("x", f"q{n}", "", canonical_arguments(wanted)): wanted for n, wanted in enumerate(asked)}
    for key in bindings:
        exchange.bind(key)
    gone = data.draw(st.lists(st.sampled_from(list(bindings)), unique=True)) if bindings else []
    for key in gone:
        exchange.unbind(key)
    messages += [data.draw(nearly(wanted)) for wanted in asked]
    for message in messages:
        found = list(exchange.route("any", lambda message=message: message))  # type: ignore[misc]
        assert len(found) == len(set(found))
        assert {target.name for target in found} == {
            key.destination for key in bindings if key not in gone and naive_headers(bindings[key], message)
        }
    for key in bindings:
        exchange.unbind(key)
    assert not exchange.is_used
    assert not exchange._rules
    assert not exchange._index


@given(HEADER_ARGUMENTS, st.randoms(use_true_random=False))
def test_the_order_of_binding_arguments_does_not_matter_and_none_is_lost(arguments: Table, random: Random) -> None:
    items = list(arguments.items())
    random.shuffle(items)
    canonical = canonical_arguments(arguments)
    assert canonical_arguments(dict(items)) == canonical
    again, _ = read_table(canonical, 0)
    assert canonical_arguments(again) == canonical
    assert naive_headers(again, arguments) == naive_headers(arguments, arguments)


# ------------------------------------------------------------------------------------------------- graphs
@dataclass
class World:
    """A virtual host as routing sees it, and the plain list of what it is made of."""

    title: str = "/"
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    queues: set[str] = field(default_factory=lambda: {"q0", "q1", "q2"})
    bindings: list[tuple[BindingKey, Table]] = field(default_factory=list)

    def matches(self, name: str, keys: tuple[str, ...], headers: Table) -> set[tuple[Kind, str]]:
        kind = self.exchanges[name].record.type
        return {
            (binding.kind, binding.destination)
            for binding, arguments in self.bindings
            if binding.exchange == name
            and (
                kind == "fanout"
                or (kind == "headers" and naive_headers(arguments, headers))
                or (kind == "direct" and binding.routing_key in keys)
                or (kind == "topic" and any(naive_topic(binding.routing_key, key) for key in keys))
            )
        }

    def naive_route(self, start: str, keys: tuple[str, ...], headers: Table) -> set[str]:
        """Spread from the start until nothing new is reached."""
        reached = {start}
        queues: set[str] = set()
        while True:
            before = len(reached) + len(queues)
            for name in [name for name in reached if name in self.exchanges]:
                found = self.matches(name, keys, headers)
                _, alternate = self.exchanges[name].record.arguments.get("alternate-exchange", ("V", None))
                if not found and alternate is not None:
                    found = {("exchange", cast("bytes", alternate).decode())}
                queues |= {target for kind, target in found if kind == "queue" and target in self.queues}
                reached |= {target for kind, target in found if kind == "exchange"}
            if len(reached) + len(queues) == before:
                return queues


EXCHANGES = st.sampled_from(["e0", "e1", "e2", "e3", "e4"])
KEYS = st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=3).map(".".join)
GRAPH_ARGUMENTS: st.SearchStrategy[Table] = st.builds(
    lambda mode, conditions: {**mode, **conditions},
    MODES,
    st.dictionaries(st.sampled_from(["h", "i"]), st.sampled_from([("I", 1), ("S", b"s")]), max_size=2),
)
EDGES: st.SearchStrategy[tuple[tuple[str, Kind, str], str, Table]] = st.tuples(
    st.one_of(
        st.tuples(EXCHANGES, st.just(EXCHANGE), EXCHANGES),
        st.tuples(EXCHANGES, st.just(QUEUE), st.sampled_from(["q0", "q1", "q2", "gone"])),
    ),
    KEYS,
    GRAPH_ARGUMENTS,
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World()
    for name in ["e0", "e1", "e2", "e3"]:
        alternate = draw(st.none() | st.sampled_from(["e0", "e1", "e2", "e3", "missing", ""]))
        arguments: Table = {} if alternate is None else {"alternate-exchange": ("S", alternate.encode())}
        kind = draw(st.sampled_from(sorted(TYPES)))
        internal = name != "e0" and draw(st.booleans())
        world.exchanges[name] = TYPES[kind](record(kind, name, internal=internal, arguments=arguments))
    kind_of_target: Kind
    for (source, kind_of_target, target), routing_key, arguments in draw(st.lists(EDGES, max_size=14)):
        if source in world.exchanges:
            key = BindingKey(source, target, routing_key, canonical_arguments(arguments), kind_of_target)
            world.bindings.append((key, arguments))
            world.exchanges[source].bind(key)
    return world


@given(worlds(), st.lists(KEYS, min_size=1, max_size=3), st.dictionaries(st.sampled_from("hi"), FEW_FIELDS))
def test_a_graph_with_cycles_and_alternates_gives_one_copy_to_every_queue_in_reach(
    world: World, keys: list[str], headers: Table
) -> None:
    reader = HeaderReader(header.build({}, headers))
    found = resolve(world, "e0", keys[0], reader, keys[1:])
    assert len(found) == len(set(found))
    assert set(found) == world.naive_route("e0", tuple(keys), headers)
    if not reader.was_read:
        assert resolve(world, "e0", keys[0], no_headers, keys[1:]) == found


# ------------------------------------------------------------------------------------------------- copies
@given(
    st.dictionaries(st.sampled_from(["CC", "BCC", "a", "cc"]), st.just("A"), max_size=4),
    st.lists(st.sampled_from(["k1", "k2", "\udcff"]).map(lambda key: ("S", key.encode("utf-8", "surrogateescape")))),
    st.booleans(),
)
def test_copies_are_read_and_only_bcc_is_taken_out(names: dict[str, str], keys: list[Field], has_type: bool) -> None:
    table: Table = {name: (kind, [*keys, ("I", 1)]) for name, kind in names.items()}
    properties: dict[str, object] = {"type": b"t", "priority": 3} if has_type else {}
    raw = header.build(properties, table)
    copies, delivered = split_copies(raw)
    plain = [cast("bytes", key[1]).decode("utf-8", "surrogateescape") for key in keys]
    assert list(copies) == plain * (("CC" in table) + ("BCC" in table))
    expected = {name: value for name, value in table.items() if name != "BCC"}
    assert delivered == header.build(properties, expected)

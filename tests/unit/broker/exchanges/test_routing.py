"""Routes over several exchanges, and the CC and BCC headers."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from connector.amqp import header
from connector.amqp.wire import Field, Table
from connector.broker.errors import AccessRefused, Inequivalent, NotFound
from connector.broker.exchanges.binding import EXCHANGE, BindingKey, canonical_arguments
from connector.broker.exchanges.exchange import Exchange
from connector.broker.routing import TYPES, HeaderReader, resolve, split_copies
from connector.broker.topology import ExchangeRecord


@dataclass
class World:
    """A virtual host as routing sees it."""

    title: str = "/"
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    queues: set[str] = field(default_factory=lambda: {"q1", "q2", "q3"})

    def exchange(self, name: str, kind: str, alternate: str | None = None, internal: bool = False) -> None:
        arguments: Table = {} if alternate is None else {"alternate-exchange": ("S", alternate.encode())}
        record = ExchangeRecord("default", name, kind, internal=internal, arguments=arguments)
        self.exchanges[name] = TYPES[kind](record)

    def queue(self, source: str, queue: str, key: str = "", arguments: Table | None = None) -> None:
        self.exchanges[source].bind(BindingKey(source, queue, key, canonical_arguments(arguments or {})))

    def chain(self, source: str, target: str, key: str = "") -> None:
        self.exchanges[source].bind(BindingKey(source, target, key, kind=EXCHANGE))

    def route(self, exchange: str, key: str = "", *copies: str) -> list[str]:
        return resolve(self, exchange, key, dict, copies)


def test_the_default_exchange_knows_every_queue_by_name() -> None:
    world = World()
    assert world.route("", "q1") == ["q1"]
    assert world.route("", "missing") == []
    assert world.route("", "q1", "q3", "missing", "q1") == ["q1", "q3"]


def test_a_missing_and_an_internal_exchange_are_refused() -> None:
    world = World()
    world.exchange("hidden", "fanout", internal=True)
    with pytest.raises(NotFound, match="no exchange 'nope' in vhost '/'"):
        world.route("nope")
    with pytest.raises(AccessRefused, match="cannot publish to internal exchange 'hidden' in vhost '/'"):
        world.route("hidden")


def test_the_key_stays_the_same_along_the_chain() -> None:
    world = World()
    world.exchange("a", "topic")
    world.exchange("b", "direct", internal=True)
    world.chain("a", "b", "orders.*")
    world.queue("b", "q1", "orders.new")
    world.queue("b", "q2", "orders.*")
    assert world.route("a", "orders.new") == ["q1"]
    assert world.route("a", "orders.*") == ["q2"]
    assert world.route("a", "orders") == []


def test_cycles_end_and_diamonds_give_one_copy() -> None:
    world = World()
    for name in "abcd":
        world.exchange(name, "fanout")
    for source, target in ("ab", "ac", "bd", "cd", "da", "aa"):
        world.chain(source, target)
    world.queue("d", "q1")
    world.queue("a", "q1")
    world.queue("c", "q2")
    assert world.route("a") == ["q1", "q2"]
    assert sorted(world.route("d")) == ["q1", "q2"]


def test_the_alternate_exchange_takes_only_what_has_no_route() -> None:
    world = World()
    world.exchange("main", "direct", alternate="ae")
    world.queue("main", "q1", "k")
    assert world.route("main", "other") == []
    world.exchange("ae", "fanout", internal=True)
    world.queue("ae", "q2")
    assert world.route("main", "k") == ["q1"]
    assert world.route("main", "other") == ["q2"]
    assert world.route("main", "k", "other") == ["q1"]
    assert world.route("main", "other", "k") == ["q1"]


def test_a_way_to_another_exchange_is_a_route_even_if_it_leads_nowhere() -> None:
    world = World()
    world.exchange("main", "direct", alternate="ae")
    world.exchange("ae", "fanout")
    world.queue("ae", "q1")
    world.exchange("dead end", "fanout")
    world.chain("main", "dead end", "k")
    assert world.route("main", "k") == []


def test_alternates_chain_and_may_be_a_cycle() -> None:
    world = World()
    world.exchange("a", "direct", alternate="b")
    world.exchange("b", "direct", alternate="c")
    world.exchange("c", "topic", alternate="a")
    world.queue("c", "q3", "x.#")
    assert world.route("a", "x.y") == ["q3"]
    assert world.route("a", "y") == []


def test_the_default_exchange_as_an_alternate_takes_nothing() -> None:
    world = World()
    world.exchange("a", "direct", alternate="")
    assert world.route("a", "q1") == []


def test_queues_that_are_gone_are_left_out() -> None:
    world = World()
    world.exchange("a", "fanout")
    world.queue("a", "gone")
    world.queue("a", "q1")
    assert world.route("a") == ["q1"]


def test_a_route_through_a_headers_exchange_says_that_it_read_the_headers() -> None:
    world = World()
    world.exchange("a", "topic")
    world.exchange("h", "headers")
    world.chain("a", "h", "deep.#")
    world.queue("h", "q1", arguments={"n": ("I", 1)})
    world.queue("a", "q2", "flat")
    raw = header.build({}, {"n": ("l", 1)})
    reader = HeaderReader(raw)
    assert resolve(world, "a", "flat", reader) == ["q2"]
    assert not reader.was_read
    reader = HeaderReader(raw)
    assert resolve(world, "a", "deep.x", reader) == ["q1"]
    assert reader.was_read
    assert reader() is reader()
    assert HeaderReader(header.EMPTY)() == {}


def keys(*texts: bytes) -> Field:
    return ("A", [("S", text) for text in texts])


def test_copies_are_further_keys_and_bcc_is_not_delivered() -> None:
    properties = {"content_type": b"text/plain", "priority": 5, "app_id": b"x"}
    table: Table = {"first": ("I", 1), "BCC": keys(b"b1"), "CC": keys(b"c1", b"c\xff"), "last": ("V", None)}
    copies, delivered = split_copies(header.build(properties, table))
    assert copies == ("c1", "c\udcff", "b1")
    del table["BCC"]
    assert delivered == header.build(properties, table)


def test_a_header_without_copies_passes_untouched() -> None:
    for raw in (
        header.EMPTY,
        header.build({"type": b"CC"}),
        header.build({}, {"cc": ("I", 1), "CCC": ("I", 1)}),
        header.build({}, {"CC": keys(b"k")}),
        header.build({}, {"CC": ("A", [])}),
    ):
        assert split_copies(raw)[1] is raw


def test_items_that_are_no_long_strings_are_ignored() -> None:
    copies, _ = split_copies(header.build({}, {"CC": ("A", [("I", 1), ("x", b"x"), ("S", b"k"), ("V", None)])}))
    assert copies == ("k",)


def test_an_only_bcc_leaves_an_empty_table() -> None:
    assert split_copies(header.build({}, {"BCC": keys()})) == ((), header.build({}, {}))


@pytest.mark.parametrize(
    ("table", "name", "type_name"),
    [
        ({"CC": ("S", b"a")}, "CC", "longstr"),
        ({"BCC": ("I", 1)}, "BCC", "signedint"),
        ({"CC": ("V", None)}, "CC", "void"),
        ({"BCC": ("t", True), "CC": ("d", 1.0)}, "CC", "double"),
        ({"CC": ("F", {})}, "CC", "table"),
    ],
)
def test_copies_must_be_arrays(table: Table, name: str, type_name: str) -> None:
    with pytest.raises(Inequivalent) as error:
        split_copies(header.build({}, table))
    assert str(error.value) == f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name}}}'

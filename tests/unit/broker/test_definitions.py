"""Definitions: RabbitMQ's JSON, read, written, compared and applied."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.amqp.wire import Table
from connector.broker.definitions import (
    DefinitionsError,
    Import,
    Report,
    differences,
    export,
    identities,
    read,
    without_throw_away,
)
from connector.broker.errors import NotFound
from connector.broker.ports import Unavailable
from tests.support import tables
from tests.support.broker_model import BrokerModel

#: As ``rabbitmqctl export_definitions`` of 3.10 writes it.
DOCUMENT: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "rabbitmq_version": "3.10.8",
    "product_name": "RabbitMQ",
    "product_version": "3.10.8",
    "users": [{"name": "guest", "password_hash": "x", "tags": ["administrator"], "limits": {}}],
    "vhosts": [{"name": "/"}],
    "permissions": [],
    "topic_permissions": [],
    "parameters": [],
    "global_parameters": [{"name": "internal_cluster_id", "value": "c"}],
    "policies": [],
    "queues": [
        {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": "classic"}}
    ],
    "exchanges": [
        {"name": name, "vhost": "/", "type": kind, "durable": True, "auto_delete": False, "internal": False,
         "arguments": arguments}
        for name, kind, arguments in (("x", "topic", {"alternate-exchange": "y"}), ("y", "fanout", {}))
    ],
    "bindings": [
        {"source": "x", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "a.#",
         "arguments": {"n": 1, "f": 1.5, "b": True, "s": "é", "v": None, "t": {"k": [1, 2**40]}}},
        {"source": "x", "vhost": "/", "destination": "y", "destination_type": "exchange", "routing_key": "#",
         "arguments": {}},
    ],
}  # fmt: skip


def apply(model: BrokerModel, document: object, vhost: str | None = None) -> Report:
    reports: list[Report] = []
    Import(model.broker, read(document, vhost), reports.append).start()
    model.settle()
    (report,) = reports
    return report


def sections(document: dict[str, Any]) -> dict[str, Any]:
    return {name: document[name] for name in ("queues", "exchanges", "bindings")}


def test_what_is_imported_is_exported_again() -> None:
    model = BrokerModel()
    report = apply(model, DOCUMENT)
    assert report.created == {"exchanges": 2, "queues": 1, "bindings": 2}
    assert report.notes == ["users ignored: 1", "global_parameters ignored: 1"]
    assert not report.refused
    exported = json.loads(json.dumps(export(model.broker)))
    assert sections(exported) == sections(DOCUMENT)
    assert exported["vhosts"] == [{"name": "/"}]


def test_importing_again_changes_nothing() -> None:
    model = BrokerModel()
    apply(model, DOCUMENT)
    logged = len(model.log)
    report = apply(model, DOCUMENT)
    assert not report.created
    assert report.unchanged == {"exchanges": 2, "queues": 1, "bindings": 2}
    assert len(model.log) == logged


def test_what_exists_and_differs_is_reported_and_stays() -> None:
    model = BrokerModel()
    apply(model, DOCUMENT)
    report = apply(model, {"queues": [{"name": "q", "durable": False}], "exchanges": [{"name": "y", "type": "direct"}]})
    assert report.refused == [
        f"{what} in vhost '/': inequivalent arg '{flag}' for {what} in vhost '/': received {asked} but current is {now}"
        for what, flag, asked, now in (
            ("exchange 'y'", "type", "'direct'", "'fanout'"),
            ("queue 'q'", "durable", "'false'", "'true'"),
        )
    ]
    assert sections(export(model.broker)) == sections(DOCUMENT)


def test_what_cannot_be_declared_is_left_out_with_a_line() -> None:
    model = BrokerModel()
    report = apply(
        model,
        {
            "queues": [
                {"name": "old", "arguments": {"x-message-ttl": 5}},
                {"name": "far", "vhost": "elsewhere"},
                {"name": "huge", "arguments": {"n": 2**70}},
                {"name": "good"},
            ],
            "bindings": [{"source": "nope", "destination": "good"}, {"source": "", "destination": "good"}],
            "shovels": [1],
        },
    )
    assert report.created == {"queues": 1}
    assert report.notes == ["unknown section ignored: shovels"]
    assert report.refused == [
        f"queue 'huge' in vhost '/': arguments: no field type for {2**70}",
        "queue 'old' in vhost '/': queue argument 'x-message-ttl' is not supported",
        "binding from 'nope' to queue 'good' by '' in vhost '/': no exchange 'nope' in vhost '/'",
        "vhost 'elsewhere' is not in the settings (vhosts): 1 left out",
    ]


def test_one_virtual_host() -> None:
    model = BrokerModel(vhosts=("team",))
    document = {"queues": [{"name": "q"}], "exchanges": [], "bindings": [{"source": "amq.direct", "destination": "q"}]}
    assert apply(model, document, "team").created == {"queues": 1, "bindings": 1}
    exported = export(model.broker, "team")
    assert [queue["name"] for queue in exported["queues"]] == ["q"]
    assert not any("vhost" in entry for section in sections(exported).values() for entry in section)
    assert "vhosts" not in exported
    assert export(model.broker, "/")["queues"] == []
    assert export(model.broker)["queues"][0]["vhost"] == "team"
    with pytest.raises(NotFound):
        export(model.broker, "nope")


def test_a_log_that_does_not_answer_is_a_failure() -> None:
    model = BrokerModel()
    model.hold_log = True
    reports: list[Report] = []
    Import(model.broker, read({"queues": [{"name": "q"}]}), reports.append).start()
    event_id, _ = model.waiting_log.pop()
    model.broker.on_append_failed(event_id, Unavailable("gone"))
    assert reports[0].may_retry
    assert reports[0].refused == ["queue 'q' in vhost '/': gone"]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "the document is not a JSON object"),
        ({"queues": {}}, "queues is not a list"),
        ({"queues": ["q"]}, r"queues\[0\] is not an object"),
        ({"queues": [{}]}, r"queues\[0\] has no name"),
        ({"exchanges": [{"name": "x", "type": "direct"}, {"name": "x"}]}, r"exchanges\[1\] has no type"),
        ({"queues": [{"name": 1}]}, r"queues\[0\]: name is not a string"),
        ({"queues": [{"name": "q", "durable": 1}]}, r"queues\[0\]: durable is not a boolean"),
        ({"queues": [{"name": "q", "arguments": []}]}, r"queues\[0\]: arguments is not a object"),
        ({"queues": [{"name": "q", "vhost": {"a": 1}}]}, r"queues\[0\]: vhost is not a string"),
    ],
)
def test_what_is_no_document(document: object, text: str) -> None:
    with pytest.raises(DefinitionsError, match=text):
        read(document)


def test_two_documents_compared() -> None:
    changed = json.loads(json.dumps(DOCUMENT))
    changed["queues"][0]["durable"] = False
    changed["exchanges"].pop()
    changed["bindings"][1]["routing_key"] = "k"
    assert differences(read(DOCUMENT), read(DOCUMENT)) == []
    assert differences(read(DOCUMENT), read(changed)) == [
        "differs: queue 'q' in vhost '/': durable is true, in the file false",
        "only in the file: binding from 'x' to exchange 'y' by 'k' in vhost '/'",
        "only here: exchange 'y' in vhost '/'",
        "only here: binding from 'x' to exchange 'y' by '#' in vhost '/'",
    ]


_NAMES = st.sampled_from(["a", "b", "c"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_ARGUMENTS = st.dictionaries(st.sampled_from(["k", "l"]), _VALUES, max_size=2)


@settings(max_examples=50, deadline=None)
@given(
    queues=st.lists(_NAMES, unique=True),
    exchanges=st.lists(st.tuples(_NAMES, st.sampled_from(["direct", "fanout", "topic"])), unique_by=lambda x: x[0]),
    bindings=st.lists(st.tuples(_NAMES, _NAMES, st.booleans(), _ARGUMENTS), max_size=5),
)
def test_an_export_declares_the_same_elsewhere(
    queues: list[str], exchanges: list[tuple[str, str]], bindings: list[tuple[str, str, bool, dict[str, Any]]]
) -> None:
    first, second = BrokerModel(), BrokerModel()
    document = {
        "queues": [{"name": name} for name in queues],
        "exchanges": [{"name": name, "type": kind} for name, kind in exchanges],
        "bindings": [
            {"source": source, "destination": to, "destination_type": ("exchange", "queue")[is_queue], "arguments": a}
            for source, to, is_queue, a in bindings
        ],
    }  # fmt: skip
    apply(first, document)
    exported = json.loads(json.dumps(export(first.broker)))
    again = apply(second, exported)
    assert not (again.notes)
    assert not (again.refused)
    assert differences(read(export(second.broker)), read(exported)) == []


def test_a_server_named_queue_comes_back() -> None:
    first, second = BrokerModel(), BrokerModel()
    name = first.declare("", durable=True).value.name
    first.bind(name, "amq.topic", "a.#")
    exported = json.loads(json.dumps(export(first.broker)))
    report = apply(second, exported)
    assert (report.created, report.notes, report.refused) == ({"queues": 1, "bindings": 1}, [], [])
    assert sections(export(second.broker)) == sections(exported)
    assert second.publish("amq.topic", "a.b", b"m") == 1


def test_other_reserved_names_stay_refused() -> None:
    model = BrokerModel()
    queues = [{"name": "amq.mine"}, {"name": "amq.rabbitmq.reply-to"}]
    report = apply(model, {"queues": queues, "exchanges": [{"name": "amq.gen-x", "type": "direct"}]})
    assert not report.created
    assert [line.split(": ")[1] for line in report.refused] == [
        "exchange name 'amq.gen-x' contains reserved prefix 'amq.*'",
        "queue name 'amq.mine' contains reserved prefix 'amq.*'",
        "queue name 'amq.rabbitmq.reply-to' contains reserved prefix 'amq.*'",
    ]


@settings(max_examples=50, deadline=None)
@given(tables.tables)
def test_whatever_clients_declare_is_declared_again(arguments: Table) -> None:
    """Arguments of every type on the wire; nothing of them need have a meaning."""
    first, second = BrokerModel(), BrokerModel()
    first.declare("q", durable=True, arguments=arguments)
    first.declare("transient", arguments=arguments)
    first.declare("", durable=True, auto_delete=True)
    first.declare_exchange("x", "headers", durable=True, internal=True, arguments=arguments)
    first.declare_exchange("y", "topic", auto_delete=True)
    first.call(first.vhost.bind_queue, "q", "x", "k", arguments, None)
    first.call(first.vhost.bind_exchange, "x", "y", "#", arguments)
    exported = json.loads(json.dumps(export(first.broker)))
    report = apply(second, exported)
    assert not (report.notes)
    assert not (report.refused)
    again = json.loads(json.dumps(export(second.broker)))
    assert differences(read(again), read(exported)) == []
    assert differences(read(exported), read(again)) == []
    assert not apply(second, exported).created


def nested(depth: int) -> dict[str, Any]:
    """Arguments in which tables lie so deep in one another, the arguments themselves being the first."""
    arguments: dict[str, Any] = {}
    for _ in range(depth - 1):
        arguments = {"a": arguments}
    return arguments


LONG = "é" * 128
BOUND = {"source": "amq.topic", "destination": "good"}


@pytest.mark.parametrize(
    ("section", "row", "line"),
    [
        ("queues", {"name": "sur\ud800"}, "queue 'sur\\ud800' in vhost '/': name is not UTF-8"),
        ("queues", {"name": "raw\udcff"}, "queue 'raw\\udcff' in vhost '/': name is not UTF-8"),
        ("queues", {"name": LONG}, f"queue '{LONG}' in vhost '/': name has 256 bytes, which are more than 255"),
        ("queues", {"name": "\r\n"}, "queue '' in vhost '/': name is empty"),
        ("queues", {"name": "q", "vhost": "\ud800"}, "vhost '\\ud800' is not in the settings (vhosts): 1 left out"),
        (
            "queues",
            {"name": "q", "arguments": {"k": ["\ud800"]}},
            "queue 'q' in vhost '/': arguments have text that is not UTF-8",
        ),
        (
            "queues",
            {"name": "q", "arguments": {"k" * 256: 1}},
            "queue 'q' in vhost '/': arguments: 256 bytes do not fit a short string",
        ),
        (
            "queues",
            {"name": "q", "arguments": nested(65)},
            "queue 'q' in vhost '/': arguments are nested deeper than 64",
        ),
        (
            "exchanges",
            {"name": "x\ud800", "type": "direct", "arguments": nested(700)},
            "exchange 'x\\ud800' in vhost '/': name is not UTF-8",
        ),
        (
            "exchanges",
            {"name": "x", "type": "direct", "arguments": {"a": [nested(700)]}},
            "exchange 'x' in vhost '/': arguments are nested deeper than 64",
        ),
        (
            "bindings",
            {**BOUND, "routing_key": "k\ud800"},
            "binding from 'amq.topic' to queue 'good' by 'k\\ud800' in vhost '/': routing_key is not UTF-8",
        ),
        (
            "bindings",
            {**BOUND, "routing_key": "k" * 256},
            (
                f"binding from 'amq.topic' to queue 'good' by '{'k' * 255}' in vhost '/': "
                "routing_key has 256 bytes, which are more than 255"
            ),
        ),
        (
            "bindings",
            {**BOUND, "arguments": nested(700)},
            "binding from 'amq.topic' to queue 'good' by '' in vhost '/': arguments are nested deeper than 64",
        ),
        (
            "bindings",
            {**BOUND, "destination_type": "shovel"},
            (
                "binding from 'amq.topic' to shovel 'good' by '' in vhost '/': "
                "destination_type is neither queue nor exchange"
            ),
        ),
    ],
)
def test_what_amqp_has_no_words_for_is_refused_alone(section: str, row: dict[str, Any], line: str) -> None:
    """Nothing of it reaches the log, where no replica could read it."""
    model = BrokerModel()
    document: dict[str, Any] = {"queues": [{"name": "good"}], "exchanges": [], "bindings": [BOUND]}
    document[section].append(row)
    report = apply(model, document)
    assert (report.created, report.refused) == ({"queues": 1, "bindings": 1}, [line])
    assert not report.may_retry
    assert len(model.log) == 2
    assert differences(read(export(model.broker)), read(document)) in (
        [],
        ["only in the file: queue 'q' in vhost '\\ud800'"],
    )


@pytest.mark.parametrize("name", ["é" * 127, "q"])
def test_what_amqp_just_has_words_for_is_declared(name: str) -> None:
    first, second = BrokerModel(), BrokerModel()
    document = {
        "queues": [{"name": name, "arguments": nested(64)}],
        "bindings": [{"source": "amq.headers", "destination": name, "arguments": nested(64)}],
    }
    report = apply(first, document)
    assert (report.created, report.refused) == ({"queues": 1, "bindings": 1}, [])
    assert not apply(second, json.loads(json.dumps(export(first.broker)))).refused
    assert set(BrokerModel(second).vhost.queues) == {name}


THROWN = {
    "queues": [{"name": "t", "durable": False, "auto_delete": True}, {"name": "q"}],
    "bindings": [{"source": "amq.topic", "destination": to} for to in ("t", "q")],
}


def test_throw_away_queues_are_left_out_every_time() -> None:
    """They live in one connector's memory, and are not exported either: their clients declare them."""
    model = BrokerModel()
    note = "left out, as clients declare their own queues that are auto-delete and not durable: queues: 1, bindings: 1"
    for created, unchanged in (({"queues": 1, "bindings": 1}, {}), ({}, {"queues": 1, "bindings": 1})):
        report = apply(model, THROWN)
        assert (report.created, report.unchanged) == (created, unchanged)
        assert (report.notes, report.refused) == ([note], [])
        assert list(model.vhost.queues) == ["q"]
    here = read(export(model.broker))
    wanted = without_throw_away(read(THROWN), identities(here))
    assert wanted.notes == [note]
    assert differences(here, wanted) == []

    model.declare("t", auto_delete=True)  # its client's
    assert apply(model, THROWN).notes == [note]
    assert differences(read(export(model.broker)), wanted) == []


def test_a_lasting_queue_of_a_throw_away_ones_name_is_compared() -> None:
    model = BrokerModel()
    model.declare("t", durable=True)
    report = apply(model, THROWN)
    assert report.created == {"queues": 1, "bindings": 2}
    assert [line.split(":")[1] for line in report.refused] == [" inequivalent arg 'durable' for queue 't' in vhost '/'"]
    here = read(export(model.broker))
    assert differences(here, without_throw_away(read(THROWN), identities(here))) == [
        "differs: queue 't' in vhost '/': durable is true, in the file false",
        "differs: queue 't' in vhost '/': auto_delete is false, in the file true",
    ]


def test_a_binding_of_a_queue_in_memory_is_its_clients_business() -> None:
    model = BrokerModel()
    model.declare("t", auto_delete=True)
    for _ in range(2):
        report = apply(model, {"bindings": [{"source": "amq.topic", "destination": "t"}]})
        assert not report.created
        assert report.refused == [
            (
                "binding from 'amq.topic' to queue 't' by '' in vhost '/': "
                "queue 't' lives in a connector's memory: its clients bind it"
            )
        ]
    assert model.publish("amq.topic", "", b"m") == 0


def test_what_stands_there_twice_is_created_once() -> None:
    model = BrokerModel()
    queue, binding = {"name": "q\n"}, {"source": "amq.topic", "destination": "q"}
    document = {"queues": [queue, {"name": "q", "vhost": "default"}], "bindings": [binding, binding]}
    report = apply(model, document)
    assert report.created == report.unchanged == {"queues": 1, "bindings": 1}
    assert not report.refused
    assert differences(read(export(model.broker)), read(document)) == []


def test_ignored_sections_may_be_anything() -> None:
    assert read({"users": 5, "policies": {"p": 1, "q": 2}, "odd\ud800": 1}).notes == [
        "users ignored: 1",
        "policies ignored: 1",
        "unknown section ignored: odd\\ud800",
    ]


def test_what_every_virtual_host_has_is_never_created() -> None:
    model = BrokerModel()
    document = {"exchanges": [{"name": "amq.direct", "type": "direct"}, {"name": "amq.topic", "type": "fanout"}]}
    report = apply(model, document)
    assert (report.created, report.unchanged, len(report.refused)) == ({}, {"exchanges": 1}, 1)
    assert differences(read(export(model.broker)), read(document)) == [
        "differs: exchange 'amq.topic' in vhost '/': type is \"topic\", in the file \"fanout\""
    ]

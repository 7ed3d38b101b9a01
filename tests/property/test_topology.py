"""The topology fold: any replica, from any snapshot on, in any later life, has the same state."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from connector.amqp.wire import Table
from connector.broker import snapshots
from connector.broker.event_shapes import SHAPES
from connector.broker.exchanges.binding import EXCHANGE, QUEUE, BindingKey, Kind
from connector.broker.generations import Left, queue_moved, queue_moving, queue_rescued, queue_retired, server_started
from connector.broker.members import member_checked, member_joined, member_left, queue_claimed, queue_given
from connector.broker.topology import (
    HANDLED_TYPES,
    VERSION,
    ExchangeRecord,
    Observer,
    QueueRecord,
    Topology,
    binding_event,
    decode_event,
    encode_event,
    exchange_declared,
    name_event,
    queue_declared,
    unused_exchange_event,
)
from tests.support.broker_model import BrokerModel

members = st.sampled_from(["m", "n", "o"])
vhosts = st.sampled_from(["default", "other"])
queues = st.sampled_from(["q", "r", "\udcff", "ö"])
exchanges = st.sampled_from(["x", "y", "amq.direct"])
tables: st.SearchStrategy[Table] = st.sampled_from([{}, {"a": ("I", 1)}, {"a": ("l", 1), "b": ("S", b"\xff")}])


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    """One event of any type, also of one that nobody knows yet."""
    vhost, queue, exchange = draw(vhosts), draw(queues), draw(exchanges)
    kind: Kind = draw(st.sampled_from([QUEUE, EXCHANGE]))
    destination = queue if kind == QUEUE else draw(exchanges)
    arguments = draw(st.sampled_from([b"\0\0\0\0", b"\0\0\0\4\1at\1"]))
    key = BindingKey(exchange, destination, draw(st.sampled_from(["k", ""])), arguments, kind)
    durable, auto_delete = draw(st.booleans()), draw(st.booleans())
    queue_record = QueueRecord(vhost, queue, durable=durable, auto_delete=auto_delete, arguments=draw(tables))
    own = draw(st.sampled_from(["x", "y"]))
    number = draw(st.integers(1, 12)) * 2  # of the event that declared it, when the history is short
    exchange_record = ExchangeRecord(vhost, own, "direct", durable=durable, auto_delete=auto_delete, id=number)
    named = QueueRecord(vhost, queue, id=number)
    one, another = draw(members), draw(members)
    choices: list[dict[str, Any]] = [
        queue_declared(queue_record),
        name_event("queue.deleted", vhost, queue),
        name_event("queue.drained", vhost, queue),
        exchange_declared(exchange_record),
        name_event("exchange.deleted", vhost, exchange),
        unused_exchange_event(exchange_record),
        member_joined(one, "host", "process"),
        member_left(one),
        member_checked(one),
        queue_claimed(named, one),
        queue_given(named, one, another, {"0": 7}),
        binding_event("queue.bound", vhost, key),
        binding_event("queue.unbound", vhost, key),
        {"type": "from.the.future", "vhost": vhost},
    ]
    return {**draw(st.sampled_from(choices)), "member": one}


class Follower(Observer):
    """What an observer makes of the fold; every report must make sense when it comes."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, str], QueueRecord] = {}
        self.exchanges: dict[tuple[str, str], ExchangeRecord] = {}
        self.bindings: set[tuple[str, BindingKey]] = set()

    def on_queue_created(self, record: QueueRecord) -> None:
        assert (record.vhost, record.name) not in self.queues
        self.queues[record.vhost, record.name] = record

    def on_queue_deleted(self, record: QueueRecord) -> None:
        assert self.queues.pop((record.vhost, record.name)) is record
        assert not [
            b for b in self.bindings if (b[0], b[1].kind, b[1].destination) == (record.vhost, QUEUE, record.name)
        ]

    def on_exchange_created(self, record: ExchangeRecord) -> None:
        assert (record.vhost, record.name) not in self.exchanges
        self.exchanges[record.vhost, record.name] = record

    def on_exchange_deleted(self, record: ExchangeRecord) -> None:
        assert self.exchanges.pop((record.vhost, record.name)) is record
        self.bindings -= {b for b in self.bindings if (b[0], b[1].exchange) == (record.vhost, record.name)}

    def on_bound(self, vhost: str, key: BindingKey) -> None:
        assert key.kind == EXCHANGE or (vhost, key.destination) in self.queues
        assert (vhost, key) not in self.bindings
        self.bindings.add((vhost, key))

    def on_unbound(self, vhost: str, key: BindingKey) -> None:
        self.bindings.remove((vhost, key))

    def on_skipped(self, sequence: int, what: object, error: Exception | None) -> None:
        raise AssertionError(what) from error


def fold(history: list[tuple[int, dict[str, Any]]]) -> Topology:
    topology = Topology(Observer())
    for sequence, event in history:
        topology.apply(sequence, event)
    return topology


def state(topology: Topology) -> str:
    """Everything a snapshot keeps, order included."""
    return json.dumps({**topology.snapshot_event(), "upto": 0})


def wired(event: dict[str, Any]) -> dict[str, Any]:
    """The event as it comes out of the log."""
    back = decode_event(encode_event({"v": VERSION, "id": "i", "member": "m", **event}))
    assert back is not None
    return back


def in_parts(snapshot: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The events of a snapshot that is too large for one."""
    return [wired(part) for part in snapshots.split(snapshot, name, part_objects=1)]


histories = st.lists(events(), max_size=25).map(lambda made: [(2 * n, wired(event)) for n, event in enumerate(made, 1)])


@given(histories, st.data())
def test_any_snapshot_and_what_came_after_it_give_the_same_state(
    history: list[tuple[int, dict[str, Any]]], data: st.DataObject
) -> None:
    """The snapshot is written later than it is computed: what came between is before it in the log.

    The server forgets the beginning of the log, but nothing that the snapshot does not know.
    """
    taken = data.draw(st.integers(0, len(history)), label="computed after")
    written = data.draw(st.integers(taken, len(history)), label="written after")
    kept = data.draw(st.integers(0, taken), label="forgotten")
    snapshot = wired(fold(history[:taken]).snapshot_event())
    parts = in_parts(snapshot, "m.2") if data.draw(st.booleans(), label="in parts") else [snapshot]
    unfinished = in_parts(snapshot, "m.1")[:-1]
    log = history[kept:]
    for some in (parts, unfinished):
        places = st.integers(written - kept, len(log))
        at = sorted(data.draw(st.lists(places, min_size=len(some), max_size=len(some)), label="places"))
        for place, part in reversed(list(zip(at, some, strict=True))):
            log.insert(place, (0, part))
    found, rest = snapshots.replay(log)
    assert found is not None
    assert found["upto"] == snapshot["upto"]
    assert rest == history[taken:]
    topology = Topology(Observer())
    topology.load_snapshot(found)
    for sequence, event in rest:
        topology.apply(sequence, event)
    whole = fold(history)
    assert topology.version == whole.version
    assert state(topology) == state(whole)


@given(histories)
def test_the_observer_can_follow(history: list[tuple[int, dict[str, Any]]]) -> None:
    follower = Follower()
    topology = Topology(follower)
    for sequence, event in history:
        before = state(topology)
        changed = topology.apply(sequence, event)
        assert changed == (state(topology) != before)
    assert follower.queues == topology.queues
    assert follower.exchanges == topology.exchanges
    assert follower.bindings == set(topology.bindings)
    assert not topology.undrained.keys() & topology.queues.keys()
    assert topology.events_since_snapshot == 0  # state() took one


@given(histories)
def test_ids_are_the_creating_events(history: list[tuple[int, dict[str, Any]]]) -> None:
    topology = fold(history)
    for key, record in topology.queues.items():
        declared = [n for n, e in history if e["type"] == "queue.declared" and (e["vhost"], e["name"]) == key]
        assert record.id in declared
    again = Topology(Observer())
    again.load_snapshot(topology.snapshot_event())
    assert again.queues == topology.queues


@given(histories)
def test_a_new_life_of_the_broker_has_the_same_durable_queues(history: list[tuple[int, dict[str, Any]]]) -> None:
    first = BrokerModel(vhosts=("/", "other"))
    for _, event in history:
        first.apply_foreign({key: value for key, value in event.items() if key not in {"v", "id", "member"}})
    first.settle()
    second = BrokerModel(first, vhosts=("/", "other"))
    for name, vhost in first.broker.vhosts.items():
        durable = {queue for queue, found in vhost.queues.items() if found.record.durable}
        assert set(second.broker.vhosts[name].queues) == durable
    assert second.broker.topology.version == len(second.log)


@given(histories)
def test_a_queue_has_one_living_owner_or_none(history: list[tuple[int, dict[str, Any]]]) -> None:
    """And changes hands only when its owner gives it, or goes; a lonely member has all."""
    topology = Topology(Observer())
    for sequence, event in history:
        before = {key: (record.id, topology.members.owner_of(record)) for key, record in topology.queues.items()}
        living = set(topology.members.living)
        topology.apply(sequence, event)
        now = topology.members.living
        for key, record in topology.queues.items():
            owner = topology.members.owner_of(record)
            assert owner in {"", *now}
            if len(now) == 1:
                assert {owner} == set(now)
            known, former = before.get(key, (0, ""))
            if known == record.id and former and owner != former:
                assert event["type"] == "queue.given" or former not in now
        assert set(now) ^ living <= {event.get("who")}


@given(st.binary(max_size=20))
def test_what_is_not_ours_is_no_event(data: bytes) -> None:
    assert decode_event(data) is None
    assert decode_event(b'{"v":2,"type":"x"}') is None
    assert decode_event(b'{"v":1}') is None
    assert decode_event(b"[1]") is None


@given(histories)
def test_without_a_snapshot_everything_is_applied(history: list[tuple[int, dict[str, Any]]]) -> None:
    assert snapshots.replay(history) == (None, history)


#: Anything JSON has, often what some field wants.
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 3)
    | st.sampled_from(["", "x", "q", "amq.direct", "amq.odd", "AAAA", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["0", "x"]), inner, max_size=2),
    max_leaves=5,
)


_OTHERS = (
    queue_moving("default", "q", 0, 1, "why"),
    queue_moved("default", "q", 0, 1, Left(0, [1], 2, 0, 3, 1)),
    queue_retired("default", "q", 1),
    queue_rescued("default", "q"),
    server_started(1),
    Topology(Observer()).snapshot_event(),
)


@st.composite
def odd_events(draw: st.DrawFn) -> dict[str, Any]:
    """An event of any type in which a field or two are missing, or are something else."""
    event = {"v": VERSION, "id": "i", "member": "m", **draw(events() | st.sampled_from(_OTHERS))}
    for name in draw(st.lists(st.sampled_from(sorted(event)), max_size=2)):
        if draw(st.booleans()):
            event.pop(name, None)
        else:
            event[name] = draw(values)
    return event


@settings(max_examples=30, deadline=None)
@given(st.lists(odd_events(), max_size=6))
def test_no_event_stops_the_loading_or_the_following(log: list[dict[str, Any]]) -> None:
    """What does not fit is skipped, and what fits can be folded, whatever it says."""
    read = [data for data in map(encode_event, log) if decode_event(data) is not None]
    following, before = BrokerModel(), BrokerModel()
    for data in read:
        event = decode_event(data)
        assert event is not None
        following.apply_foreign({**event, "id": f"other.{len(following.log)}"})
    before.log = read
    for model in (following, BrokerModel(before)):
        assert model.declare("fresh", durable=True).value.name == "fresh"


def test_every_type_of_event_has_a_shape() -> None:
    """Who adds a type says in ``event_shapes`` what it looks like, so that a malformed one cannot stop a replica."""
    assert SHAPES.keys() == HANDLED_TYPES | {snapshots.PART, snapshots.WHOLE}

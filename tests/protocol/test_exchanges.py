"""Exchanges of all types as clients meet them: chains, alternates, copies, and their end (EX-03 to EX-16)."""

from __future__ import annotations

import pytest
from pamqp import commands

from connector.amqp.header import parse
from connector.broker.topology import Observer, Topology
from tests.support.dialogue import Dialogue, connect, spec
from tests.support.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Dialogue:
    return connect(world)


def declare(client: Dialogue, name: str, kind: str, **fields: object) -> None:
    client.call(1, commands.Exchange.Declare, exchange=name, exchange_type=kind, **fields)


def chain(client: Dialogue, source: str, destination: str, key: str = "", **fields: object) -> None:
    client.call(1, commands.Exchange.Bind, source=source, destination=destination, routing_key=key, **fields)


def bound(client: Dialogue, exchange: str, key: str = "", **fields: object) -> str:
    """A new queue with this binding."""
    queue = client.declare("")
    client.call(1, commands.Queue.Bind, queue=queue, exchange=exchange, routing_key=key, **fields)
    return queue


def received(client: Dialogue, *queues: str) -> list[int]:
    """How many messages there were in each queue."""
    return [client.call(1, commands.Queue.Purge, queue=queue).message_count for queue in queues]


def exists(client: Dialogue, exchange: str) -> bool:
    client.send(1, commands.Exchange.Declare, exchange=exchange, passive=True)
    [(_, answer)] = client.received()
    if isinstance(answer, commands.Exchange.DeclareOk):
        return True
    assert isinstance(answer, commands.Channel.Close)
    assert answer.reply_code == 404
    client.send(1, commands.Channel.CloseOk).call(1, commands.Channel.Open)
    return False


@pytest.mark.parametrize("exchange", ["amq.topic", "amq.fanout", "amq.headers", "amq.match"])
def test_predeclared_exchanges_route(client: Dialogue, exchange: str) -> None:
    queue = bound(client, exchange, "a.#", arguments={"n": 1})
    client.publish(1, "a.b", exchange=exchange, headers={"n": 1})
    assert received(client, queue) == [1]


def test_a_route_by_headers_is_decided_for_each_message(client: Dialogue) -> None:
    one = bound(client, "amq.headers", arguments={"n": 1})
    two = bound(client, "amq.headers", arguments={"n": 2, "x-match": "any", "m": 1})
    sent: list[dict[str, object]] = [{"n": 1}, {"n": 2}, {"m": 1, "n": 1}, {}]
    for headers in sent:
        client.publish(1, "k", exchange="amq.headers", headers=headers)
    assert received(client, one, two) == [2, 2]


def test_an_unknown_match_is_406_and_binds_nothing(client: Dialogue) -> None:
    queue = client.declare("")
    client.send(1, commands.Queue.Bind, queue=queue, exchange="amq.headers", arguments={"x-match": "some"})
    text = 'PRECONDITION_FAILED - Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x'
    client.expect_close(406, text, (50, 20))


@spec("RabbitMQ, exchange to exchange bindings", "Messages flow from the source to the destination; cycles end.")
def test_exchanges_are_bound_to_exchanges(client: Dialogue) -> None:
    declare(client, "a", "topic")
    declare(client, "b", "fanout", internal=True)
    chain(client, "a", "b", "x.*")
    chain(client, "b", "a", "")
    queue, both = bound(client, "b"), bound(client, "b")
    client.call(1, commands.Queue.Bind, queue=both, exchange="a", routing_key="#")
    client.publish(1, "x.y", exchange="a").publish(1, "z", exchange="a")
    assert received(client, queue, both) == [1, 2]
    client.call(1, commands.Exchange.Unbind, source="a", destination="b", routing_key="x.*")
    client.publish(1, "x.y", exchange="a")
    assert received(client, queue, both) == [0, 1]
    client.publish(1, "k", exchange="b")
    text = "ACCESS_REFUSED - cannot publish to internal exchange 'b' in vhost '/'"
    client.expect_close(403, text, (60, 40))


def test_binding_what_is_missing_is_404_and_the_default_exchange_403(client: Dialogue) -> None:
    for source, destination, code, text in (
        ("nope", "amq.direct", 404, "NOT_FOUND - no exchange 'nope' in vhost '/'"),
        ("amq.direct", "nope", 404, "NOT_FOUND - no exchange 'nope' in vhost '/'"),
        ("first", "second", 404, "NOT_FOUND - no exchange 'first' in vhost '/'"),
        ("", "amq.direct", 403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
        ("amq.direct", "", 403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
    ):
        client.send(1, commands.Exchange.Bind, source=source, destination=destination)
        client.expect_close(code, text, (40, 30))
        client.call(1, commands.Channel.Open)
    client.call(1, commands.Exchange.Unbind, source="nope", destination="amq.direct")


def test_the_alternate_exchange_takes_what_has_no_route(client: Dialogue) -> None:
    declare(client, "main", "direct", arguments={"alternate-exchange": "ae"})
    client.publish(1, "k", exchange="main", mandatory=True)
    client.expect(1, commands.Basic.Return, reply_code=312)
    declare(client, "ae", "fanout")
    queue = bound(client, "ae")
    client.publish(1, "k", exchange="main", mandatory=True).expect_nothing()
    assert received(client, queue) == [1]
    client.send(
        1, commands.Exchange.Declare, exchange="odd", exchange_type="direct", arguments={"alternate-exchange": 1}
    )
    text = "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange 'odd' in vhost '/'"
    client.expect_close(406, text, (40, 10))


@pytest.mark.parametrize("exchange", ["", "amq.direct"])
def test_copies_go_to_further_keys_and_bcc_is_not_seen(client: Dialogue, exchange: str) -> None:
    queues = [client.declare("") for _ in range(3)]
    if exchange:
        for queue in queues:
            client.call(1, commands.Queue.Bind, queue=queue, exchange=exchange, routing_key=queue)
    headers = {"CC": [queues[1], 5], "BCC": [queues[2], queues[0]]}
    client.publish(1, queues[0], exchange=exchange, headers=headers)
    for queue in queues:
        content = client.get(queue, no_ack=True)
        assert content.method.routing_key == queues[0]
        assert set(parse(content.header).headers()) == {"CC"}
        assert client.get(queue) is None


def test_a_returned_message_does_not_show_bcc(client: Dialogue) -> None:
    client.publish(1, "nobody", mandatory=True, headers={"BCC": ["nobody"], "k": 1})
    assert parse(client.expect(1, commands.Basic.Return).header).headers() == {"k": ("I", 1)}


def test_copies_must_be_arrays_of_an_exchange_that_exists(client: Dialogue) -> None:
    client.publish(1, "k", headers={"CC": "k"})
    text = 'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}'
    client.expect_close(406, text, (60, 40)).call(1, commands.Channel.Open)
    client.publish(1, "k", exchange="nope", headers={"CC": "k"})
    client.expect_close(404, "NOT_FOUND - no exchange 'nope' in vhost '/'", (60, 40))


def test_unknown_types_and_the_default_exchange(client: Dialogue) -> None:
    for fields, code, text in (
        ({"exchange": "x", "exchange_type": "y"}, 406, "PRECONDITION_FAILED - unknown exchange type 'y'"),
        ({"passive": True}, 403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
    ):
        client.send(1, commands.Exchange.Declare, **fields)
        client.expect_close(code, text, (40, 10)).call(1, commands.Channel.Open)
    client.send(1, commands.Exchange.Delete, exchange="amq.topic")
    text = "ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed"
    client.expect_close(403, text, (40, 20))


@pytest.mark.parametrize("durable", [True, False])
def test_auto_delete_exchanges_go_one_after_the_other_before_the_answer(
    world: World, client: Dialogue, durable: bool
) -> None:
    declare(client, "first", "fanout", auto_delete=True)
    declare(client, "second", "fanout", auto_delete=True)
    declare(client, "unused", "fanout", auto_delete=True)
    chain(client, "first", "second")
    queue = client.declare("q", exclusive=not durable, durable=durable)
    client.call(1, commands.Queue.Bind, queue=queue, exchange="second")
    world.hold_events = True
    client.send(1, commands.Queue.Unbind, queue=queue, exchange="second")
    for _ in range(3 if durable else 2):
        client.expect_nothing()
        world.answer_events()
    world.settle()
    client.expect(1, commands.Queue.UnbindOk)
    world.hold_events = False
    assert [exists(client, name) for name in ("first", "second", "unused")] == [False, False, True]


@pytest.mark.parametrize("durable", [True, False])
def test_a_deleted_queue_takes_auto_delete_exchanges_with_it(client: Dialogue, durable: bool) -> None:
    declare(client, "x", "direct", auto_delete=True)
    client.declare("q", exclusive=not durable, durable=durable)
    client.call(1, commands.Queue.Bind, queue="q", exchange="x", routing_key="k")
    client.call(1, commands.Queue.Delete, queue="q")
    assert not exists(client, "x")


def test_a_deleted_exchange_leaves_no_binding_behind(client: Dialogue) -> None:
    declare(client, "a", "fanout")
    declare(client, "b", "fanout", auto_delete=True)
    chain(client, "a", "b")
    queue = bound(client, "b")
    client.call(1, commands.Exchange.Delete, exchange="b")
    declare(client, "b", "fanout", auto_delete=True)
    client.publish(1, "", exchange="a", mandatory=True).expect(1, commands.Basic.Return)
    client.publish(1, "", exchange="b", mandatory=True).expect(1, commands.Basic.Return)
    client.call(1, commands.Exchange.Delete, exchange="a", if_unused=True)
    client.call(1, commands.Queue.Delete, queue=queue)
    assert exists(client, "b")


def test_the_log_keeps_bindings_between_exchanges(world: World, client: Dialogue) -> None:
    for name in ("a", "b"):
        declare(client, name, "topic", durable=True)
    chain(client, "a", "b", "k", arguments={"n": 1})
    client.declare("b", exclusive=False, durable=True)
    client.call(1, commands.Queue.Bind, queue="b", exchange="a", routing_key="k")
    snapshot = world.broker.topology.snapshot_event()
    kinds = [event.get("kind", "none") for event in snapshot["bindings"]]
    assert kinds == ["exchange", "none"]
    copy = Topology(Observer())
    copy.load_snapshot(snapshot)
    assert list(copy.bindings) == list(world.broker.topology.bindings)
    client.call(1, commands.Queue.Delete, queue="b")
    assert [key.kind for _, key in world.broker.topology.bindings] == ["exchange"]
    client.call(1, commands.Exchange.Delete, exchange="b")
    topology = world.broker.topology
    assert not topology.bindings
    assert not topology._from
    assert not topology._to

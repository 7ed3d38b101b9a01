"""Queues, exchanges and bindings as methods: names, no-wait, what is refused (EX-01, EX-13, QU-01 to QU-11, PC-15)."""

from __future__ import annotations

import pytest
from pamqp import base, commands

from connector.broker.ports import TimedOut
from tests.support.dialogue import Dialogue, connect, spec
from tests.support.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Dialogue:
    return connect(world)


@spec("1.7.2.1", "An empty name lets the server choose; an empty name later means the queue declared last.")
def test_an_empty_queue_name_is_the_last_declared(client: Dialogue) -> None:
    queue = client.declare("")
    assert queue.startswith("amq.gen-")
    client.publish(1, queue)
    assert client.get("").body == b"x"
    client.send(1, commands.Basic.Consume, consumer_tag="t").expect(1, commands.Basic.ConsumeOk)
    client.call(1, commands.Queue.Bind, exchange="amq.direct")
    client.publish(1, queue, exchange="amq.direct")
    client.expect(1, commands.Basic.Deliver, exchange="amq.direct", routing_key=queue)
    client.call(1, commands.Queue.Unbind, exchange="amq.direct")
    client.publish(1, queue, exchange="amq.direct", mandatory=True).expect(1, commands.Basic.Return)
    client.call(1, commands.Basic.Cancel, consumer_tag="t")
    assert client.call(1, commands.Queue.Purge).message_count == 0
    assert client.call(1, commands.Queue.Delete).message_count == 0


def test_a_key_stays_when_only_the_queue_is_empty(client: Dialogue) -> None:
    queue = client.declare("")
    client.call(1, commands.Queue.Bind, exchange="amq.direct", routing_key="k")
    client.call(1, commands.Queue.Bind, queue=queue, exchange="amq.direct", routing_key="")
    for key in ("k", ""):
        client.publish(1, key, exchange="amq.direct")
        assert client.get(queue) is not None


@pytest.mark.parametrize(
    ("kind", "fields", "ids"),
    [
        (commands.Queue.Bind, {"exchange": "amq.direct"}, (50, 20)),
        (commands.Queue.Unbind, {"exchange": "amq.direct"}, (50, 50)),
        (commands.Queue.Purge, {}, (50, 30)),
        (commands.Queue.Delete, {}, (50, 40)),
        (commands.Basic.Consume, {"consumer_tag": "t"}, (60, 20)),
        (commands.Basic.Get, {}, (60, 70)),
    ],
)
def test_without_a_queue_declared_before_it_is_404(
    client: Dialogue, kind: type, fields: dict[str, object], ids: tuple[int, int]
) -> None:
    client.send(1, kind, **fields)
    client.expect_close(404, "NOT_FOUND - no previously declared queue", ids)


@spec("1.7.2.1", "passive: the queue must exist; 404 otherwise, other fields are ignored.")
def test_passive(client: Dialogue) -> None:
    queue = client.declare("q")
    client.publish(1, queue)
    declared = client.call(1, commands.Queue.Declare, queue=queue, passive=True, durable=True, arguments={"x": 1})
    assert (declared.queue, declared.message_count, declared.consumer_count) == ("q", 1, 0)
    client.send(1, commands.Queue.Declare, queue="nope", passive=True)
    client.expect_close(404, "NOT_FOUND - no queue 'nope' in vhost '/'", (50, 10))
    client.call(1, commands.Channel.Open)
    client.send(1, commands.Exchange.Declare, exchange="nope", exchange_type="direct", passive=True)
    client.expect_close(404, "NOT_FOUND - no exchange 'nope' in vhost '/'", (40, 10))
    client.call(1, commands.Channel.Open)
    client.send(1, commands.Queue.Declare, queue="", passive=True)
    client.expect_close(404, "NOT_FOUND - no queue '' in vhost '/'", (50, 10))


@spec("1.7.2.1", "An exclusive queue belongs to its connection: 405 for others, gone with it.")
def test_exclusive_queues(world: World, client: Dialogue) -> None:
    other = connect(world)
    client.declare("q")
    operations: list[tuple[type[base.Frame], dict[str, object], tuple[int, int]]] = [
        (commands.Queue.Declare, {"queue": "q", "exclusive": True}, (50, 10)),
        (commands.Queue.Declare, {"queue": "q", "passive": True}, (50, 10)),
        (commands.Queue.Bind, {"queue": "q", "exchange": "amq.direct", "routing_key": "k"}, (50, 20)),
        (commands.Queue.Purge, {"queue": "q"}, (50, 30)),
        (commands.Queue.Delete, {"queue": "q"}, (50, 40)),
        (commands.Basic.Consume, {"queue": "q", "consumer_tag": "t"}, (60, 20)),
        (commands.Basic.Get, {"queue": "q"}, (60, 70)),
    ]
    for kind, fields, ids in operations:
        other.send(1, kind, **fields)
        close = other.expect(1, commands.Channel.Close, reply_code=405)
        assert (close.class_id, close.method_id) == ids
        assert close.reply_text.startswith("RESOURCE_LOCKED - ")
        other.send(1, commands.Channel.CloseOk)
        other.call(1, commands.Channel.Open)
    other.publish(1, "q", b"from outside")
    assert client.get("q").body == b"from outside"
    client.lose()
    assert other.declare("q") == "q"


@spec("1.7.2.3", "no-wait: no reply; an error still closes the channel.")
def test_nowait(client: Dialogue) -> None:
    frames: list[tuple[type[base.Frame], dict[str, object]]] = [
        (commands.Exchange.Declare, {"exchange": "x", "exchange_type": "direct"}),
        (commands.Queue.Declare, {"queue": "q", "exclusive": True}),
        (commands.Queue.Bind, {"exchange": "x", "routing_key": "k"}),
        (commands.Basic.Consume, {"consumer_tag": "t", "no_ack": True}),
        (commands.Confirm.Select, {}),
    ]
    for kind, fields in frames:
        client.send(1, kind, nowait=True, **fields)
    client.expect_nothing()
    client.publish(1, "k", b"hi", exchange="x")
    client.expect(1, commands.Basic.Deliver, consumer_tag="t")
    client.expect(1, commands.Basic.Ack, delivery_tag=1)
    client.send(1, commands.Basic.Cancel, consumer_tag="t", nowait=True)
    client.send(1, commands.Queue.Purge, queue="q", nowait=True)
    client.send(1, commands.Exchange.Unbind, destination="x", source="amq.direct", nowait=True)
    client.send(1, commands.Queue.Delete, queue="q", nowait=True)
    client.send(1, commands.Exchange.Delete, exchange="x", nowait=True)
    client.expect_nothing()
    client.send(1, commands.Queue.Bind, queue="q", exchange="x", routing_key="k", nowait=True)
    close = client.expect(1, commands.Channel.Close, reply_code=404)
    assert (close.class_id, close.method_id) == (50, 20)


def test_deleting_and_unbinding_what_is_not_there_succeeds(client: Dialogue) -> None:
    assert client.call(1, commands.Queue.Delete, queue="none").message_count == 0
    client.call(1, commands.Exchange.Delete, exchange="none")
    client.call(1, commands.Queue.Unbind, queue="none", exchange="amq.direct", routing_key="k")
    client.call(1, commands.Exchange.Unbind, destination="none", source="none", routing_key="k")
    queue = client.declare()
    for _ in range(3):
        client.publish(1, queue)
    assert client.call(1, commands.Queue.Purge, queue=queue).message_count == 3
    client.publish(1, queue)
    assert client.call(1, commands.Queue.Delete, queue=queue).message_count == 1


@spec("3.1.1", "The default exchange may not be touched; amq.* names are reserved: 403.")
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (commands.Queue.Declare, {"queue": "amq.mine"}),
        (commands.Exchange.Declare, {"exchange": "amq.mine", "exchange_type": "direct"}),
        (commands.Exchange.Declare, {"exchange": "", "exchange_type": "direct", "durable": True}),
        (commands.Exchange.Delete, {"exchange": "amq.direct"}),
        (commands.Exchange.Delete, {"exchange": ""}),
        (commands.Queue.Bind, {"queue": "q", "exchange": "", "routing_key": "k"}),
        (commands.Queue.Unbind, {"queue": "q", "exchange": "", "routing_key": "q"}),
        (commands.Exchange.Bind, {"destination": "amq.direct", "source": ""}),
        (commands.Exchange.Unbind, {"destination": "", "source": "amq.direct"}),
    ],
)
def test_reserved_names_are_403(client: Dialogue, kind: type, fields: dict[str, object]) -> None:
    client.declare("q")
    index: int = kind.index  # type: ignore[attr-defined]
    client.send(1, kind, **fields)
    close = client.expect(1, commands.Channel.Close, reply_code=403)
    assert (close.class_id, close.method_id) == (index >> 16, index & 0xFFFF)


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (
            commands.Queue.Declare,
            {"queue": "q", "arguments": {"x-message-ttl": 1000}},
            "NOT_IMPLEMENTED - queue argument 'x-message-ttl' is not supported",
        ),
    ],
)
def test_what_is_not_built_is_540(client: Dialogue, kind: type, fields: dict[str, object], text: str) -> None:
    index: int = kind.index  # type: ignore[attr-defined]
    client.send(1, kind, **fields)
    client.expect_connection_close(540, text, (index >> 16, index & 0xFFFF))


def test_line_ends_are_taken_out_of_names(client: Dialogue) -> None:
    assert client.declare("q\r\n") == "q"
    client.call(1, commands.Exchange.Declare, exchange="x\n", exchange_type="direct")
    client.call(1, commands.Queue.Bind, queue="q\n", exchange="x\r\n", routing_key="k")
    client.publish(1, "k", exchange="x")
    assert client.call(1, commands.Queue.Purge, queue="q").message_count == 1
    client.call(1, commands.Queue.Unbind, queue="q\n", exchange="x\n", routing_key="k")
    client.call(1, commands.Exchange.Delete, exchange="x\n")
    assert client.call(1, commands.Queue.Delete, queue="q\n").message_count == 0
    client.send(1, commands.Queue.Purge, queue="q\n")
    client.expect_close(404, "NOT_FOUND - no queue 'q\n' in vhost '/'", (50, 30))


def test_a_declare_that_gets_no_answer_ends_the_connection_at_the_deadline(world: World, client: Dialogue) -> None:
    world.hold_events = True
    client.send(1, commands.Queue.Declare, queue="never", durable=True)
    world.advance(world.policy.wait_deadline_s - 1, client.connection)
    client.expect_nothing()
    world.advance(2, client.connection)
    close = client.expect(0, commands.Connection.Close)
    assert (close.reply_code, close.class_id, close.method_id) == (541, 50, 10)


@pytest.mark.parametrize(("kind", "operation"), [("Purge", "purge_queue"), ("Delete", "delete_queue")])
def test_emptying_a_queue_takes_as_long_as_it_takes_while_kubemq_answers(
    world: World, client: Dialogue, monkeypatch: pytest.MonkeyPatch, kind: str, operation: str
) -> None:
    client.declare("q", durable=True, exclusive=False)
    monkeypatch.setattr(world.broker.virtual_host("/"), operation, lambda *_: None)
    client.send(1, getattr(commands.Queue, kind), queue="q")
    world.advance(3 * world.policy.wait_deadline_s, client.connection)
    client.expect_nothing()
    world.is_cut_off = True
    world.advance(world.policy.wait_deadline_s - 1, client.connection)
    client.expect_nothing()
    world.advance(2, client.connection)
    client.expect(0, commands.Connection.Close, reply_code=541)


def test_an_auto_delete_queue_on_its_way_out_is_not_declared_again(world: World, client: Dialogue) -> None:
    """RabbitMQ deletes it before it answers anybody else: a declare makes a new one, that stays."""
    client.declare("q", durable=True, auto_delete=True, exclusive=False)
    client.consume("q", "t")
    world.hold_events = True
    client.call(1, commands.Basic.Cancel, consumer_tag="t")
    client.send(1, commands.Queue.Declare, queue="q", durable=True, auto_delete=True).expect_nothing()
    other = connect(world)
    other.publish(1, "q", mandatory=True).expect_nothing()
    world.hold_events = False
    world.answer_events()
    world.settle()
    other.expect(1, commands.Basic.Return)
    client.expect(1, commands.Queue.DeclareOk, message_count=0)
    client.publish(1, "q", body=b"kept")
    assert client.get("q").body == b"kept"


def test_a_deletion_that_could_not_be_logged_leaves_the_queue(world: World, client: Dialogue) -> None:
    client.declare("q", durable=True, exclusive=False)
    world.hold_events = True
    client.send(1, commands.Queue.Delete, queue="q").expect_nothing()
    world.answer_events(TimedOut("no answer"))
    world.settle()
    world.hold_events = False
    client.expect(0, commands.Connection.Close, reply_code=541)
    assert connect(world).declare("q", durable=True, exclusive=False) == "q"

"""Publishing: confirms, returns, checks of a message, back-pressure (PU-01 to PU-11, PU-14, PU-16)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from pamqp import commands

from connector.amqp import header as content_header
from connector.amqp.wire import Table
from tests.support.dialogue import Dialogue, connect, spec
from tests.support.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Dialogue:
    return connect(world)


# --------------------------------------------------------------------------------------------- confirms
@spec("RabbitMQ, publisher confirms", "Numbers count from 1 at confirm.select, which may be repeated.")
def test_confirms_count_from_the_first_select(client: Dialogue) -> None:
    queue = client.declare()
    client.publish(1, queue).expect_nothing()
    client.call(1, commands.Confirm.Select)
    client.publish(1, queue).expect(1, commands.Basic.Ack, delivery_tag=1, multiple=False)
    client.call(1, commands.Confirm.Select)
    client.publish(1, queue).expect(1, commands.Basic.Ack, delivery_tag=2)
    client.send(1, commands.Confirm.Select, nowait=True).expect_nothing()


@spec("RabbitMQ, publisher confirms", "Unroutable is acked; the return of a mandatory one comes before its ack.")
def test_a_return_comes_before_its_ack_with_everything_unchanged(world: World, client: Dialogue) -> None:
    client.call(1, commands.Confirm.Select)
    client.publish(1, "nobody").expect(1, commands.Basic.Ack, delivery_tag=1)
    properties: dict[str, Any] = {
        "content_type": "application/json",
        "delivery_mode": 2,
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "T",
        "app_id": "A",
    }
    headers: dict[str, object] = {"x-dotnet-pub-seq-no": "12", "deep": {"a": [1, True, "x"]}}
    client.publish(1, "nobody", b"body", mandatory=True, headers=headers, **properties)
    returned = client.expect(
        1, commands.Basic.Return, reply_code=312, reply_text="NO_ROUTE", exchange="", routing_key="nobody"
    )
    assert returned.body == b"body"
    assert content_header.parse(returned.header).properties() == {
        key: value.encode() if isinstance(value, str) else value for key, value in properties.items()
    }
    assert content_header.parse(returned.header).headers()["x-dotnet-pub-seq-no"] == ("S", b"12")
    client.expect(1, commands.Basic.Ack, delivery_tag=2)
    counters = world.counters
    assert (counters.messages_received, counters.received_confirm, counters.confirmed) == (2, 2, 2)
    assert (counters.unroutable_dropped, counters.unroutable_returned, counters.routed) == (1, 1, 0)


def test_mandatory_returns_without_confirms_too(client: Dialogue) -> None:
    client.publish(1, "nobody", mandatory=True).expect(1, commands.Basic.Return, reply_code=312)
    client.publish(1, client.declare(), mandatory=True).expect_nothing()


@spec("RabbitMQ, publisher confirms", "A message is acked when every queue has it; nacked when one could not take it.")
def test_a_confirm_waits_for_every_queue(world: World, client: Dialogue) -> None:
    for queue in ("a", "b"):
        client.declare(queue, exclusive=False, durable=True)
        client.call(1, commands.Queue.Bind, queue=queue, exchange="amq.direct", routing_key="k")
    client.declare("memory")
    client.call(1, commands.Queue.Bind, queue="memory", exchange="amq.direct", routing_key="k")
    client.call(1, commands.Confirm.Select)
    world.hold_stores = True
    client.publish(1, "k", exchange="amq.direct").expect_nothing()
    assert world.answer_stores() == 2
    client.expect(1, commands.Basic.Ack, delivery_tag=1)
    client.publish(1, "k", exchange="amq.direct")
    world.answer_stores("no")
    client.expect(1, commands.Basic.Nack, delivery_tag=2, multiple=False)
    client.expect_nothing()


def test_confirms_of_a_batch_are_coalesced(world: World, client: Dialogue) -> None:
    client.declare("q", exclusive=False, durable=True)
    client.call(1, commands.Confirm.Select)
    world.hold_stores = True
    for _ in range(100):
        client.publish(1, "q")
    world.answer_stores()
    client.expect(1, commands.Basic.Ack, delivery_tag=100, multiple=True)
    client.expect_nothing()
    assert world.counters.confirmed == 100


def test_a_publish_without_confirms_that_is_refused_ends_the_connection(world: World, client: Dialogue) -> None:
    client.declare("q", exclusive=False, durable=True)
    world.hold_stores = True
    client.publish(1, "q").publish(1, "q")
    world.answer_stores("KubeMQ says no")
    text = "INTERNAL_ERROR - a message could not be stored: KubeMQ says no"
    client.expect_connection_close(541, text, (60, 40))
    assert world.counters.internal_errors == 0
    assert len(world.errors) == 1


def test_a_full_memory_is_a_nack(world: World, client: Dialogue) -> None:
    queue = client.declare()
    client.call(1, commands.Confirm.Select)
    world.broker.memory_limit_bytes = 0
    client.publish(1, queue).expect(1, commands.Basic.Nack, delivery_tag=1)


def test_a_full_memory_without_confirms_is_541(world: World, client: Dialogue) -> None:
    queue = client.declare()
    world.broker.memory_limit_bytes = 0
    client.publish(1, queue)
    assert client.expect(0, commands.Connection.Close).reply_code == 541


# --------------------------------------------------------------------------------------------- what is refused
@spec("1.8.3.7", "An exchange that does not exist is a channel exception, 404.")
def test_a_missing_exchange_is_404(client: Dialogue) -> None:
    client.publish(1, "k", exchange="missing")
    client.expect_close(404, "NOT_FOUND - no exchange 'missing' in vhost '/'", (60, 40))


@spec("1.8.3.7", "immediate is not implemented (RabbitMQ 3).")
def test_immediate_is_540(client: Dialogue) -> None:
    client.feed(client.frames().publish("k", immediate=True))
    client.expect_connection_close(540, "NOT_IMPLEMENTED - immediate=true", (60, 40))


@pytest.mark.parametrize("mode", [0, 3, 255])
def test_another_delivery_mode_is_406(client: Dialogue, mode: int) -> None:
    client.publish(1, "k", delivery_mode=mode)
    text = f"PRECONDITION_FAILED - invalid message: {{delivery_mode_unknown,{mode}}}"
    client.expect_close(406, text, (60, 40))


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("-2408", "{value_negative,-2408}"),
        ("1.5", '{leftover_string,".5"}'),
        ("later", "no_integer"),
        ("", "no_integer"),
        (" 5", "no_integer"),
        ("0x10", '{leftover_string,"x10"}'),
        ('1"2', '{leftover_string,"\\"2"}'),
        ("31536000000000", "{value_too_large,31536000000000}"),
    ],
)
def test_an_invalid_expiration_is_406(client: Dialogue, text: str, term: str) -> None:
    client.publish(1, "k", expiration=text)
    client.expect_close(406, f"PRECONDITION_FAILED - invalid expiration '{text}': {term}", (60, 40))


def test_a_missing_exchange_is_noticed_before_an_invalid_message(client: Dialogue) -> None:
    client.publish(1, "k", exchange="nope", expiration="later")
    client.expect_close(404, "NOT_FOUND - no exchange 'nope' in vhost '/'", (60, 40))


def test_a_valid_expiration_is_not_built(client: Dialogue) -> None:
    client.publish(1, "k", expiration="60000")
    text = "NOT_IMPLEMENTED - per-message expiration is not supported"
    client.expect_connection_close(540, text, (60, 40))


@spec("RabbitMQ, validated user-id", "The property must be the name of the connection's user.")
def test_anothers_user_id_is_406(client: Dialogue) -> None:
    client.publish(1, client.declare(), user_id="guest").expect_nothing()
    client.publish(1, "k", user_id="somebody")
    text = "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'"
    client.expect_close(406, text, (60, 40))


@spec("RabbitMQ, max_message_size", "The size announced in the header counts, before the body is gathered.")
def test_a_message_that_is_too_large_is_406(world: World) -> None:
    client = Dialogue(world, max_body_bytes=1000).shake_hands(channels=(1, 2))
    queue = client.declare("q", 2)
    frames = client.frames()
    client.feed(frames.method(commands.Basic.Publish, routing_key=queue) + frames.header(1001))
    client.expect(1, commands.Channel.Close, reply_code=406)
    client.feed(frames.body(bytes(500))).feed(frames.body(bytes(501))).expect_nothing()
    assert client.connection.reader.buffered_bytes == 0
    client.send(1, commands.Channel.CloseOk)
    client.call(1, commands.Channel.Open)
    client.publish(1, queue, bytes(1000)).publish(1, queue, bytes(1001))
    text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    client.expect_close(406, text, (60, 40))
    assert len(client.get(queue, 2).body) == 1000
    assert client.get(queue, 2) is None


# --------------------------------------------------------------------------------------------- content
@spec("4.2.6", "Content of different channels may be interleaved; the size in the header is what counts.")
def test_content_of_two_channels_interleaved(client: Dialogue) -> None:
    client.call(2, commands.Channel.Open)
    queue = client.declare()
    one, two = client.frames(1), client.frames(2)
    client.feed(
        one.method(commands.Basic.Publish, routing_key=queue) + two.method(commands.Basic.Publish, routing_key=queue)
    )
    client.feed(one.header(4) + two.header(2) + one.body(b"on") + two.body(b"t"))
    client.feed(two.body(b"w") + one.body(b"e!"))
    assert [client.get(queue).body for _ in range(2)] == [b"tw", b"one!"]


ODD: Table = {
    "t": ("t", True),
    "b": ("b", -5),
    "B": ("B", 200),
    "s": ("s", -300),
    "u": ("u", 60_000),
    "I": ("I", -70_000),
    "i": ("i", 4_000_000_000),
    "l": ("l", -(2**40)),
    "f": ("f", 0.5),
    "d": ("d", 1.25),
    "D": ("D", (2, 12_345)),
    "S": ("S", b"\xff\xfe\x00"),
    "x": ("x", b"\x00\x01"),
    "T": ("T", 1_700_000_000_123),
    "V": ("V", None),
    "F": ("F", {"deep": ("A", [("I", 1), ("A", []), ("F", {})])}),
}


@spec("4.2.5.5", "Properties and tables reach the consumer as they were sent, byte for byte.")
@pytest.mark.parametrize(
    "header",
    [
        content_header.EMPTY,
        content_header.build({"content_type": "", "message_id": "m" * 255, "priority": 255}, ODD),
        content_header.build({}, {}),
        struct.pack(">HI", 1 << 13, 7) + b"\x01aV\x01at\x01",  # the same key twice
    ],
)
def test_the_header_is_untouched(client: Dialogue, header: bytes) -> None:
    queue = client.declare()
    for _ in range(2):
        client.feed(client.frames().publish(queue, b"body", header=header))
    assert client.get(queue).header == header
    client.consume(queue)
    (content,) = client.deliveries()
    assert (content.header, content.body) == (header, b"body")


@spec("4.2.5.3", "Names are any bytes up to 255.")
def test_names_of_any_kind_come_back(client: Dialogue) -> None:
    client.call(1, commands.Exchange.Declare, exchange="Ns:Type[[x]]", exchange_type="direct", auto_delete=False)
    for key in ("", "with space", "ü日本", "z" * 255, "a\tb", "#"):
        queue = client.declare()
        client.call(1, commands.Queue.Bind, queue=queue, exchange="Ns:Type[[x]]", routing_key=key or "k")
        client.publish(1, key or "k", exchange="Ns:Type[[x]]")
        content = client.get(queue)
        assert (content.method.exchange, content.method.routing_key) == ("Ns:Type[[x]]", key or "k")
        client.call(1, commands.Queue.Delete, queue=queue)


# --------------------------------------------------------------------------------------------- back-pressure
def test_reading_pauses_while_too_much_is_on_its_way(world: World) -> None:
    client = Dialogue(world, in_flight_high_bytes=10_000).shake_hands()
    client.declare("q", exclusive=False, durable=True)
    client.call(1, commands.Confirm.Select)
    world.hold_stores = True
    for _ in range(8):
        client.publish(1, "q", bytes(1000))
    assert not client.socket.is_reading()
    assert world.answer_stores() == 8
    assert client.socket.is_reading()
    assert client.connection.in_flight.size == 0
    client.expect(1, commands.Basic.Ack, delivery_tag=8, multiple=True)


def test_a_loss_while_reading_pauses_leaves_the_socket_alone(world: World) -> None:
    client = Dialogue(world, in_flight_high_bytes=1000).shake_hands()
    client.declare("q", exclusive=False, durable=True)
    world.hold_stores = True
    client.publish(1, "q", bytes(2000))
    assert not client.socket.is_reading()
    client.lose()
    world.answer_stores()
    assert not client.socket.is_reading()
    assert client.connection.in_flight.size == 0

"""What one client can make the connector keep: headers, methods in line, and answers that it does not read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands

from connector.amqp import header as content_header
from connector.amqp.wire import table_from_python
from connector.broker.ports import Done
from tests.support.dialogue import Content, Dialogue, connect
from tests.support.world import World

UNREAD = 10_000
BODY = 1000
CHANNELS = tuple(range(1, 41))
LARGE = 10_000


@pytest.fixture
def world() -> World:
    return World(unread_high_bytes=UNREAD)


@pytest.fixture(params=["stored", "memory"])
def full_queue(request: pytest.FixtureRequest, world: World) -> str:
    """A queue with as many messages as there are channels, known by their first bytes."""
    client = connect(world)
    queue = client.declare("q", exclusive=False, durable=request.param == "stored", auto_delete=True)
    for number in CHANNELS:
        client.publish(1, queue, b"%03d" % number + bytes(BODY))
    return queue


def slow_reader(world: World, channels: tuple[int, ...]) -> Dialogue:
    """A client whose socket takes nothing more than what is under way."""
    client = Dialogue(world).shake_hands(channels=channels)
    client.socket.blocks_at = 1
    return client


def gets(client: Dialogue, queue: str, channels: tuple[int, ...], *, no_ack: bool) -> bytes:
    return b"".join(client.encode(number, commands.Basic.Get, queue=queue, no_ack=no_ack) for number in channels)


def read_all(client: Dialogue) -> list[Content]:
    """Read, again and again, until nothing more comes."""
    found = []
    while items := client.received():
        assert sum(len(item.body) for _, item in items) <= UNREAD + 2 * BODY
        found += [item for _, item in items]
        client.connection.on_write_resumed()
        client.world.settle()
    return found


@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("channels", [CHANNELS, (1,) * len(CHANNELS)])
def test_gets_wait_for_a_client_that_does_not_read(
    world: World, full_queue: str, channels: tuple[int, ...], no_ack: bool
) -> None:
    client = slow_reader(world, tuple(sorted(set(channels))))
    client.feed(gets(client, full_queue, channels, no_ack=no_ack))
    assert UNREAD < len(client.socket.sent) < UNREAD + 2 * BODY
    assert not client.socket.is_reading()
    found = read_all(client)
    assert sorted(content.body[:3] for content in found) == [b"%03d" % number for number in CHANNELS]
    assert not any(content.method.redelivered for content in found)
    assert client.socket.is_reading()
    assert client.connection.unfinished_count == (0 if no_ack else len(CHANNELS))


def test_a_get_that_waits_asks_nothing_of_its_queue(
    world: World, full_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another connector would give the queue up for it, and KubeMQ be asked."""
    queue = world.broker.virtual_host("/").find_queue(full_queue, None)
    asked: list[object] = []
    get = queue.get

    def ask(done: Done) -> None:
        asked.append(done)
        get(done)

    monkeypatch.setattr(queue, "get", ask)
    client = slow_reader(world, (1, 2))
    client.feed(gets(client, full_queue, (1,) * len(CHANNELS), no_ack=True))
    before = len(asked)
    client.feed(gets(client, full_queue, (2,), no_ack=True))
    assert len(asked) == before < len(CHANNELS)


def test_gets_on_one_channel_stay_in_their_order(world: World, full_queue: str) -> None:
    client = slow_reader(world, (1,))
    client.feed(gets(client, full_queue, (1,) * len(CHANNELS), no_ack=True))
    assert [content.body[:3] for content in read_all(client)] == [b"%03d" % number for number in CHANNELS]


def test_what_is_behind_a_get_that_waits_comes_after_it(world: World, full_queue: str) -> None:
    client = slow_reader(world, (1, 2))
    client.feed(gets(client, full_queue, (2,) * 20 + (1,), no_ack=True) + client.encode(1, commands.Basic.Qos))
    items = []
    while found := client.received():
        items += [item for number, item in found if number == 1]
        client.connection.on_write_resumed()
        world.settle()
    assert [type(item) for item in items] == [Content, commands.Basic.QosOk]


@pytest.mark.parametrize("end", [Dialogue.lose, lambda client: client.send(1, commands.Channel.Close)])
def test_gets_that_wait_take_nothing_with_them(world: World, full_queue: str, end: Callable[..., object]) -> None:
    client = slow_reader(world, CHANNELS)
    client.feed(gets(client, full_queue, CHANNELS, no_ack=True))
    got = sum(isinstance(item, Content) for _, item in client.received())
    end(client)
    client.lose()
    other = connect(world)
    answer = other.call(1, commands.Queue.Declare, queue=full_queue, passive=True)
    assert answer.message_count == len(CHANNELS) - got


def test_methods_in_line_count_as_they_are(world: World) -> None:
    client = Dialogue(world, queued_high_bytes=20 * LARGE).shake_hands()
    world.hold_events = True
    client.send(1, commands.Queue.Declare, queue="q", durable=True)
    sent = 0
    while client.socket.is_reading():
        client.send(1, commands.Queue.Declare, queue=f"q{sent}", durable=True, arguments={"x-note": "x" * LARGE})
        sent += 1
        assert sent < 4
    world.hold_events = False
    world.answer_events()
    world.settle()
    assert client.socket.is_reading()
    assert client.connection.queued.size == 0
    assert len(client.received()) == 1 + sent


@pytest.mark.parametrize("is_lost", [True, False])
def test_slow_methods_under_way_count_too(world: World, is_lost: bool) -> None:
    client = Dialogue(world, queued_high_bytes=20 * LARGE).shake_hands(channels=CHANNELS)
    world.hold_events = True
    sent = 0
    for number in CHANNELS:
        if client.socket.is_reading():
            arguments: dict[str, object] = {"x-note": "x" * LARGE}
            client.send(number, commands.Queue.Declare, queue=f"q{number}", durable=True, arguments=arguments)
            sent += 1
    assert sent < 4
    if is_lost:
        client.lose()
    else:
        world.answer_events()
        world.settle()
        assert client.socket.is_reading()
        assert len(client.received()) == sent
    assert client.connection.queued.size == 0


def test_headers_of_contents_in_part_count(world: World) -> None:
    client = Dialogue(world, client_bodies_bytes=5 * LARGE).shake_hands(channels=CHANNELS)
    header = content_header.build({}, table_from_python({"note": "x" * LARGE}))
    for number in CHANNELS:
        make = client.frames(number)
        client.feed(make.method(commands.Basic.Publish, routing_key="q") + make.header(10, header))
    refused = [(number, item.reply_code) for number, item in client.received()]
    assert refused == [(number, 311) for number in CHANNELS[4:]]
    assert world.arriving.size == 4 * len(header)
    for number in CHANNELS[:4]:
        client.feed(client.frames(number).body(bytes(10)))
    assert world.arriving.size == 0


def test_a_long_header_is_not_remembered(world: World) -> None:
    client = connect(world)
    client.publish(1, "nowhere", headers={"note": "x" * LARGE})
    client.publish(1, "nowhere", headers={"note": "x" * LARGE})
    assert world.counters.messages_received == 2
    channel = client.connection._channels[1]
    assert channel.checked_header == b""
    client.publish(1, "nowhere", headers={"note": "x"})
    assert channel.checked_header

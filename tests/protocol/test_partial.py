"""Messages that come in part: bounded for one client by refusal, for all of them by turns (PU-09)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from pamqp import commands

from connector.session.arriving import LEAST_BYTES, PATIENCE, SMALL_BYTES, TURN_S
from connector.session.marks import Pause
from tests.support.dialogue import Dialogue, spec
from tests.support.world import World

BODY = 1_000_000
SHARE = 2 * BODY + 100  # of one client: two bodies and their headers
CHUNK = 100_000
HIGH = 2_000_000
CHANNELS = (1, 2, 3, 4)


@pytest.fixture
def world() -> World:
    return World(partial_high_bytes=HIGH, client_bodies_bytes=SHARE)


def client_of(world: World) -> Dialogue:
    client = Dialogue(world).shake_hands(channels=CHANNELS, heartbeat_s=600)
    client.declare("q", durable=True, exclusive=False)
    return client


def begin(client: Dialogue, channel_no: int = 1, size: int = BODY) -> bytes:
    """What makes the method and the header of a publish."""
    frames = client.frames(channel_no)
    return frames.method(commands.Basic.Publish, routing_key="q") + frames.header(size)


def some(client: Dialogue, channel_no: int = 1, size: int = CHUNK) -> bytes:
    """One frame of a body."""
    return client.frames(channel_no).body(bytes(size))


def is_held(client: Dialogue) -> bool:
    return Pause.PARTIAL in client.connection.reading.reasons


def stored(world: World) -> int:
    return world.counters.messages_received


@spec("1.1 content-too-large", "The client may retry at a later time.")
def test_bodies_begun_beyond_a_clients_share_are_refused(world: World) -> None:
    client = client_of(world)
    client.feed(begin(client, 1) + some(client, 1) + begin(client, 2) + begin(client, 3))
    text = f"CONTENT_TOO_LARGE - message size {BODY}: with the messages under way on other channels more than {SHARE}"
    client.expect_close(311, text, (60, 40), channel_no=3)
    for _ in range(BODY // CHUNK):
        client.feed(some(client, 2))
    assert stored(world) == 1
    client.call(3, commands.Channel.Open)
    client.feed(begin(client, 3)).expect_nothing()
    assert not world.broker.virtual_host("/").queues["q"].is_deleted


def test_a_body_alone_is_always_taken() -> None:
    world = World(client_bodies_bytes=1000)
    client = client_of(world)
    client.feed(begin(client) + b"".join(some(client) for _ in range(BODY // CHUNK)))
    assert stored(world) == 1


def test_what_a_refused_channel_had_begun_is_forgotten(world: World) -> None:
    client = client_of(world)
    client.feed(begin(client, 1) + some(client, 1))
    assert CHUNK < world.arriving.size < CHUNK + 100
    client.lose()
    assert world.arriving.size == 0


def over(world: World, count: int) -> list[Dialogue]:
    """Clients that have sent 90 % of a body each, more than the mark together."""
    clients = [client_of(world) for _ in range(count)]
    for client in clients:
        client.feed(begin(client))
        for _ in range(9):
            if client.socket.is_reading():
                client.feed(some(client))
    assert world.arriving.size > HIGH
    return clients


def test_above_the_mark_one_client_goes_on_and_the_others_follow(world: World) -> None:
    first, second, third = over(world, 3)
    assert [is_held(client) for client in (first, second, third)] == [False, True, True]
    first.feed(some(first))
    assert stored(world) == 1
    assert [is_held(client) for client in (first, second, third)] == [False, False, True]
    second.feed(some(second))
    assert not is_held(third), "below the low mark"
    for _ in range(10):
        if stored(world) < 3:
            third.feed(some(third))
    assert stored(world) == 3
    assert world.arriving.size == 0


def test_clients_with_small_messages_do_not_notice(world: World) -> None:
    over(world, 3)
    client = client_of(world)
    client.publish(1, "q", bytes(SMALL_BYTES // 2))
    client.feed(begin(client, size=SMALL_BYTES) + some(client, size=SMALL_BYTES - 1000))
    assert not is_held(client)
    client.feed(begin(client, 2) + some(client, 2))
    assert is_held(client)


def test_who_does_not_go_on_loses_its_turn(world: World) -> None:
    first, second, third = over(world, 3)
    connections = [client.connection for client in (first, second, third)]
    world.advance(TURN_S + 0.5, *connections)
    assert [is_held(client) for client in (first, second, third)] == [True, False, True]
    world.advance(TURN_S, *connections)
    assert [is_held(client) for client in (first, second, third)] == [True, True, False]
    while not stored(world):
        assert not is_held(third)
        third.feed(some(third))
    assert [is_held(client) for client in (first, second)] != [True, True]


def test_who_never_goes_on_is_closed(world: World) -> None:
    clients = over(world, 3)
    connections = [client.connection for client in clients]
    for _ in range(6 * PATIENCE):
        if not world.errors:
            world.advance(TURN_S, *connections)
    text = "RESOURCE_ERROR - messages were begun and not finished while other clients wait for the memory"
    clients[0].expect_connection_close(506, text, (60, 40))
    clients[0].lose()
    assert world.arriving.size < HIGH
    assert [is_held(client) for client in clients[1:]] != [True, True]


def test_a_client_that_waits_for_us_is_not_blamed(world: World) -> None:
    clients = over(world, 3)
    for client in clients:
        client.connection.reading.pause(Pause.IN_FLIGHT)
    world.advance(3 * TURN_S * (PATIENCE + 2), *(client.connection for client in clients))
    for client in clients:
        assert not [kind for _, kind in client.received() if isinstance(kind, commands.Connection.Close)]


@pytest.mark.parametrize("seed", range(5))
def test_all_come_through_whatever_the_order(world: World, seed: int) -> None:
    """Twelve clients with two bodies at a time each: all are stored, and memory stays within the marks."""
    dice = random.Random(seed)
    clients = [client_of(world) for _ in range(12)]
    waiting = [(client, pieces(client, dice)) for client in clients]
    most = 0
    while waiting:
        able = [entry for entry in waiting if entry[0].socket.is_reading()]
        if not able or dice.random() < 0.01:
            world.advance(TURN_S, *(client.connection for client in clients))
            continue
        client, data = entry = dice.choice(able)
        piece = next(data, None)
        if piece is None:
            waiting.remove(entry)
        else:
            client.feed(piece)
        most = max(most, world.arriving.size)
    assert stored(world) == len(clients) * 6
    assert world.arriving.size == 0
    assert HIGH < most <= HIGH + 2 * SHARE
    assert LEAST_BYTES < BODY


def pieces(client: Dialogue, dice: random.Random) -> Iterator[bytes]:
    """Three bodies on each of two channels, their frames mixed."""
    left = {1: 3, 2: 3}
    begun = {1: 0, 2: 0}
    while any(left.values()) or any(begun.values()):
        channel_no = dice.choice([number for number in left if left[number] or begun[number]])
        if begun[channel_no]:
            begun[channel_no] -= 1
            yield some(client, channel_no)
        else:
            left[channel_no] -= 1
            begun[channel_no] = BODY // CHUNK
            yield begin(client, channel_no)

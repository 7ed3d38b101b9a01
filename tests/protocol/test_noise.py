"""Seeded nonsense: random frames, random methods, and mutated dialogues (issue 3, must-show 9).

Whatever comes, the connection answers with a close of the right kind or carries on; nothing is raised, nothing is taken
for a bug, nothing stays behind when the socket is gone.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
from pamqp import base, commands

from connector.amqp import header as content_header
from connector.amqp.handshake import PROTOCOL_HEADER
from connector.amqp.methods import METHODS
from connector.amqp.wire import Table
from tests.support.dialogue import Dialogue, raw_frame
from tests.support.frame_factory import FrameFactory
from tests.support.world import World

STREAMS, PARTS = 1000, 10

HARD = {501, 502, 503, 504, 505, 530, 540, 541}
SOFT = {403, 404, 405, 406}

MAX_BODY_BYTES = 20_000
QUEUES = ("q", "r", "", "missing")
EXCHANGES = ("", "amq.direct", "amq.topic", "x", "missing")


# --------------------------------------------------------------------------------------------- what is sent
def some_table(rng: random.Random) -> Table:
    values: list[tuple[str, object]] = [("t", True), ("I", rng.randint(-9, 9)), ("S", b"text"), ("V", None), ("F", {})]
    return {rng.choice(("a", "x-priority", "x-expires", "CC")): rng.choice(values) for _ in range(rng.randrange(3))}


def some_fields(rng: random.Random, kind: type[base.Frame], oddity: float = 0.3) -> dict[str, object]:
    """A value for every field of a method; ``oddity`` is how often it is not the sensible one."""

    def pick(sensible: tuple[object, ...], odd: tuple[object, ...]) -> object:
        return rng.choice(odd if rng.random() < oddity else sensible)

    by_name = {
        "queue": lambda: pick(("q", "q", "r"), ("", "missing", "amq.gen-x")),
        "exchange": lambda: pick(("amq.direct", "x"), ("", "amq.topic", "missing")),
        "source": lambda: rng.choice(EXCHANGES),
        "destination": lambda: rng.choice(EXCHANGES),
        "exchange_type": lambda: pick(("direct",), ("topic", "odd", "")),
        "prefetch_size": lambda: pick((0,), (1,)),
        "global_": lambda: pick((False,), (True,)),
        "passive": lambda: pick((False,), (True,)),
        "delivery_tag": lambda: pick((1, 2, 3, 4, 5, 6), (0, 77, 2**64 - 1)),
    }
    by_type = {
        "bit": lambda: rng.random() < 0.3,
        "octet": lambda: rng.randrange(256),
        "short": lambda: rng.choice((0, 1, 3, 65535)),
        "long": lambda: rng.choice((0, 0, 0, 1, 2**32 - 1)),
        "longlong": lambda: rng.randrange(9),
        "longstr": lambda: rng.randbytes(rng.randrange(8)),
        "shortstr": lambda: rng.choice(("", "q", "t", "u", "\x00ü")),
        "table": lambda: some_table(rng) if rng.random() < oddity else {},
    }
    return {name: by_name.get(name, by_type[kind.amqp_type(name)])() for name in kind.attributes()}


def some_method(rng: random.Random) -> bytes:
    """Any method there is, on any channel."""
    kind = rng.choice(list(METHODS.values()))
    return FrameFactory(rng.choice((0, 1, 1, 2, 7))).method(kind, **some_fields(rng, kind))


CLIENT_METHODS = [
    commands.Queue.Declare,
    commands.Queue.Bind,
    commands.Queue.Unbind,
    commands.Queue.Purge,
    commands.Queue.Delete,
    commands.Exchange.Declare,
    commands.Exchange.Delete,
    commands.Exchange.Unbind,
    commands.Basic.Qos,
    commands.Basic.Consume,
    commands.Basic.Cancel,
    commands.Basic.Get,
    commands.Basic.Ack,
    commands.Basic.Nack,
    commands.Basic.Reject,
    commands.Basic.Recover,
    commands.Confirm.Select,
    commands.Channel.Close,
    commands.Channel.CloseOk,
    commands.Channel.Open,
]


def some_publish(rng: random.Random, channel_no: int) -> bytes:
    body = rng.randbytes(rng.choice((0, 1, 100, 5000) if rng.random() < 0.97 else (MAX_BODY_BYTES + 1,)))
    header = content_header.build({"delivery_mode": 1 if rng.random() < 0.97 else 9})
    exchange = rng.choice(("", "", "x", "amq.direct") if rng.random() < 0.97 else EXCHANGES)
    return FrameFactory(channel_no, 4096).publish(
        rng.choice(QUEUES), body, exchange, header, mandatory=rng.random() < 0.3
    )


def some_dialogue(rng: random.Random) -> list[bytes]:
    """Frames as a client might send them, in an order that a client might not."""
    one, two = FrameFactory(1), FrameFactory(2)
    frames = [
        one.method(commands.Exchange.Declare, exchange="x", exchange_type="direct"),
        one.method(commands.Queue.Declare, queue="q", exclusive=True),
        one.method(commands.Queue.Declare, queue="r", durable=True),
        one.method(commands.Queue.Bind, queue="q", exchange="x", routing_key="q"),
        two.method(commands.Confirm.Select),
        one.method(commands.Basic.Consume, queue="q", consumer_tag="t"),
    ]
    for _ in range(rng.randrange(10, 60)):
        channel_no = rng.choice((1, 2))
        if rng.random() < 0.5:
            frames.append(some_publish(rng, channel_no))
        else:
            kind = rng.choice(CLIENT_METHODS)
            frames.append(FrameFactory(channel_no).method(kind, **some_fields(rng, kind, oddity=0.05)))
    return frames


def some_frame(rng: random.Random) -> bytes:
    """A frame around random bytes; mostly of a kind that exists."""
    size = rng.choice((0, 4, 14, 50, 4089))
    payload = rng.randbytes(size)
    if rng.random() < 0.5 and size >= 4:
        index = rng.choice([*METHODS, rng.getrandbits(32)])
        payload = struct.pack(">I", index) + payload[4:]
    kind = rng.choices((1, 2, 3, 8, rng.randrange(256)), (6, 2, 2, 1, 1))[0]
    return raw_frame(kind, rng.choice((0, 1, 1, 2, 7, 65535)), payload, 0xCE if rng.random() < 0.98 else 0)


def random_stream(rng: random.Random) -> list[bytes]:
    choice = rng.random()
    if choice < 0.15:
        return [rng.randbytes(rng.randrange(1, 4000))]
    make = some_frame if choice < 0.5 else some_method
    return [make(rng) for _ in range(rng.randrange(1, 30))]


def mutated_stream(rng: random.Random) -> list[bytes]:
    frames = some_dialogue(rng)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(frames))
        frame = bytearray(frames[at] or b"\0")
        mutation = rng.randrange(6)
        if mutation == 0:
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        elif mutation == 1:
            frame[rng.randrange(min(len(frame), 30))] = rng.randrange(256)
        elif mutation == 2:
            del frame[rng.randrange(len(frame)) :]
        elif mutation == 3:
            where = rng.randrange(len(frame))
            frame[where:where] = rng.randbytes(rng.randrange(1, 9))
        elif mutation == 4:
            frame *= 2
        else:
            frames.insert(rng.randrange(len(frames)), frames[rng.randrange(len(frames))])
        frames[at] = bytes(frame)
    return frames


# --------------------------------------------------------------------------------------------- what is checked
def closes_of(client: Dialogue) -> list[int]:
    """What the server closed, by its codes; a closed channel is opened again."""
    codes = []
    again = b""
    for channel_no, item in client.received():
        if isinstance(item, commands.Connection.Close):
            assert channel_no == 0
            assert item.reply_code in HARD
            codes.append(item.reply_code)
        elif isinstance(item, commands.Channel.Close):
            assert channel_no
            assert item.reply_code in SOFT
            codes.append(item.reply_code)
            frames = FrameFactory(channel_no)
            again += frames.method(commands.Channel.CloseOk) + frames.method(commands.Channel.Open)
    if again and client.connection.reader.buffered_bytes == 0:
        client.feed(again)
    return codes


def run(world: World, rng: random.Random, stream: list[bytes]) -> list[int]:
    """Send a stream in pieces and lose the socket; returns the codes of all closes."""
    client = Dialogue(world, max_body_bytes=MAX_BODY_BYTES).shake_hands(frame_max=4096, channels=(1, 2), heartbeat_s=1)
    data = b"".join(stream)
    step = rng.choice((1 + len(data) // 50, 1 + len(data) // 7, len(data)))
    codes = []
    for start in range(0, len(data), step):
        client.feed(data[start : start + step])
        codes += closes_of(client)
        assert client.connection.reader.buffered_bytes <= 10 * (MAX_BODY_BYTES + 4096)
    assert sum(code in HARD for code in codes) <= 1
    if not client.socket.is_closed():
        # silence for long enough ends it in any case: by the heartbeat, or by the deadline of our close
        world.advance(10, client.connection)
        codes += closes_of(client)
    assert client.socket.is_closed()
    client.lose()
    assert client.connection.reader.buffered_bytes <= 10 * (MAX_BODY_BYTES + 4096)
    assert client.connection.queued.size == 0
    assert client.connection.in_flight.size == 0
    return codes


def assert_nothing_left(world: World) -> None:
    """The world is as if no client had ever been there, but for what is declared for all."""
    assert world.counters.internal_errors == 0, [(error, cause) for _, error, cause in world.errors]
    vhost = world.broker.virtual_host("/")
    for name, queue in list(vhost.queues.items()):
        assert queue.owner is None, name
        assert not queue.consumers, name
        assert not queue.unacked_count, name
        vhost.delete_queue(name, None, False, False, lambda _result: None)
    world.settle()
    assert world.broker.memory_bytes == 0


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    ("make", "expected"),
    [(random_stream, {501, 503, 504, 505}), (mutated_stream, {403, 404, 406, 501, 504})],
    ids=["random", "mutated"],
)
def test_nonsense_is_survived(make: Callable[[random.Random], list[bytes]], expected: set[int], part: int) -> None:
    world = World()
    codes: set[int] = set()
    for number in range(part * STREAMS // PARTS, (part + 1) * STREAMS // PARTS):
        rng = random.Random(f"{make.__name__} {number}")
        codes.update(run(world, rng, make(rng)))
    assert_nothing_left(world)
    assert expected <= codes, "the streams do not reach what they are for"


@pytest.mark.parametrize("part", range(PARTS))
def test_nonsense_instead_of_a_handshake_ends_in_ten_seconds(part: int) -> None:
    world = World()
    for number in range(part * STREAMS // PARTS, (part + 1) * STREAMS // PARTS):
        rng = random.Random(f"handshake {number}")
        client = Dialogue(world)
        start = PROTOCOL_HEADER if rng.random() < 0.8 else rng.randbytes(8)
        client.connection.feed(start + b"".join(random_stream(rng)))
        world.settle()
        assert client.connection.reader.buffered_bytes <= 8192 + 8
        assert client.connection.channel_count == 0
        world.advance(10.5, client.connection)
        assert client.socket.is_closed()
        client.lose()
    assert_nothing_left(world)
    assert not world.opened

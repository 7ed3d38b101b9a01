"""One HTTP/2 connection against frames made by hand: windows, ends of every kind, and what is no HTTP/2."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from connector.backend.kubemq import hpack
from connector.backend.kubemq.http2 import Http2Connection

DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 0x20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STATUS = hpack.encode([(b"grpc-status", b"0")])
Frame = tuple[int, int, int, bytes]


def frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + number.to_bytes(4) + payload


def number(value: int) -> bytes:
    return value.to_bytes(4)


class Pipe(asyncio.Transport):
    """What the connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def frames(self) -> list[Frame]:
        """Everything written since the last call, without the preface."""
        data, frames = bytes(self.written).removeprefix(PREFACE), []
        self.written.clear()
        while data:
            size = int.from_bytes(data[:3])
            frames.append((data[3], data[4], int.from_bytes(data[5:9]), data[9 : 9 + size]))
            data = data[9 + size :]
        return frames


class Told:
    """A receiver that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_headers(self, headers: hpack.Headers, *, is_end: bool) -> None:
        self.told.append((headers, is_end))

    def on_data(self, data: bytes) -> None:
        self.told.append(data)

    def on_end(self) -> None:
        self.told.append("end")

    def on_reset(self, code: int) -> None:
        self.told.append(code)

    def on_lost(self, reason: str) -> None:
        self.told.append(f"lost: {reason}")

    def on_flushed(self) -> None:
        self.told.append("flushed")


class World:
    """A connection, its pipe, and a first stream."""

    def __init__(self) -> None:
        self.unusable: list[Http2Connection] = []
        self.connection = Http2Connection(self.unusable.append)
        self.pipe = Pipe()
        self.connection.connection_made(self.pipe)
        self.greeting = self.pipe.frames()
        self.receiver = Told()
        self.stream = self.connection.open(self.receiver, b"block")
        self.opening = self.pipe.frames()

    @property
    def told(self) -> list[Any]:
        """What the first stream was told, once."""
        told, self.receiver.told = self.receiver.told, []
        return told

    def come(self, *frames: bytes) -> list[Frame]:
        """These come; returns what is written then."""
        self.connection.data_received(b"".join(frames))
        return self.pipe.frames()


@pytest.fixture
def world() -> World:
    return World()


def test_the_greeting_makes_room_and_allows_no_table(world: World) -> None:
    settings, window = world.greeting
    assert settings[:3] == (SETTINGS, 0, 0)
    assert dict(struct.iter_unpack(">HI", settings[3])) == {1: 0, 2: 0, 4: 2**31 - 1}
    assert window == (WINDOW_UPDATE, 0, 0, number(2**31 - 1 - 65_535))
    assert world.opening == [(HEADERS, END_HEADERS, 1, b"block")]


def test_frames_are_found_wherever_the_bytes_are_cut(world: World) -> None:
    frames = [frame(SETTINGS, 0, 0), frame(HEADERS, END_HEADERS, 1, b"\x88"), frame(DATA, 0, 1, b"one")]
    frames += [frame(0x77, 9, 1, b"of a kind that came later"), frame(DATA, 0, 1, b"two")]
    frames += [frame(PING, 0, 0, b"12345678"), frame(HEADERS, END_HEADERS | END_STREAM, 1, STATUS)]
    data = b"".join(frames)
    for at in range(len(data)):
        world.connection.data_received(data[at : at + 1])
    assert world.told == [([(b":status", b"200")], False), b"one", b"two", ([(b"grpc-status", b"0")], True)]
    assert world.pipe.frames() == [(SETTINGS, ACK, 0, b""), (PING, ACK, 0, b"12345678")]


def test_padding_priority_and_continuation(world: World) -> None:
    world.come(
        frame(DATA, PADDED, 1, b"\x02data\0\0"),
        frame(HEADERS, PADDED | PRIORITY, 1, b"\x01" + bytes(5) + STATUS[:3] + b"\0"),
        frame(CONTINUATION, 0, 1, STATUS[3:5]),
        frame(CONTINUATION, END_HEADERS, 1, STATUS[5:]),
        frame(HEADERS, END_STREAM, 1, STATUS[:3]),
        frame(CONTINUATION, END_HEADERS, 1, STATUS[3:]),
    )
    assert world.told == [b"data", ([(b"grpc-status", b"0")], False), ([(b"grpc-status", b"0")], True)]


def test_a_stream_may_send_what_its_windows_allow(world: World) -> None:
    world.come(frame(SETTINGS, 0, 0, struct.pack(">HIHI", 4, 50, 5, 20_000)))
    assert not world.connection.send(world.stream, bytes(60))
    assert not world.connection.send(world.stream, b"x" * 30)
    assert world.pipe.frames() == [(DATA, 0, 1, bytes(50))]
    assert world.come(frame(WINDOW_UPDATE, 0, 1, number(15))) == [(DATA, 0, 1, bytes(10) + b"x" * 5)]
    assert world.told == []
    assert world.come(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 150)))[1:] == [(DATA, 0, 1, b"x" * 25)]
    assert world.told == ["flushed"]
    assert world.connection.send(world.stream, b"y")
    assert world.pipe.frames() == [(DATA, 0, 1, b"y")]


def test_all_streams_share_the_window_of_the_connection(world: World) -> None:
    world.come(frame(SETTINGS, 0, 0, struct.pack(">HIHI", 4, 1_000_000, 5, 20_000)))
    other_told = Told()
    other = world.connection.open(other_told, b"")
    world.pipe.frames()
    assert not world.connection.send(world.stream, bytes(65_536))
    assert [len(payload) for _, _, _, payload in world.pipe.frames()] == [20_000, 20_000, 20_000, 5_535]
    assert not world.connection.send(other, b"z")
    assert world.pipe.frames() == []
    assert world.come(frame(WINDOW_UPDATE, 0, 0, number(5))) == [(DATA, 0, 1, b"\0"), (DATA, 0, 3, b"z")]
    assert (world.told, other_told.told) == (["flushed"], ["flushed"])


def test_what_was_received_is_credited_again(world: World) -> None:
    chunk = bytes(16_000_000)
    credited = [kind for _ in range(9) for kind in world.come(frame(DATA, 0, 1, chunk))]
    per_stream = sum(int.from_bytes(payload) for _, _, where, payload in credited if where == 1)
    per_connection = sum(int.from_bytes(payload) for _, _, where, payload in credited if where == 0)
    assert 9 * len(chunk) - 64 * 2**20 <= per_stream <= 9 * len(chunk)
    assert per_connection == per_stream


def test_a_cancelled_stream_hears_nothing_more(world: World) -> None:
    world.connection.reset(world.stream)
    world.connection.reset(world.stream)
    assert world.pipe.frames() == [(RESET, 0, 1, number(8))]
    world.come(
        frame(DATA, 0, 1, b"late"), frame(HEADERS, END_HEADERS | END_STREAM, 1, STATUS), frame(RESET, 0, 1, bytes(4))
    )
    assert world.told == []
    assert not world.pipe.is_closed


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        ([frame(DATA, END_STREAM, 1, b"x")], [b"x", "end"]),
        ([frame(RESET, 0, 1, number(11))], [11]),
        ([frame(GO_AWAY, 0, 0, bytes(8))], ["lost: the server is going away"]),
    ],
)
def test_ends(world: World, frames: list[bytes], told: list[Any]) -> None:
    world.come(*frames)
    assert world.told == told


def test_who_goes_away_serves_what_there_is_and_gets_no_more(world: World) -> None:
    world.connection.open(Told(), b"")
    world.come(frame(GO_AWAY, 0, 0, number(1) + bytes(4)))
    assert not world.connection.is_usable
    assert world.unusable == [world.connection]
    world.come(frame(DATA, 0, 1, b"still"))
    assert world.told == [b"still"]
    assert not world.pipe.is_closed
    world.come(frame(HEADERS, END_HEADERS | END_STREAM, 1, STATUS))
    assert world.pipe.is_closed


@pytest.mark.parametrize(
    "data",
    [
        frame(HEADERS, END_HEADERS, 1, b"\xbe"),
        frame(HEADERS, 0, 1, b"") + frame(DATA, 0, 1, b""),
        frame(CONTINUATION, END_HEADERS, 1, b""),
        frame(WINDOW_UPDATE, 0, 0, b"1"),
        frame(SETTINGS, 0, 0, b"1"),
        frame(RESET, 0, 1, b""),
        frame(GO_AWAY, 0, 0, b""),
        frame(DATA, PADDED, 1, b""),
    ],
)
def test_what_is_no_http2_ends_the_connection(world: World, data: bytes) -> None:
    world.come(data)
    assert world.pipe.is_closed
    assert world.unusable == [world.connection]
    (lost,) = world.told
    assert lost.startswith("lost: the server sends what is no HTTP/2")


@pytest.mark.parametrize(("error", "text"), [(None, "the server closed the connection"), (OSError("x"), "x")])
def test_a_lost_connection_ends_all_streams(world: World, error: Exception | None, text: str) -> None:
    world.connection.connection_lost(error)
    (lost,) = world.told
    assert lost.endswith(text)
    assert world.unusable == [world.connection]


def test_numbers_of_streams_run_out(world: World) -> None:
    world.connection._next_number = 2**31 - 3
    last = world.connection.open(Told(), b"")
    assert (last.number, world.connection.is_usable) == (2**31 - 3, False)


def test_closing_tells_all_streams(world: World) -> None:
    world.connection.close("the end")
    assert world.told == ["lost: the end"]
    assert world.pipe.is_closed

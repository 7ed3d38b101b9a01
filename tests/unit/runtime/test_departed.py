"""Who goes while its socket is not read is noticed by a look at the socket."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from connector.runtime.departed import Departed, watch_peer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the end of a stream that is not read")

GRACE_S = 30.0
RESET = struct.pack("ii", 1, 0)


class BlockedClient:
    """Our end of a connection, and the client's."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.peer = socket.create_connection(server.getsockname())
            self.ours, _ = server.accept()
        watch_peer(self.ours)
        self.is_blocked = True
        self.is_aborted = False

    @property
    def blocked_fileno(self) -> int:
        return self.ours.fileno() if self.is_blocked else -1

    def abort(self) -> None:
        self.is_aborted = True
        self.ours.close()


@pytest.fixture
def client() -> Iterator[BlockedClient]:
    client = BlockedClient()
    client.peer.sendall(b"not read")
    yield client
    client.ours.close()
    client.peer.close()


@pytest.fixture
def departed(client: BlockedClient) -> Departed:
    departed = Departed(GRACE_S)
    departed.add(client)
    return departed


def test_who_is_there_stays(departed: Departed, client: BlockedClient) -> None:
    for now in (0.0, 1000.0):
        departed.on_tick(now)
    assert not client.is_aborted


def test_a_broken_connection_is_ended_at_once(departed: Departed, client: BlockedClient) -> None:
    client.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.peer.close()
    departed.on_tick(0.0)
    assert client.is_aborted
    departed.on_tick(1.0)


def test_who_has_ended_its_side_has_a_while(departed: Departed, client: BlockedClient) -> None:
    client.peer.close()
    for now in (100.0, 100.0 + GRACE_S - 1):
        departed.on_tick(now)
        assert not client.is_aborted
    departed.on_tick(100.0 + GRACE_S)
    assert client.is_aborted


def test_who_is_read_is_left_alone(departed: Departed, client: BlockedClient) -> None:
    client.peer.close()
    client.is_blocked = False
    departed.on_tick(0.0)
    client.is_blocked = True
    departed.on_tick(GRACE_S)
    assert not client.is_aborted
    departed.discard(client)
    departed.on_tick(3 * GRACE_S)
    assert not client.is_aborted

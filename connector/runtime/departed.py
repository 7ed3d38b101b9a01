"""Clients that are gone while their sockets are not read: nothing else would tell us (PC-19).

Owns the look at the sockets of blocked clients.  One whose connection is broken is ended at once; one that has ended
its side in order had perhaps published before that, and has ``grace_s`` more.  A client whose end cannot reach us,
because it sent more than we read, answers our next heartbeat, or the keepalive (``watch_peer``), with a reset.
Must not know why a client is blocked.
"""

from __future__ import annotations

import select
import socket
from typing import Protocol

_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL
_ENDED = getattr(select, "POLLRDHUP", 0)  # Linux
#: A peer that is silent so long is asked, so often, and is gone when it answers none of these questions.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


class Client(Protocol):
    """A socket, and whether it is not read because its client is blocked."""

    @property
    def blocked_fileno(self) -> int:
        """The descriptor; -1 when it is read."""

    def abort(self) -> None:
        """End it."""


def watch_peer(sock: socket.socket) -> None:
    """Let the kernel find out when the other side is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Departed:
    """Clients that are not read; ``on_tick`` should come about every second or more often."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._clients: dict[Client, float | None] = {}  # when the end of its side was seen

    def add(self, client: Client) -> None:
        """It is read no more."""
        self._clients.setdefault(client)

    def discard(self, client: Client) -> None:
        """It is read again, or is over."""
        self._clients.pop(client, None)

    def on_tick(self, now: float) -> None:
        """End those that are gone."""
        numbers = {client.blocked_fileno: client for client in self._clients}
        numbers.pop(-1, None)
        poll = select.poll()
        for number in numbers:
            poll.register(number, _ENDED)
        for number, events in poll.poll(0) if numbers else ():
            client = numbers[number]
            ended_at = self._clients[client]
            if ended_at is None:
                ended_at = self._clients[client] = now
            if events & _BROKEN or now - ended_at >= self._grace_s:
                self.discard(client)
                client.abort()

"""Transient events: from whoever sends to whoever listens right now.

Owns the matching of channel patterns (``*`` one word, ``>`` all that follow) and groups, of which one member gets each
event.  Nothing is stored; a listener that falls too far behind loses the newest, as with KubeMQ.
"""

from __future__ import annotations

import asyncio
from collections import deque

from kubemq.grpc import kubemq_pb2 as pb

_MAX_BEHIND_COUNT = 10_000
_MAX_BEHIND_BYTES = 64 * 1024 * 1024


class Listener:
    """One subscription and the events it has not been sent yet."""

    def __init__(self, pattern: str, group: str) -> None:
        self.words = pattern.split(".")
        self.group = (pattern, group) if group else None
        self.missed_count = 0
        self._events: deque[bytes] = deque()
        self._bytes = 0
        self._some = asyncio.Event()

    def put(self, event: bytes) -> None:
        """Add an event, unless the listener is too far behind."""
        if len(self._events) >= _MAX_BEHIND_COUNT or self._bytes + len(event) > _MAX_BEHIND_BYTES:
            self.missed_count += 1
            return
        self._events.append(event)
        self._bytes += len(event)
        self._some.set()

    async def get(self) -> bytes:
        """The next event, when there is one."""
        while not self._events:
            self._some.clear()
            await self._some.wait()
        event = self._events.popleft()
        self._bytes -= len(event)
        return event

    def matches(self, words: list[str]) -> bool:
        """Whether the pattern covers a channel, given as its words."""
        for index, word in enumerate(self.words):
            if word == ">":
                return len(words) > index
            if index >= len(words) or word not in ("*", words[index]):
                return False
        return len(words) == len(self.words)


class EventFan:
    """All listeners."""

    def __init__(self) -> None:
        self._exact: dict[str, list[Listener]] = {}
        self._patterns: list[Listener] = []
        self._turns: dict[tuple[str, str], int] = {}

    def listen(self, pattern: str, group: str) -> Listener:
        """Start to listen."""
        listener = Listener(pattern, group)
        self._home(listener).append(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Stop to listen."""
        home = self._home(listener)
        home.remove(listener)
        if listener.group and not any(other.group == listener.group for other in home):
            self._turns.pop(listener.group, None)
        if not home and home is not self._patterns:
            del self._exact[".".join(listener.words)]

    def publish(self, event: pb.Event) -> None:
        """Hand a checked event to everybody who listens, and to one of each group."""
        listeners = self._exact.get(event.Channel, [])
        if self._patterns:
            words = event.Channel.split(".")
            listeners = [*listeners, *(each for each in self._patterns if each.matches(words))]
        if not listeners:
            return
        received = pb.EventReceive(
            EventID=event.EventID, Channel=event.Channel, Metadata=event.Metadata, Body=event.Body, Tags=event.Tags
        ).SerializeToString()
        groups: dict[tuple[str, str], list[Listener]] = {}
        for listener in listeners:
            if listener.group:
                groups.setdefault(listener.group, []).append(listener)
            else:
                listener.put(received)
        for group, members in groups.items():
            turn = self._turns.get(group, 0)
            self._turns[group] = turn + 1
            members[turn % len(members)].put(received)

    def _home(self, listener: Listener) -> list[Listener]:
        if "*" in listener.words or ">" in listener.words:
            return self._patterns
        return self._exact.setdefault(".".join(listener.words), [])

"""The other connectors on the same KubeMQ: links to all of them, questions and answers, and what they have applied.

Owns one link per living member, the calls under way, and who waits until everybody knows what a client is told
(HA-04).  What messages mean is in ``peer_desk.py`` (what others ask of us) and ``away.py`` (what we ask of them).
When a member is gone its calls end with None.  Pure: ``runtime/peers.py`` carries the frames.
"""

from __future__ import annotations

import json
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from connector.broker.peer_link import PeerLink, read_frame, read_message, write_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from connector.broker.ports import Clock

#: What a member says of something: a JSON object with its type in ``t``; ``r`` numbers a call, and its answer.
Facts: TypeAlias = dict[str, Any]
Handler: TypeAlias = "Callable[[str, Facts, list[bytes]], None]"


class Peers:
    """``wake`` is called when frames are to be sent; ``handlers`` take messages by their type."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self.me = ""
        self.handlers: dict[str, Handler] = {"re": self._on_answer, "ready": self._on_ready}
        self.before_frames: Callable[[], None] = lambda: None
        self.on_ready: Callable[[], None] = lambda: None
        #: told what a handler or somebody who waited raised: nobody else is to miss anything for it
        self.on_bug: Callable[[Exception], None] = _raise
        self._clock = clock
        self.wake = wake
        self._links: dict[str, PeerLink] = {}
        self._calls: dict[int, tuple[str, Callable[[Facts | None], None]]] = {}
        self._last_call = 0
        self._applied: dict[str, int] = {}
        self._barrier: deque[tuple[int, Callable[[], None]]] = deque()
        self._unready: set[str] = set()
        self._is_following_up = False

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._links))

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, member: object) -> bool:
        return member in self._links

    @property
    def unready(self) -> set[str]:
        """Who has not told all it has yet."""
        return self._unready

    # ------------------------------------------------------------------ who there is

    def update(self, me: str, others: list[str], *, waits_for: Iterable[str] = ()) -> tuple[list[str], list[str]]:
        """These are the others; returns who is new and who is gone.  ``waits_for``: who was there before us."""
        is_other_life = me != self.me
        gone = [member for member in self._links if is_other_life or member not in others]
        self.me = me
        for member in gone:
            del self._links[member]
            self._applied.pop(member, None)
            self._unready.discard(member)
        fresh = [member for member in others if member not in self._links]
        for member in fresh:
            self._links[member] = PeerLink(me, member, partial(self._receive, member), self.wake)
        self._unready.update(set(waits_for) & set(fresh))
        for number, (member, done) in list(self._calls.items()):
            if member in gone:
                del self._calls[number]
                self._guarded(done, None)
        self._check_barrier()
        return fresh, gone

    # ------------------------------------------------------------------ messages

    def tell(self, member: str, facts: Facts, *blobs: bytes) -> None:
        """Send a message; to somebody who is gone: nothing."""
        link = self._links.get(member)
        if link is not None:
            link.send(write_message(facts, *blobs))

    def tell_all(self, facts: Facts) -> None:
        """Send it to everybody."""
        if self._links:
            message = write_message(facts)
            for link in self._links.values():
                link.send(message)

    def call(self, member: str, facts: Facts, done: Callable[[Facts | None], None]) -> None:
        """Ask; ``done`` gets the answer, or None when the member is gone."""
        if member not in self._links:
            done(None)
            return
        self._last_call += 1
        self._calls[self._last_call] = (member, done)
        self.tell(member, {**facts, "r": self._last_call})

    def call_all(self, facts: Facts, done: Callable[[list[Facts]], None]) -> None:
        """Ask everybody; ``done`` gets the answers of those who are not gone."""
        left = len(self._links)
        if not left:
            done([])
            return
        answers: list[Facts] = []

        def one(answer: Facts | None) -> None:
            nonlocal left
            left -= 1
            if answer is not None:
                answers.append(answer)
            if not left:
                done(answers)

        for member in list(self._links):
            self.call(member, facts, one)

    def answer(self, member: str, question: Facts, **facts: Any) -> None:
        """Answer a question, if it wants one."""
        if "r" in question:
            self.tell(member, {"t": "re", "r": question["r"], **facts})

    def _on_answer(self, member: str, facts: Facts, _blobs: list[bytes]) -> None:
        asked, done = self._calls.pop(facts["r"], ("", None))
        if done is not None and asked == member:
            self._guarded(done, facts)

    def _on_ready(self, member: str, _facts: Facts, _blobs: list[bytes]) -> None:
        if member in self._unready:
            self._unready.discard(member)
            self.on_ready()

    def _receive(self, member: str, data: bytes) -> None:
        facts, blobs = read_message(data)
        handler = self.handlers.get(facts["t"])
        if handler is not None:  # else a later version's
            self._guarded(handler, member, facts, blobs)

    def _guarded(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001 - told
            self.on_bug(error)

    # ------------------------------------------------------------------ frames

    def next_frames(self) -> list[tuple[str, bytes]]:
        """What is to be sent now, to whom."""
        self.before_frames()
        now = self._clock()
        frames = [(member, link.next_frame(now)) for member, link in self._links.items()]
        return [(member, frame) for member, frame in frames if frame is not None]

    def due_at(self) -> float | None:
        """When something is to be sent again, at the earliest."""
        return min([due for link in self._links.values() if (due := link.due_at()) is not None], default=None)

    def on_frame(self, data: bytes) -> None:
        """A frame for this member."""
        head, rest = read_frame(data)
        link = self._links.get(head["from"])
        if link is not None and head["to"] == self.me:  # else meant for who we were before
            link.on_frame(head, rest, self._clock())

    # ------------------------------------------------------------------ what everybody knows

    def on_applied(self, member: str, version: int) -> None:
        """A member has applied the topology log up to here."""
        if member in self._links and version > self._applied.get(member, 0):
            self._applied[member] = version
            self._check_barrier()

    def when_applied(self, sequence: int, done: Callable[[], None]) -> None:
        """Call ``done`` when every living member has applied this event; calls keep their order."""
        if not self._links:
            done()
            return
        self._barrier.append((sequence, done))
        self._check_barrier()  # they may have been faster than we

    def _check_barrier(self) -> None:
        if self._is_following_up:
            return
        self._is_following_up = True
        try:
            barrier = self._barrier
            while barrier:
                known = min([self._applied.get(member, 0) for member in self._links], default=barrier[-1][0])
                if barrier[0][0] > known:
                    return
                self._guarded(barrier.popleft()[1])
        finally:
            self._is_following_up = False


def _raise(error: Exception) -> None:
    raise error


def beat(member: str, number: int, version: int) -> bytes:
    """What a member says to all now and then: it lives, and has applied the topology log so far."""
    return json.dumps({"beat": number, "from": member, "version": version}, separators=(",", ":")).encode("ascii")

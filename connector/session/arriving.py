"""Messages that have come in part: one mark over those of all clients (PU-09), kept without anybody waiting for ever.

A body that is not whole cannot be stored, and a client that is not read cannot make it whole.  So above the mark the
clients in the middle of a message go on in turn, one at a time, until it is whole; the others are not read meanwhile.
Who has the turn and sends nothing loses it, and after some such turns its connection.  Clients between messages, or
with no more than ``SMALL_BYTES`` of one, do not notice.  What one client may have under way on its channels is bounded
by refusal (``amqp/frames.py``), so the sum stays below the mark and twice that.  Must not know frames or sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.session.marks import Pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.session.marks import Reading

#: Up to so much, what has come in part is one read of the socket: it counts, and is never held back.
SMALL_BYTES = 64 * 1024
#: Who has the turn keeps it by sending this much in this time.
LEAST_BYTES = 256 * 1024
TURN_S = 2.0
#: So many turns without a byte, and the connection is closed.
PATIENCE = 10


class Part:
    """What one client has sent in part.

    ``on_stalled`` is told when it holds memory that others need and does not go on.
    """

    __slots__ = ("_all", "came", "idle_turns", "on_stalled", "reading", "size")

    def __init__(self, arriving: Arriving, reading: Reading, on_stalled: Callable[[], None]) -> None:
        self._all = arriving
        self.reading = reading
        self.on_stalled = on_stalled
        self.size = 0
        self.came = 0  # in this turn
        self.idle_turns = 0

    def note(self, size: int, came: int) -> None:
        """So much is kept now; ``came`` was just read."""
        self.came += came
        if size != self.size:
            self._all.change(self, size)

    def leave(self) -> None:
        """The connection is over."""
        self._all.change(self, 0)

    @property
    def is_held_elsewhere(self) -> bool:
        """True while it is not read for a reason that ends without its doing."""
        return bool(self.reading.reasons & ~(Pause.PARTIAL | Pause.UNREAD))


class Arriving:
    """All clients; ``hard_bytes``: above it, an idle turn ends the connection at once."""

    def __init__(self, high_bytes: int, client_bytes: int) -> None:
        self.size = 0
        self._high = high_bytes
        self._low = high_bytes // 2
        self._hard = high_bytes + client_bytes
        self._is_over = False
        self._waiting: dict[Part, None] = {}  # with more than a little, the next first
        self._turn: Part | None = None
        self._turn_ends = 0.0

    def change(self, part: Part, size: int) -> None:
        """One client's share has changed."""
        self.size += size - part.size
        part.size = size
        if size > SMALL_BYTES:
            self._waiting.setdefault(part)
        else:
            self._waiting.pop(part, None)
            part.idle_turns = 0
        if self.size > self._high:
            self._is_over = True
        elif self._is_over and self.size <= self._low:
            self._release()
        if self._is_over:
            self._take_turns()

    def on_tick(self, now: float) -> None:
        """Look whether who has the turn uses it."""
        part = self._turn
        if part is None:
            return
        if not self._turn_ends:
            self._turn_ends = now + TURN_S
        if now < self._turn_ends:
            return
        self._turn_ends = now + TURN_S
        came, part.came = part.came, 0
        if came or part.is_held_elsewhere:
            part.idle_turns = 0
            if came < LEAST_BYTES and self.size <= self._hard:  # above it only one grows, however slowly
                self._pass_on(part)
            return
        part.idle_turns += 1
        if part.idle_turns >= PATIENCE or self.size > self._hard:
            part.on_stalled()
        else:
            self._pass_on(part)

    def _take_turns(self) -> None:
        if self._turn not in self._waiting:
            self._turn = next(iter(self._waiting), None)
            self._turn_ends = 0.0
            if self._turn is not None:
                self._turn.came = 0
        for part in self._waiting:
            if part is self._turn:
                part.reading.resume(Pause.PARTIAL)
            else:
                part.reading.pause(Pause.PARTIAL)

    def _pass_on(self, part: Part) -> None:
        """Its turn comes again after all others'."""
        del self._waiting[part]
        self._turn = None
        self._take_turns()
        self._waiting[part] = None
        self._take_turns()

    def _release(self) -> None:
        self._is_over = False
        self._turn = None
        for part in self._waiting:
            part.reading.resume(Pause.PARTIAL)

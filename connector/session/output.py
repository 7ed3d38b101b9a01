"""One connection's output: gathered while a turn lasts, written once.

Owns the parts waiting to be written and whether deliveries may add to them (PC-17): not while the transport's buffer
is full, nor while what is gathered here reaches the high mark, nor once deliveries were stopped for good.  Replies are
always taken; when a client reads none of them for long, its requests are not read any more either, and what it asked
for before that has large replies waits until it reads (``when_read``).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from connector.session.marks import Pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.session.marks import Reading
    from connector.session.ports import Runtime


class Output:
    """``takes_deliveries`` is read once per delivery; ``was_written`` is the heartbeat's (PC-06)."""

    __slots__ = (
        "_has_asked",
        "_high",
        "_is_blocked",
        "_is_stopped",
        "_parts",
        "_reading",
        "_runtime",
        "_size",
        "_unread",
        "_unread_high",
        "_waiting",
        "takes_deliveries",
        "was_written",
    )

    def __init__(self, runtime: Runtime, reading: Reading, high_bytes: int, unread_high_bytes: int) -> None:
        self._runtime = runtime
        self._reading = reading
        self._high = high_bytes
        self._unread_high = unread_high_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._unread = 0  # written since the transport's buffer is full
        self._is_blocked = False
        self._is_stopped = False
        self._has_asked = False  # for a flush
        self._waiting: deque[Callable[[None], None]] = deque()
        self.takes_deliveries = True
        self.was_written = False

    def put(self, data: bytes) -> None:
        """Gather one piece of output."""
        if not self._has_asked:
            self.ask_flush()
        self._parts.append(data)
        self._size += len(data)
        if self._size >= self._high:
            self.takes_deliveries = False

    def ask_flush(self) -> None:
        """Have ``Connection.flush`` called at the end of this turn."""
        if not self._has_asked:
            self._has_asked = True
            self._runtime.wants_flush()

    def discard(self) -> None:
        """Nobody is there to read what has gathered."""
        self._parts.clear()
        self._size = 0
        self._has_asked = False
        self._waiting.clear()

    @property
    def is_unread(self) -> bool:
        """Whether so much is unread that nothing may be added but small replies."""
        return self._size + self._unread > self._unread_high

    def when_read(self, done: Callable[[None], None]) -> None:
        """Call ``done`` when the client has read what there is; for a moment when ``is_unread``."""
        self._waiting.append(done)

    def go_on(self) -> None:
        """Tell those that waited, as far as there is room; for behind ``flush`` and ``unblock``."""
        waiting = self._waiting
        while waiting and not self.is_unread:
            waiting.popleft()(None)

    def flush(self) -> bool:
        """Write what has gathered; True when deliveries that had stopped may go on."""
        self._has_asked = False
        parts = self._parts
        if not parts:
            return False
        data = b"".join(parts) if len(parts) > 1 else parts[0]
        parts.clear()
        self._size = 0
        self.was_written = True
        self._runtime.write(data)
        if self._is_blocked:
            self._unread += len(data)
            if self._unread > self._unread_high:
                self._reading.pause(Pause.UNREAD)
        return self._open()

    def block(self) -> None:
        """The transport's buffer is full."""
        self._is_blocked = True
        self.takes_deliveries = False

    def unblock(self) -> bool:
        """The transport's buffer has room; True when deliveries may go on."""
        self._is_blocked = False
        self._unread = 0
        self._reading.resume(Pause.UNREAD)
        return self._open()

    def stop_deliveries(self) -> None:
        """For good: the connection is closing."""
        self._is_stopped = True
        self.takes_deliveries = False

    def _open(self) -> bool:
        if self.takes_deliveries or self._is_blocked or self._is_stopped or self._size >= self._high:
            return False
        self.takes_deliveries = True
        return True

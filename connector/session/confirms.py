"""What became of the publishes of one channel.

Owns the publish sequence numbers (from 1 at ``confirm.select``, PU-05), which copies of which publish are still on
their way to KubeMQ (PU-06: all of them must arrive), and the coalescing of acks and nacks (PU-18).  Channels without
confirms count too: a close is answered when all that was published before has a result (PU-07).  Must not know frames:
the channel writes what ``take_confirms`` returns.  Source of the coalescing: ``rabbit_channel:coalesce_and_send``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.broker.counters import Counters
    from connector.broker.message import Message
    from connector.session.marks import Mark
    from connector.session.ports import LedgerOwner

#: What a publish costs in memory beside its header and body, for the marks.
OVERHEAD_BYTES = 256


class PublishLedger:
    """Implements ``broker.ports.Receipt`` for one channel.

    A token is the publish's sequence number.  ``confirming`` ledgers gather confirms; the others report a refused
    publish to their owner at once.  ``in_flight`` gets every publish's bytes from its acceptance to its result.
    """

    __slots__ = (
        "_copies", "_counters", "_early", "_idle", "_in_flight", "_last", "_open", "_owner", "_refused", "_sizes",
        "_stored", "confirming", "doubts", "retry",
    )  # fmt: skip

    def __init__(self, owner: LedgerOwner, in_flight: Mark, counters: Counters, *, confirming: bool) -> None:
        self.confirming = confirming
        self.retry = not confirming  # a confirm may not be overtaken by a silent retry (see ports.Receipt)
        self._owner = owner
        self._in_flight = in_flight
        self._counters = counters
        self._last = 0  # the highest token so far
        self._open = 0  # the token whose publish has not returned yet
        self._early = 0  # results of the open token
        self._sizes: dict[int, int] = {}  # every token on its way -> bytes, ascending
        self._copies: dict[int, int] = {}  # copies on their way, where that is more than one
        self._stored: list[int] = []  # results that wait for take_confirms
        self._refused: set[int] = set()  # tokens with a refused copy, until they are taken
        self._idle: list[Callable[[], None]] = []
        #: token -> copies whose reader may be gone, where all are such, and whether the client wants it back then
        self.doubts: dict[int, tuple[int, bool]] = {}

    def __len__(self) -> int:
        """How many publishes have no result yet."""
        return len(self._sizes)

    def begin(self) -> int:
        """Return the token for the next publish; ``routed`` follows when the broker has taken it."""
        self._last = self._open = token = self._last + 1
        self._early = 0
        return token

    def routed(self, copies: int, size_bytes: int) -> None:
        """The open publish went to so many queues; exactly so many results came already or will come."""
        token, self._open = self._open, 0
        left = copies - self._early
        if not left:
            if self.confirming:
                self._finish(token)
            return
        size_bytes += OVERHEAD_BYTES
        self._sizes[token] = size_bytes
        if left > 1:
            self._copies[token] = left
        self._in_flight.add(size_bytes)

    def is_certain(self, copies: int, *, mandatory: bool) -> bool:
        """Whether the open publish has a route; else that is known, and counted, with the result of its last copy."""
        count, _ = self.doubts.pop(self._open, (0, False))
        if not count or count < copies:
            return True
        self.doubts[self._open] = (count, mandatory)
        return False

    def on_doubt(self, token: int) -> None:
        """See ``ports.Receipt``."""
        count, mandatory = self.doubts.get(token, (0, False))
        self.doubts[token] = (count + 1, mandatory)

    def on_unrouted(self, token: int, message: Message) -> None:
        """One copy had no route: the publish has none when that is true of all of them (PU-03)."""
        count, mandatory = self.doubts.pop(token, (0, False))
        if count == 1:
            self._owner.on_unrouted(message, mandatory=mandatory)
        self.on_stored(token)
        if count > 1:
            self.doubts[token] = (count - 1, mandatory)

    def on_stored(self, token: int) -> None:
        """One copy is stored."""
        if self.doubts and token in self.doubts:
            del self.doubts[token]
            self._counters.routed += token != self._open
        if token == self._open:
            self._early += 1
            return
        copies = self._copies
        if copies and token in copies:
            copies[token] -= 1
            if copies[token] == 1:
                del copies[token]
            return
        self._in_flight.remove(self._sizes.pop(token))
        if self.confirming:
            self._finish(token)
        if self._idle:
            self._check_idle()

    def on_refused(self, token: int, reason: str) -> None:
        """One copy is not stored: the publish is refused when the results of all copies are known (PU-19)."""
        if self.confirming:
            self._refused.add(token)
        else:
            self._owner.on_publish_lost(reason)
        self.on_stored(token)

    def flush(self) -> None:
        """Nothing: the owner was told with the first result and writes all at the end of the turn."""

    def take_confirms(self) -> list[tuple[int, bool, bool]]:
        """Return and forget what is known now: list of (publish_seqno, multiple, is_ack), in writing order.

        ``multiple`` covers all lower numbers not confirmed yet, so it is used only below the lowest one on its way,
        for a run of equal results.
        """
        done = self._stored
        done.sort()
        limit = next(iter(self._sizes), self._last + 1)
        refused = self._refused
        nacked = 0
        confirms: list[tuple[int, bool, bool]] = []
        if not refused and done and done[-1] < limit:
            confirms.append((done[-1], len(done) > 1, True))
        else:
            for seqno in done:
                is_ack = seqno not in refused
                if confirms and seqno < limit and confirms[-1][2] is is_ack:
                    confirms[-1] = (seqno, True, is_ack)
                else:
                    confirms.append((seqno, False, is_ack))
            nacked = len(refused.intersection(done))
            refused.difference_update(done)
            self._counters.nacked += nacked
        self._counters.confirmed += len(done) - nacked
        self._stored = []
        return confirms

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back when every publish accepted so far has its result: now, or with the last of them."""
        self._idle.append(callback)
        self._check_idle()

    def _finish(self, token: int) -> None:
        stored = self._stored
        stored.append(token)
        if len(stored) == 1:
            self._owner.on_confirms_ready()

    def _check_idle(self) -> None:
        if not self._sizes:
            waiting, self._idle = self._idle, []
            for callback in waiting:
                callback()

"""Acknowledgements on their way: written to a stream, but silent, so they have arrived only when proven.

Owns the batches that a request carried and whose success no later answer of the stream has proven yet, and those who
wait for proof.  Knows no piles of a lease: what arrived or was refused goes back to it (design.md section 3, points 4
and 14).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from connector.broker.message import Message


class Proofs:
    """``sent`` is a list of (token of the AckRange, number of the batch, its messages by Sequence).

    ``unsure`` are Sequences whose AckRange was on its way when a stream was lost: it may have arrived.  The owner
    takes them out once they are done with.

    Every AckRange carries what was settled up to ``gather``; batches are numbered in that order, and a waiter waits
    for all up to a number.
    """

    __slots__ = ("_due", "_number", "_waiters", "sent", "sent_at", "unsure")

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, dict[int, Message]]] = []
        self.sent_at = 0.0
        self.unsure: set[int] = set()
        self._due: Sequence[int] = ()  # gathered, and perhaps being written
        self._number = 0
        self._waiters: list[tuple[int, Callable[[], None]]] = []

    @property
    def has_waiters(self) -> bool:
        """True while somebody waits for proof."""
        return bool(self._waiters)

    def gather(self, due: Sequence[int], is_complete: bool) -> None:
        """A request takes what is settled now, ``due``; what is settled from here on belongs to the next one.

        Not ``is_complete``: something settled stays behind, so everybody waits for the next one.
        """
        self._number += 1
        self._due = due
        if not is_complete:
            self.postpone()

    def add(self, token: int, batch: dict[int, Message], now: float) -> None:
        """The request with the last gathered batch was written."""
        self.sent.append((token, self._number - 1, batch))
        self.sent_at = now
        self._due = ()

    def resolve(self, failed: Iterable[int]) -> tuple[list[dict[int, Message]], list[dict[int, Message]]]:
        """A later request has answered: the batches that have arrived, and those named in ``failed``."""
        sent, self.sent = self.sent, []
        refused = set(failed)
        return (
            [batch for token, _, batch in sent if token not in refused],
            [batch for token, _, batch in sent if token in refused],
        )

    def take_back(self) -> list[dict[int, Message]]:
        """The stream is lost: whatever was sent is to be sent again, and who waits, waits for that."""
        sent, self.sent = self.sent, []
        self.unsure.update(self._due, *(batch for _, _, batch in sent))
        self._due = ()
        self.postpone()
        return [batch for _, _, batch in sent]

    def postpone(self) -> None:
        """What was thought sent must be sent again: who waits, waits for the batch that is gathered now."""
        self._waiters = [(self._number, done) for _, done in self._waiters]

    def wait(self, done: Callable[[], None], is_settled: bool) -> None:
        """Call ``done`` when everything given so far has provably arrived; ``is_settled``: some is not sent yet."""
        if is_settled:
            self._waiters.append((self._number, done))
        elif self.sent:
            self._waiters.append((self._number - 1, done))
        else:
            done()

    def release(self, is_settled: bool) -> None:
        """Tell everybody whose acknowledgements have arrived."""
        if not self._waiters:
            return
        numbers = [number for _, number, _ in self.sent]
        if is_settled:
            numbers.append(self._number)
        first = min(numbers, default=self._number + 1)
        due = [done for number, done in self._waiters if number < first]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] >= first]
        for done in due:
            done()

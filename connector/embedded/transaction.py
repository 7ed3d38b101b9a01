"""One Get and what became of it: the messages a client holds under one transaction id.

Owns what the client was shown and has not settled (``accepted``); the member of the queue group behind it may hold
more (parked messages).  Pure but for the callback ``on_full``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from connector.embedded.engine import Engine, Member, QueueChannel


class Transaction:
    """An open Get.  While it accepts, ``on_some`` is told of what arrives, ``on_full`` that all it wants is there."""

    __slots__ = ("_engine", "accepted", "accepting", "is_open", "max_items", "member", "on_full", "on_some")

    def __init__(self, engine: Engine, channel: QueueChannel, max_items: int) -> None:
        self._engine = engine
        self.accepted: dict[int, None] = {}
        self.accepting = True
        self.is_open = True
        self.max_items = max_items
        self.on_full: Callable[[], object] | None = None
        self.on_some: Callable[[], object] | None = None
        self.member: Member = engine.join(channel, max_items, self._on_messages, fills=True)

    def stop_accepting(self) -> None:
        """It is answered now; what comes from here on is not shown."""
        self.accepting = False
        self._engine.satisfy(self.member)

    def settle(self, sequences: Collection[int], *, forget: bool = True) -> None:
        """Acknowledge some of ``accepted``; the transaction ends with the last of them."""
        if len(sequences) == len(self.accepted):
            self.accepted.clear()
        else:
            for sequence in sequences:
                del self.accepted[sequence]
        self._engine.settle(self.member, sequences, forget=forget)

    def known(self, sequences: Sequence[int]) -> tuple[list[int], int | None]:
        """The leading Sequences that are held, each once, and the first one that is not (or None)."""
        accepted = self.accepted
        if len(sequences) == len(accepted) and accepted.keys() == set(sequences):
            return list(sequences), None
        good: dict[int, None] = {}
        for sequence in sequences:
            if sequence not in accepted or sequence in good:
                return list(good), sequence
            good[sequence] = None
        return list(good), None

    def close(self) -> None:
        """Give back what is not settled; a second time does nothing."""
        if self.is_open:
            self.is_open = False
            self.accepting = False
            self.accepted.clear()
            self._engine.leave(self.member)

    def _on_messages(self, sequences: Sequence[int]) -> None:
        if not self.accepting:
            return
        room = self.max_items - len(self.accepted)
        self.accepted.update(dict.fromkeys(sequences if len(sequences) <= room else sequences[:room]))
        if len(self.accepted) >= self.max_items:
            self.accepting = False
            if self.on_full is not None:
                self.on_full()
        elif self.on_some is not None:
            self.on_some()

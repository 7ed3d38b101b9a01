"""Which KubeMQ channels a queue consists of, and the events that change that.

Owns the record of a queue's generations: its messages are written to the current one and read from all in order.
Messages move to a new one when a crashed server withholds some of them, or before the server's retention takes the
oldest; a move is recorded when it begins and when it is done.  Pure; the fold is ``topology.py``'s, the moving
``move.py``'s.  Rules: design.md section 3, point 13.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Left:
    """What is in a generation and does not count: messages that nobody can read, and Sequences that live on elsewhere.

    Up to the Sequence ``upto`` it is a deleted queue's, which had this name before: ``outlived`` of what is withheld.
    ``known_at`` is the server's time in seconds since the epoch, 0 when it is not known: what is stored later is not
    among it.  ``gone`` of what is ``copied`` are not there any more: their acknowledgements arrived in a crash.
    """

    withheld: int = 0
    copied: list[int] = field(default_factory=list)
    upto: int = 0
    outlived: int = 0
    known_at: int = 0
    gone: int = 0

    @property
    def unreadable(self) -> int:
        """Withheld, not known from memory either, and missed by somebody."""
        return max(0, self.withheld - len(self.copied) + self.gone - self.outlived)


@dataclass(slots=True)
class Moving:
    """A move under way: copies go to this generation, for this reason.

    ``is_rescued``: what was withheld has been freed meanwhile.
    """

    target: int
    reason: str
    is_rescued: bool = False


@dataclass(slots=True)
class Generations:
    """A queue's channels in reading order; it is written to the last one.

    ``last`` is the highest number ever used, ``moving`` says from where to where messages are being copied, ``left``
    what moves have left behind.
    """

    order: list[int] = field(default_factory=lambda: [0])
    last: int = 0
    moving: dict[int, Moving] = field(default_factory=dict)
    left: dict[int, Left] = field(default_factory=dict)

    @property
    def current(self) -> int:
        """The one that is written to."""
        return self.order[-1]

    def begin(self, source: int, generation: int, reason: str) -> bool:
        """A move begins: copies go to a new generation after ``source``.

        If that was the current one, what is published goes to the next but one from here on, so that it is read after
        the copies.  False when another move was first.
        """
        if source not in self.order or source in self.moving or generation != self.last + 1:
            return False
        is_current = source == self.current
        self.order.insert(self.order.index(source) + 1, generation)
        self.last = generation
        if is_current:
            self.last += 1
            self.order.append(self.last)
        self.moving[source] = Moving(generation, reason)
        return True

    def finish(self, source: int, generation: int, left: Left) -> bool:
        """The move is done, and leaves this; False when there is no such move."""
        moving = self.moving.get(source)
        if moving is None or moving.target != generation:
            return False
        del self.moving[source]
        before = self.left.get(source, Left())
        if not left.known_at:  # an older version tells of what is new alone
            left.copied, left.upto = sorted({*before.copied, *left.copied}), before.upto
        if moving.is_rescued:
            left.withheld = 0
        left.outlived = min(before.outlived, left.withheld) if left.upto else 0
        self.left[source] = left
        return True

    def outlive(self, left: dict[str, list[int]], known_at: int = 0) -> None:
        """The queue is deleted and could not be emptied; the next one of its name begins with what it leaves behind.

        ``left``: (withheld, last Sequence) by generation.  What a dead server's self takes messages from is not written
        to again.
        """
        for number, (withheld, upto) in left.items():
            copied = self.left[int(number)].copied if int(number) in self.left else []
            self.left[int(number)] = Left(withheld, copied, upto, withheld, known_at)
        if self.current in self.left and self.left[self.current].withheld:
            self.last += 1
            self.order.append(self.last)

    def is_target(self, generation: int) -> bool:
        """Whether copies are still being stored there."""
        return any(moving.target == generation for moving in self.moving.values())

    def retire(self, generation: int) -> bool:
        """An older generation is empty and is not looked at any more; the first one stays, for native producers."""
        is_moving = generation in self.moving or self.is_target(generation)
        if not generation or generation not in self.order[:-1] or is_moving:
            return False
        self.order.remove(generation)
        self.left.pop(generation, None)
        return True

    def rescue(self) -> bool:
        """What was withheld may be read again."""
        withheld = sum(left.withheld for left in self.left.values())
        for left in self.left.values():
            left.withheld = left.outlived = 0
        for moving in self.moving.values():
            moving.is_rescued = True
        return withheld > 0 or bool(self.moving)

    def pack(self) -> dict[str, Any]:
        """As part of a snapshot; versions that know no ``ends`` or ``gone`` read the rest."""
        return {
            "order": self.order,
            "last": self.last,
            "moving": {
                str(number): [moving.target, moving.reason, moving.is_rescued] for number, moving in self.moving.items()
            },
            "left": {str(number): [left.withheld, left.copied] for number, left in self.left.items()},
            "ends": {str(number): [left.upto, left.outlived, left.known_at] for number, left in self.left.items()},
            "gone": {str(number): [left.gone] for number, left in self.left.items() if left.gone},
        }


def unpack_generations(packed: dict[str, Any] | None) -> Generations:
    """The reverse of ``Generations.pack``; of nothing: a queue that never moved."""
    if packed is None:
        return Generations()
    ends = packed.get("ends", {})
    left = {int(number): Left(*left, *ends.get(number, ())) for number, left in packed["left"].items()}
    for number, (gone,) in packed.get("gone", {}).items():
        if int(number) in left:
            left[int(number)].gone = gone
    moving = {int(number): Moving(*moving) for number, moving in packed["moving"].items()}
    return Generations(list(packed["order"]), packed["last"], moving, left)


def queue_moving(vhost: str, name: str, source: int, generation: int, reason: str) -> dict[str, Any]:
    """The event before a move: ``source`` is copied to ``generation``."""
    return {
        "type": "queue.moving",
        "vhost": vhost,
        "name": name,
        "source": source,
        "generation": generation,
        "reason": reason,
    }


def queue_moved(vhost: str, name: str, source: int, generation: int, left: Left) -> dict[str, Any]:
    """The event after it: all of ``source`` that can be read is in ``generation``."""
    event = {
        "type": "queue.moved",
        "vhost": vhost,
        "name": name,
        "source": source,
        "generation": generation,
        "withheld": left.withheld,
        "copied": left.copied,
    }
    if left.gone:
        event["gone"] = left.gone
    return {**event, "upto": left.upto, "known_at": left.known_at} if left.known_at else event


def queue_retired(vhost: str, name: str, generation: int) -> dict[str, Any]:
    """An older generation is empty."""
    return {"type": "queue.retired", "vhost": vhost, "name": name, "generation": generation}


def queue_drained(
    vhost: str, name: str, deletion: int = 0, left: dict[str, list[int]] | None = None, known_at: int = 0
) -> dict[str, Any]:
    """A deleted queue is empty, but for what could not be had (``Generations.outlive``).

    ``deletion`` is the Sequence of the event that deleted it, 0 where that is not known.
    """
    event: dict[str, Any] = {"type": "queue.drained", "vhost": vhost, "name": name}
    if deletion:
        event["deletion"] = deletion
    return {**event, "left": left, "known_at": known_at} if left else event


def queue_rescued(vhost: str, name: str) -> dict[str, Any]:
    """An operator has freed what was withheld."""
    return {"type": "queue.rescued", "vhost": vhost, "name": name}


def server_started(start_time: int) -> dict[str, Any]:
    """Every queue has been looked at since the server started at this time."""
    return {"type": "server.started", "start_time": start_time}

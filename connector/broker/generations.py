"""Which KubeMQ channels a queue consists of, and the events that change that.

Owns the record of a queue's generations: its messages are written to the current one and read from all, oldest first.
A queue moves to the next one when a crashed server withholds messages of it, or before the server's retention takes
its oldest; the move is recorded when it begins and when it is done.  Pure; the fold is ``topology.py``'s, the moving
``move.py``'s.  Rules: design.md section 3, point 13.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Left:
    """What a move left in an older generation: messages that nobody can read, and Sequences that live on elsewhere."""

    withheld: int = 0
    copied: list[int] = field(default_factory=list)

    @property
    def unreadable(self) -> int:
        """Withheld, and not known from memory either."""
        return max(0, self.withheld - len(self.copied))


@dataclass(slots=True)
class Generations:
    """A queue's channels: ``older`` by number, ascending; ``moving`` is the one a move is under way to (0: none)."""

    current: int = 0
    moving: int = 0
    reason: str = ""
    older: dict[int, Left] = field(default_factory=dict)

    def begin(self, generation: int, reason: str) -> bool:
        """A move begins; False when it is not to the next generation."""
        if generation != self.current + 1:
            return False
        self.moving, self.reason = generation, reason
        return True

    def finish(self, generation: int, withheld: int, copied: list[int]) -> bool:
        """The move is done; False when it was not to the next generation."""
        if generation != self.current + 1:
            return False
        self.older[self.current] = Left(withheld, copied)
        self.current, self.moving, self.reason = generation, 0, ""
        return True

    def retire(self, generation: int) -> bool:
        """An older generation is empty and is not looked at any more; the first one stays, for native producers."""
        return bool(generation) and self.older.pop(generation, None) is not None

    def rescue(self) -> bool:
        """What was withheld may be read again."""
        withheld = sum(left.withheld for left in self.older.values())
        for left in self.older.values():
            left.withheld = 0
        return withheld > 0

    def pack(self) -> dict[str, Any]:
        """As part of a snapshot."""
        older = {str(number): [left.withheld, left.copied] for number, left in self.older.items()}
        return {"current": self.current, "moving": self.moving, "reason": self.reason, "older": older}


def unpack_generations(packed: dict[str, Any] | None) -> Generations:
    """The reverse of ``Generations.pack``; of nothing: a queue that never moved."""
    if packed is None:
        return Generations()
    older = {int(number): Left(withheld, copied) for number, (withheld, copied) in packed["older"].items()}
    return Generations(packed["current"], packed["moving"], packed["reason"], older)


def queue_moving(vhost: str, name: str, generation: int, reason: str) -> dict[str, Any]:
    """The event before a move."""
    return {"type": "queue.moving", "vhost": vhost, "name": name, "generation": generation, "reason": reason}


def queue_moved(vhost: str, name: str, generation: int, withheld: int, copied: list[int]) -> dict[str, Any]:
    """The event after it: from here on the queue is written to this generation.

    ``withheld`` messages stay unreadable in the one before; those with the Sequences ``copied`` are stored again.
    """
    return {
        "type": "queue.moved",
        "vhost": vhost,
        "name": name,
        "generation": generation,
        "withheld": withheld,
        "copied": copied,
    }


def queue_retired(vhost: str, name: str, generation: int) -> dict[str, Any]:
    """An older generation is empty."""
    return {"type": "queue.retired", "vhost": vhost, "name": name, "generation": generation}


def queue_rescued(vhost: str, name: str) -> dict[str, Any]:
    """An operator has freed what was withheld."""
    return {"type": "queue.rescued", "vhost": vhost, "name": name}


def server_started(start_time: int) -> dict[str, Any]:
    """Every queue has been looked at since the server started at this time."""
    return {"type": "server.started", "start_time": start_time}

"""Who lives in the group of connectors on one KubeMQ, and who of them reads which queue: part of the fold.

Owns the living members in the order in which they joined, and the claims.  The same events in the same order give the
same owners everywhere: the first claim in the log wins.  A member that lives alone owns every queue without a claim,
and keeps those it had when another one joins (it is their *heir*); who declares a queue owns it; after that a queue
changes hands only when its owner gives it, leaves, or is buried.  Pure: who is dead is ``tenure.py``'s to say.
Rules: docs/adr/0007-replicas.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connector.broker.topology import QueueRecord


@dataclass(slots=True)
class Member:
    """One life of one connector; ``process`` names it on its host, so that others there can see whether it runs.

    ``name`` is the same in all lives of one replica, where it is given one.
    """

    id: str
    joined: int  #: Sequence of the event
    host: str = ""
    process: str = ""
    name: str = ""


class Members:
    """The folded state."""

    def __init__(self) -> None:
        self.living: dict[str, Member] = {}
        self._claims: dict[tuple[str, str], str] = {}
        self._heir = ""
        self._heir_upto = 0  # the heir owns the unclaimed queues that were declared up to here

    def owner_of(self, record: QueueRecord) -> str:
        """The member that reads this queue; "" when nobody does, or when there is no group."""
        if len(self.living) == 1:
            return next(iter(self.living))
        claimed = self._claims.get((record.vhost, record.name))
        if claimed is not None:
            return claimed
        return self._heir if record.id <= self._heir_upto else ""

    @property
    def oldest(self) -> str:
        """The member that acts for all where one must; "" when there is no group."""
        return next(iter(self.living), "")

    def join(self, member: Member) -> bool:
        """A member is there from now on; False when it was."""
        if member.id in self.living:
            return False
        if len(self.living) == 1:
            self._heir, self._heir_upto = self.oldest, member.joined
        self.living[member.id] = member
        return True

    def leave(self, member_id: str) -> bool:
        """It has left, or was found dead: what it owned is free; False when it was not there."""
        if self.living.pop(member_id, None) is None:
            return False
        if self._heir == member_id or len(self.living) < 2:
            self._heir, self._heir_upto = "", 0
        if len(self.living) < 2:  # who is left owns everything
            self._claims.clear()
        else:
            self._claims = {key: owner for key, owner in self._claims.items() if owner != member_id}
        return True

    def declare(self, record: QueueRecord, member_id: str) -> None:
        """Who declares a queue reads it first."""
        if len(self.living) > 1 and member_id in self.living:
            self._claims[record.vhost, record.name] = member_id

    def forget(self, key: tuple[str, str]) -> None:
        """The queue is deleted."""
        self._claims.pop(key, None)

    def claim(self, record: QueueRecord, member_id: str) -> bool:
        """The first to claim a free queue has it."""
        if member_id not in self.living or self.owner_of(record):
            return False
        self._claims[record.vhost, record.name] = member_id
        return True

    def give(self, record: QueueRecord, giver: str, taker: str) -> bool:
        """An owner hands its queue over."""
        if giver == taker or taker not in self.living or self.owner_of(record) != giver:
            return False
        self._claims[record.vhost, record.name] = taker
        return True

    # ------------------------------------------------------------------ snapshots

    def pack(self) -> dict[str, Any]:
        """As part of a snapshot."""
        return {
            "members": [[m.id, m.joined, m.host, m.process] for m in self.living.values()],
            "names": {m.id: m.name for m in self.living.values() if m.name},
            "claims": [[*key, owner] for key, owner in self._claims.items()],
            "heir": [self._heir, self._heir_upto],
        }

    def load(self, event: dict[str, Any]) -> None:
        """The reverse of ``pack``, from a snapshot that may be older than groups."""
        names = event.get("names", {})
        rows = [(*row, names.get(row[0], "")) for row in event.get("members", ())]
        self.living = {row[0]: Member(*row) for row in rows}
        self._claims = {(vhost, name): owner for vhost, name, owner in event.get("claims", ())}
        self._heir, self._heir_upto = event.get("heir", ("", 0))


def member_joined(member_id: str, host: str, process: str, name: str = "") -> dict[str, Any]:
    """A connector has started, or comes back after it was buried."""
    event = {"type": "member.joined", "who": member_id, "host": host, "process": process}
    return {**event, "name": name} if name else event


def member_left(member_id: str) -> dict[str, Any]:
    """A connector stops, or another one has found it dead."""
    return {"type": "member.left", "who": member_id}


def member_checked(member_id: str) -> dict[str, Any]:
    """Changes nothing: a member that was out of touch sees by its return that it has seen all that came before."""
    return {"type": "member.checked", "who": member_id}


def queue_claimed(record: QueueRecord, member_id: str) -> dict[str, Any]:
    """A member wants to read a queue that nobody reads."""
    return {
        "type": "queue.claimed",
        "vhost": record.vhost,
        "name": record.name,
        "queue_id": record.id,
        "who": member_id,
    }


def queue_given(record: QueueRecord, giver: str, taker: str, seen: dict[str, int]) -> dict[str, Any]:
    """The owner hands a queue over; ``seen`` is the last Sequence a client may have had, by generation."""
    return {
        "type": "queue.given",
        "vhost": record.vhost,
        "name": record.name,
        "queue_id": record.id,
        "giver": giver,
        "taker": taker,
        "seen": seen,
    }

"""Snapshots of the topology as the log holds them: cut into small events, and put together again.

Owns the form: a snapshot of many objects is some ``snapshot.part`` events and then the ``snapshot`` itself, which says
how many parts it has; a small one is a single event.  Pure.  What a snapshot says is ``topology.py``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PART = "snapshot.part"
WHOLE = "snapshot"
#: Objects in one event: some 100 KB, and a few milliseconds of work.
PART_OBJECTS = 500
_LISTS = ("exchanges", "queues", "bindings")


def is_snapshot(event: dict[str, Any]) -> bool:
    """Whether the event belongs to a snapshot, and so changes nothing."""
    return event["type"] in {PART, WHOLE}


def split(snapshot: dict[str, Any], name: str, part_objects: int = PART_OBJECTS) -> Iterator[dict[str, Any]]:
    """The events of a snapshot, the closing one last; ``name`` is unique in the log."""
    if sum(len(snapshot[each]) for each in _LISTS) <= part_objects:
        yield snapshot
        return
    count = 0
    for each in _LISTS:
        objects = snapshot[each]
        for at in range(0, len(objects), part_objects):
            count += 1
            yield {"type": PART, "snapshot": name, each: objects[at : at + part_objects]}
    yield {**snapshot, **{each: [] for each in _LISTS}, "snapshot": name, "parts": count}


class Assembly:
    """Parts that have come and wait for the rest; with ``keep`` also what is in them."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._parts: dict[str, list[dict[str, Any]]] = {}

    def add(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Take one event of a snapshot; returns the snapshot when it is complete.

        Then all that is unfinished is forgotten: who wrote it is gone, or will find that it was not needed.
        """
        name = event.get("snapshot", "")
        if event["type"] == PART:
            self._parts.setdefault(name, []).append(event if self._keep else {})
            return None
        parts = self._parts.get(name, [])
        if len(parts) != event.get("parts", 0):
            return None
        self._parts.clear()
        if not parts:
            return event
        return {**event, **{each: _gathered(each, [*parts, event]) for each in _LISTS}}


def _gathered(each: str, events: list[dict[str, Any]]) -> list[Any]:
    return [declared for event in events for declared in event.get(each, ())]


def replay(events: list[tuple[int, dict[str, Any]]]) -> tuple[dict[str, Any] | None, list[tuple[int, dict[str, Any]]]]:
    """The last complete snapshot among ``events`` (or None) and what is to be applied after it, in order.

    Events written between a snapshot's computation and its place in the log come before it and are applied again.
    """
    assembly, last = Assembly(keep=True), None
    for _, event in events:
        if is_snapshot(event):
            last = assembly.add(event) or last
    upto = last["upto"] if last else 0
    return last, [(sequence, event) for sequence, event in events if not is_snapshot(event) and sequence > upto]

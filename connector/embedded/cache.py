"""Message bodies kept in memory so that a Get rarely touches SQLite, up to a mark in bytes.

Owns which records stay: the oldest of every queue first, as they are read first; the queue that holds most gives way.
Knows nothing of transactions; whoever settles a message forgets it here too.
"""

from __future__ import annotations

from collections.abc import Iterable

from connector.embedded.records import Record

#: What a record costs beside its bytes (object, dictionary entry).
_OVERHEAD_BYTES = 200


class Shelf:
    """The cached records of one queue, by Sequence."""

    __slots__ = ("records", "size_bytes")

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.size_bytes = 0


class RecordCache:
    """All shelves and their common limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._shelves: list[Shelf] = []

    def shelf(self) -> Shelf:
        """A new, empty shelf."""
        shelf = Shelf()
        self._shelves.append(shelf)
        return shelf

    def discard(self, shelf: Shelf) -> None:
        """Forget a shelf with all that is on it."""
        self.size_bytes -= shelf.size_bytes
        self._shelves.remove(shelf)

    def put(self, shelf: Shelf, sequence: int, record: Record) -> bool:
        """Keep a record if there is room, or if a larger shelf can make some; False when it is not kept."""
        cost = len(record.data) + _OVERHEAD_BYTES
        if self.size_bytes + cost > self.limit_bytes and not self._make_room(shelf, cost):
            return False
        shelf.records[sequence] = record
        shelf.size_bytes += cost
        self.size_bytes += cost
        return True

    def forget(self, shelf: Shelf, sequences: Iterable[int]) -> None:
        """Drop these Sequences where they are kept."""
        records = shelf.records
        freed = 0
        for sequence in sequences:
            record = records.pop(sequence, None)
            if record is not None:
                freed += len(record.data) + _OVERHEAD_BYTES
        shelf.size_bytes -= freed
        self.size_bytes -= freed

    def _make_room(self, shelf: Shelf, cost: int) -> bool:
        """Take the newest records off the largest shelf, an eighth of the limit at once."""
        largest = max(self._shelves, key=lambda each: each.size_bytes)
        if largest is shelf or cost > self.limit_bytes // 8:
            return False
        target = self.size_bytes - max(cost, min(self.limit_bytes // 8, largest.size_bytes // 2))
        while largest.records and self.size_bytes > target:
            _, record = largest.records.popitem()
            freed = len(record.data) + _OVERHEAD_BYTES
            largest.size_bytes -= freed
            self.size_bytes -= freed
        return self.size_bytes + cost <= self.limit_bytes

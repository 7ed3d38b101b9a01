"""Which queues exist: the channel on disk and its queue in memory, by name.

Owns the channel ids.  A channel appears with its first message or first reader and is written with its first message;
one that is empty and was not used for a day is forgotten at a start (KubeMQ does so at any time), and its Sequences
then start again.
"""

from __future__ import annotations

from connector.embedded.cache import RecordCache
from connector.embedded.engine import Engine, QueueChannel
from connector.embedded.schema import QUEUE
from connector.embedded.store import Store, StoredChannel

IDLE_S = 24 * 3600


class Catalog:
    """All stored channels by kind and name; new ones get the next id and a row with their first message."""

    def __init__(self, store: Store, engine: Engine, cache: RecordCache) -> None:
        self._store = store
        self._engine = engine
        self._cache = cache
        self._next_id = 1
        self.queues: dict[str, tuple[StoredChannel, QueueChannel]] = {}

    def reserve_id(self, taken: int = 0) -> int:
        """A channel id never used before; ``taken``: one that is used already."""
        if taken:
            self._next_id = max(self._next_id, taken + 1)
            return taken
        self._next_id += 1
        return self._next_id - 1

    def recover_queue(self, stored: StoredChannel, last_sent: int | None) -> int:
        """A queue of the last run: what was handed out and not settled comes back first.

        What exists is the database's word.  ``last_sent`` (None: not known) only tells what to flag; not known, or
        behind what is settled, all that is stored counts as handed out.  Returns what does.
        """
        if last_sent is None or last_sent < self._store.settled_up_to(stored.channel_id):
            last_sent = stored.last_sequence
        queue = self._attach(stored)
        queue.last_sequence = stored.last_sequence
        queue.stored_bytes = stored.stored_bytes
        queue.last_sent = min(last_sent, stored.last_sequence)
        queue.was_read = queue.last_sent > 0
        queue.returned = self._store.kept(stored.channel_id, queue.last_sent) if queue.last_sent else []
        return queue.last_sent

    def queue(self, name: str) -> tuple[StoredChannel, QueueChannel]:
        """The queue of a checked name, made when it is new."""
        found = self.queues.get(name)
        if found is None:
            self._attach(StoredChannel(self.reserve_id(), QUEUE, name))
            found = self.queues[name]
        return found

    def remove_queue(self, name: str) -> None:
        """Delete a queue without members and all it holds."""
        stored, queue = self.queues.pop(name)
        self._engine.remove(queue)
        self._store.drop_channel(stored.channel_id)

    def forget_idle(self, now_s: float) -> None:
        """At a start: delete the queues that hold nothing and were not written to for a day."""
        for name, (stored, queue) in list(self.queues.items()):
            idle = now_s - stored.used_at > IDLE_S and stored.used_at
            if idle and not queue.members and not queue.waiting():
                self.remove_queue(name)

    def _attach(self, stored: StoredChannel) -> QueueChannel:
        queue = QueueChannel(stored.name, stored.channel_id, self._cache)
        self.queues[stored.name] = stored, queue
        self._engine.add(queue)
        engine = self._engine
        stored.on_stored = lambda first, records: engine.stored(queue, first, records)
        return queue

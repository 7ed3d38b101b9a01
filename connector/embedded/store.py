"""Durable storage: commits in groups in a thread of its own, deletes what is settled a moment later, reads bodies.

Owns the order of commits and the Sequences: the writer thread gives out 1..n per channel as it stores, so a refused
commit leaves no gap.  A commit's ``done`` runs in the event loop once it is on disk (or was refused); settled messages
need no answer and share the next group, 20 ms later at most.  Rule: docs/adr/0002-embedded-server.md.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from connector.embedded.records import Record
from connector.embedded.room import Room
from connector.embedded.schema import FILE_NAME, MAX_SEQUENCE, SEQUENCE_BITS, entry_id, open_database, open_reader

log = logging.getLogger("kubemq.embedded")

LAZY_S = 0.02
_RETRY_S = 0.5
_MAX_RUNS = 16
_ROW_BYTES = 64
_SHRINK_PAGES = 256
_SHRINK_ABOVE_PAGES = 16_384

_INSERT = "INSERT INTO entry VALUES (?, ?, ?, ?, ?)"
_SELECT_RANGE = "SELECT id, data, timestamp_ns, receive_count, expires_at_ns FROM entry WHERE id BETWEEN ? AND ?"
_SELECT_LISTED = (
    "SELECT id, data, timestamp_ns, receive_count, expires_at_ns FROM entry"
    " WHERE id IN (SELECT value FROM json_each(?))"
)
_UPSERT_CHANNEL = (
    "INSERT INTO channel VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
    " last_sequence = excluded.last_sequence, stored_bytes = excluded.stored_bytes, used_at = excluded.used_at"
)
_UPSERT_POSITION = (
    "INSERT INTO position VALUES (?, ?, ?, ?) ON CONFLICT (channel_id, reader) DO UPDATE SET"
    " sequence = excluded.sequence, used_at = excluded.used_at"
)
_UPSERT_SETTLED = (
    "INSERT INTO settled VALUES (?, ?) ON CONFLICT (channel_id) DO UPDATE SET"
    " highest = excluded.highest WHERE excluded.highest > highest"
)
_FULL = "the message cannot be stored: database or disk is full"


class StoredChannel:
    """A channel as the disk knows it; all but ``on_stored`` belongs to the writer thread once it runs."""

    __slots__ = ("channel_id", "kind", "last_sequence", "name", "on_stored", "stored_bytes", "used_at")

    def __init__(self, channel_id: int, kind: int, name: str) -> None:
        self.channel_id = channel_id
        self.kind = kind
        self.name = name
        self.last_sequence = 0
        self.stored_bytes = 0
        self.used_at = 0
        self.on_stored: Callable[[int, Sequence[Record]], None] = lambda _first, _records: None


class Commit:
    """What is stored together or not at all.

    ``appends``: (channel, records); ``deletes``: (channel id, Sequences); ``delays``: (id, due, bytes);
    ``undelays``: ids.  ``error`` is "" when it is durable, else why nothing of it was stored.
    """

    __slots__ = ("appends", "delays", "deletes", "done", "error", "firsts", "undelays")

    def __init__(self) -> None:
        self.done: Callable[[], object] = _nobody
        self.appends: list[tuple[StoredChannel, Sequence[Record]]] = []
        self.deletes: list[tuple[int, Collection[int]]] = []
        self.delays: list[tuple[int, int, bytes]] = []
        self.undelays: list[int] = []
        self.firsts: list[int] = []
        self.error = ""

    def size(self) -> int:
        """About how many bytes it adds; 0 when it only takes away."""
        appended = sum(len(record.data) + _ROW_BYTES for _, records in self.appends for record in records)
        return appended + sum(len(data) + _ROW_BYTES for _, _, data in self.delays)


class _Lazy:
    """What waits for the next group and nobody waits for."""

    def __init__(self) -> None:
        self.settled: list[tuple[int, Collection[int]]] = []
        self.positions: dict[tuple[int, str], int] = {}
        self.gone: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.settled or self.positions or self.gone)

    def halves(self) -> list[_Lazy]:
        """The same in two pieces; none when it cannot be cut."""
        settled = [(channel_id, sequence) for channel_id, sequences in self.settled for sequence in sequences]
        if len(settled) < 2:
            return []
        middle = len(settled) // 2
        first, second = _Lazy(), _Lazy()
        first.settled = [(channel_id, (sequence,)) for channel_id, sequence in settled[:middle]]
        second.settled = [(channel_id, (sequence,)) for channel_id, sequence in settled[middle:]]
        first.positions, first.gone = self.positions, self.gone
        return [first, second]

    def put_back(self, older: _Lazy) -> None:
        """Take what could not be written before what came since."""
        self.settled[:0] = older.settled
        self.positions = older.positions | self.positions
        self.gone[:0] = older.gone


class Store:
    """The database of one data folder.  Construct, ``load``, ``start``; then everything from the event loop."""

    def __init__(self, folder: Path) -> None:
        path = folder / FILE_NAME
        self.is_fresh = not path.exists()
        self._room = Room(folder)
        self._room.make_way()
        self._writer = open_database(path)
        self._reader = open_reader(path)
        self._room.watch(self._writer)
        self._reader_lock = threading.Lock()
        self._wake = threading.Condition()
        self._commits: list[Commit] = []
        self._lazy = _Lazy()
        self._closing = False
        self._refusing = ""
        self._durable = True
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._call_in_loop: Callable[[Callable[[], None]], object] = lambda call: call()

    def load(self) -> list[StoredChannel]:
        """All channels, as the last run left them."""
        channels = []
        for channel_id, kind, name, last_sequence, stored_bytes, used_at in self._writer.execute(
            "SELECT * FROM channel"
        ):
            channel = StoredChannel(channel_id, kind, name)
            channel.last_sequence, channel.stored_bytes, channel.used_at = last_sequence, stored_bytes, used_at
            channels.append(channel)
        return channels

    def kept(self, channel_id: int, up_to: int) -> list[int]:
        """The Sequences up to ``up_to`` that are still stored, ascending."""
        rows = self._writer.execute(
            "SELECT id FROM entry WHERE id BETWEEN ? AND ? ORDER BY id",
            (entry_id(channel_id, 0), entry_id(channel_id, up_to)),
        )
        return [key & MAX_SEQUENCE for (key,) in rows]

    def first_kept(self, channel_id: int) -> int:
        """The lowest Sequence that is still stored; 0 when none is."""
        keys = (entry_id(channel_id, 0), entry_id(channel_id, MAX_SEQUENCE))
        (key,) = self._writer.execute("SELECT min(id) FROM entry WHERE id BETWEEN ? AND ?", keys).fetchone()
        return key & MAX_SEQUENCE if key else 0

    def settled_up_to(self, channel_id: int) -> int:
        """The highest Sequence that was ever deleted: all above it are stored."""
        row = self._writer.execute("SELECT highest FROM settled WHERE channel_id = ?", (channel_id,)).fetchone()
        return int(row[0]) if row else 0

    def load_positions(self) -> dict[tuple[int, str], int]:
        """Where every durable Events Store reader stands: (channel id, reader) to the last Sequence handed out."""
        rows = self._writer.execute("SELECT channel_id, reader, sequence FROM position")
        return {(channel_id, reader): sequence for channel_id, reader, sequence in rows}

    def load_delays(self) -> list[tuple[int, int]]:
        """Every delayed message as (due, id)."""
        return self._writer.execute("SELECT due_ns, id FROM delayed").fetchall()

    def start(self, call_in_loop: Callable[[Callable[[], None]], object]) -> None:
        """Start the writer; ``call_in_loop`` runs a function in the event loop, from any thread."""
        self._call_in_loop = call_in_loop
        self._thread.start()

    def submit(self, commit: Commit) -> None:
        """Store it with the next group."""
        with self._wake:
            self._commits.append(commit)
            self._wake.notify()

    def forget(self, channel_id: int, sequences: Collection[int]) -> None:
        """Delete settled messages soon; lost in a crash, they merely come back."""
        with self._wake:
            first = not self._lazy
            self._lazy.settled.append((channel_id, sequences))
            if first:
                self._wake.notify()

    def set_position(self, channel_id: int, reader: str, sequence: int) -> None:
        """Remember where a durable Events Store reader stands, soon."""
        with self._wake:
            first = not self._lazy
            self._lazy.positions[channel_id, reader] = sequence
            if first:
                self._wake.notify()

    def drop_channel(self, channel_id: int) -> None:
        """Delete a channel with all it holds, soon."""
        with self._wake:
            first = not self._lazy
            self._lazy.gone.append(channel_id)
            if first:
                self._wake.notify()

    def read(self, channel_id: int, sequences: Sequence[int]) -> dict[int, Record]:
        """The stored records of these Sequences; for a thread, as it waits for the disk."""
        low, high = entry_id(channel_id, sequences[0]), entry_id(channel_id, sequences[-1])
        with self._reader_lock:
            if high - low + 1 == len(sequences):
                rows = self._reader.execute(_SELECT_RANGE, (low, high)).fetchall()
            else:
                keys = json.dumps([entry_id(channel_id, sequence) for sequence in sequences])
                rows = self._reader.execute(_SELECT_LISTED, (keys,)).fetchall()
        return {key & MAX_SEQUENCE: Record(*columns) for key, *columns in rows}

    def first_at(self, channel_id: int, timestamp_ns: int) -> int:
        """The first Sequence stored at or after a time; 0 when there is none.  For a thread."""
        with self._reader_lock:
            row = self._reader.execute(
                "SELECT min(id) FROM entry WHERE id BETWEEN ? AND ? AND timestamp_ns >= ?",
                (entry_id(channel_id, 0), entry_id(channel_id, MAX_SEQUENCE), timestamp_ns),
            ).fetchone()
        return row[0] & MAX_SEQUENCE if row[0] else 0

    def read_delayed(self, delay_id: int) -> bytes:
        """The bytes of a delayed message.  For a thread."""
        with self._reader_lock:
            row = self._reader.execute("SELECT data FROM delayed WHERE id = ?", (delay_id,)).fetchone()
        return bytes(row[0])

    def close(self) -> None:
        """Write what waits, stop the writer and close the file.  Blocks; no commit may be submitted any more."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._room.before_close()
        with self._reader_lock:  # SQLite does not survive a close in the middle of a read
            self._reader.close()
        self._writer.close()

    # ------------------------------------------------------------------------------ in the writer thread

    def _run(self) -> None:
        while True:
            commits, lazy = self._next_group()
            if not commits and not lazy:
                return
            try:
                self._write_group(commits, lazy)
            except Exception as error:  # the only writer must go on: whoever waits is told, and we see the traceback
                log.exception("the writer failed")
                for commit in commits:
                    commit.error = f"the message cannot be stored: {error!r}"
            if commits:
                self._call_in_loop(partial(_announce, commits))
            elif self._room.hold():
                self._shrink()

    def _next_group(self) -> tuple[list[Commit], _Lazy]:
        """Wait for work; what nobody waits for waits 20 ms longer.  Nothing at all: the store is closed."""
        with self._wake:
            self._wake.wait_for(lambda: self._commits or self._lazy or self._closing)
            self._wake.wait_for(lambda: self._commits or self._closing, LAZY_S)
            commits, self._commits = self._commits, []
            lazy, self._lazy = self._lazy, _Lazy()
        return commits, lazy

    def _write_group(self, commits: list[Commit], lazy: _Lazy) -> None:
        """Everything in one transaction; if that fails, everything in its own, so that each gets its own answer.

        What nobody waits for comes first, as it makes room.
        """
        if self._room.fits(sum(commit.size() for commit in commits)) and not self._write(commits, lazy):
            return
        if lazy and (left := self._write_in_pieces(lazy)):
            with self._wake:
                if not self._closing:
                    self._lazy.put_back(left)
                    self._wake.wait(0 if commits else _RETRY_S)
        for commit in commits:
            commit.error = self._write([commit], _Lazy()) if self._room.fits(commit.size()) else self._refuse(_FULL)

    def _write_in_pieces(self, lazy: _Lazy) -> _Lazy:
        """Returns what cannot be written: not with the room of the reserve, and not in smaller pieces either.

        A delete takes as much room in the log as what it deletes, until the log is merged.
        """
        if not self._write([], lazy) or not self._write([], lazy):
            return _Lazy()
        halves = lazy.halves()
        if not halves:
            return lazy
        first, second = halves
        left = self._write_in_pieces(first)
        if not left:
            return self._write_in_pieces(second)
        second.settled += left.settled  # at the end, so that next time another one is tried first
        second.positions, second.gone = left.positions, left.gone
        return second

    def _write(self, commits: list[Commit], lazy: _Lazy) -> str:
        """One transaction; "" or why it failed.  Only what somebody waits for is synced to disk."""
        staged: dict[StoredChannel, tuple[int, int]] = {}
        now_s = int(time.time())
        try:
            self._set_durable(bool(commits))
            self._writer.execute("BEGIN IMMEDIATE")
            self._write_lazy(lazy, now_s)
            for commit in commits:
                self._write_commit(commit, staged)
            for channel, (last_sequence, stored_bytes) in staged.items():
                row = (channel.channel_id, channel.kind, channel.name, last_sequence, stored_bytes, now_s)
                self._writer.execute(_UPSERT_CHANNEL, row)
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            return self._failed(error)
        for channel, (last_sequence, stored_bytes) in staged.items():
            channel.last_sequence, channel.stored_bytes, channel.used_at = last_sequence, stored_bytes, now_s
        if self._refusing and commits:
            log.warning("the disk accepts messages again")
            self._refusing = ""
        return ""

    def _write_lazy(self, lazy: _Lazy, now_s: int) -> None:
        self._delete(lazy.settled)
        if lazy.positions:
            rows = [(channel_id, reader, seen, now_s) for (channel_id, reader), seen in lazy.positions.items()]
            self._writer.executemany(_UPSERT_POSITION, rows)
        for channel_id in lazy.gone:
            keys = (entry_id(channel_id, 0), entry_id(channel_id, MAX_SEQUENCE))
            self._writer.execute("DELETE FROM entry WHERE id BETWEEN ? AND ?", keys)
            self._writer.execute("DELETE FROM position WHERE channel_id = ?", (channel_id,))
            self._writer.execute("DELETE FROM settled WHERE channel_id = ?", (channel_id,))
            self._writer.execute("DELETE FROM channel WHERE id = ?", (channel_id,))

    def _write_commit(self, commit: Commit, staged: dict[StoredChannel, tuple[int, int]]) -> None:
        commit.firsts.clear()
        self._delete(commit.deletes)
        for channel, records in commit.appends:
            last_sequence, stored_bytes = staged.get(channel) or (channel.last_sequence, channel.stored_bytes)
            first = entry_id(channel.channel_id, last_sequence + 1)
            self._writer.executemany(
                _INSERT,
                [
                    (key, record.timestamp_ns, record.receive_count, record.expires_at_ns, record.data)
                    for key, record in enumerate(records, first)
                ],
            )
            commit.firsts.append(last_sequence + 1)
            added = sum(len(record.data) for record in records)
            staged[channel] = (last_sequence + len(records), stored_bytes + added)
        if commit.delays:
            self._writer.executemany("INSERT INTO delayed VALUES (?, ?, ?)", commit.delays)
        for delay_id in commit.undelays:
            self._writer.execute("DELETE FROM delayed WHERE id = ?", (delay_id,))

    def _delete(self, settled: Iterable[tuple[int, Collection[int]]]) -> None:
        """Delete entries by ranges where they are dense, else by a list of keys."""
        keys = sorted(entry_id(channel_id, sequence) for channel_id, sequences in settled for sequence in sequences)
        highest = {key >> SEQUENCE_BITS: key & MAX_SEQUENCE for key in keys}
        self._writer.executemany(_UPSERT_SETTLED, highest.items())
        runs = dense_runs(keys)
        if len(runs) > _MAX_RUNS:
            self._writer.execute("DELETE FROM entry WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(keys),))
            return
        for low, high in runs:
            self._writer.execute("DELETE FROM entry WHERE id BETWEEN ? AND ?", (low, high))

    def _shrink(self) -> None:
        """While nobody waits: give the file back piece by piece when more than half of it is free."""
        try:
            while not self._commits and not self._closing:
                (free,) = self._writer.execute("PRAGMA freelist_count").fetchone()
                (pages,) = self._writer.execute("PRAGMA page_count").fetchone()
                if free <= max(_SHRINK_ABOVE_PAGES, pages // 2):
                    return
                self._writer.execute(f"PRAGMA incremental_vacuum({_SHRINK_PAGES})").fetchall()
        except sqlite3.Error as error:
            self._failed(error)

    def _set_durable(self, durable: bool) -> None:
        if durable != self._durable:
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable

    def _failed(self, error: sqlite3.Error) -> str:
        if self._writer.in_transaction:
            try:
                self._writer.execute("ROLLBACK")
            except sqlite3.Error:
                log.exception("rolling back after %s", error)
        self._room.on_error(error)
        return self._refuse(f"the message cannot be stored: {error}")

    def _refuse(self, text: str) -> str:
        if text != self._refusing:
            log.error("%s", text)
            self._refusing = text
        return text


def dense_runs(keys: Sequence[int]) -> list[tuple[int, int]]:
    """The runs of consecutive numbers in an ascending list: (first, last) each."""
    runs: list[tuple[int, int]] = []
    start = 0
    for index in range(1, len(keys) + 1):
        if index == len(keys) or keys[index] != keys[index - 1] + 1:
            runs.append((keys[start], keys[index - 1]))
            start = index
    return runs


def _announce(commits: Iterable[Commit]) -> None:
    """In the event loop: show what was stored to its channel, then tell whoever waits."""
    for commit in commits:
        if not commit.error:
            for (channel, records), first in zip(commit.appends, commit.firsts, strict=True):
                channel.on_stored(first, records)
        commit.done()


def _nobody() -> None:
    """Nobody waits for this commit."""

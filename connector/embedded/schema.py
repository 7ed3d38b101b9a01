"""The SQLite file: its layout, opening it, and saying clearly why it cannot be used.

Owns table names, pragmas and the key of an entry.  Rule: docs/adr/0002-embedded-server.md.  An entry's key is
``channel_id << 40 | sequence``, so that one integer primary key serves appends, ranges and deletes.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

FILE_NAME = "kubemq.sqlite"
APPLICATION_ID = 0x4B4D5145  # "KMQE"
VERSION = 1

QUEUE = 1
EVENTS_STORE = 2

SEQUENCE_BITS = 40
_WAL_BYTES = 64 * 1024 * 1024
MAX_SEQUENCE = (1 << SEQUENCE_BITS) - 1

_SCHEMA = """
CREATE TABLE channel (
    id INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL,            -- 1 queue, 2 Events Store
    name TEXT NOT NULL,
    last_sequence INTEGER NOT NULL,
    stored_bytes INTEGER NOT NULL,    -- of all that was ever stored
    used_at INTEGER NOT NULL,         -- seconds since the epoch
    UNIQUE (kind, name)
);
CREATE TABLE entry (
    id INTEGER PRIMARY KEY,           -- channel.id << 40 | sequence
    timestamp_ns INTEGER NOT NULL,
    receive_count INTEGER NOT NULL,
    expires_at_ns INTEGER NOT NULL,
    data BLOB NOT NULL                -- QueueMessage or EventReceive of the KubeMQ protocol
);
CREATE TABLE delayed (
    id INTEGER PRIMARY KEY,
    due_ns INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE TABLE position (
    channel_id INTEGER NOT NULL,
    reader TEXT NOT NULL,             -- ClientID or group of an Events Store subscription
    sequence INTEGER NOT NULL,        -- the last one handed out
    used_at INTEGER NOT NULL,
    PRIMARY KEY (channel_id, reader)
) WITHOUT ROWID;
"""

# Written with every delete: above ``highest`` nothing of the channel was ever deleted, so it need not be looked for.
# A database that is older than this table is taken as if all might have been.
_SETTLED = """
CREATE TABLE settled (
    channel_id INTEGER PRIMARY KEY,
    highest INTEGER NOT NULL          -- the highest Sequence that was deleted
);
INSERT INTO settled SELECT id, last_sequence FROM channel;
"""


class Unusable(Exception):
    """The data folder or its database cannot be used; the text says why and what to do."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open or create the database for writing; raises Unusable when it is damaged, foreign or newer."""
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    except sqlite3.Error as error:
        raise Unusable(f"cannot open {path}: {error}") from error
    try:
        _prepare(connection, path)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise Unusable(f"cannot use {path}: {error}") from error
    except Unusable:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A second connection, for reads beside the writer."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    connection.execute("PRAGMA query_only = ON")
    return connection


def entry_id(channel_id: int, sequence: int) -> int:
    """The primary key of an entry."""
    return channel_id << SEQUENCE_BITS | sequence


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application_id != APPLICATION_ID:
        raise Unusable(f"{path} belongs to another program; choose another data folder")
    if version > VERSION:
        raise Unusable(f"{path} was written by a newer version ({version}, this one knows {VERSION})")
    if not tables:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    connection.execute("PRAGMA cache_size = -16000")
    if not tables:
        connection.executescript(
            f"BEGIN; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT;"
        )
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'settled'").fetchone():
        connection.executescript(f"BEGIN; {_SETTLED} COMMIT;")

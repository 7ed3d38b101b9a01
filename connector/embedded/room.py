"""Room on the disk: enough is always kept to settle what is stored, so that consuming helps when the disk is full.

Owns the file ``reserve``, some MB that are given up when the disk is full so that deletes and positions can be written,
and that are taken back before a message is accepted again; and the length of SQLite's log when room is scarce: it is
kept so short that the room left, or the reserve, always takes what must be copied from the log into the database.
Belongs to the writer thread once it runs.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

from connector.embedded.schema import FILE_NAME

RESERVE_BYTES = 4 * 1024 * 1024
LOG_PAGES = 4000
_SHARE_OF_DISK = 8
_LOW_BYTES = 32 * 1024 * 1024
_LOW_LOG_PAGES = 256
_MARGIN_BYTES = 1024 * 1024
_STEP_PAGES = 64
_MAX_STEPS = 256
_FULL_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class Room:
    """The free space of one data folder and its reserve.  ``make_way`` before the database is opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "reserve"
        self._connection: sqlite3.Connection | None = None
        self._is_low = False
        disk = os.statvfs(folder)
        self.reserve_bytes = min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // _SHARE_OF_DISK)
        try:
            self.is_held = self._path.stat().st_size >= self.reserve_bytes
        except OSError:
            self.is_held = False

    def make_way(self) -> None:
        """Opening a database takes a little room: on a full disk it is the reserve's."""
        if self.free_bytes() < _MARGIN_BYTES:
            self.release()

    def watch(self, connection: sqlite3.Connection) -> None:
        """The database is open."""
        self._connection = connection
        free = self.free_bytes()
        self._set_low(free < _LOW_BYTES)
        if free - self.reserve_bytes >= _MARGIN_BYTES:
            self.hold()

    def free_bytes(self) -> int:
        """What the disk has left for us, the reserve not counted."""
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize

    def hold(self) -> bool:
        """Take the reserve if it is not taken; False when there is no room for it."""
        if self.is_held:
            return True
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.posix_fallocate(file, 0, self.reserve_bytes)
            finally:
                os.close(file)
        except OSError:
            self.release()
            return False
        self.is_held = True
        return True

    def release(self) -> None:
        """Give the reserve up."""
        self.is_held = False
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            return

    def fits(self, size: int) -> bool:
        """Whether so many bytes may be stored; looks for room in the database's file when the disk has none."""
        free = self.free_bytes()
        if (free < _LOW_BYTES) != self._is_low:
            self._set_low(free < _LOW_BYTES)
        if not size:
            return True
        if free >= _LOW_BYTES + 2 * size:
            self.hold()  # if it cannot be made with so much room, it is not for want of room
            return True
        need = 2 * size + _MARGIN_BYTES  # once in the log, once in the file
        return (self.is_held and free >= need) or self._regain(need)

    def on_error(self, error: sqlite3.Error) -> None:
        """A write failed: if the disk is full, give up the reserve and make the log short."""
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_FULL) & 0xFF in _FULL_CODES:
            self.release()
            self._try_checkpoint()

    def before_close(self) -> None:
        """Keep SQLite from a last checkpoint that fails half-way and takes the room a start needs."""
        connection = self._connection
        if connection is None or self._can_checkpoint(connection):
            return
        self.release()
        if sys.version_info >= (3, 12) and not self._can_checkpoint(connection):
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)

    def _regain(self, need: int) -> bool:
        """Shorten log and file by what is free in them, until so much fits beside the reserve."""
        self._try_checkpoint()
        for _ in range(_MAX_STEPS):
            held = self.reserve_bytes if self.is_held else 0
            if self.free_bytes() + held >= need + self.reserve_bytes:
                return self.hold()
            if not self._shorten():
                break
        self.hold()
        return False

    def _shorten(self) -> bool:
        """One step; False when nothing is free in the file, or there is no room even for this."""
        connection = self._connection
        try:
            if connection is None or not _number(connection, "PRAGMA freelist_count"):
                return False
            self.release()
            connection.execute(f"PRAGMA incremental_vacuum({_STEP_PAGES})").fetchall()
        except sqlite3.Error:
            return False
        return self._try_checkpoint()

    def _try_checkpoint(self) -> bool:
        """Empty the log into the file, if the disk can take that: half done, it would take what room there is."""
        connection = self._connection
        try:
            if connection is None or not self._can_checkpoint(connection):
                return False
            return not _number(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error:
            return False

    def _can_checkpoint(self, connection: sqlite3.Connection) -> bool:
        try:
            wanted = _number(connection, "PRAGMA page_count") * _number(connection, "PRAGMA page_size")
            return wanted - (self._folder / FILE_NAME).stat().st_size <= self.free_bytes()
        except (OSError, sqlite3.Error):
            return False

    def _set_low(self, is_low: bool) -> None:
        """While room is scarce the log is merged early, in small pieces."""
        if self._connection is not None:
            self._is_low = is_low
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {_LOW_LOG_PAGES if is_low else LOG_PAGES}")
            if is_low:
                self._try_checkpoint()


def _number(connection: sqlite3.Connection, query: str) -> int:
    number: int = connection.execute(query).fetchone()[0]
    return number

"""The data folder: one server at a time, and the small file of delivery marks.

Owns the lock (``flock`` on ``lock``, gone with the process, however it ends) and ``delivered``: eight bytes per
channel with the highest Sequence handed out.  Marks are written without fsync: they survive the process, and a power
loss costs at most a few ``redelivered`` flags.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

from connector.embedded.schema import Unusable

_SLOT = struct.Struct("<Q")
_LOCK_POLL_S = 0.05


class FolderLock:
    """The exclusive use of a data folder until ``release`` or the end of the process."""

    def __init__(self, folder: Path, wait_s: float) -> None:
        """Create the folder and lock it; raises Unusable when it cannot be had within ``wait_s``."""
        path = folder / "lock"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unusable(f"cannot use the data folder {folder}: {error.strerror}") from error
        deadline = time.monotonic() + wait_s
        while not self._try_lock():
            if time.monotonic() >= deadline:
                owner = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(self._file)
                raise Unusable(f"the data folder {folder} is in use by another server (process {owner})")
            time.sleep(_LOCK_POLL_S)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let the next server in."""
        os.close(self._file)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class DeliveryMarks:
    """The highest Sequence handed out, per channel id."""

    def __init__(self, folder: Path, *, fresh: bool) -> None:
        """Open the marks of the last run; ``fresh``: there was none, and what lies there is of another database."""
        self._file = os.open(folder / "delivered", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if fresh:
            os.ftruncate(self._file, 0)
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        usable = len(content) - len(content) % _SLOT.size
        self._recovered = [value for (value,) in _SLOT.iter_unpack(content[:usable])]
        self.failed_count = 0

    def recovered(self, channel_id: int) -> int:
        """What the last run had noted; 0 for none."""
        return self._recovered[channel_id] if channel_id < len(self._recovered) else 0

    def write(self, channel_id: int, sequence: int) -> None:
        """Note a new highest Sequence; a full disk only costs flags after a crash, and is counted."""
        try:
            os.pwrite(self._file, _SLOT.pack(sequence), channel_id * _SLOT.size)
        except OSError:
            self.failed_count += 1

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)

"""The data folder: one server at a time, and the small file of delivery marks.

Owns the lock (``flock`` on ``lock``, gone with the process, however it ends) and ``delivered``: eight bytes per
channel with the highest Sequence handed out, behind a header that says they can be relied on.  Marks only tell what to
flag as redelivered.  They are written without fsync: they survive the process, and a power loss costs at most a few
flags.  A file that is lost, empty or known to lag has no header: everything counts as handed out then.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from pathlib import Path

from connector.embedded.schema import Unusable

_SLOT = struct.Struct("<Q")
# Slot 0, as no channel has this id.
_TRUSTED = int.from_bytes(b"KMQEsent", "little")
_BLOCK_BYTES = 4096
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
        self._is_known = self._recovered[:1] == [_TRUSTED]
        self._reserved_bytes = 0
        self.failed_count = 0
        self._erase_header()

    def recovered(self, channel_id: int) -> int | None:
        """What the last run had noted, 0 for nothing handed out; None when its marks are lost."""
        if not self._is_known:
            return None
        return self._recovered[channel_id] if channel_id < len(self._recovered) else 0

    def trust(self) -> None:
        """All channels of the last run are noted: from now on the file can be relied on, unless a write failed."""
        if not self.failed_count:
            self.write(0, _TRUSTED)

    def write(self, channel_id: int, sequence: int) -> None:
        """Note a new highest Sequence; on a failure the file says that it lags."""
        offset = channel_id * _SLOT.size
        try:
            if offset >= self._reserved_bytes:
                self._reserve(offset)
            os.pwrite(self._file, _SLOT.pack(sequence), offset)
        except OSError:
            self.failed_count += 1
            self._erase_header()

    def _reserve(self, offset: int) -> None:
        """Have room for a slot, and for others, so that a disk that fills up later does not matter."""
        wanted = (offset // _BLOCK_BYTES + 1) * _BLOCK_BYTES
        os.posix_fallocate(self._file, 0, wanted)
        self._reserved_bytes = wanted

    def _erase_header(self) -> None:
        """Be not relied on: a start that is interrupted, or a mark that is not written."""
        try:
            if os.fstat(self._file).st_size:
                os.pwrite(self._file, _SLOT.pack(0), 0)
        except OSError:
            self._reserved_bytes = 0
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)

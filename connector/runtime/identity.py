"""How connectors on one host know each other: whether the process of a member still runs.

Owns the reading of /proc.  Only a process of the same boot and the same PID namespace can be told from here; of any
other nothing is known, and it is waited for, as it is for one that /proc hides (``hidepid``).
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.broker.members import Member


class ProcessIdentity:
    """Implements ``broker.group.Identity``; ``process`` is empty where there is no /proc, ``name`` is a setting."""

    def __init__(self, name: str = "", proc: Path = Path("/proc")) -> None:
        self.name = name
        self.host = socket.gethostname()
        self.process = ""
        self._proc = proc
        try:
            boot_id = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            namespace = (proc / "self/ns/pid").readlink()
        except OSError:
            return
        self._place = f"{boot_id} {namespace}"
        started = self._started(os.getpid())
        if started:
            self.process = f"{self._place} {os.getpid()} {started}"

    def has_ended(self, member: Member) -> bool:
        """Whether that member's process is known not to run any more."""
        place, _, started = member.process.rpartition(" ")
        place, _, pid = place.rpartition(" ")
        if not self.process or place != self._place or not pid.isdecimal():
            return False
        return not _runs(int(pid)) or self._started(int(pid)) not in ("", started)

    def _started(self, pid: int) -> str:
        """When the process started, in clock ticks since the boot; "" when that cannot be read.

        A zombie has not started at all: "never".
        """
        try:
            stat = (self._proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""
        fields = stat.rpartition(")")[2].split()
        return "never" if fields[0] == "Z" else fields[19]


def _runs(pid: int) -> bool:
    """Whether there is a process of this id, may we signal it or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

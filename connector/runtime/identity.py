"""How connectors on one host know each other: whether the process of a member still runs.

Owns the reading of /proc.  Only a process of the same boot and the same PID namespace can be told from here; of any
other nothing is known, and it is waited for.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.broker.members import Member


class ProcessIdentity:
    """Implements ``broker.group.Identity``; ``process`` is empty where there is no /proc."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self.process = ""
        try:
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            namespace = Path("/proc/self/ns/pid").readlink()
        except OSError:
            return
        self._place = f"{boot_id} {namespace}"
        started = _started(os.getpid())
        if started:
            self.process = f"{self._place} {os.getpid()} {started}"

    def has_ended(self, member: Member) -> bool:
        """Whether that member's process is known not to run any more."""
        place, _, rest = member.process.rpartition(" ")
        place, _, pid = place.rpartition(" ")
        return bool(self.process) and place == self._place and pid.isdecimal() and _started(int(pid)) != rest


def _started(pid: int) -> str:
    """When the process started, in clock ticks since the boot; "" when it does not run (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]

"""Whether the server in use does its work: a Ping says only that it is there.

Owns the outcomes of the calls that matter, by kind.  A kind is in trouble when nothing of it has succeeded since it
failed for the first time ``TROUBLE_S`` ago, and it has failed more than once.  Must not know what is done about it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

TROUBLE_S = 3.0

GET, STORE, INFO = "Get", "storing", "QueuesInfo"


class Health:
    """``now`` is monotonic."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failing: dict[str, tuple[float, float, str]] = {}  # kind -> first failure, last one, its text

    def good(self, kind: str) -> None:
        """A call of this kind has succeeded."""
        if self._failing:
            self._failing.pop(kind, None)

    def bad(self, kind: str, text: str) -> None:
        """A call of this kind has failed, or was refused as such."""
        now = self._now()
        first = self._failing[kind][0] if kind in self._failing else now
        self._failing[kind] = (first, now, text)

    def trouble(self) -> str:
        """Return what is in trouble and its last error; empty when nothing is."""
        for kind, (first, last, text) in self._failing.items():
            if last > first and self._now() - first >= TROUBLE_S:
                return f"{kind}: {text}"
        return ""

    def reset(self) -> None:
        """Another server is used from now on."""
        self._failing.clear()

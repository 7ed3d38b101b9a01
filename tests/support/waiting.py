"""Waiting for a condition, the only way a test may let time pass.

Owns the polling and its limit; the limit is for a broken product, a good one never comes near it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 10.0
_POLL_S = 0.002


def wait_until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Return once the condition holds; raises AssertionError when it does not within ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {limit_s:g} s"
        time.sleep(_POLL_S)


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Return once the condition holds, letting the loop run; raises AssertionError after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {limit_s:g} s"
        await asyncio.sleep(_POLL_S)

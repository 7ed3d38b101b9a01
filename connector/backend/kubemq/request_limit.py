"""How large a request the server takes, found out before a larger one is sent.

Owns the limit in force and what of it is proven.  A QueuesUpstream request above the server's Grpc.BodyLimit does not
only fail: KubeMQ 2.4 dies of it (measured: a nil pointer in ``array_queues_upstream.go``), and with it all open
transactions.  The setting cannot be read over gRPC, so a size that was never sent is first tried with a call that is
safe, a Ping made as large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

#: Proven at the start, so that batches (4 MB of bodies) need no proof of their own.
FIRST_BYTES = 5 * 1024**2

#: Not worth halving further.
_LEAST_BYTES = 16 * 1024

#: Left of the server's limit for what a Get's answer adds to a stored message, and for the request around the messages.
_SPARE_BYTES = 4_096


class RequestLimit:
    """``usable_bytes`` is what a request may have; up to ``proven_bytes`` it may be sent at once.

    ``takes`` tells whether the server takes a call of so many bytes; ``limit_bytes`` is its limit as far as known.
    """

    def __init__(self, takes: Callable[[int], Awaitable[bool]], limit_bytes: int) -> None:
        self._takes = takes
        self._configured_bytes = limit_bytes
        self._limit_bytes = limit_bytes
        self._turn = asyncio.Lock()
        self.proven_bytes = 0

    @property
    def usable_bytes(self) -> int:
        """The largest request there may be."""
        return self._limit_bytes - _SPARE_BYTES

    async def prove(self, size_bytes: int = FIRST_BYTES) -> None:
        """Raise ``proven_bytes`` to at least this size, or lower ``usable_bytes`` below it.

        Raises Unavailable or TimedOut.
        """
        async with self._turn:
            tried_bytes = min(self._limit_bytes, max(FIRST_BYTES, 2 * size_bytes))
            while self.proven_bytes < min(size_bytes, self.usable_bytes):
                if tried_bytes <= _LEAST_BYTES or await self._takes(tried_bytes):
                    self.proven_bytes = tried_bytes
                else:
                    tried_bytes //= 2
                    self._limit_bytes = tried_bytes

    def forget(self) -> None:
        """The server refused what was proven: it was started anew with another limit."""
        self.proven_bytes = 0
        self._limit_bytes = self._configured_bytes

"""How many more deliveries a consumer, or all consumers of a channel, may hold.

Owns one limit and what is used of it.  ``basic.qos`` with global=false gives every consumer made after it a limit of
its own (CO-19), with global=true it sets the one that all consumers of the channel share (CO-20); 0 means no limit
(CO-23).  Must not know consumers, queues or sockets.
"""

from __future__ import annotations

#: What "no limit" answers when asked for room.
UNLIMITED = 1 << 30


class Prefetch:
    """``limit`` deliveries at most (0: any number), ``used`` of them are with the client now."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def room(self) -> int:
        """How many more deliveries there is room for."""
        limit = self.limit
        if not limit:
            return UNLIMITED
        left = limit - self.used
        return left if left > 0 else 0

    def is_full(self) -> bool:
        """Whether somebody may be waiting for room."""
        return 0 < self.limit <= self.used

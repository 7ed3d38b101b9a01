"""The orderly end of the clients (HA-08): nothing new, what is under way finished, then 320.

Owns the order of the steps and their time.  Consumers of stored queues are cancelled, so clients see at once that no
more comes; they have a while for acknowledging what they hold.  Then nothing is read any more, publishers get the
confirms of what was read, and everybody is closed: what is still held goes back to its queue.  The end comes when what
was accepted is stored and what was acknowledged is proven, or at the deadline.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.runtime.hub import Hub

REASON = "the server is shutting down"
#: Clients have so long to take our close, also when KubeMQ has used up the deadline.
LAST_WORDS_S = 1.0
_POLL_S = 0.02

log = structlog.get_logger(__name__)


async def drain(hub: Hub, *, ack_s: float, deadline_s: float) -> None:
    """End all clients; takes at most ``ack_s`` + ``deadline_s`` + ``LAST_WORDS_S``."""
    connections = hub.connections
    for connection in list(connections):
        connection.drain()
    hub.settle()
    if not await _when(lambda: not any(connection.unfinished_count for connection in connections), ack_s):
        held = sum(connection.unfinished_count for connection in connections)
        log.warning("stopping: clients hold messages, which go back to their queues", count=held)
    for connection in list(connections):
        connection.hold()
    end = asyncio.get_running_loop().time() + deadline_s
    if not await _when(lambda: not any(connection.publishing_count for connection in connections), deadline_s):
        log.warning("stopping: publishes without a result are not confirmed")
    for connection in list(connections):
        connection.close(REASON)
    hub.settle()
    left_s = max(LAST_WORDS_S, end - asyncio.get_running_loop().time())

    def is_over() -> bool:
        hub.ask_for_proof()
        return not connections and not hub.has_work()

    if not await _when(is_over, left_s):
        log.warning("stopping: not all is stored and acknowledged", connections=len(connections))


async def _when(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait for many things at once, asked seldom; False when they did not come true in time."""
    end = asyncio.get_running_loop().time() + limit_s
    while not condition():
        if asyncio.get_running_loop().time() >= end:
            return False
        await asyncio.sleep(_POLL_S)
    return True

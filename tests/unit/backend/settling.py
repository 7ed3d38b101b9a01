"""Waiting for what ends elsewhere: gRPC's own task per call, and what a failing request says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tests.support.waiting import until


class Closeable(Protocol):
    """A client, store or log."""

    async def close(self) -> None:
        """End all that is open."""


@contextmanager
def mute() -> Iterator[str]:
    """The address of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def closed(*closeables: Closeable) -> None:
    """Close all, in order, and return when the tasks of their calls are done."""
    for closeable in closeables:
        await closeable.close()
    await quiet()


async def quiet() -> None:
    """Return when no task of gRPC's calls and their handlers is left."""
    await until(lambda: not any(_is_of_a_call(task) for task in asyncio.all_tasks()))


async def outcome(request: Awaitable[object]) -> object:
    """Return what a request returns or raises; a cancelled one is cancelled."""
    try:
        return await request
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return error


def _is_of_a_call(task: asyncio.Task[Any]) -> bool:
    name = getattr(task.get_coro(), "__qualname__", "")
    return not task.done() and (name.startswith("_AioCall.") or name in {"_handle_exceptions", "_schedule_rpc_coro"})

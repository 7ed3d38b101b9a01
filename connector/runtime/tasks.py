"""Named tasks behind one boundary: a failing task is logged, counted and never takes its siblings along."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from connector.broker.counters import Counters

RESTART_PAUSE_S = 0.2

log = structlog.get_logger(__name__)


class Tasks:
    """The tasks of one owner, in its TaskGroup."""

    def __init__(self, group: asyncio.TaskGroup, counters: Counters) -> None:
        self._group = group
        self._counters = counters

    def start(
        self, name: str, coroutine: Coroutine[Any, Any, None], done: Callable[[], None] | None = None
    ) -> asyncio.Task[None]:
        """Run once; an unexpected exception is logged and counted; ``done`` is called at the end, however it ends."""
        return self._group.create_task(self._guard(name, coroutine, done), name=name)

    def keep(self, name: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run for ever: begin again after a pause when it fails or returns."""
        return self._group.create_task(self._keep(name, run), name=name)

    async def _guard(self, name: str, coroutine: Coroutine[Any, Any, None], done: Callable[[], None] | None) -> None:
        try:
            with self._boundary(name):
                await coroutine
        finally:
            if done is not None:
                done()

    async def _keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            with self._boundary(name):
                await run()
            await asyncio.sleep(RESTART_PAUSE_S)

    @contextlib.contextmanager
    def _boundary(self, name: str) -> Iterator[None]:
        """Log and count a failure, and pass on that the task is to end."""
        try:
            with _awaited():
                yield
        except Exception:
            self._counters.internal_errors += 1
            log.exception("task failed", task=name)


@contextlib.contextmanager
def _awaited() -> Iterator[None]:
    """Tell the end of what a task awaited, which is a failure, from its own: both are a CancelledError."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("what it awaited was cancelled") from error

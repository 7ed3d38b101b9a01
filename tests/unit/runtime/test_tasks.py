"""Tasks that fail, are cancelled, or wait for something that is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest

from connector.broker.counters import Counters
from connector.runtime import tasks as tasks_module
from connector.runtime.tasks import Tasks
from tests.support.waiting import until

Run: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


async def fail() -> None:
    raise RuntimeError("broken")


async def await_cancelled() -> None:
    """What gRPC does: the call that is awaited is cancelled, not the task."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@pytest.mark.parametrize("run", [fail, await_cancelled])
async def test_a_kept_task_begins_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "RESTART_PAUSE_S", 0.0)
    counters, again = Counters(), asyncio.Event()
    begun: list[None] = []

    async def once_more() -> None:
        begun.append(None)
        if len(begun) > 1:
            again.set()
            await asyncio.Event().wait()
        await run()

    async with asyncio.TaskGroup() as group:
        task = Tasks(group, counters).keep("kept", once_more)
        await until(lambda: again.is_set() or task.done())
        assert not task.done()
        task.cancel()
    assert task.cancelled()
    assert counters.internal_errors == 1


@pytest.mark.parametrize("run", [fail, await_cancelled])
async def test_a_failure_is_counted_and_the_end_told(run: Run) -> None:
    counters, ended = Counters(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = Tasks(group, counters).start("once", run(), ended.set)
    assert not task.cancelled()
    assert ended.is_set()
    assert counters.internal_errors == 1


async def test_a_cancelled_task_is_no_failure() -> None:
    counters, ended = Counters(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = Tasks(group, counters).start("once", asyncio.sleep(60), ended.set)
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()
    assert ended.is_set()
    assert not counters.internal_errors

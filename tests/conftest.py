"""What every test gets: clean settings, an unhurried Hypothesis, and a check that no task is left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import hypothesis
import pytest

for _name in [name for name in os.environ if name.startswith("CONNECTORS_AMQP_")]:
    del os.environ[_name]

# A loaded machine is slow; the 20 s limit of each test is the deadline.
hypothesis.settings.register_profile(
    "project", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("project")


@pytest.fixture(autouse=True)
def no_task_left_behind(request: pytest.FixtureRequest) -> None:
    """Fail an asyncio test that ends with a task still running, its fixtures' tear-down included."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("_task_check")


@pytest.fixture
async def _task_check() -> AsyncIterator[None]:
    yield
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]
    assert not left, f"tasks left behind: {left}"

"""A few seeds of the fault runner, short ones, so that every ``make test`` has seen each kind of crash and outage.

``make fault`` runs many more.  The plan of a seed is fixed; when a message is under way and when not is chance.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.fault.report import failure
from tools.fault.rig import Target
from tools.fault.run import perform
from tools.fault.scenario import Backend, FaultKind, draw

CASES = [
    pytest.param(1, Backend.CHILD, (FaultKind.CONNECTOR_KILL,), id="connector killed"),
    pytest.param(2, Backend.CHILD, (FaultKind.BACKEND_KILL, FaultKind.CONNECTOR_TERM), id="child killed"),
    pytest.param(3, Backend.PROXIED, (FaultKind.BACKEND_CUT, FaultKind.BACKEND_STALL_DOWN), id="link to the backend"),
    pytest.param(4, Backend.PROXIED, (FaultKind.CLIENT_CUT_ALL, FaultKind.CLIENT_HALF_UP), id="links of clients"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("seed", "backend", "only"), CASES)
async def test_the_promise_holds(seed: int, backend: Backend, only: tuple[FaultKind, ...], tmp_path: Path) -> None:
    scenario = draw(seed, backend, seconds=2.0, only=only)
    outcome = await perform(scenario, tmp_path, Target())
    assert outcome.verdict.is_good, failure(outcome)
    assert outcome.verdict.counts["deliveries"] > 0

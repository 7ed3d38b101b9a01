"""The lease's model on seeded random walks: far more of them than Hypothesis makes in the same time.

``LEASE_WALKS=50000 make property K=walk`` walks for longer, ``LEASE_WALKS_FROM`` starts at another seed.  A walk that
fails is shrunk to the few steps that matter; give them to ``run`` to look closer.
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest
import structlog

from tests.property.test_lease_model import STARTS, FaultyMachine, LeaseMachine, QuietMachine, SharedNameMachine

WALKS = int(os.environ.get("LEASE_WALKS", "200"))
FIRST = int(os.environ.get("LEASE_WALKS_FROM", "1"))

Step: TypeAlias = tuple[str, dict[str, Any]]
Draw: TypeAlias = Callable[[random.Random], dict[str, Any]]


#: Time enough for what was put off.
_LATER: list[Step] = [("tick", {"seconds": 0.2}), ("read", {"steps": 20})]


def _nothing(_r: random.Random) -> dict[str, Any]:
    return {}


def _which(r: random.Random) -> dict[str, Any]:
    return {"which": r.randint(0, 9)}


def _some(r: random.Random) -> dict[str, Any]:
    return {"which": r.randint(0, 3), "at": r.randint(0, 3), "count": r.randint(1, 4)}


#: What may happen, how often, and with which arguments.
USUAL: dict[str, tuple[int, Draw]] = {
    "read": (6, lambda r: {"steps": r.randint(1, 6)}),
    "send": (3, lambda r: {"steps": r.randint(1, 3)}),
    "store_all": (2, _nothing),
    "begin_count": (1, _nothing),
    "end_count": (1, _nothing),
    "deadline": (1, _nothing),
    "tick": (3, lambda r: {"seconds": r.choice([0.001, 0.01, 0.03, 0.1, 0.2, 1.0, 11.0])}),
    "server_catches_up": (1, _nothing),
    "answer_out_of_turn": (1, lambda r: {"count": r.randint(1, 9)}),
    "age_stream": (1, _nothing),
    "publish": (3, lambda r: {"count": r.randint(1, 6), "retry": r.random() < 0.5}),
    "consume": (2, lambda r: {"prefetch": r.choice((0, 0, 1, 2, 3, 4)), "no_ack": r.random() < 0.25}),
    "cancel": (1, _which),
    "ack": (4, _some),
    "requeue": (1, _some),
    "close_channel": (1, _which),
    "get": (1, lambda r: {"answered": r.random() < 0.5}),
    "purge": (1, _nothing),
}
FAULTS: dict[str, Draw] = {
    "lose_stream": lambda r: {"lingers": r.random() < 0.5},
    "server_notices": _nothing,
    "lose_lane": _nothing,
    "refuse_stores": lambda r: {"every": r.randint(1, 3)},
    "shrink_answers": lambda r: {"limit_bytes": r.randint(4, 20)},
    "refuse_get": _nothing,
    "publish_native": lambda r: {"count": r.randint(1, 4)},
    "remove": _which,
    "expire": _which,
    "crash_server": lambda r: {"forget": r.randint(0, 3)},
    "start_channel_over": _nothing,
    "restart": _nothing,
    "delete": _nothing,
}


def walk(seed: int, *, has_faults: bool) -> tuple[dict[str, bool], list[Step]]:
    """The start and the steps of one walk.

    Each walk has its own taste: what others do often it does rarely or never, and it knows only some of the faults.
    """
    r = random.Random(seed)
    start = {name: r.random() < 0.5 for name in ("is_counted", *STARTS)}
    names = ["read", "read", "publish", "store_all"]
    for name, (weight, _) in USUAL.items():
        names += [name] * r.choice((0, weight, weight, 3 * weight))
    if has_faults:
        for name in FAULTS:
            names += [name] * r.choice((0, 0, 0, 1, 3))
    steps = []
    for _ in range(r.randint(10, 80)):
        name = r.choice(names)
        draw = FAULTS[name] if name in FAULTS else USUAL[name][1]
        steps.append((name, draw(r)))
    return start, steps


def run(machine: type[LeaseMachine], start: dict[str, bool], steps: Sequence[Step]) -> None:
    """Take the steps that are possible, check after each, and bring it to its end."""
    tested = machine()
    tested.start(start["is_counted"], {name: start.get(name, False) for name in STARTS})
    for name, arguments in steps:
        rule = getattr(tested, name)
        if all(precondition(tested) for precondition in rule.hypothesis_stateful_rule.preconditions):
            rule(**arguments)
            tested.check()
            if isinstance(tested, QuietMachine):
                tested.no_short_answer()
    tested.teardown()


def failure(machine: type[LeaseMachine], start: dict[str, bool], steps: Sequence[Step]) -> tuple[str, int] | None:
    """Kind and line of what goes wrong, or None."""
    try:
        run(machine, start, steps)
    except Exception as error:  # noqa: BLE001 - any failure counts
        return type(error).__name__, traceback.extract_tb(error.__traceback__)[-1].lineno or 0
    return None


def shrunk(machine: type[LeaseMachine], start: dict[str, bool], steps: list[Step]) -> list[Step]:
    """The fewest steps that fail in the same way, more or less."""
    kind = failure(machine, start, steps)
    size = len(steps)
    while size:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            if failure(machine, start, fewer) == kind:
                steps = fewer
            else:
                at += size
        size //= 2
    return steps


#: Walks that once went wrong, shrunk: what they found is told by the names.
FOUND: dict[str, tuple[dict[str, bool], list[Step]]] = {
    "after an answer that was too large newer messages are read before KubeMQ has taken back what it had": (
        {"is_counted": True, "is_slow": True},
        [
            ("publish", {"count": 9, "retry": True}),
            ("store_all", {}),
            ("shrink_answers", {"limit_bytes": 4}),
            ("consume", {"prefetch": 6, "no_ack": False}),
            ("read", {"steps": 6}),
            ("tick", {"seconds": 0.01}),
            ("read", {"steps": 20}),
            *(_LATER * 3),
        ],
    ),
    "after a lost stream newer messages are read before KubeMQ has taken back what the Get under way had": (
        {"is_counted": True, "is_slow": True},
        [
            ("publish", {"count": 3, "retry": True}),
            ("store_all", {}),
            ("consume", {"prefetch": 6, "no_ack": True}),
            ("read", {"steps": 2}),
            ("lose_stream", {"lingers": False}),
            ("publish", {"count": 3, "retry": True}),
            ("store_all", {}),
            ("read", {"steps": 2}),
            ("tick", {"seconds": 0.01}),
            ("read", {"steps": 20}),
            *(_LATER * 2),
        ],
    ),
    "a count before the first Get takes our own Get for an earlier life's": (
        {"is_counted": False},
        [("publish", {"count": 1, "retry": False})],
    ),
    "a drain by a low count leaves messages": (
        {"is_counted": True},
        [
            ("publish", {"count": 1, "retry": False}),
            ("send", {"steps": 3}),
            ("get", {"answered": True}),
            ("read", {"steps": 2}),
            ("publish_native", {"count": 3}),
            ("read", {"steps": 1}),
            ("delete", {}),
        ],
    ),
    "the first copy of a repeated store was read before the doubt arose": (
        {"is_counted": True},
        [
            ("publish", {"count": 6, "retry": True}),
            ("send", {"steps": 2}),
            ("remove", {"which": 2}),
            ("publish", {"count": 2, "retry": True}),
            ("consume", {"prefetch": 3, "no_ack": True}),
            ("send", {"steps": 3}),
            ("read", {"steps": 4}),
            ("crash_server", {"forget": 2}),
        ],
    ),
    "what a half-open link held comes back while its clients still have it": (
        {"is_counted": True},
        [
            ("consume", {"prefetch": 0, "no_ack": False}),
            ("publish", {"count": 3, "retry": False}),
            ("store_all", {}),
            ("read", {"steps": 6}),
            ("lose_stream", {"lingers": True}),
            ("publish", {"count": 2, "retry": False}),
            ("store_all", {}),
            ("tick", {"seconds": 11.0}),
            ("read", {"steps": 20}),
            ("tick", {"seconds": 0.1}),
            ("read", {"steps": 6}),
            ("server_notices", {}),
            ("begin_count", {}),
            ("end_count", {}),
            ("tick", {"seconds": 1.0}),
            ("read", {"steps": 6}),
        ],
    ),
    "a purge limited by a low count leaves messages": (
        {"is_counted": False},
        [
            ("publish", {"count": 6, "retry": False}),
            ("publish", {"count": 5, "retry": True}),
            ("shrink_answers", {"limit_bytes": 14}),
            ("purge", {}),
            ("publish", {"count": 6, "retry": False}),
            ("publish", {"count": 6, "retry": True}),
            ("consume", {"prefetch": 1, "no_ack": True}),
        ],
    ),
    "what is read before it is reported stored is counted twice, and a purge takes too much": (
        {"is_counted": True},
        [
            ("publish", {"count": 5, "retry": False}),
            ("purge", {}),
            ("store_all", {}),
            ("publish", {"count": 1, "retry": False}),
            ("send", {"steps": 2}),
            ("begin_count", {}),
            ("consume", {"prefetch": 1, "no_ack": True}),
            ("read", {"steps": 4}),
            ("refuse_get", {}),
            ("send", {"steps": 2}),
            ("publish", {"count": 1, "retry": True}),
            ("send", {"steps": 2}),
            ("publish", {"count": 6, "retry": False}),
            ("read", {"steps": 2}),
            ("tick", {"seconds": 0.2}),
            ("read", {"steps": 8}),
            ("send", {"steps": 2}),
            ("end_count", {}),
        ],
    ),
    "a short answer lacks what KubeMQ took back after it was given": (
        {"is_counted": False, "is_slow": True},
        [
            ("publish_native", {"count": 3}),
            ("publish_native", {"count": 4}),
            ("shrink_answers", {"limit_bytes": 17}),
            ("publish", {"count": 4, "retry": False}),
            ("publish", {"count": 6, "retry": False}),
            ("send", {"steps": 3}),
            ("consume", {"prefetch": 0, "no_ack": False}),
            ("publish", {"count": 3, "retry": False}),
            ("read", {"steps": 2}),
            ("read", {"steps": 3}),
            ("tick", {"seconds": 0.01}),
            ("read", {"steps": 4}),
        ],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name: str) -> None:
    start, steps = FOUND[name]
    run(FaultyMachine, start, steps)


@pytest.mark.timeout(max(20.0, WALKS / 10))
@pytest.mark.parametrize("machine", [QuietMachine, SharedNameMachine, FaultyMachine])
def test_walks(machine: type[LeaseMachine]) -> None:
    has_faults = machine is FaultyMachine
    with structlog.testing.capture_logs():
        for seed in range(FIRST, FIRST + WALKS * (3 if has_faults else 1)):
            start, steps = walk(seed, has_faults=has_faults)
            if failure(machine, start, steps) is not None:
                steps = shrunk(machine, start, steps)
                listed = "".join(f"\n    {step}," for step in steps)
                print(f"seed {seed}: run({machine.__name__}, {start}, [{listed}\n])")  # noqa: T201 - for who repairs it
                run(machine, start, steps)

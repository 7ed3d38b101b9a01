from __future__ import annotations

from tools.fault.run import may_withhold
from tools.fault.scenario import Backend, FaultKind, draw

SEEDS = range(200)


def test_a_seed_always_gives_the_same_scenario() -> None:
    assert [draw(seed) for seed in SEEDS] == [draw(seed) for seed in SEEDS]
    assert len({draw(seed).describe() for seed in SEEDS}) == len(SEEDS)


def test_the_workload_does_not_depend_on_the_backend() -> None:
    for seed in SEEDS:
        child, real = draw(seed, Backend.CHILD), draw(seed, Backend.REAL)
        assert (child.publishers, child.consumers, child.pollers) == (real.publishers, real.consumers, real.pollers)


def test_every_kind_of_fault_is_drawn() -> None:
    drawn = {fault.kind for seed in SEEDS for fault in draw(seed).faults}
    assert drawn == set(FaultKind)


def test_what_cannot_be_done_is_not_drawn() -> None:
    for seed in SEEDS:
        assert {fault.kind.name.split("_")[0] for fault in draw(seed, Backend.NONE).faults} == {"CLIENT"}
        kinds = {fault.kind for fault in draw(seed, Backend.REAL, can_restart=False).faults}
        assert kinds.isdisjoint({FaultKind.BACKEND_KILL, FaultKind.BACKEND_TERM, FaultKind.BACKEND_STOP})


def test_only_draws_from_what_it_is_given() -> None:
    for seed in SEEDS:
        only = (FaultKind.CONNECTOR_KILL,)
        assert {fault.kind for fault in draw(seed, only=only).faults} == set(only)


def test_every_queue_has_a_publisher_and_a_consumer() -> None:
    for seed in SEEDS:
        scenario = draw(seed)
        assert {queue for plan in scenario.publishers for queue in scenario.routes[plan.route]} == set(scenario.queues)
        assert {plan.queue for plan in scenario.consumers} == set(scenario.queues)


def test_who_acknowledges_several_at_once_holds_none() -> None:
    for seed in SEEDS:
        assert not [plan for plan in draw(seed).consumers if plan.batch > 1 and plan.hold_every]


def test_only_a_real_server_that_is_ended_may_withhold() -> None:
    ending = {FaultKind.BACKEND_KILL, FaultKind.BACKEND_TERM}
    for seed in SEEDS:
        real = draw(seed, Backend.REAL)
        assert may_withhold(real) == bool(ending & {fault.kind for fault in real.faults})
        assert not may_withhold(draw(seed, Backend.CHILD))

"""What of PerfTest's seconds counts, and the figures of a run."""

from __future__ import annotations

from typing import Any

import pytest

from bench.figures import Quantiles
from bench.measure import Plan, counted, run_of
from bench.perftest import Outcome, Row
from bench.processes import Usage, Watch
from bench.workloads import chosen

PLAN = Plan(warm_up_s=2, seconds=3)
(WINDOW,) = chosen(["window-100"])
(PUBLISH,) = chosen(["publish"])


def row(until_s: float, seconds: float = 1.0, **more: Any) -> Row:
    figures: dict[str, Any] = {
        "published": 0.0, "returned": 0.0, "confirmed": 50.0, "nacked": 0.0, "received": 100.0,
        "consumer": Quantiles(1, 2, 3, 4, 5), "confirm": Quantiles(10, 20, 30, 40, 50),
    }  # fmt: skip
    return Row(until_s, seconds, **{**figures, **more})


def watched() -> Watch:
    watch = Watch({"connector": list})
    for second in range(10):
        watch._times.append(100.0 + second)
        watch._usages["connector"].append(Usage(second * 0.5, 1000 + second, 1))
    return watch


def test_the_warm_up_and_what_comes_after_the_end_do_not_count() -> None:
    rows = [row(1.005), row(2.01), row(3.0), row(4.0), row(5.0), row(6.0)]
    assert [one.until_s for one in counted(rows, PLAN)] == [3.0, 4.0, 5.0]


def test_figures_of_a_run() -> None:
    rows = [row(1.0, received=9999.0), row(2.0), row(3.0), row(4.0, received=200.0), row(5.0)]
    run = run_of(WINDOW, "kubemq", 2, PLAN, Outcome(rows, 100.0, ""), watched(), "")
    assert (run.workload, run.target, run.round_no, run.problem) == ("window-100", "kubemq", 2, "")
    assert (run.seconds, run.messages, run.rate) == (3.0, 400, 133.3)
    assert (run.median_ms, run.p99_ms) == (2.0, 5.0)
    assert run.cpu_s == {"connector": 1.5}
    assert run.rss_bytes == {"connector": 1005}
    assert run.rates[0] == (1.0, 9999.0)


def test_publishing_alone_is_measured_by_its_confirms() -> None:
    run = run_of(PUBLISH, "kubemq", 1, PLAN, Outcome([row(3.0), row(4.0), row(5.0)], 100.0, ""), watched(), "")
    assert (run.rate, run.median_ms) == (50.0, 20.0)


def test_refused_messages_are_counted_from_the_start() -> None:
    rows = [row(1.0, nacked=5.0), row(2.0), row(3.0, returned=2.0)]
    run = run_of(WINDOW, "kubemq", 1, PLAN, Outcome(rows, 100.0, ""), watched(), "")
    assert (run.nacked, run.returned) == (5.0, 2.0)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([row(1.0)], "PerfTest ended before its warm-up did"),
        ([row(3.0, received=0.0, consumer=None)], "no message came through behind the warm-up"),
    ],
)
def test_a_run_without_figures_has_a_problem(rows: list[Row], problem: str) -> None:
    run = run_of(WINDOW, "kubemq", 1, PLAN, Outcome(rows, 100.0, ""), watched(), "")
    assert (run.problem, run.rate) == (problem, 0.0)


def test_the_first_problem_is_kept() -> None:
    assert run_of(WINDOW, "kubemq", 1, PLAN, Outcome([], 0.0, ""), watched(), "no").problem == "no"

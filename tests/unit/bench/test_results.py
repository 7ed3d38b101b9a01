"""Results: the summary over rounds, the file, the table with ratios and goals, the change to a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import results, tables
from bench.figures import Spread
from bench.results import Results, Run
from bench.workloads import WORKLOADS, chosen

(WINDOW,) = chosen(["window-100"])
(LATENCY,) = chosen(["latency"])


def run(target: str, rate: float, **more: Any) -> Run:
    ours = target != "rabbitmq"
    figures: dict[str, Any] = {
        "seconds": 10.0,
        "messages": rate * 10,
        "rate": rate,
        "median_ms": 4.0,
        "p99_ms": 20.0,
        "cpu_s": {"connector": 2.0, "backend": 1.0, "client": 9.0} if ours else {"peer": 5.0, "client": 9.0},
        "rss_bytes": {"connector": 80_000_000, "backend": 50_000_000} if ours else {"peer": 200_000_000},
    }
    return Run("window-100", target, 1, **{**figures, **more})


def results_of(*runs: Run) -> Results:
    versions = dict.fromkeys((one.target for one in runs), "1")
    return Results("2026-01-01T00:00:00+00:00", {"commit": "abc"}, {}, versions, list(runs))


def test_rounds_are_summed_up_and_bad_ones_left_out() -> None:
    found = results_of(run("kubemq", 1000), run("kubemq", 3000), run("kubemq", 9, problem="fell over"))
    summary = found.summary("window-100", "kubemq")
    assert summary.rate == Spread(2000, 1000, 3000)
    assert summary.cpu_us == pytest.approx((200, 100, 300))
    assert summary.cpu_us_of == pytest.approx({"connector": 133.33, "backend": 66.67}, abs=0.01)
    assert summary.rss_mb_of == {"connector": 80.0, "backend": 50.0}
    assert found.summary("window-100", "rabbitmq").rate is None
    assert found.summary("window-100", "rabbitmq").cpu_us is None


def test_the_file_keeps_everything(tmp_path: Path) -> None:
    found = results_of(run("kubemq", 1000, rates=[(1.0, 900.0)]), run("rabbitmq", 500))
    found.micro = {"micro_codec": {"ack": 0.4}}
    path = tmp_path / "new" / "bench.json"
    results.write(found, path)
    assert results.read(path) == found


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"version": 99, "runs": []}', encoding="utf-8")
    with pytest.raises(ValueError, match="not a results file of version 1"):
        results.read(path)


def test_the_machine_is_described() -> None:
    machine = results.machine()
    assert machine["cores"] >= 1
    assert machine["python"].startswith("3.")
    assert len(machine["load_before"]) == 3


def test_the_table_has_ratios_and_goals() -> None:
    found = results_of(run("embedded", 900), run("kubemq", 2000), run("rabbitmq", 1000))
    lines = tables.bench_table(found, [WINDOW], "rabbitmq").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {len(line) for line in lines} == {len(lines[0])}
    assert cells[3][1:10] == ["kubemq", "2,000", "2.00", "4.00", "1.00", "20.0", "1.00", "150", "0.30"]
    assert cells[3][10:] == ["100 + 50.0", "130", "0.65", "80.0 + 50.0", ">= 1.0 x: met"]
    assert cells[2][-1] == ""
    assert cells[4][3] == "-"
    assert not tables.has_missed_goal("\n".join(lines))


def test_missed_goals_are_seen() -> None:
    found = results_of(run("kubemq", 999), run("rabbitmq", 1000))
    assert tables.has_missed_goal(tables.bench_table(found, [WINDOW], "rabbitmq"))
    summary = found.summary("window-100", "kubemq")
    assert tables.goals(LATENCY, summary, None) == "median <= 2: MISSED, 99 % <= 15: MISSED"
    assert tables.goals(WINDOW, summary, None) == ""


def test_a_baseline_is_compared_as_multiples_of_the_peer() -> None:
    then = results_of(run("kubemq", 1000), run("rabbitmq", 1000))
    now = results_of(run("kubemq", 600), run("rabbitmq", 500))
    assert tables.change(now, then, "window-100", "kubemq", "rabbitmq") == "1.20"
    assert tables.change(now, then, "window-100", "rabbitmq", "rabbitmq") == "0.50"
    assert tables.change(results_of(run("kubemq", 600)), then, "window-100", "kubemq", "rabbitmq") == "0.60"
    assert tables.change(now, then, "latency", "kubemq", "rabbitmq") == "-"
    assert tables.bench_table(now, [WINDOW], "rabbitmq", then).splitlines()[2].endswith("|   1.20 |")


def test_problems_are_listed() -> None:
    found = results_of(run("kubemq", 1, problem="fell over"), run("kubemq", 1, nacked=3.0), run("kubemq", 1))
    assert tables.problems(found) == [
        "window-100, kubemq, round 1: fell over",
        "window-100, kubemq, round 1: 3 nacked, 0 returned",
    ]


@pytest.mark.parametrize(("value", "text"), [(12345.6, "12,346"), (99.95, "100.0"), (12.34, "12.3"), (1.234, "1.23")])
def test_numbers(value: float, text: str) -> None:
    assert tables.number(value) == text


def test_workloads_have_names_of_their_own_and_full_arguments() -> None:
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS)
    for workload in WORKLOADS:
        arguments = workload.perftest_arguments("x")
        assert arguments[arguments.index("--flag") + 1] == "persistent"
        assert len(workload.queue_names("x")) == workload.queues
    assert "bench-x-window-100" in WINDOW.perftest_arguments("x")


def test_unknown_workloads_are_refused() -> None:
    assert chosen([]) == list(WORKLOADS)
    with pytest.raises(ValueError, match="no workload nonsense; there are window-100"):
        chosen(["latency", "nonsense"])

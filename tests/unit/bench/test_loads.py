"""What the other benches conclude from what they saw: many consumers, growth, profiles, micro-benchmarks."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from pamqp import commands, frame

from bench import hot_spots, micro, micro_settlement
from bench.findings import Findings
from bench.growth import Series
from bench.idle import crowd_of_queues
from bench.many_consumers import Load, Tally, busy_share, exceeded, finding, gaps_of
from bench.processes import Watch
from bench.scale import TOPIC, bindings, queue_names, turns
from connector.broker.exchanges.binding import BindingKey
from connector.broker.exchanges.topic import Topic
from connector.broker.topology import ExchangeRecord

LOAD = Load(
    body_bytes=100, consumers=2, job_s=0.2, rate=8, seconds=10, warm_up_s=0, connections=1, wait_limit_ms=30,
    busy_limit=0.85,
)  # fmt: skip


def test_busy_is_the_share_of_the_window() -> None:
    jobs = [(0, 0.0, 5.0), (1, 8.0, 12.0), (1, 20.0, 21.0)]
    assert busy_share(jobs, 2, 0, 10) == pytest.approx(7 / 20)


def test_gaps_are_between_jobs_of_one_consumer() -> None:
    jobs = [(0, 0.0, 1.0), (1, 0.5, 2.0), (0, 1.25, 3.0), (1, 4.0, 5.0)]
    assert gaps_of(jobs) == [(1.25, 0.25), (4.0, 2.0)]


def test_a_finding_and_its_limits() -> None:
    tally = Tally(waits=[(1.0, 0.010), (2.0, 0.050), (99.0, 9.0)], jobs=[(0, 1.0, 1.2), (1, 2.0, 2.2)], published=2)
    found = finding("kubemq", LOAD, tally, 0.0, Watch({}))
    assert (found.rate, found.wait_median_ms, found.wait_p99_ms, found.problem) == (0.2, 10.0, 50.0, "")
    assert found.busy == pytest.approx(0.02)
    assert found.most_busy == 0.8
    assert exceeded(found, LOAD) == ["99 % of the waits under 50.0 ms, 30 ms wanted", "consumers 2.0% busy, 85% wanted"]


def test_what_went_wrong_is_in_the_finding() -> None:
    found = finding("kubemq", LOAD, Tally(published=3, refused=1, redelivered=2), 0.0, Watch({}))
    assert found.problem == (
        "1 publishes refused; 2 deliveries marked redelivered; 3 published, 0 done; "
        "nothing was delivered in the measured time"
    )


@pytest.mark.parametrize(
    ("unit", "values", "is_flat"),
    [
        ("MB", [10.0, 100.0, 100.0, 100.0, 102.0, 103.0, 104.0, 109.0], True),
        ("MB", [10.0, 100.0, 100.0, 100.0, 105.0, 110.0, 112.0, 115.0], False),
        ("", [20.0] * 6 + [31.0] * 2, False),
        ("", [200.0] * 6 + [150.0] * 2, True),
    ],
)
def test_growth(unit: str, values: list[float], is_flat: bool) -> None:
    series = Series("x", unit, [(float(at), value) for at, value in enumerate(values)])
    assert series.growth()[2] is is_flat


def test_growth_per_hour_leaves_the_start_out() -> None:
    points = [(0.0, 0.0), (60.0, 50.0), (120.0, 51.0), (180.0, 52.0)]
    assert Series("x", "MB", points).per_hour() == pytest.approx(60.0)


def test_a_report_notes_what_is_above_its_limit() -> None:
    report = Findings()
    report.add("kubemq", "memory", 401.0, "MB", 400)
    report.add("kubemq", "CPU", 3.0, "%", 5)
    report.add("embedded", "share", 0.4, "x", least=0.5)
    assert report.bad == [
        "kubemq: memory is 401 MB, at most 400 wanted",
        "embedded: share is 0.40 x, at least 0.5 wanted",
    ]
    assert report.figures == {"kubemq: memory, MB": 401.0, "kubemq: CPU, %": 3.0, "embedded: share, x": 0.4}


def test_no_key_comes_twice_where_none_may() -> None:
    """And every key leads to a queue, or the storing is not measured."""
    loads = turns(100)
    never = [sent for turn in loads["topic exchange, no key twice"] for sent in turn]
    assert len(set(never)) == len(never)
    assert len(set(loads["topic exchange, 100 keys"][0])) == 100
    topic, queues = Topic(ExchangeRecord("default", TOPIC, "topic")), queue_names(20)
    for bind in bindings(queues, 100):
        topic.bind(BindingKey(TOPIC, bind.queue, bind.routing_key))
    for sent in {*never[:500], *loads["topic exchange, 100 keys"][0]}:
        publish = frame.unmarshal(sent)[2]
        assert isinstance(publish, commands.Basic.Publish)
        assert len(topic.route(publish.routing_key, dict)) == 1


def test_the_crowd_is_paced() -> None:
    arguments = crowd_of_queues(1000).perftest_arguments("x")
    assert arguments[arguments.index("--publishing-interval") + 1] == "0.5"
    assert arguments[arguments.index("--queue-pattern-to") + 1] == "500"


# ------------------------------------------------------------------------------------------------- profiles

STACKS = [
    "run (asyncio/runners.py);feed (connector/amqp/frames.py) 6",
    "run (asyncio/runners.py);deliver (connector/session/consume.py);sorted (lib/heapq.py:3) 3",
    "poll (lib/threading.py) 1",
    "",
]


def test_samples_belong_to_the_innermost_layer() -> None:
    stacks = hot_spots.read_stacks(STACKS)
    assert stacks.total() == 10
    assert Counter(map(hot_spots.layer_of, stacks)) == {"connector/amqp": 1, "connector/session": 1, "other": 1}
    text = hot_spots.report(stacks, 5)
    assert "| connector/amqp    | 60.0% |" in text
    assert "| sorted (lib/heapq.py:3)         | 30.0% |" in text


# ------------------------------------------------------------------------------------------------- micro


def test_every_number_of_a_script_is_in_the_table() -> None:
    found = {"micro_a": {"unit": "us", "x": {"y": 1.23456, "z": 7}}, "micro_b": "it fell over"}
    assert list(micro.flat(found["micro_a"])) == [("x, y", "1.23"), ("x, z", "7")]
    last = micro.report(found)[-1].splitlines()[-1]
    assert [cell.strip() for cell in last.strip("|").split("|")] == ["micro_b", "error", "it fell over"]
    assert micro.report({}) == []


def test_scripts_that_fail_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "_FOLDER", tmp_path)
    (tmp_path / "micro_a.py").write_text("print('{\"x\": 1}')", encoding="utf-8")
    (tmp_path / "micro_b.py").write_text("raise SystemExit('no')", encoding="utf-8")
    assert micro.measure(("micro_a", "micro_b")) == {"micro_a": {"x": 1}, "micro_b": "no"}


def test_no_script_needs_a_server() -> None:
    assert {"micro_codec", "micro_envelope", "micro_settlement"} <= set(micro.SCRIPTS)
    assert "micro_store" not in micro.SCRIPTS


def test_settlement_is_measured_on_the_lease_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(micro_settlement, "ROUNDS", 1)
    monkeypatch.setattr(micro_settlement, "MESSAGES", 2000)
    monkeypatch.setattr(sys, "argv", ["micro_settlement"])
    micro_settlement.main()
    found = json.loads(capsys.readouterr().out)
    assert set(found["read_deliver_ack"]) == {"1", "10", "100", "1000"}
    assert all(value > 0 for _, text in micro.flat(found) for value in [float(text)])

"""PerfTest: its CSV, where its jars come from, and a run that goes wrong; a shell script stands for Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import perftest
from bench.figures import Quantiles
from bench.perftest import PerfTest, Unusable, classpath, read_rows

HEAD = (
    "id,time (s),published (msg/s),returned (msg/s),confirmed (msg/s),nacked (msg/s),received (msg/s),"
    + ",".join(
        f"{column} {kind} latency (µs)"
        for kind in ("consumer", "confirm")
        for column in ("min", "median", "75th p.", "95th p.", "99th p.")
    )
    + "\n"
)
FULL = "test-1,1.005,687,,680,0,647,3019,52636,84441,168207,234765,712,15869,26585,69826,82570\n"
PUBLISH_ONLY = "test-1,2.015,6663,,6663,2,,,,,,,495,7157,12233,27970,84975\n"


def test_rows_have_rates_and_latencies_in_ms() -> None:
    first, second = read_rows(HEAD + FULL + PUBLISH_ONLY)
    assert (first.until_s, first.seconds, first.published, first.confirmed, first.received) == (
        1.005, 1.005, 687, 680, 647,
    )  # fmt: skip
    assert first.consumer == Quantiles(3.019, 52.636, 84.441, 168.207, 234.765)
    assert first.confirm == Quantiles(0.712, 15.869, 26.585, 69.826, 82.57)
    assert second.seconds == pytest.approx(1.01)
    assert (second.received, second.nacked, second.returned, second.consumer) == (0, 2, 0, None)


def test_milliseconds_are_read_too() -> None:
    (row,) = read_rows((HEAD + FULL).replace("(µs)", "(ms)"))
    assert row.consumer == Quantiles(3019, 52636, 84441, 168207, 234765)


def test_a_line_that_is_cut_off_is_left_out() -> None:
    assert len(read_rows(HEAD + FULL + PUBLISH_ONLY[:30])) == 1
    assert read_rows("") == []


# ------------------------------------------------------------------------------------------------- jars


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing but what the test puts there, and an empty cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv(perftest.CLASSPATH_VARIABLE, raising=False)
    monkeypatch.setattr(perftest, "CACHE", tmp_path / "cache")
    return folder


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def test_without_java_it_says_so(programs: Path) -> None:
    with pytest.raises(Unusable, match="java is missing: PerfTest needs Java 11"):
        classpath()


def test_without_maven_it_says_what_else_can_be_done(programs: Path) -> None:
    program(programs, "java", "exit 0")
    with pytest.raises(Unusable, match=r"mvn is missing.*PERFTEST_CLASSPATH"):
        classpath()


def test_a_given_classpath_needs_no_maven(programs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(programs, "java", "exit 0")
    monkeypatch.setenv(perftest.CLASSPATH_VARIABLE, str(tmp_path))
    assert classpath() == f"{tmp_path}/*"
    monkeypatch.setenv(perftest.CLASSPATH_VARIABLE, "a.jar:b.jar")
    assert classpath() == "a.jar:b.jar"


def test_maven_is_asked_once(programs: Path, tmp_path: Path) -> None:
    program(programs, "java", "exit 0")
    program(programs, "mvn", f'echo "$@" >>{tmp_path}/calls; grep -q "<version>2.22.1</version>" "$4"')
    assert classpath() == classpath() == f"{tmp_path}/cache/lib/*"
    (call,) = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert f"dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory={tmp_path}/cache/lib" in call


def test_what_maven_says_is_shown_and_it_is_asked_again(programs: Path) -> None:
    program(programs, "java", "exit 0")
    program(programs, "mvn", "echo no route to the repository; exit 1")
    for _ in range(2):
        with pytest.raises(Unusable, match="no route to the repository"):
            classpath()


# ------------------------------------------------------------------------------------------------- a run


def java(folder: Path, rows: str, code: int = 0) -> None:
    """A Java that writes rows where PerfTest would, says so, and ends."""
    (folder.parent / "rows").write_text(rows, encoding="utf-8")
    script = 'while [ "$1" != --output-file ]; do shift; done\n'
    script += f'cat {folder.parent}/rows >"$2"\necho "id: t, time 1.005 s, sent: 1 msg/s"\necho over\nexit {code}'
    program(folder, "java", script)


def test_a_run(programs: Path, tmp_path: Path) -> None:
    java(programs, HEAD + FULL)
    with PerfTest("jars", "amqp://x", [], 1, tmp_path / "out.csv") as run:
        outcome = run.wait()
    assert (len(outcome.rows), outcome.problem) == (1, "")
    assert outcome.started_at > 0


def test_a_run_that_fails_tells_what_was_said(programs: Path, tmp_path: Path) -> None:
    java(programs, HEAD + FULL, code=3)
    with PerfTest("jars", "amqp://x", [], 1, tmp_path / "out.csv") as run:
        assert "ended with 3" in (problem := run.wait().problem)
    assert problem.endswith("over")


def test_the_last_words_of_a_run_are_heard(programs: Path, tmp_path: Path) -> None:
    program(programs, "java", "(sleep 0.3; echo over) &\nexit 3")
    with PerfTest("jars", "amqp://x", [], 1, tmp_path / "out.csv") as run:
        assert run.wait().problem.endswith("over")


def test_a_run_without_figures_is_a_problem(programs: Path, tmp_path: Path) -> None:
    java(programs, HEAD)
    with PerfTest("jars", "amqp://x", [], 1, tmp_path / "out.csv") as run:
        assert run.wait().problem.startswith("PerfTest measured nothing")


def test_a_run_that_does_not_end_is_ended(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perftest, "_MARGIN_S", 0.2)
    program(programs, "java", "exec sleep 60")
    with PerfTest("jars", "amqp://x", [], 0, tmp_path / "out.csv") as run:
        assert not run.wait_started()
        assert run.wait().problem == "PerfTest did not end within 0.2 s"
    assert not run.is_running

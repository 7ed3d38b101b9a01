"""The conformance runner: the list of exclusions, the verdicts, the tally."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import conformance
from tools.conformance import EXCLUDED, Waits, judge, load_kit, read_excluded, run_checks

DL = {"C32": Waits("DL-01", "dead-lettering")}


def good() -> None:
    pass


def bad() -> None:
    raise AssertionError("no")


def kit(**checks: Callable[[], None]) -> types.SimpleNamespace:
    def run_one(check: Callable[[], None]) -> tuple[str, str]:
        try:
            check()
        except AssertionError as error:
            return "FAIL", str(error)
        return "PASS", "ok"

    cases = [(case_id, "title of " + case_id, check) for case_id, check in checks.items()]
    return types.SimpleNamespace(registry=types.SimpleNamespace(CASES=cases), run_one=run_one)


def test_the_projects_own_list_can_be_read() -> None:
    read_excluded(EXCLUDED.read_text(encoding="utf-8"))


def test_a_line_is_an_id_a_row_and_a_reason() -> None:
    assert read_excluded("# id, row, reason\n\nC32  DL-01  dead-lettering is not built\n") == {
        "C32": Waits("DL-01", "dead-lettering is not built")
    }


@pytest.mark.parametrize("text", ["C32 DL-01\n", "C32\n", "C32 DL-01 a\nC32 DL-02 b\n"])
def test_a_line_without_all_three_or_an_id_twice_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_excluded(text)


@pytest.mark.parametrize(
    ("case_id", "result", "verdict", "text"),
    [
        ("C10", "PASS", "PASS", "t -- why"),
        ("C10", "FAIL", "FAIL", "t -- why"),
        ("C32", "FAIL", "SKIP", "t -- waits for DL-01: dead-lettering"),
        ("C32", "PASS", "FAIL", "t -- passes now: take it out of conformance_excluded.txt"),
    ],
)
def test_verdicts(case_id: str, result: str, verdict: str, text: str) -> None:
    assert judge(case_id, "t", (result, "why"), DL) == (verdict, text)


def test_all_checks_run_and_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    tally = run_checks(kit(C2=bad, C1=good, C32=bad, X1=bad), [], DL, strict=False)
    assert (tally.passed, tally.failed, tally.skipped) == (1, 1, 1)
    assert capsys.readouterr().out.splitlines() == [
        "PASS C1    title of C1 -- ok",
        "FAIL C2    title of C2 -- no",
        "SKIP C32   title of C32 -- waits for DL-01: dead-lettering",
    ]


def test_an_excluded_check_that_passes_fails_the_run() -> None:
    assert run_checks(kit(C32=good), [], DL, strict=False).failed == 1


def test_x_checks_run_when_strict_or_by_name() -> None:
    checks = kit(C1=good, X1=good)
    assert run_checks(checks, [], {}, strict=False).passed == 1
    assert run_checks(checks, [], {}, strict=True).passed == 2
    assert run_checks(checks, ["X1"], {}, strict=False).passed == 1


def test_unknown_ids_fail_the_run() -> None:
    assert run_checks(kit(C1=good), ["C9"], DL, strict=False).failed == 2


def test_a_kit_of_which_a_part_does_not_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_URL", "")
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    monkeypatch.delitem(sys.modules, "run_cases", raising=False)
    (tmp_path / "run_cases.py").write_text("")
    (tmp_path / "cases_broken_part.py").write_text("import no_such_module\n")
    with pytest.raises(ImportError, match="cases_broken_part"):
        load_kit(tmp_path, "amqp://127.0.0.1/")
    monkeypatch.delitem(sys.modules, "run_cases", raising=False)


def test_a_server_that_does_not_start_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conformance, "START_S", 10.0)
    assert conformance.main([str(tmp_path), "--serve=--log-level=loud"]) == 1
    out = capsys.readouterr().out
    assert "did not become ready" in out
    assert "'loud' is none of debug" in out

"""The size limits: what counts, and what is excepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_sizes import LONGER, problems_of


def function(name: str, length: int, docstring: str = "") -> str:
    return f"def {name}():\n" + docstring + "    pass\n" * (length - 1)


@pytest.mark.parametrize(
    ("name", "text", "problems"),
    [
        ("connector/a.py", function("f", 40), []),
        ("connector/a.py", function("f", 41), ["connector/a.py:1: f has 41 lines, 40 at most"]),
        ("connector/a.py", function("f", 40, '    """One.\n\n    Two.\n    """\n'), []),
        ("connector/a.py", "async " + function("f", 41), ["connector/a.py:1: f has 41 lines, 40 at most"]),
        ("tests/test_a.py", function("f", 41), []),
        ("tests/test_a.py", "\n" * 600, []),
        ("tests/test_a.py", "\n" * 601, ["tests/test_a.py: 601 lines, 600 at most"]),
    ],
)
def test_limits(tmp_path: Path, name: str, text: str, problems: list[str]) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text(text)
    assert list(problems_of(path, tmp_path)) == problems


@pytest.mark.parametrize("exception", sorted(LONGER))
def test_an_exception_may_be_longer(tmp_path: Path, exception: str) -> None:
    name, function_name = exception.split(":")
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(function(function_name, 300))
    assert list(problems_of(path, tmp_path)) == []

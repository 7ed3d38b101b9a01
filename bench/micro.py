"""``python -m bench.micro``: every micro-benchmark that needs no server, in one command.

Owns the list of them and their table; each is a script beside this file that prints one JSON object.  A smaller figure
is better everywhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.tables import aligned

_FOLDER = Path(__file__).resolve().parent
_NEEDS_SERVER = {"micro_store"}
SCRIPTS = tuple(sorted({path.stem for path in _FOLDER.glob("micro_*.py")} - _NEEDS_SERVER))
_LIMIT_S = 180.0
_DIGITS = 3


def measure(scripts: tuple[str, ...] = SCRIPTS) -> dict[str, Any]:
    """Run them one after the other; a script that fails has its error text as its result."""
    return {script: _run(script) for script in scripts}


def _run(script: str) -> Any:
    command = [sys.executable, str(_FOLDER / f"{script}.py")]
    try:
        made = subprocess.run(
            command, cwd=_FOLDER.parent, check=False, capture_output=True, text=True, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"not done after {_LIMIT_S:g} s"
    if made.returncode:
        return made.stderr.strip().rpartition("\n")[2] or f"ended with {made.returncode}"
    return json.loads(made.stdout)


def report(found: Mapping[str, Any]) -> list[str]:
    """The results as a table, in lines; none of nothing."""
    rows = [[script, name, text] for script, result in found.items() for name, text in flat(result)]
    return ["", aligned(["micro-benchmark", "what", "figure"], rows, (0, 1))] if rows else []


def flat(result: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Name and figure of every number in a script's JSON, names joined by a comma; a text instead of it is an error."""
    if isinstance(result, Mapping):
        for name, inner in result.items():
            yield from flat(inner, f"{prefix}, {name}" if prefix else name)
    elif isinstance(result, float | int):
        yield prefix, f"{result:.{_DIGITS}g}" if isinstance(result, float) else str(result)
    elif not prefix:
        yield "error", str(result)


def main() -> int:
    """Run all and print the table; returns 1 when one failed."""
    found = measure()
    sys.stdout.write("\n".join(report(found)) + "\n")
    return 1 if any(isinstance(result, str) for result in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

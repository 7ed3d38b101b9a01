"""What a bench of single figures found: rows for the screen, the same for JSON, and what is beyond its limit.

Must not know how anything was measured.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any

from bench import results
from bench.tables import aligned, number


class Failed(Exception):
    """It cannot be measured; the text says why."""


@dataclass(slots=True)
class Findings:
    """Rows of a table (target, what, figure), the same for JSON, and what is wrong."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)

    def add(
        self, target: str, name: str, value: float, unit: str, limit: float | None = None, least: float | None = None
    ) -> None:
        """One figure; above ``limit`` or below ``least`` it is bad."""
        self.rows.append((target, name, f"{number(value)} {unit}"))
        self.figures[f"{target}: {name}, {unit}"] = value
        if limit is not None and value > limit:
            self.bad.append(f"{target}: {name} is {number(value)} {unit}, at most {limit:g} wanted")
        if least is not None and value < least:
            self.bad.append(f"{target}: {name} is {number(value)} {unit}, at least {least:g} wanted")

    def write(self, name: str) -> None:
        """Show the table, and keep everything as ``bench/results/<name>.json``."""
        text = aligned(["target", "what", "figure"], self.rows, (0, 1))
        sys.stdout.write("\n".join([text, *self.bad, ""]))
        document = {"machine": results.machine(), "figures": self.figures, "bad": self.bad}
        (results.FOLDER / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

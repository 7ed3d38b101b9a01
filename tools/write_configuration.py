"""Write the table of settings into docs/configuration.md, from the settings themselves; part of ``make gen``.

Only what stands between the two marks is replaced.  A test compares, so the page cannot fall behind.
"""

from __future__ import annotations

import sys
from pathlib import Path

from connector.config import SETTINGS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
BEGIN = "<!-- settings: written by `make gen` -->"
END = "<!-- end of settings -->"


def table() -> str:
    """Return the table: one row for each setting, in the order of ``connector.config``."""
    lines = [
        "| In a file | Flag | Environment | Default | What it does |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in SETTINGS:
        flag = f"`{row.flag}`" if row.flag else "none (secret)"
        default = f"`{row.default_text}`" if row.default_text else "empty"
        lines.append(f"| `{row.name}` | {flag} | `{row.variable}` | {default} | {row.help} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """Return the page with the present table between the marks; raises ValueError where a mark is missing."""
    before, begin, rest = page.partition(BEGIN)
    _old, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has lost its marks")
    return f"{before}{begin}\n\n{table()}\n\n{end}{after}"


def main() -> int:
    """Rewrite the page."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

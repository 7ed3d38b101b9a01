"""Check that no file and no function outgrows the limits of docs/style.md; part of ``make arch``.

A file ends at 600 lines, a function at 40 (its docstring not counted).  What must be longer is named here, with the
reason.  Test files count, their functions do not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE = 600
MAX_FUNCTION = 40
FOLDERS = ("connector", "mapping", "tools", "tests", "examples")

#: ``file:function`` that may be longer, and why.
LONGER = {
    "connector/amqp/frames.py:feed": "one tight loop over the buffer (hot path)",
}


def problems_of(path: Path, root: Path) -> Iterator[str]:
    """Yield one line for each thing in a file that is too long."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(root).as_posix()
    count = text.count("\n")
    if count > MAX_FILE:
        yield f"{name}: {count} lines, {MAX_FILE} at most"
    if name.startswith("tests/"):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _length(node)
            if length > MAX_FUNCTION and f"{name}:{node.name}" not in LONGER:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines, {MAX_FUNCTION} at most"


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    last = node.end_lineno or node.lineno
    length = last - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None and first.end_lineno is not None:
        length -= first.end_lineno - first.lineno + 1
    return length


def main() -> int:
    """Check all folders; return 1 when anything is too long."""
    root = Path(__file__).resolve().parent.parent
    files = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    problems = [problem for path in files for problem in problems_of(path, root)]
    for problem in problems:
        sys.stdout.write(problem + "\n")
    sys.stdout.write(f"sizes: {len(files)} files, {len(problems)} too long\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

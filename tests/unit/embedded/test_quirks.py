"""The table of quirks: every one differs between its two settings and says what it is."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields

import pytest

from connector.embedded import quirks
from connector.embedded.quirks import OFF, ON, Quirks


@pytest.mark.parametrize("name", [field.name for field in fields(Quirks)])
def test_a_quirk_is_on_or_off(name: str) -> None:
    assert getattr(ON, name)
    assert not getattr(OFF, name)


def test_every_quirk_says_what_it_does() -> None:
    (table,) = (node for node in ast.parse(inspect.getsource(quirks)).body if isinstance(node, ast.ClassDef))
    after = {
        line.target.id: below
        for line, below in zip(table.body, table.body[1:], strict=False)
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    for field in fields(Quirks):
        sentence = after[field.name]
        assert isinstance(sentence, ast.Expr)
        assert isinstance(sentence.value, ast.Constant)
        assert len(str(sentence.value.value)) > 20

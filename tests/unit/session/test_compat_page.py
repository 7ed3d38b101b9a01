"""docs/compat.md leaves nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from connector.amqp.methods import METHODS
from connector.broker import arguments

PAGE = (Path(__file__).parents[3] / "docs" / "compat.md").read_text(encoding="utf-8")


def spoken(name: str) -> str:
    """``Queue.DeclareOk`` as the specification writes it."""
    kind, _, method = name.partition(".")
    return kind.lower() + "." + re.sub(r"(?<!^)([A-Z])", r"-\1", method).lower()


@pytest.mark.parametrize("name", sorted(spoken(method.name) for method in METHODS.values()))
def test_every_method_is_listed(name: str) -> None:
    assert re.search(rf"{re.escape(name)}(?![-\w])", PAGE), name


@pytest.mark.parametrize("name", sorted(arguments._NOT_BUILT))
def test_every_queue_argument_that_is_not_built_is_listed(name: str) -> None:
    assert f"`{name}`" in PAGE

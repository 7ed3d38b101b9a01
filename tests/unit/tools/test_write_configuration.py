"""docs/configuration.md says what the settings are."""

from __future__ import annotations

import pytest

from connector.config import SETTINGS
from tools.write_configuration import BEGIN, END, PAGE, table, with_table


def test_the_page_has_the_present_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "run `make gen`"


def test_the_table_names_every_setting_once() -> None:
    rows = table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [setting.name for setting in SETTINGS]
    for row, setting in zip(rows, SETTINGS, strict=True):
        assert row.count("|") == 6
        assert f"`{setting.variable}`" in row


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    assert with_table(f"before{BEGIN}old{END}after") == f"before{BEGIN}\n\n{table()}\n\n{END}after"


@pytest.mark.parametrize("page", ["", BEGIN, END, END + BEGIN])
def test_a_page_without_its_marks_is_refused(page: str) -> None:
    with pytest.raises(ValueError):
        with_table(page)

"""The drawings are well-formed and show what they are given."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from bench.plots import Bar, Line, Panel, bars, lines

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_as_long_as_their_values() -> None:
    panel = Panel("<one> & only", [Bar("a", 100.0, [90.0, 110.0], "red"), Bar("b", 55.0, [], "blue")])
    drawing = ET.fromstring(bars("Title", [panel, Panel("empty", [])]))
    widths = [float(one.get("width", "")) for one in drawing.iter(f"{SVG}rect") if one.get("fill") in {"red", "blue"}]
    assert widths[0] / widths[1] == pytest.approx(100 / 55, rel=0.01)
    assert len(list(drawing.iter(f"{SVG}circle"))) == 2
    texts = [one.text for one in drawing.iter(f"{SVG}text")]
    assert {"Title", "<one> & only", "100", "55"} <= set(texts)


def test_lines_have_a_scale_of_their_own() -> None:
    drawing = ET.fromstring(lines("Over time", [("MB", [Line("a", [(0, 0), (10, 50)]), Line("b", [(0, 25)])])]))
    paths = [one.get("points", "").split() for one in drawing.iter(f"{SVG}polyline")]
    (start, end), (middle,) = ([tuple(map(float, point.split(","))) for point in path] for path in paths)
    assert start[0] < end[0]
    assert middle[1] == (start[1] + end[1]) / 2
    assert "50" in [one.text for one in drawing.iter(f"{SVG}text")]

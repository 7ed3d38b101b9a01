"""Drawings as plain SVG text, without a library: panels of bars, and lines over time.

Pure functions from values to text.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

COLOURS = ("#2b6cb0", "#dd6b20", "#718096", "#38a169", "#805ad5", "#d53f8c", "#b7791f", "#319795")
_FONT = 'font-family="sans-serif"'
_INK = "#1a202c"
_GRID = "#e2e8f0"
_PANEL_WIDTH, _PANEL_HEIGHT, _BAR_HEIGHT = 370, 40, 20
_LABEL_WIDTH, _VALUE_WIDTH = 115, 75
_CHART_WIDTH, _CHART_HEIGHT, _LEFT, _BOTTOM = 640, 260, 70, 40
_TICKS = 5


class Bar(NamedTuple):
    """One bar; ``points`` are the single rounds, shown as dots."""

    label: str
    value: float
    points: Sequence[float]
    colour: str


class Panel(NamedTuple):
    """Bars with a scale of their own."""

    title: str
    bars: Sequence[Bar]


class Line(NamedTuple):
    """(x, y) points."""

    label: str
    points: Sequence[tuple[float, float]]


def _text(x: float, y: float, content: str, size: int = 12, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} font-size="{size}" fill="{_INK}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(content)}</text>'
    )


def _document(width: float, height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


def bars(title: str, panels: Sequence[Panel], columns: int = 2) -> str:
    """Panels side by side in ``columns``; the value stands beside each bar."""
    height = _PANEL_HEIGHT + _BAR_HEIGHT * max((len(panel.bars) for panel in panels), default=0)
    parts = [_text(16, 26, title, 16, weight="bold")]
    for at, panel in enumerate(panels):
        left, top = 16 + (at % columns) * _PANEL_WIDTH, 50 + (at // columns) * height
        parts += _panel(panel, left, top)
    rows = -(-len(panels) // columns)
    return _document(16 + columns * _PANEL_WIDTH, 50 + rows * height, parts)


def _panel(panel: Panel, left: float, top: float) -> list[str]:
    parts = [_text(left, top + 10, panel.title, 12, weight="bold")]
    highest = max((max(bar.value, *bar.points, 0.0) for bar in panel.bars), default=0.0) or 1.0
    room = _PANEL_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH
    for at, bar in enumerate(panel.bars):
        y, x = top + 18 + at * _BAR_HEIGHT, left + _LABEL_WIDTH
        width = room * bar.value / highest
        parts.append(_text(x - 6, y + 12, bar.label, 11, "end"))
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="14" fill="{bar.colour}"/>')
        parts += [
            f'<circle cx="{x + room * point / highest:.1f}" cy="{y + 7}" r="2.5" fill="white" stroke="{_INK}"/>'
            for point in bar.points
        ]
        furthest = room * max(bar.value, *bar.points, 0.0) / highest
        value = f"{bar.value:,.3g}" if bar.value < 100 else f"{bar.value:,.0f}"
        parts.append(_text(x + furthest + 8, y + 12, value, 11))
    return parts


def lines(title: str, charts: Sequence[tuple[str, Sequence[Line]]]) -> str:
    """Charts below each other, each with its own unit and scale from 0; x is in seconds."""
    parts = [_text(16, 26, title, 16, weight="bold")]
    for at, (unit, series) in enumerate(charts):
        parts += _chart(unit, series, 40 + at * (_CHART_HEIGHT + _BOTTOM))
    return _document(_LEFT + _CHART_WIDTH + 180, 50 + len(charts) * (_CHART_HEIGHT + _BOTTOM), parts)


def _chart(unit: str, series: Sequence[Line], top: float) -> list[str]:
    points = [point for line in series for point in line.points]
    last = max((x for x, _ in points), default=0.0) or 1.0
    highest = max((y for _, y in points), default=0.0) or 1.0
    height, base = _CHART_HEIGHT - 30, top + _CHART_HEIGHT - 10
    parts = [_text(_LEFT, top + 12, unit, 12, weight="bold")]
    for tick in range(_TICKS + 1):
        y, x = base - height * tick / _TICKS, _LEFT + _CHART_WIDTH * tick / _TICKS
        parts.append(f'<path d="M{_LEFT} {y:.1f}h{_CHART_WIDTH}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{highest * tick / _TICKS:,.3g}", 10, "end"))
        parts.append(_text(x, base + 14, f"{last * tick / _TICKS:,.0f} s", 10, "middle"))
    for at, line in enumerate(series):
        colour = COLOURS[at % len(COLOURS)]
        path = " ".join(
            f"{_LEFT + _CHART_WIDTH * x / last:.1f},{base - height * y / highest:.1f}" for x, y in line.points
        )
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        y = top + 34 + at * 16
        parts.append(f'<rect x="{_LEFT + _CHART_WIDTH + 12}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(_LEFT + _CHART_WIDTH + 28, y, line.label, 11))
    return parts

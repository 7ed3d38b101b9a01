"""Figures from measurements: what many seconds say together, what rounds say together, and ratios.

Pure functions on plain values; must not know where the numbers come from.  Latencies are in ms.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

_PROBABILITIES = (0.0, 0.5, 0.75, 0.95, 0.99, 1.0)
_BISECTIONS = 50
_ROUNDING = 1e-9


class Quantiles(NamedTuple):
    """What PerfTest tells of one second's latencies, in ms."""

    least: float
    median: float
    p75: float
    p95: float
    p99: float


class Spread(NamedTuple):
    """A figure over several rounds: their median, and the lowest and highest of them."""

    middle: float
    low: float
    high: float


def mixed_quantile(parts: Sequence[tuple[float, Quantiles]], probability: float) -> float:
    """Return the quantile of all messages together, from each part's weight (its message count) and quantiles.

    Within a part the distribution is taken as straight lines between the quantiles that are known; the slowest per cent
    as reaching as far above its 99 % as that is above its 95 %.  So the result lies between the parts' own values, and
    a second in which everything stalled counts by how many messages it had.  Raises ValueError when there is nothing.
    """
    weighed = [(weight, _knots(part)) for weight, part in parts if weight > 0]
    if not weighed:
        raise ValueError("no messages")
    total = sum(weight for weight, _ in weighed)
    low = min(knots[0] for _, knots in weighed)
    high = max(knots[-1] for _, knots in weighed)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if sum(weight * _share_below(knots, middle) for weight, knots in weighed) < probability * total:
            low = middle
        else:
            high = middle
    return high


def _knots(part: Quantiles) -> list[float]:
    knots = [*part, part.p99 + (part.p99 - part.p95)]
    return [max(knots[: number + 1]) for number in range(len(knots))]


def _share_below(knots: list[float], value: float) -> float:
    if value < knots[0]:
        return 0.0
    for upper in range(1, len(knots)):
        if value < knots[upper]:
            start, end = knots[upper - 1], knots[upper]
            share = (value - start) / (end - start)
            return _PROBABILITIES[upper - 1] + share * (_PROBABILITIES[upper] - _PROBABILITIES[upper - 1])
    return 1.0


def spread(values: Sequence[float]) -> Spread | None:
    """What several rounds say together; None of nothing."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values))


def ratio(ours: Spread | None, theirs: Spread | None) -> float | None:
    """Ours by theirs; None where one of them is missing or theirs is nothing."""
    if ours is None or theirs is None or theirs.middle <= 0:
        return None
    return ours.middle / theirs.middle


def percentile(values: Sequence[float], probability: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed; raises ValueError."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    rank = math.ceil(probability * len(ordered) - _ROUNDING)
    return ordered[max(1, rank) - 1]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the rise per unit of x of the straight line closest to the points; 0 of fewer than two."""
    if len({x for x, _ in points}) < 2:
        return 0.0
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope

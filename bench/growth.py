"""Whether something grows: figures over time, and the report of a soak.

Pure; must not know what the figures are of.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from bench.figures import slope

#: Flat: the last quarter is not above the second by more than a share and a constant (MB, or a count).
_ALLOWED = {"MB": (0.05, 5.0), "": (0.0, 10.0)}


@dataclass(slots=True)
class Series:
    """One figure over time: (seconds since the start, value)."""

    name: str
    unit: str
    points: list[tuple[float, float]] = field(default_factory=list)

    def growth(self) -> tuple[float, float, bool]:
        """Return the medians of the second and of the last quarter, and whether that counts as flat."""
        values = [value for _, value in self.points]
        quarter = max(1, len(values) // 4)
        early, late = statistics.median(values[quarter : 2 * quarter] or values), statistics.median(values[-quarter:])
        share, constant = _ALLOWED[self.unit]
        return early, late, late <= early * (1 + share) + constant

    def per_hour(self) -> float:
        """The rise per hour from the second quarter on."""
        return slope(self.points[len(self.points) // 4 :]) * 3600


@dataclass(slots=True)
class Report:
    """What was found, for screen and JSON."""

    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    series: dict[str, list[Series]] = field(default_factory=dict)

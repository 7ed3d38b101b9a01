"""The figures: quantiles of many seconds together, rounds, ratios, slopes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import Quantiles, Spread, mixed_quantile, percentile, ratio, slope, spread

STEADY = Quantiles(1.0, 2.0, 3.0, 5.0, 9.0)
TIMES = st.floats(0.01, 1000.0)


@st.composite
def quantiles(draw: st.DrawFn) -> Quantiles:
    return Quantiles(*sorted(draw(st.lists(TIMES, min_size=5, max_size=5))))


@pytest.mark.parametrize(("probability", "value"), [(0.5, 2.0), (0.75, 3.0), (0.95, 5.0), (0.99, 9.0)])
def test_seconds_that_are_alike_are_like_each_of_them(probability: float, value: float) -> None:
    assert mixed_quantile([(100, STEADY), (7, STEADY)], probability) == pytest.approx(value)


def test_a_stalled_second_counts_by_its_messages() -> None:
    stalled = Quantiles(100.0, 200.0, 300.0, 400.0, 500.0)
    few, many = (mixed_quantile([(1000, STEADY), (count, stalled)], 0.99) for count in (1, 100))
    assert few == pytest.approx(9.0, abs=0.5)
    assert many > 300.0


def test_a_second_without_messages_does_not_count() -> None:
    assert mixed_quantile([(10, STEADY), (0, Quantiles(50, 50, 50, 50, 50))], 0.5) == pytest.approx(2.0)


def test_equal_latencies_are_no_trouble() -> None:
    assert mixed_quantile([(1, Quantiles(3, 3, 3, 3, 3))], 0.99) == pytest.approx(3.0)


def test_of_nothing_there_is_none() -> None:
    with pytest.raises(ValueError, match="no messages"):
        mixed_quantile([(0, STEADY)], 0.5)


@given(st.lists(st.tuples(st.integers(1, 10_000), quantiles()), min_size=1, max_size=8))
def test_the_whole_lies_between_the_parts(parts: list[tuple[float, Quantiles]]) -> None:
    for probability, name in ((0.5, "median"), (0.99, "p99")):
        values = [getattr(part, name) for _, part in parts]
        together = mixed_quantile(parts, probability)
        assert min(values) - 1e-6 <= together <= max(values) + 1e-6


@given(st.lists(TIMES, min_size=1), st.floats(0.0, 1.0))
def test_percentile_is_the_smallest_that_covers_the_share(values: list[float], probability: float) -> None:
    found = percentile(values, probability)
    assert sum(value <= found for value in values) >= math.floor(probability * len(values))
    assert found in values


def test_percentile_ranks() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]


def test_rounds_and_ratios() -> None:
    assert spread([]) is None
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert ratio(Spread(6, 6, 6), Spread(3, 3, 3)) == 2.0
    assert ratio(None, Spread(3, 3, 3)) is None
    assert ratio(Spread(6, 6, 6), Spread(0, 0, 0)) is None


def test_slope() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2.0)
    assert slope([(1, 3)]) == 0.0
    assert slope([(1, 3), (1, 4)]) == 0.0

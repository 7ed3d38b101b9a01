"""The marks by themselves, against the true times of delivery."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.session.ack_timeout import SPACING, AckTimes


def test_nothing_is_known_before_a_mark() -> None:
    times = AckTimes()
    assert times.delivered_by(1e9) == 0
    times.note(5.0, 1, 3, 64.0)
    assert (times.delivered_by(4.9), times.delivered_by(5.0)) == (0, 3)
    times.note(5.5, 1, 4, 64.0)  # too soon for another mark
    times.note(6.0, 1, 5, 64.0)
    times.note(9.0, 1, 5, 64.0)  # nothing new
    assert (times.delivered_by(5.9), times.delivered_by(100.0), len(times)) == (3, 5, 2)
    times.note(10.0, 4, 5, 64.0)
    assert (times.delivered_by(5.9), times.delivered_by(6.0), len(times)) == (0, 5, 1)
    times.clear()
    assert len(times) == 0


STEPS = st.lists(st.tuples(st.floats(0.05, 5.0), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=200)


@given(STEPS, st.floats(1.0, 100.0))
def test_a_delivery_is_never_called_older_than_it_is_and_soon_enough_as_old(
    steps: list[tuple[float, int, int]], timeout_s: float
) -> None:
    times = AckTimes()
    now, first, last = 0.0, 1, 0
    delivered: dict[int, float] = {}
    gap = 0.0
    for wait, arriving, leaving in steps:
        now += wait
        for _ in range(arriving):
            last += 1
            delivered[last] = now
        first = min(first + leaving, last + 1)
        now += wait
        gap = max(gap, 2 * wait)
        if first > last:
            times.clear()
            continue
        times.note(now, first, last, timeout_s)
        due = times.delivered_by(now - timeout_s)
        for tag in range(first, last + 1):
            age = now - delivered[tag]
            if tag <= due:
                assert age >= timeout_s
            else:
                assert age < timeout_s * (1 + SPACING) + 2 * gap
        assert len(times) <= 2 * timeout_s / (timeout_s * SPACING) + len(steps)

"""Pacing alone: how far apart refills are, when acknowledgements go out, how far ahead is read."""

from __future__ import annotations

import pytest

from connector.broker.lease import Event
from connector.broker.pacing import (
    ACK_DELAY_S,
    ACK_WINDOW_S,
    MARGIN,
    MARGIN_S,
    MIN_SPACING_S,
    OUTLIER,
    PACE_WINDOW_S,
    REREAD_PART,
    Pacing,
)
from connector.broker.steps import StepKind
from tests.support.lease_bench import Bench


def refilled(took_s: float, again: int, everything: int) -> Pacing:
    """A refill that began at 10.0 and brought these bytes."""
    pacing = Pacing(4)
    pacing.begin(10.0, 0)
    pacing.end(10.0 + took_s, again, everything)
    return pacing


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.5, 0.9, 1.0])
def test_reading_again_takes_no_more_than_its_part_of_the_time(share: float) -> None:
    pacing = refilled(0.1, int(1000 * share), 1000)
    cycle_s = max(0.1, pacing.refill_at - 10.0)
    assert share * 0.1 / cycle_s <= 1.0 / REREAD_PART + 1e-9


def test_a_refill_that_brings_mostly_new_messages_is_followed_at_once() -> None:
    assert refilled(0.1, 300, 1000).refill_at == pytest.approx(10.1 + MIN_SPACING_S)
    assert refilled(0.1, 0, 1000).refill_at == 0.0
    assert refilled(0.1, 1000, 1000).refill_at == pytest.approx(10.1 + (REREAD_PART - 1.0) * 0.1)


def test_one_slow_refill_says_little_and_several_say_it_all() -> None:
    pacing = refilled(0.01, 1000, 1000)
    spacings = []
    for _ in range(12):
        pacing.begin(20.0, 0)
        pacing.end(20.2, 1000, 1000)
        spacings.append(pacing.refill_at - 20.2)
    assert spacings[0] == pytest.approx((REREAD_PART - 1.0) * (OUTLIER * 0.01 + 0.01) / 2)
    assert spacings[-1] == pytest.approx((REREAD_PART - 1.0) * 0.2, rel=0.01)


def test_acknowledgements_wait_for_the_spacing_but_not_beyond_their_window() -> None:
    quick = refilled(0.01, 1000, 1000)
    assert quick.acks_at(10.02 + ACK_DELAY_S) == pytest.approx(10.02 + ACK_DELAY_S)
    slow = refilled(0.09, 1000, 1000)  # might refill at 10.27
    assert slow.acks_at(10.05 + ACK_DELAY_S) == pytest.approx(10.0 + ACK_WINDOW_S)
    slower = refilled(0.5, 1000, 1000)  # never more than half of the time
    assert slower.acks_at(10.1 + ACK_DELAY_S) == pytest.approx(11.0)


def test_the_pace_is_an_average_that_forgets_consumers_who_stand_still() -> None:
    pacing = refilled(0.02, 0, 1000)
    pacing.begin(10.0 + PACE_WINDOW_S, 100)
    pacing.end(10.0 + PACE_WINDOW_S + 0.02, 0, 1000)
    now = 10.0 + PACE_WINDOW_S
    per_s = 100 / PACE_WINDOW_S
    assert pacing.need(now, 100) == int(per_s * (ACK_DELAY_S + 0.04) * MARGIN)
    soon = int(per_s * (0.02 + MARGIN_S))
    assert pacing.runs_low(now, 100, soon - 1)
    assert not pacing.runs_low(now, 100, soon)
    assert not pacing.runs_low(now + 1.0, 100, 0)
    assert pacing.need(now + 10.0, 100) == 0


def test_what_will_be_taken_soon_is_read_before_it_is_missing() -> None:
    """No consumer has room now, but at their pace they will before a refill has answered."""
    bench = Bench(100)
    bench.credit = 10
    bench.open(*range(1, 11))
    for first in (11, 21):
        bench.now += 0.1
        for one in list(bench.lease.held.values()):
            bench.lease.settle(one)
        bench.send_acks()
        bench.lease.on_event(Event.CLOSED)
        bench.credit = 10
        assert bench.lease.get_size() == 10
        bench.lease.on_event(Event.GET_SENT)
        bench.now += 0.05
        bench.answer(*range(first, first + 10))
        bench.deliver()
    kinds = [bench.kind]
    bench.now += 10.0
    kinds.append(bench.kind)  # nobody has taken any for a while
    assert kinds == [StepKind.REFILL, StepKind.WAIT]

"""The last QueuesInfo answer: how long it is good, and for whom."""

from __future__ import annotations

import pytest

from connector.broker.latest import FRESH_S, Latest


class Clock:
    """Moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def latest(clock: Clock) -> Latest:
    return Latest(clock)


def test_an_answer_speaks_for_the_moment_its_call_began(clock: Clock, latest: Latest) -> None:
    assert not latest.is_fresh()
    latest.begin()
    clock.now += FRESH_S
    latest.on_rows({})
    assert latest.is_fresh()
    assert latest.since == 100.0
    clock.now += 0.01
    assert not latest.is_fresh()


def test_what_was_said_before_a_channel_was_emptied_counts_no_more(clock: Clock, latest: Latest) -> None:
    """Else a queue declared again would have the messages of its predecessor."""
    latest.begin()
    clock.now += 0.1
    latest.on_emptied()
    latest.on_rows({})
    assert not latest.is_fresh()
    clock.now += 0.1
    latest.begin()
    latest.on_rows({})
    assert latest.is_fresh()

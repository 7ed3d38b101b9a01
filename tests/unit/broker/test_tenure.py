"""Who is dead, and when a member stops by itself."""

from __future__ import annotations

from connector.broker.tenure import Tenure


class Life:
    """A member whose beats come back, as long as the link is good."""

    def __init__(self) -> None:
        self.now = 100.0
        self.tenure = Tenure(6.0)
        self.tenure.watch(["other"], self.now)

    def pass_time(self, seconds: float, *, hears_itself: bool = True, hears_other: bool = True) -> None:
        for _ in range(round(seconds / self.tenure.beat_s)):
            self.now += self.tenure.beat_s
            number = self.tenure.beat(self.now)
            if hears_itself:
                self.tenure.on_own(number, self.now)
            if hears_other:
                self.tenure.on_other("other", self.now)


def test_a_silent_one_is_dead_after_the_timeout() -> None:
    life = Life()
    life.pass_time(3)
    life.pass_time(5.5, hears_other=False)
    assert life.tenure.dead(life.now) == []
    life.pass_time(1, hears_other=False)
    assert life.tenure.dead(life.now) == ["other"]


def test_a_member_whose_beats_do_not_come_back_stops_before_others_bury_it() -> None:
    life = Life()
    life.pass_time(3)
    last = life.now
    life.pass_time(3.5, hears_itself=False)
    assert life.tenure.may_read(life.now)
    life.pass_time(1, hears_itself=False)
    assert not life.tenure.may_read(life.now)
    assert life.now - last < life.tenure.timeout_s


def test_an_outage_of_kubemq_buries_nobody() -> None:
    life = Life()
    life.pass_time(3)
    life.pass_time(60, hears_itself=False, hears_other=False)
    assert life.tenure.dead(life.now) == []
    life.pass_time(5, hears_other=False)  # the link is back; the other one needs a moment
    assert life.tenure.dead(life.now) == []
    life.pass_time(2, hears_other=False)
    assert life.tenure.dead(life.now) == ["other"]


def test_who_was_stopped_notices_at_once_and_waits_until_it_knows_what_happened() -> None:
    life = Life()
    life.pass_time(3)
    number = life.tenure.beat(life.now)
    life.now += 30  # SIGSTOP
    assert not life.tenure.may_read(life.now)
    life.tenure.on_own(number, life.now)  # had been on its way
    assert not life.tenure.may_read(life.now)
    assert life.tenure.dead(life.now) == []
    life.pass_time(1)
    assert life.tenure.has_lapsed
    assert not life.tenure.may_read(life.now)
    life.tenure.resume()
    assert life.tenure.may_read(life.now)


def test_what_was_never_sent_proves_nothing() -> None:
    tenure = Tenure(6.0)
    tenure.on_own(7, 1.0)
    assert not tenure.may_read(1.0)

"""The judge must find each kind of broken promise, and must not cry wolf: ledgers written by hand."""

from __future__ import annotations

import pytest

from tests.support.ledger import Delivery, Disturbance, Ledger, Publish, Session, Settlement
from tools.fault.verdict import DEADLINE_S, LAST_LOOK, LATE, RECOVERY_S, WINDOW_S, Judge, Verdict

DONE, REQUEUED = Settlement.DONE, Settlement.REQUEUED


class Story:
    """A ledger with a clock that moves one millisecond per entry, and short words for what happens."""

    def __init__(self) -> None:
        self.time = 100.0
        self.ledger = Ledger(lambda: self.time)
        self.publisher = self.ledger.open_session("p")
        self.number = 0

    def wait(self, seconds: float = 0.001) -> None:
        self.time += seconds

    def publish(self, *, confirmed: bool = True, queue: str = "q", confirming: bool = True) -> Publish:
        self.number += 1
        self.wait()
        publish = self.ledger.publish(f"m{self.number}", self.publisher, self.number, [queue], confirming=confirming)
        self.wait()
        if confirmed:
            self.ledger.confirm(publish)
        return publish

    def open(self, client: str = "c") -> Session:
        self.wait()
        return self.ledger.open_session(client)

    def deliver(self, publish: Publish, session: Session, *, redelivered: bool = False, tag: str = "t") -> Delivery:
        self.wait()
        queue = publish.queues[0]
        delivery = self.ledger.deliver(queue, publish.message_id, session, tag, redelivered=redelivered)
        assert delivery is not None
        return delivery

    def settle(self, delivery: Delivery, settlement: Settlement = DONE, *, proven: bool = True) -> None:
        self.wait()
        self.ledger.settle(delivery, settlement)
        if proven:
            self.prove(delivery.session)

    def prove(self, session: Session) -> None:
        self.wait()
        self.ledger.prove(session, self.time)

    def end(self, session: Session, reason: str = "left") -> None:
        self.wait()
        self.ledger.end_session(session, reason)

    def fault(self, what: str, kind: str, seconds: float = 0.1, *, is_crash: bool = False) -> Disturbance:
        self.wait()
        fault = self.ledger.disturb(what, kind, is_crash=is_crash)
        self.wait(seconds)
        self.ledger.heal(fault)
        return fault

    def crash(self) -> Disturbance:
        return self.fault("connector", "CONNECTOR_KILL", is_crash=True)

    def judge(self, *, to_tail: bool = True) -> Verdict:
        return Judge(self.ledger, requeues_to_tail=to_tail).judge()


@pytest.fixture
def story() -> Story:
    return Story()


def problems(verdict: Verdict) -> dict[str, int]:
    return {problem: len(texts) for problem, texts in verdict.problems.items()}


def test_a_good_day_is_good(story: Story) -> None:
    session = story.open()
    for _ in range(3):
        story.settle(story.deliver(story.publish(), session))
    story.end(session)
    assert problems(story.judge()) == {}


# ------------------------------------------------------------------ lost
def test_confirmed_and_never_delivered_is_lost(story: Story) -> None:
    story.publish()
    assert problems(story.judge()) == {"lost": 1}


def test_not_confirmed_and_never_delivered_is_not_lost(story: Story) -> None:
    story.publish(confirmed=False)
    assert problems(story.judge()) == {}


def test_delivered_and_unacknowledged_must_come_back(story: Story) -> None:
    session = story.open()
    story.deliver(story.publish(confirmed=False), session)
    story.end(session)
    assert problems(story.judge()) == {"lost": 1}


def test_requeued_must_come_back(story: Story) -> None:
    session = story.open()
    story.settle(story.deliver(story.publish(), session), REQUEUED)
    assert problems(story.judge()) == {"lost": 1}


def test_what_nobody_acknowledges_may_be_lost_with_its_connection(story: Story) -> None:
    story.ledger.auto_ack_queues = {"q"}
    story.publish()
    verdict = story.judge()
    assert problems(verdict) == {}
    assert verdict.counts["auto-ack undelivered"] == 1


def test_one_queue_of_two_is_enough_to_be_lost(story: Story) -> None:
    session = story.open()
    publish = story.ledger.publish("both", story.publisher, 1, ["a", "b"], confirming=True)
    story.ledger.confirm(publish)
    story.settle(story.deliver(publish, session))
    assert story.ledger.owed_count == story.ledger.owed("b") == 1
    assert problems(story.judge()) == {"lost": 1}


# ------------------------------------------------------------------ coming back
def test_unacknowledged_comes_back_flagged(story: Story) -> None:
    publish = story.publish()
    first, second = story.open("c1"), story.open("c2")
    story.deliver(publish, first)
    story.end(first)
    story.settle(story.deliver(publish, second, redelivered=True))
    verdict = story.judge()
    assert problems(verdict) == {}
    assert verdict.counts["came back"] == 1


def test_a_second_time_without_the_flag(story: Story) -> None:
    publish = story.publish()
    first, second = story.open("c1"), story.open("c2")
    story.deliver(publish, first)
    story.end(first)
    story.settle(story.deliver(publish, second))
    assert problems(story.judge()) == {"unflagged": 1}


def test_an_ack_that_may_not_have_arrived_explains_a_return(story: Story) -> None:
    publish = story.publish()
    first, second = story.open("c1"), story.open("c2")
    story.settle(story.deliver(publish, first), proven=False)
    story.end(first)
    story.settle(story.deliver(publish, second, redelivered=True))
    assert problems(story.judge()) == {}


def test_acknowledged_and_back_without_reason(story: Story) -> None:
    publish, session = story.publish(), story.open()
    story.settle(story.deliver(publish, session))
    story.settle(story.deliver(publish, session, redelivered=True))
    assert problems(story.judge()) == {"unexpected": 1}


def test_an_outage_of_the_backend_is_no_reason(story: Story) -> None:
    publish, session = story.publish(), story.open()
    story.settle(story.deliver(publish, session))
    story.fault("backend", "BACKEND_KILL")
    story.settle(story.deliver(publish, session, redelivered=True))
    assert problems(story.judge()) == {"unexpected": 1}


def test_a_crash_just_after_the_ack_is_a_reason(story: Story) -> None:
    publish, session, other = story.publish(), story.open(), story.open("c2")
    story.settle(story.deliver(publish, session))
    story.wait(WINDOW_S / 2)
    story.crash()
    story.end(session, "reset")
    story.settle(story.deliver(publish, other, redelivered=True))
    verdict = story.judge()
    assert problems(verdict) == {}
    assert verdict.counts["doubled"] == 1
    assert verdict.windows == [pytest.approx(WINDOW_S / 2 + 0.001)]


def test_a_crash_long_after_the_ack_is_none(story: Story) -> None:
    publish, session, other = story.publish(), story.open(), story.open("c2")
    story.settle(story.deliver(publish, session))
    story.wait(WINDOW_S * 1.1)
    story.crash()
    story.end(session, "reset")
    story.settle(story.deliver(publish, other, redelivered=True))
    assert problems(story.judge()) == {"unexpected": 1}


def test_time_of_an_outage_does_not_count_as_time_to_flush(story: Story) -> None:
    publish, session, other = story.publish(), story.open(), story.open("c2")
    story.settle(story.deliver(publish, session))
    story.fault("backend", "BACKEND_STALL_UP", 2.0)
    story.wait(RECOVERY_S)
    story.crash()
    story.end(session, "reset")
    story.settle(story.deliver(publish, other, redelivered=True))
    assert problems(story.judge()) == {}


def test_an_orderly_end_flushes(story: Story) -> None:
    publish, session, other = story.publish(), story.open(), story.open("c2")
    story.settle(story.deliver(publish, session))
    story.fault("connector", "CONNECTOR_TERM")
    story.end(session, "320")
    story.settle(story.deliver(publish, other, redelivered=True))
    assert problems(story.judge()) == {"unexpected": 1}


def test_an_orderly_end_without_backend_cannot_flush(story: Story) -> None:
    publish, session, other = story.publish(), story.open(), story.open("c2")
    story.settle(story.deliver(publish, session))
    story.fault("backend", "BACKEND_CUT")
    story.fault("connector", "CONNECTOR_TERM")
    story.end(session, "320")
    story.settle(story.deliver(publish, other, redelivered=True))
    assert problems(story.judge()) == {}


def test_doubled_must_be_flagged_all_the_same(story: Story) -> None:
    publish, session, other = story.publish(), story.open(), story.open("c2")
    story.settle(story.deliver(publish, session))
    story.crash()
    story.end(session, "reset")
    story.settle(story.deliver(publish, other))
    assert problems(story.judge()) == {"unflagged": 1}


def test_a_move_that_a_crash_interrupted_may_leave_two(story: Story) -> None:
    publish, session, other = story.publish(), story.open(), story.open("c2")
    story.settle(story.deliver(publish, session), REQUEUED)
    story.crash()
    story.end(session, "reset")
    story.settle(story.deliver(publish, other, redelivered=True))
    story.wait(WINDOW_S * 5)
    story.settle(story.deliver(publish, other, redelivered=True))
    verdict = story.judge()
    assert problems(verdict) == {}
    assert verdict.counts["doubled by a move"] == 1


def test_but_not_three(story: Story) -> None:
    publish, session, other = story.publish(), story.open(), story.open("c2")
    story.settle(story.deliver(publish, session), REQUEUED)
    story.crash()
    story.end(session, "reset")
    for _ in range(3):
        story.wait(WINDOW_S * 5)
        story.settle(story.deliver(publish, other, redelivered=True))
    assert problems(story.judge()) == {"unexpected": 1}


def test_a_move_without_a_crash_leaves_one(story: Story) -> None:
    publish, session, other = story.publish(), story.open(), story.open("c2")
    story.settle(story.deliver(publish, session), REQUEUED)
    story.settle(story.deliver(publish, other, redelivered=True))
    story.settle(story.deliver(publish, other, redelivered=True))
    assert problems(story.judge()) == {"unexpected": 1}


def test_held_and_delivered_to_another(story: Story) -> None:
    publish, first, second = story.publish(), story.open("c1"), story.open("c2")
    held = story.deliver(publish, first)
    story.settle(story.deliver(publish, second, redelivered=True))
    story.prove(first)
    story.settle(held)
    assert problems(story.judge()) == {"held twice": 1}


@pytest.mark.parametrize(("is_stalled", "found"), [(True, {}), (False, {"unexpected": 1})])
def test_what_comes_late_to_a_client_that_is_leaving(story: Story, is_stalled: bool, found: dict[str, int]) -> None:
    """A stalled link had it: it was sent before the client left, and went to the other one after that."""
    publish, leaver, other = story.publish(), story.open("c1"), story.open("c2")
    story.settle(story.deliver(publish, leaver), REQUEUED)
    stall = story.ledger.disturb("client c1" if is_stalled else "client c3", "CLIENT_STALL_DOWN")
    story.wait()
    story.ledger.leave(leaver)
    story.settle(story.deliver(publish, other, redelivered=True))
    story.ledger.heal(stall)
    story.deliver(publish, leaver, redelivered=True)
    story.end(leaver)
    assert problems(story.judge()) == found


def test_a_killed_connector_may_still_begin_a_move(story: Story) -> None:
    publish, leaver, other = story.publish(), story.open("c1"), story.open("c2")
    story.deliver(publish, leaver)
    crash = story.ledger.disturb("connector", "CONNECTOR_KILL", is_crash=True)
    story.wait()
    story.ledger.leave(leaver)
    story.end(leaver)
    story.wait(1.0)
    story.ledger.heal(crash)
    story.settle(story.deliver(publish, other, redelivered=True))
    story.settle(story.deliver(publish, other, redelivered=True))
    verdict = story.judge()
    assert problems(verdict) == {}
    assert verdict.counts["doubled by a move"] == 1


# ------------------------------------------------------------------ order
def test_first_deliveries_of_one_publisher_ascend(story: Story) -> None:
    session = story.open()
    one, two = story.publish(), story.publish()
    for publish in (two, one):
        story.settle(story.deliver(publish, session))
    assert problems(story.judge()) == {"out of order": 1}


def test_other_consumers_and_redelivered_ones_have_their_own_order(story: Story) -> None:
    session, gone = story.open(), story.open("c2")
    story.settle(story.deliver(story.publish(), gone))
    one, two, three = story.publish(), story.publish(), story.publish()
    story.end(gone)
    story.settle(story.deliver(three, session))
    story.settle(story.deliver(two, session, tag="other"))
    story.settle(story.deliver(one, session, redelivered=True))
    assert problems(story.judge()) == {}


def test_given_back_goes_behind_what_was_confirmed_before(story: Story) -> None:
    session = story.open()
    one, two = story.publish(), story.publish()
    story.settle(story.deliver(one, session), REQUEUED)
    story.settle(story.deliver(one, session, redelivered=True))
    story.settle(story.deliver(two, session))
    assert problems(story.judge()) == {"requeued before the tail": 1}
    assert problems(story.judge(to_tail=False)) == {}


def test_given_back_goes_before_what_was_confirmed_after(story: Story) -> None:
    session = story.open()
    one = story.publish()
    story.settle(story.deliver(one, session), REQUEUED)
    two = story.publish()
    story.settle(story.deliver(one, session, redelivered=True))
    story.settle(story.deliver(two, session))
    assert problems(story.judge()) == {}


def test_a_crash_leaves_it_in_its_old_place(story: Story) -> None:
    session = story.open()
    one, two = story.publish(), story.publish()
    story.settle(story.deliver(one, session), REQUEUED)
    story.crash()
    story.settle(story.deliver(one, session, redelivered=True))
    story.settle(story.deliver(two, session))
    assert problems(story.judge()) == {}


# ------------------------------------------------------------------ sessions, notes
def test_a_client_that_loses_its_connection_for_nothing(story: Story) -> None:
    story.end(story.open(), "connection lost")
    assert problems(story.judge()) == {"disconnected": 1}


@pytest.mark.parametrize("what", ["connector", "client c", "client *"])
def test_a_client_that_loses_its_connection_by_a_fault(story: Story, what: str) -> None:
    session = story.open()
    story.fault(what, "CUT")
    story.end(session, "connection lost")
    assert problems(story.judge()) == {}


@pytest.mark.parametrize("what", ["backend", "client other"])
def test_the_faults_of_others_do_not_disconnect(story: Story, what: str) -> None:
    session = story.open()
    story.fault(what, "CUT")
    story.end(session, "connection lost")
    assert problems(story.judge()) == {"disconnected": 1}


def test_a_stranger_is_unexpected(story: Story) -> None:
    assert story.ledger.deliver("q", "x", story.open(), "t", redelivered=False) is None
    assert problems(story.judge()) == {"unexpected": 1}


def test_a_delivery_that_never_reached_its_client_may_have_been_moving(story: Story) -> None:
    publish, session, other = story.publish(), story.open(), story.open("c2")
    story.settle(story.deliver(story.publish(), session))  # a client of this queue
    story.fault("client c", "CLIENT_HALF_DOWN")
    story.end(session, "connection lost")
    story.crash()
    story.settle(story.deliver(publish, other, redelivered=True))
    story.settle(story.deliver(publish, other, redelivered=True))
    verdict = story.judge()
    assert problems(verdict) == {}
    assert verdict.counts["doubled by a move"] == 1


def test_as_many_may_be_missing_as_a_killed_kubemq_withholds(story: Story) -> None:
    for _ in range(3):
        story.publish()
    verdict = Judge(story.ledger, may_withhold=True, withheld_count=2).judge()
    assert problems(verdict) == {"lost": 1}
    assert verdict.counts["missing, as withheld"] == 2


def test_what_comes_after_the_last_restart_is_left_over(story: Story) -> None:
    story.settle(story.deliver(story.publish(), story.open(LAST_LOOK)))
    assert problems(story.judge()) == {"left over": 1}


def test_flagged_though_it_cannot_have_been_delivered_keeps_its_order(story: Story) -> None:
    session = story.open()
    one, two = story.publish(), story.publish()
    story.settle(story.deliver(two, session, redelivered=True))
    story.settle(story.deliver(one, session, redelivered=True))
    assert problems(story.judge()) == {"out of order": 1}


def test_flagged_as_it_may_have_been_delivered_has_no_order(story: Story) -> None:
    session, other = story.open(), story.open("c2")
    story.settle(story.deliver(story.publish(), other))  # a client of this queue
    one, two = story.publish(), story.publish()
    story.end(other)
    story.settle(story.deliver(two, session, redelivered=True))
    story.settle(story.deliver(one, session, redelivered=True))
    assert problems(story.judge()) == {}


def test_the_pause_after_an_outage_is_measured(story: Story) -> None:
    session = story.open()
    story.settle(story.deliver(story.publish(), session))
    outage = story.fault("backend", "BACKEND_CUT", 1.0)
    story.wait(0.5)
    late = story.publish()
    story.settle(story.deliver(late, session))
    assert outage.ended_at is not None
    assert late.fate_at is not None
    assert story.judge().pauses == [pytest.approx(late.fate_at - outage.ended_at)]


def test_who_asks_in_an_outage_is_refused_at_the_deadline(story: Story) -> None:
    session = story.open()
    story.fault("backend", "BACKEND_KILL", DEADLINE_S)
    story.end(session, f"closed by the server: {LATE}")
    verdict = story.judge()
    assert problems(verdict) == {}
    assert verdict.counts["refused in an outage"] == 1


def test_who_is_refused_without_an_outage_is_disconnected(story: Story) -> None:
    session = story.open()
    story.wait(DEADLINE_S + 1.0)
    story.end(session, f"closed by the server: {LATE}")
    assert problems(story.judge()) == {"disconnected": 1}

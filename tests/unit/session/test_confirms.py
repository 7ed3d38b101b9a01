"""The publish ledger by itself: numbers, results of copies, coalescing, and waiting for the last result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.broker.counters import Counters
from connector.broker.message import Message
from connector.session.confirms import OVERHEAD_BYTES, PublishLedger
from connector.session.marks import Mark, Pause, Reading


class Owner:
    """The channel's part."""

    def __init__(self) -> None:
        self.ready_count = 0
        self.lost: list[str] = []
        self.unrouted: list[tuple[bytes, bool]] = []
        self.unrouted_at = -1

    def on_confirms_ready(self) -> None:
        self.ready_count += 1

    def on_publish_lost(self, reason: str) -> None:
        self.lost.append(reason)

    def on_unrouted(self, message: Message, *, mandatory: bool) -> None:
        self.unrouted.append((message.body, mandatory))
        self.unrouted_at = self.ready_count


class Case:
    def __init__(self, *, confirming: bool) -> None:
        self.owner = Owner()
        self.counters = Counters()
        self.in_flight = Mark(1_000_000, Reading(lambda: None, lambda: None), Pause.IN_FLIGHT)
        self.ledger = PublishLedger(self.owner, self.in_flight, self.counters, confirming=confirming)

    def publish(self, copies: int = 1, size: int = 10) -> int:
        token = self.ledger.begin()
        self.ledger.routed(copies, size)
        return token


@pytest.fixture
def case() -> Case:
    return Case(confirming=True)


def test_numbers_count_from_one(case: Case) -> None:
    assert [case.publish() for _ in range(3)] == [1, 2, 3]
    assert len(case.ledger) == 3


def test_a_stored_publish_is_acked_once(case: Case) -> None:
    token = case.publish()
    assert case.ledger.take_confirms() == []
    case.ledger.on_stored(token)
    assert case.ledger.take_confirms() == [(1, False, True)]
    assert case.ledger.take_confirms() == []
    assert len(case.ledger) == 0


def test_a_refused_publish_is_nacked(case: Case) -> None:
    token = case.publish()
    case.ledger.on_refused(token, "full")
    assert case.ledger.take_confirms() == [(1, False, False)]
    assert case.owner.lost == []
    assert (case.counters.confirmed, case.counters.nacked) == (0, 1)


def test_an_unroutable_publish_is_acked(case: Case) -> None:
    case.publish(copies=0)
    assert case.ledger.take_confirms() == [(1, False, True)]
    assert len(case.ledger) == 0


def test_every_copy_must_be_stored(case: Case) -> None:
    token = case.publish(copies=3)
    case.ledger.on_stored(token)
    case.ledger.on_stored(token)
    assert case.ledger.take_confirms() == []
    case.ledger.on_stored(token)
    assert case.ledger.take_confirms() == [(1, False, True)]


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_one_refused_copy_nacks_the_publish_when_all_results_are_known(case: Case, refused: int) -> None:
    token = case.publish(copies=3)
    for copy in range(3):
        assert case.ledger.take_confirms() == []
        if copy == refused:
            case.ledger.on_refused(token, "full")
        else:
            case.ledger.on_stored(token)
    assert case.ledger.take_confirms() == [(1, False, False)]


def test_results_may_come_before_the_publish_returns(case: Case) -> None:
    first = case.ledger.begin()
    case.ledger.on_stored(first)
    case.ledger.routed(1, 10)
    second = case.ledger.begin()
    case.ledger.on_stored(second)
    case.ledger.on_refused(second, "full")
    case.ledger.routed(2, 10)
    third = case.ledger.begin()
    case.ledger.on_stored(third)
    case.ledger.routed(3, 10)
    assert case.ledger.take_confirms() == [(1, False, True), (2, False, False)]
    case.ledger.on_stored(third)
    case.ledger.on_stored(third)
    assert case.ledger.take_confirms() == [(3, False, True)]
    assert case.in_flight.size == 0


def test_the_owner_is_told_once_until_the_results_are_taken(case: Case) -> None:
    for token in [case.publish() for _ in range(3)]:
        case.ledger.on_stored(token)
    assert case.owner.ready_count == 1
    case.ledger.flush()
    assert case.ledger.take_confirms() == [(3, True, True)]
    case.ledger.on_stored(case.publish())
    assert case.owner.ready_count == 2


def test_multiple_only_below_the_lowest_on_its_way(case: Case) -> None:
    tokens = [case.publish() for _ in range(6)]
    for token in (tokens[0], tokens[1], tokens[3], tokens[4]):
        case.ledger.on_stored(token)
    assert case.ledger.take_confirms() == [(2, True, True), (4, False, True), (5, False, True)]
    case.ledger.on_stored(tokens[2])
    case.ledger.on_stored(tokens[5])
    assert case.ledger.take_confirms() == [(6, True, True)]


def test_runs_of_acks_and_nacks_are_coalesced_each_by_itself(case: Case) -> None:
    tokens = [case.publish() for _ in range(7)]
    for token in (7, 1, 2, 5):
        case.ledger.on_stored(tokens[token - 1])
    for token in (3, 4):
        case.ledger.on_refused(tokens[token - 1], "full")
    assert case.ledger.take_confirms() == [
        (2, True, True),
        (4, True, False),
        (5, False, True),
        (7, False, True),
    ]
    assert (case.counters.confirmed, case.counters.nacked) == (4, 2)


def test_bytes_are_in_flight_from_acceptance_to_result(case: Case) -> None:
    first = case.publish(copies=2, size=100)
    second = case.publish(size=50)
    assert case.in_flight.size == 150 + 2 * OVERHEAD_BYTES
    case.ledger.on_stored(first)
    case.ledger.on_stored(second)
    assert case.in_flight.size == 100 + OVERHEAD_BYTES
    case.ledger.on_stored(first)
    assert case.in_flight.size == 0


def test_without_confirms_nothing_is_gathered() -> None:
    case = Case(confirming=False)
    assert case.ledger.retry
    case.publish(copies=0)
    case.ledger.on_stored(case.publish())
    assert case.ledger.take_confirms() == []
    assert case.owner.ready_count == 0
    assert len(case.ledger) == 0


def test_without_confirms_a_refused_publish_is_reported_at_once() -> None:
    case = Case(confirming=False)
    token = case.publish()
    case.ledger.on_refused(token, "KubeMQ says no")
    assert case.owner.lost == ["KubeMQ says no"]
    assert len(case.ledger) == 0


def test_with_confirms_nothing_is_retried_silently(case: Case) -> None:
    assert not case.ledger.retry


@pytest.mark.parametrize("confirming", [True, False])
def test_settled_is_told_with_the_last_result(confirming: bool) -> None:
    case = Case(confirming=confirming)
    told: list[str] = []
    case.ledger.when_settled(lambda: told.append("at once"))
    assert told == ["at once"]
    tokens = [case.publish(), case.publish(copies=2)]
    case.ledger.when_settled(lambda: told.append("first"))
    case.ledger.when_settled(lambda: told.append("second"))
    case.ledger.on_stored(tokens[1])
    case.ledger.on_stored(tokens[0])
    assert told == ["at once"]
    case.ledger.on_stored(tokens[1])
    assert told == ["at once", "first", "second"]


def test_settled_is_told_after_the_confirm_is_ready(case: Case) -> None:
    seen: list[list[tuple[int, bool, bool]]] = []
    token = case.publish()
    case.ledger.when_settled(lambda: seen.append(case.ledger.take_confirms()))
    case.ledger.on_stored(token)
    assert seen == [[(1, False, True)]]


Step = tuple[str, int, bool]


@given(st.lists(st.tuples(st.sampled_from(["publish", "result", "take"]), st.integers(0, 50), st.booleans())))
def test_every_publish_is_confirmed_exactly_once_whatever_the_order(steps: list[Step]) -> None:
    """A client that reads the frames learns of each publish once, and the right thing."""
    case = Case(confirming=True)
    left: dict[int, int] = {}
    failed: set[int] = set()
    told: dict[int, bool] = {}

    def take() -> None:
        for seqno, multiple, is_ack in case.ledger.take_confirms():
            lowest = min(set(range(1, seqno + 1)) - told.keys()) if multiple else seqno
            for number in range(lowest, seqno + 1):
                if number not in told:
                    told[number] = is_ack

    actions: dict[str, Callable[[int, bool], None]] = {}

    def publish(number: int, early: bool) -> None:
        copies = number % 4
        token = case.ledger.begin()
        if copies and early:
            case.ledger.on_stored(token)
        case.ledger.routed(copies, 1)
        left[token] = copies - (1 if copies and early else 0)

    def result(number: int, stored: bool) -> None:
        waiting = [token for token, copies in left.items() if copies]
        if waiting:
            token = waiting[number % len(waiting)]
            left[token] -= 1
            if stored:
                case.ledger.on_stored(token)
            else:
                failed.add(token)
                case.ledger.on_refused(token, "no")

    actions = {"publish": publish, "result": result, "take": lambda _number, _flag: take()}
    for action, number, flag in steps:
        actions[action](number, flag)
    take()
    assert told == {token: token not in failed for token, copies in left.items() if not copies}
    assert len(case.ledger) == sum(1 for copies in left.values() if copies)


# ---------------------------------------------------------------------------- readers that may be gone
def _doubtful(case: Case, doubts: int, copies: int, *, mandatory: bool = True) -> tuple[int, bool]:
    token = case.ledger.begin()
    for _ in range(doubts):
        case.ledger.on_doubt(token)
    is_certain = case.ledger.is_certain(copies, mandatory=mandatory)
    case.ledger.routed(copies, 10)
    return token, is_certain


@pytest.mark.parametrize("mandatory", [True, False])
def test_what_had_no_route_after_all_is_told_before_its_confirm(case: Case, mandatory: bool) -> None:
    token, is_certain = _doubtful(case, 1, 1, mandatory=mandatory)
    assert not is_certain
    case.ledger.on_unrouted(token, Message("", "k", b"", b"m"))
    assert (case.owner.unrouted, case.owner.unrouted_at) == ([(b"m", mandatory)], 0)
    assert case.ledger.take_confirms() == [(1, False, True)]
    assert (case.counters.routed, case.ledger.doubts) == (0, {})


def test_what_found_its_reader_counts_as_routed_then(case: Case) -> None:
    token, _ = _doubtful(case, 1, 1)
    assert case.counters.routed == 0
    case.ledger.on_stored(token)
    assert (case.counters.routed, case.owner.unrouted, case.ledger.doubts) == (1, [], {})


def test_a_copy_that_has_a_route_for_certain_is_enough(case: Case) -> None:
    token, is_certain = _doubtful(case, 1, 2)
    assert is_certain
    case.ledger.on_unrouted(token, Message("", "k", b"", b"m"))
    case.ledger.on_stored(token)
    assert (case.owner.unrouted, case.ledger.take_confirms(), case.ledger.doubts) == ([], [(1, False, True)], {})


@pytest.mark.parametrize("unrouted", [0, 1, 2])
def test_of_several_that_may_be_gone_one_is_enough(case: Case, unrouted: int) -> None:
    token, is_certain = _doubtful(case, 2, 2)
    assert not is_certain
    for number in range(2):
        if number < unrouted:
            case.ledger.on_unrouted(token, Message("", "k", b"", b"m"))
        else:
            case.ledger.on_stored(token)
    assert case.owner.unrouted == ([(b"m", True)] if unrouted == 2 else [])
    assert (case.counters.routed, case.ledger.doubts) == (int(unrouted < 2), {})
    assert case.ledger.take_confirms() == [(1, False, True)]


def test_what_is_refused_at_once_leaves_no_doubt(case: Case) -> None:
    token = case.ledger.begin()
    case.ledger.on_doubt(token)
    case.ledger.on_refused(token, "full")
    assert case.ledger.is_certain(1, mandatory=True)
    case.ledger.routed(1, 10)
    assert (case.counters.routed, case.ledger.doubts) == (0, {})
    assert case.ledger.take_confirms() == [(1, False, False)]

"""Who waits until everybody knows, and calls that end with their peer."""

from __future__ import annotations

from connector.broker.peers import Peers


def peers_of_a() -> Peers:
    peers = Peers(lambda: 0.0, lambda: None)
    peers.update("a", ["b", "c"])
    return peers


def test_an_event_is_known_when_all_have_applied_it_in_whatever_order_that_is_heard() -> None:
    peers = peers_of_a()
    known: list[int] = []
    peers.when_applied(5, lambda: known.append(5))
    peers.on_applied("b", 9)
    assert known == []
    peers.on_applied("c", 6)
    assert known == [5]
    peers.when_applied(6, lambda: known.append(6))  # the others were faster than we
    assert known == [5, 6]
    peers.when_applied(7, lambda: known.append(7))
    peers.when_applied(8, lambda: known.append(8))
    peers.update("a", ["b"])
    assert known == [5, 6, 7, 8]


def test_what_is_known_answers_in_order_also_when_an_answer_asks_again() -> None:
    peers = peers_of_a()
    known: list[int] = []

    def first() -> None:
        known.append(1)
        peers.when_applied(3, lambda: known.append(3))

    peers.when_applied(1, first)
    peers.when_applied(2, lambda: known.append(2))
    for member in ("b", "c"):
        peers.on_applied(member, 3)
    assert known == [1, 2, 3]


def test_calls_end_when_the_peer_is_gone() -> None:
    peers = peers_of_a()
    answers: list[object] = []
    peers.call("b", {"t": "x"}, answers.append)
    peers.call_all({"t": "y"}, answers.append)
    peers.update("a", ["c"])
    assert answers == [None]
    peers.update("a", [])
    assert answers == [None, []]
    peers.call("b", {"t": "x"}, answers.append)
    assert answers == [None, [], None]


def test_another_life_has_new_links() -> None:
    peers = peers_of_a()
    peers.tell("b", {"t": "x"})
    assert len(peers.next_frames()) == 1
    fresh, gone = peers.update("a-2", ["b", "c"])
    assert (fresh, gone) == (["b", "c"], ["b", "c"])
    assert peers.next_frames() == []


def test_somebody_who_fails_keeps_nobody_else_waiting() -> None:
    bugs: list[Exception] = []
    told: list[str] = []
    peers = Peers(lambda: 0.0, lambda: None)
    peers.on_bug = bugs.append
    peers.update("me-1", ["a-1"])

    def fail(*_arguments: object) -> None:
        raise ValueError("mine")

    peers.when_applied(1, fail)
    peers.when_applied(1, lambda: told.append("applied"))
    peers.call("a-1", {"t": "x"}, fail)
    peers.call("a-1", {"t": "x"}, lambda _facts: told.append("called"))
    assert peers.update("me-1", []) == ([], ["a-1"])
    assert sorted(told) == ["applied", "called"]
    assert len(bugs) == 2

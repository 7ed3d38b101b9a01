"""Who knows the copies of what clients hold, when these are copied once more before they were read."""

from __future__ import annotations

from connector.broker.adoption import Adopted
from connector.broker.message import Message


def message(message_id: str) -> Message:
    return Message("", "q", b"", b"", message_id)


def test_what_was_copied_again_is_passed_on_and_nothing_else() -> None:
    first, second = Adopted(), Adopted()
    for message_id in "abc":
        first.held[message_id] = message(message_id)
    first.moving["d"] = message("d")
    first.settled.update("ef")
    first.pass_on({"a", "d", "e", "x"}, second)
    assert (set(second.held), set(second.moving), second.settled) == ({"a"}, {"d"}, {"e"})
    assert (set(first.held), set(first.moving), first.settled) == ({"b", "c"}, set(), {"f"})
    assert second.is_held("a")
    assert second.is_held("d")
    assert not second.is_held("e")

"""When reading pauses and goes on."""

from __future__ import annotations

from connector.session.marks import Mark, Pause, Reading


class Switch:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.reading = Reading(lambda: self.calls.append("pause"), lambda: self.calls.append("resume"))


def test_the_first_reason_pauses_and_the_last_one_resumes() -> None:
    switch = Switch()
    switch.reading.pause(Pause.BLOCKED)
    switch.reading.pause(Pause.IN_FLIGHT)
    switch.reading.resume(Pause.BLOCKED)
    assert switch.calls == ["pause"]
    switch.reading.resume(Pause.IN_FLIGHT)
    assert switch.calls == ["pause", "resume"]
    assert not switch.reading.reasons


def test_a_reason_that_was_not_there_changes_nothing() -> None:
    switch = Switch()
    switch.reading.resume(Pause.UNREAD)
    assert switch.calls == []
    switch.reading.pause(Pause.UNREAD)
    switch.reading.pause(Pause.UNREAD)
    switch.reading.resume(Pause.QUEUED)
    assert switch.calls == ["pause"]


def test_a_mark_pauses_above_high_and_resumes_at_half() -> None:
    switch = Switch()
    mark = Mark(100, switch.reading, Pause.IN_FLIGHT)
    mark.add(100)
    assert switch.calls == []
    mark.add(1)
    mark.add(50)
    assert switch.calls == ["pause"]
    mark.remove(100)
    assert switch.calls == ["pause"]
    mark.remove(1)
    assert switch.calls == ["pause", "resume"]
    mark.remove(50)
    assert mark.size == 0
    assert switch.calls == ["pause", "resume"]


def test_a_released_switch_is_on_for_good() -> None:
    switch = Switch()
    switch.reading.pause(Pause.BLOCKED)
    switch.reading.release()
    assert switch.calls == ["pause", "resume"]
    switch.reading.pause(Pause.IN_FLIGHT)
    switch.reading.resume(Pause.BLOCKED)
    switch.reading.resume(Pause.IN_FLIGHT)
    assert switch.calls == ["pause", "resume"]


def test_releasing_a_switch_that_is_on_changes_nothing() -> None:
    switch = Switch()
    switch.reading.release()
    switch.reading.pause(Pause.UNREAD)
    assert switch.calls == []

"""When a heartbeat is due, and when a peer is dead."""

from __future__ import annotations

from connector.session.heartbeat import Heartbeat, Verdict


def looks(heartbeat: Heartbeat, times: list[float], *, was_read: bool = True, was_written: bool = False) -> list[float]:
    """The times at which something is to be sent, as if it were."""
    due, written = [], was_written
    for now in times:
        verdict = heartbeat.look(now, was_read=was_read, was_written=written)
        assert verdict is not Verdict.DEAD
        written = was_written or verdict is Verdict.SEND
        if verdict is Verdict.SEND:
            due.append(now)
    return due


def quarters(seconds: int) -> list[float]:
    return [number / 4 for number in range(1, 4 * seconds + 1)]


def test_one_is_due_every_half_interval() -> None:
    heartbeat = Heartbeat(0.0)
    heartbeat.interval_s = 4
    assert looks(heartbeat, quarters(10)) == [2.0, 4.0, 6.0, 8.0, 10.0]


def test_none_is_due_while_other_things_are_written() -> None:
    heartbeat = Heartbeat(0.0)
    heartbeat.interval_s = 4
    assert looks(heartbeat, quarters(10), was_written=True) == []


def test_none_is_due_without_an_interval() -> None:
    heartbeat = Heartbeat(0.0)
    assert looks(heartbeat, quarters(10), was_read=False) == []


def test_a_peer_is_dead_after_two_silent_intervals() -> None:
    heartbeat = Heartbeat(0.0)
    heartbeat.interval_s = 1
    assert heartbeat.look(1.0, was_read=True, was_written=True) is not Verdict.DEAD
    assert heartbeat.look(3.0, was_read=False, was_written=True) is not Verdict.DEAD
    assert heartbeat.look(3.25, was_read=False, was_written=True) is Verdict.DEAD

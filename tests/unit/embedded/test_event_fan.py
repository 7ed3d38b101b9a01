"""Patterns, groups and slow listeners of transient events."""

from __future__ import annotations

import pytest
from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded import event_fan
from connector.embedded.event_fan import EventFan, Listener


@pytest.mark.parametrize(
    ("pattern", "channel", "covered"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a", False),
        ("a", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("*.b", "a.b", True),
        ("*.b", "a.c", False),
        ("a.*.c", "a.b.c", True),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c.d", True),
        ("a.>", "a", False),
        (">", "a.b", True),
        ("*", "a", True),
        ("*", "a.b", False),
    ],
)
def test_patterns(pattern: str, channel: str, covered: bool) -> None:
    assert Listener(pattern, "").matches(channel.split(".")) is covered


def waiting(listener: Listener) -> list[str]:
    return [pb.EventReceive.FromString(data).EventID for data in listener._events]


def event(channel: str, name: str) -> pb.Event:
    return pb.Event(EventID=name, ClientID="c", Channel=channel, Body=b"x")


def test_a_group_takes_turns_and_others_get_everything() -> None:
    fan = EventFan()
    one, other, alone = fan.listen("a", "g"), fan.listen("a", "g"), fan.listen("a", "")
    apart = fan.listen("*", "g")
    for name in "1234":
        fan.publish(event("a", name))
    assert (waiting(one), waiting(other)) == (["1", "3"], ["2", "4"])
    assert waiting(alone) == waiting(apart) == ["1", "2", "3", "4"]


def test_who_left_gets_nothing_and_leaves_nothing_behind() -> None:
    fan = EventFan()
    listeners = [fan.listen("a", "g"), fan.listen("a", ""), fan.listen("a.*", ""), fan.listen(">", "g")]
    fan.publish(event("a", "1"))
    for listener in listeners:
        fan.leave(listener)
    fan.publish(event("a", "2"))
    assert [waiting(listener) for listener in listeners] == [["1"], ["1"], [], ["1"]]
    assert not fan._exact
    assert not fan._patterns
    assert not fan._turns


def test_a_slow_listener_misses_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_fan, "_MAX_BEHIND_COUNT", 2)
    fan = EventFan()
    slow = fan.listen("a", "")
    for name in "123":
        fan.publish(event("a", name))
    assert (waiting(slow), slow.missed_count) == (["1", "2"], 1)


async def test_events_are_waited_for() -> None:
    fan = EventFan()
    listener = fan.listen("a", "")
    fan.publish(event("a", "1"))
    assert pb.EventReceive.FromString(await listener.get()).EventID == "1"
    assert not listener._bytes

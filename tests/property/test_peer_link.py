"""Links between connectors: whatever becomes of the frames, messages arrive once and in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.broker import peer_link
from connector.broker.peer_link import PeerLink, read_frame, read_message, write_message

STEPS = st.lists(
    st.tuples(st.sampled_from(["send a", "send b", "lose", "deliver", "double", "swap", "wait"]), st.integers(0, 3)),
    max_size=60,
)


class Wire:
    """Two ends and the frames between them, which the test may lose, double and swap."""

    def __init__(self) -> None:
        self.now = 0.0
        self.received: dict[str, list[bytes]] = {"a": [], "b": []}
        self.ends = {
            me: PeerLink(me, peer, self.received[me].append, lambda: None) for me, peer in (("a", "b"), ("b", "a"))
        }
        self.frames: list[tuple[str, bytes]] = []

    def collect(self) -> None:
        for me, peer in (("a", "b"), ("b", "a")):
            while (frame := self.ends[me].next_frame(self.now)) is not None:
                self.frames.append((peer, frame))

    def deliver(self, index: int) -> None:
        to, frame = self.frames.pop(index % len(self.frames))
        head, rest = read_frame(frame)
        assert head["to"] == to
        self.ends[to].on_frame(head, rest, self.now)


@given(STEPS)
def test_messages_arrive_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    wire = Wire()
    sent: dict[str, list[bytes]] = {"a": [], "b": []}
    for step, index in steps:
        if step.startswith("send"):
            me, peer = step[-1], "ab".replace(step[-1], "")
            message = b"%d" % len(sent[me])
            sent[me].append(message)
            wire.ends[me].send(message)
            wire.collect()
            assert wire.received[peer] == sent[me][: len(wire.received[peer])]
        elif step == "wait":
            wire.now += 0.3
            wire.collect()
        elif wire.frames:
            if step == "lose":
                del wire.frames[index % len(wire.frames)]
            elif step == "double":
                wire.frames.append(wire.frames[index % len(wire.frames)])
            else:
                wire.deliver(index if step == "swap" else 0)
                wire.collect()
    for _ in range(200):
        wire.now += 1.1
        wire.collect()
        while wire.frames:
            wire.deliver(0)
    assert wire.received == {"a": sent["b"], "b": sent["a"]}
    assert not wire.ends["a"].unacked_count
    assert not wire.ends["b"].unacked_count


def test_what_is_under_way_is_bounded() -> None:
    wire = Wire()
    large = bytes(peer_link.FRAME_BYTES)
    for _ in range(20):
        wire.ends["a"].send(large)
    wire.collect()
    assert len(wire.frames) == peer_link.WINDOW_BYTES // peer_link.FRAME_BYTES
    assert wire.ends["a"].unacked_count == 20
    while wire.frames:
        wire.deliver(0)
        wire.collect()
    assert wire.received["b"] == [large] * 20


@given(st.dictionaries(st.text(), st.integers()), st.lists(st.binary()))
def test_a_message_is_read_as_it_was_written(facts: dict[str, int], blobs: list[bytes]) -> None:
    facts.pop("sizes", None)
    assert read_message(write_message(facts, *blobs)) == (facts, blobs)

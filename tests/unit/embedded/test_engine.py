"""The queue group in memory: who gets what, what comes back, and that nothing is ever lost or held twice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from connector.embedded.cache import RecordCache
from connector.embedded.engine import Engine, Member, QueueChannel
from connector.embedded.quirks import OFF, ON, Quirks
from connector.embedded.records import Record


class World:
    """An engine with one queue, a storage that remembers and a clock that is moved by hand."""

    def __init__(self, quirks: Quirks) -> None:
        self.forgotten: list[int] = []
        self.marked = 0
        self.timers: list[Callable[[], object]] = []
        cache = RecordCache(10_000_000)
        self.engine = Engine(self, quirks, self.schedule, cache)
        self.queue = QueueChannel("q", 7, cache)
        self.engine.add(self.queue)
        self.shown: dict[Member, list[int]] = {}

    def forget(self, channel_id: int, sequences: Collection[int]) -> None:
        assert channel_id == 7
        self.forgotten += sequences

    def mark(self, channel_id: int, sequence: int) -> None:
        assert channel_id == 7
        assert sequence > self.marked
        self.marked = sequence

    def schedule(self, delay_s: float, call: Callable[[], object]) -> None:
        assert delay_s == pytest.approx(0.1)
        self.timers.append(call)

    def publish(self, count: int) -> None:
        self.engine.stored(self.queue, self.queue.last_sequence + 1, [Record(b"x", 1) for _ in range(count)])

    def join(self, max_items: int) -> Member:
        shown: list[int] = []
        member = self.engine.join(self.queue, max_items, shown.extend)
        self.shown[member] = shown
        return member

    def run_timers(self) -> None:
        timers, self.timers = self.timers, []
        for call in timers:
            call()


@pytest.fixture(params=[ON, OFF], ids=["quirks on", "quirks off"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


@pytest.fixture
def odd() -> World:
    return World(ON)


@pytest.fixture
def plain() -> World:
    return World(OFF)


# ---- with and without quirks


def test_a_member_gets_what_it_has_room_for_in_order(world: World) -> None:
    world.publish(5)
    member = world.join(3)
    assert world.shown[member] == [1, 2, 3]
    assert (world.marked, world.queue.waiting(), world.queue.subscribers()) == (3, 5, 1)


def test_a_waiting_member_gets_what_is_published(world: World) -> None:
    member = world.join(1)
    world.publish(2)
    assert world.shown[member] == [1]


def test_what_is_settled_is_forgotten_by_the_storage_and_the_cache(world: World) -> None:
    world.publish(3)
    member = world.join(3)
    assert all(world.engine.records(world.queue, [1, 2, 3]))
    world.engine.settle(member, [1, 3])
    assert world.forgotten == [1, 3]
    assert list(member.pending) == [2]
    assert world.engine.records(world.queue, [1, 3]) == [None, None]
    assert world.queue.waiting() == 1


def test_what_is_settled_with_a_copy_is_not_forgotten_twice(world: World) -> None:
    world.publish(2)
    member = world.join(2)
    world.engine.settle(member, [1, 2], forget=False)
    assert not world.forgotten
    assert not member.pending


def test_a_refused_copy_gives_its_originals_back_in_place(world: World) -> None:
    world.publish(4)
    member = world.join(3)
    world.engine.settle(member, [2], forget=False)
    world.engine.leave(member)
    world.engine.give_back(world.queue, [2])
    assert world.shown[world.join(4)] == [1, 2, 3, 4]


def test_what_a_member_leaves_comes_first_and_in_order(world: World) -> None:
    world.publish(6)
    member = world.join(4)
    world.engine.settle(member, [2])
    world.engine.leave(member)
    assert world.shown[world.join(5)] == [1, 3, 4, 5, 6]


def test_a_queue_that_nobody_read_has_no_subscriber(world: World) -> None:
    world.publish(2)
    assert (world.queue.subscribers(), world.queue.delivered(), world.queue.waiting()) == (0, 0, 2)
    world.engine.leave(world.join(1))
    assert (world.queue.subscribers(), world.queue.delivered()) == (1, 1)


def test_delivered_tells_the_highest_sequence_ever_handed_out(world: World) -> None:
    world.publish(9)
    first, second = world.join(3), world.join(3)
    world.engine.settle(second, list(second.pending))
    world.engine.leave(second)
    world.engine.leave(first)
    assert world.queue.delivered() == world.queue.last_sent >= 6


def test_a_removed_queue_loses_its_mark(world: World) -> None:
    world.publish(1)
    world.engine.leave(world.join(1))
    world.marked = -1
    world.engine.remove(world.queue)
    assert world.marked == 0
    assert not world.engine.channels


# ---- each quirk, and its absence


def test_parks_later_messages_vanish_into_an_open_member(odd: World) -> None:
    odd.publish(2)
    short = odd.join(5)
    odd.publish(2)
    assert list(short.pending) == [1, 2, 3, 4]
    assert odd.shown[odd.join(5)] == []


def test_without_parking_a_member_takes_no_more(plain: World) -> None:
    plain.publish(2)
    short = plain.join(5)
    plain.publish(2)
    assert list(short.pending) == [1, 2]
    assert plain.shown[plain.join(5)] == [3, 4]


def test_parks_an_acknowledgement_pulls_one_in(odd: World) -> None:
    odd.publish(10)
    member = odd.join(5)
    odd.engine.settle(member, [1, 2, 3])
    assert list(member.pending) == [4, 5, 6, 7, 8]


def test_without_parking_an_acknowledgement_pulls_nothing(plain: World) -> None:
    plain.publish(10)
    member = plain.join(5)
    plain.engine.settle(member, [1, 2, 3])
    assert list(member.pending) == [4, 5]
    assert plain.queue.last_sent == 5


def test_returns_all_to_the_first_member_whatever_its_room(odd: World) -> None:
    odd.publish(10)
    odd.engine.leave(odd.join(8))
    member = odd.join(3)
    assert list(member.pending) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert odd.shown[odd.join(3)] == [9, 10]


def test_without_it_the_rest_is_for_the_next(plain: World) -> None:
    plain.publish(10)
    plain.engine.leave(plain.join(8))
    assert plain.shown[plain.join(3)] == [1, 2, 3]
    assert plain.shown[plain.join(6)] == [4, 5, 6, 7, 8, 9]


def test_hand_over_to_the_others_who_are_told_later(odd: World) -> None:
    odd.publish(2)
    closing, waiting = odd.join(2), odd.join(2)
    odd.engine.leave(closing)
    assert odd.shown[waiting] == []
    assert list(waiting.pending) == [1, 2]
    odd.run_timers()
    assert odd.shown[waiting] == [1, 2]


def test_hand_over_prefers_whoever_has_room(odd: World) -> None:
    odd.publish(6)
    closing, full = odd.join(3), odd.join(3)
    odd.engine.leave(closing)
    waiting = odd.join(3)
    odd.run_timers()
    assert odd.shown[waiting] == [1, 2, 3]
    assert sorted(full.pending) == [4, 5, 6]


def test_hand_over_to_a_full_member_withholds(odd: World) -> None:
    odd.publish(6)
    closing, full = odd.join(3), odd.join(3)
    odd.engine.leave(closing)
    odd.run_timers()
    assert sorted(full.pending) == [1, 2, 3, 4, 5, 6]
    assert odd.queue.waiting() == 6


def test_hand_over_to_one_who_leaves_meanwhile(odd: World) -> None:
    odd.publish(2)
    closing, heir = odd.join(2), odd.join(2)
    odd.engine.leave(closing)
    odd.engine.leave(heir)
    odd.run_timers()
    assert odd.shown[odd.join(2)] == [1, 2]


def test_without_hand_over_the_next_in_line_gets_it_at_once(plain: World) -> None:
    plain.publish(2)
    closing, waiting = plain.join(2), plain.join(2)
    plain.engine.leave(closing)
    assert plain.shown[waiting] == [1, 2]
    assert not plain.timers


def test_several_members_share_by_what_they_hold(odd: World) -> None:
    one, other = odd.join(3), odd.join(3)
    odd.publish(4)
    assert sorted((len(one.pending), len(other.pending))) == [2, 2]


# ---- the model


class QueueModel(RuleBasedStateMachine):
    """Any sequence of publishes, joins, settlements and leavings, with quirks or without."""

    quirks = ON

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.quirks)
        self.settled: set[int] = set()

    @property
    def members(self) -> list[Member]:
        return self.world.queue.members

    @rule(count=st.integers(1, 7))
    def publish(self, count: int) -> None:
        self.world.publish(count)

    @rule(max_items=st.integers(1, 6))
    def join(self, max_items: int) -> None:
        self.world.join(max_items)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        shown = [each for each in dict.fromkeys(self.world.shown[member]) if each in member.pending]
        some = data.draw(st.lists(st.sampled_from(shown), unique=True)) if shown else []
        self.world.engine.settle(member, some)
        self.settled.update(some)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.world.engine.leave(data.draw(st.sampled_from(self.members)))

    @rule()
    def time_passes(self) -> None:
        self.world.run_timers()

    @invariant()
    def everything_is_somewhere_once(self) -> None:
        queue = self.world.queue
        held = [sequence for member in self.members for sequence in member.pending]
        fresh = list(range(queue.last_sent + 1, queue.last_sequence + 1))
        assert sorted([*queue.returned, *held, *fresh]) == [
            sequence for sequence in range(1, queue.last_sequence + 1) if sequence not in self.settled
        ]
        assert queue.returned == sorted(queue.returned)
        assert queue.waiting() == queue.last_sequence - len(self.settled)

    @invariant()
    def storage_knows(self) -> None:
        assert sorted(self.world.forgotten) == sorted(self.settled)
        assert self.world.marked == self.world.queue.last_sent

    @invariant()
    def nobody_waits_beside_ready_messages(self) -> None:
        queue = self.world.queue
        if queue.returned or queue.last_sent < queue.last_sequence:
            assert not any(member.room() > 0 for member in self.members)


class PlainQueueModel(QueueModel):
    """Without quirks a member is shown exactly what it holds, once and never more than it asked for."""

    quirks = OFF

    @invariant()
    def members_hold_what_they_were_shown(self) -> None:
        for member in self.members:
            shown = self.world.shown[member]
            assert len(shown) <= member.max_items
            assert shown == sorted(set(shown))
            assert [each for each in shown if each not in self.settled] == list(member.pending)


TestQueueModel = QueueModel.TestCase
TestPlainQueueModel = PlainQueueModel.TestCase


def test_on_messages_gets_sequences_not_copies(world: World) -> None:
    batches: list[Sequence[int]] = []
    world.publish(1000)
    world.engine.join(world.queue, 1000, batches.append)
    assert batches == [range(1, 1001)]

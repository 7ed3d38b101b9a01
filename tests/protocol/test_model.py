"""Two channels on one queue against a model: every message has exactly one fate (CO-07, CO-10, CO-13 to CO-19)."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pamqp import commands

from tests.support.dialogue import Content, Dialogue, connect
from tests.support.world import World

CHANNELS = st.sampled_from((1, 2))
PICK = st.integers(0, 20)


class Settling(RuleBasedStateMachine):
    """The model: what is ready, what each channel holds by tag, and what was delivered before."""

    queue_fields: ClassVar[dict[str, object]]
    requeues_in_place: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World(requeues_in_place=self.requeues_in_place)
        self.client: Dialogue = connect(self.world, channels=(1, 2, 3))
        self.client.declare("q", 3, **self.queue_fields)
        self.client.call(3, commands.Confirm.Select)
        self.published = 0
        self.ready: set[int] = set()
        self.seen: set[int] = set()
        self.held: dict[int, dict[int, int]] = {1: {}, 2: {}}
        self.last_tag = {1: 0, 2: 0}
        self.limits: dict[tuple[int, str], int] = {}
        self.shared = {1: 0, 2: 0}
        self.holders: dict[tuple[int, int], str] = {}  # (channel, tag) -> consumer tag
        self.consumer_count = 0

    def teardown(self) -> None:
        """When the channels are closed, whatever is not settled is there once, and nothing else."""
        for channel_no in (1, 2):
            self.client.connection.feed(self.client.encode(channel_no, commands.Channel.Close, reply_code=200))
        self.world.advance(0.25)
        self.client.received()
        left = []
        while (content := self.client.get("q", 3, no_ack=True)) is not None:
            left.append(int(content.body))
            self.world.advance(0.25)
        held = [number for tags in self.held.values() for number in tags.values()]
        assert sorted(left) == sorted([*self.ready, *held])

    def take(self) -> None:
        """Read what was delivered since."""
        self.world.advance(0.25)
        for channel_no, item in self.client.received():
            if isinstance(item, commands.Basic.Ack):
                continue
            assert isinstance(item, Content), item
            assert isinstance(item.method, commands.Basic.Deliver)
            self.take_one(channel_no, item.method.consumer_tag or "", item)

    def take_one(self, channel_no: int, holder: str, item: Any) -> None:
        number, tag = int(item.body), item.method.delivery_tag
        assert tag == self.last_tag[channel_no] + 1
        self.last_tag[channel_no] = tag
        assert number in self.ready, "delivered although it was not ready"
        if self.requeues_in_place:
            assert number == min(self.ready), "out of place"
        assert item.method.redelivered == (number in self.seen)
        if holder and self.shared[channel_no]:
            assert self.used(channel_no) < self.shared[channel_no], "delivered beyond the channel's limit"
        self.ready.remove(number)
        self.seen.add(number)
        self.held[channel_no][tag] = number
        self.holders[channel_no, tag] = holder

    def used(self, channel_no: int) -> int:
        """What the consumers of a channel hold, gone ones too."""
        return sum(bool(self.holders[channel_no, tag]) for tag in self.held[channel_no])

    def settle(self, channel_no: int, tags: list[int], *, back: bool) -> None:
        for tag in tags:
            number = self.held[channel_no].pop(tag)
            if back:
                self.ready.add(number)

    # ------------------------------------------------------------------ what clients do

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.published += 1
            self.ready.add(self.published)
            self.client.publish(3, "q", b"%d" % self.published)
        self.take()

    @rule(channel_no=CHANNELS)
    def get(self, channel_no: int) -> None:
        self.client.send(channel_no, commands.Basic.Get, queue="q")
        self.world.advance(0.25)
        items = [(number, item) for number, item in self.client.received() if number != 3]
        (answer,) = [
            item
            for _, item in items
            if isinstance(item, commands.Basic.GetEmpty)
            or (isinstance(item, Content) and isinstance(item.method, commands.Basic.GetOk))
        ]
        for number, item in items:
            if isinstance(item, Content):
                self.take_one(number, getattr(item.method, "consumer_tag", ""), item)
        if answer in [item for _, item in items] and not isinstance(answer, Content):
            assert not self.ready

    @rule(channel_no=CHANNELS, limit=st.integers(1, 3))
    def consume(self, channel_no: int, limit: int) -> None:
        self.consumer_count += 1
        tag = f"c{self.consumer_count}"
        self.client.call(channel_no, commands.Basic.Qos, prefetch_count=limit)
        self.limits[channel_no, tag] = limit
        self.client.consume("q", tag, channel_no)
        self.take()

    @rule(channel_no=CHANNELS, limit=st.integers(0, 5))
    def share(self, channel_no: int, limit: int) -> None:
        self.client.call(channel_no, commands.Basic.Qos, prefetch_count=limit, global_=True)
        self.shared[channel_no] = limit
        self.take()

    @rule(channel_no=CHANNELS, pick=PICK)
    def cancel(self, channel_no: int, pick: int) -> None:
        tags = [tag for number, tag in self.limits if number == channel_no]
        if tags:
            tag = tags[pick % len(tags)]
            self.client.send(channel_no, commands.Basic.Cancel, consumer_tag=tag)
            self.client.expect(channel_no, commands.Basic.CancelOk, consumer_tag=tag)
            del self.limits[channel_no, tag]
            self.take()

    @rule(channel_no=CHANNELS, pick=PICK, multiple=st.booleans(), requeue=st.sampled_from((None, True, False)))
    def settle_some(self, channel_no: int, pick: int, multiple: bool, requeue: bool | None) -> None:
        tags = sorted(self.held[channel_no])
        if not tags:
            return
        tag = tags[pick % len(tags)]
        if requeue is None:
            self.client.connection.feed(
                self.client.encode(channel_no, commands.Basic.Ack, delivery_tag=tag, multiple=multiple)
            )
        else:
            fields = {"delivery_tag": tag, "multiple": multiple, "requeue": requeue}
            self.client.connection.feed(self.client.encode(channel_no, commands.Basic.Nack, **fields))
        chosen = [known for known in tags if known <= tag] if multiple else [tag]
        self.settle(channel_no, chosen, back=requeue is True)
        self.world.settle()
        self.take()

    @rule(channel_no=CHANNELS)
    def recover(self, channel_no: int) -> None:
        self.client.connection.feed(self.client.encode(channel_no, commands.Basic.RecoverAsync, requeue=True))
        self.settle(channel_no, sorted(self.held[channel_no]), back=True)
        self.world.settle()
        self.take()

    @rule(channel_no=CHANNELS, wrong=st.booleans())
    def close(self, channel_no: int, wrong: bool) -> None:
        """By the client, or by a wrong tag."""
        if wrong:
            self.client.connection.feed(
                self.client.encode(channel_no, commands.Basic.Ack, delivery_tag=self.last_tag[channel_no] + 1)
            )
        else:
            self.client.connection.feed(self.client.encode(channel_no, commands.Channel.Close, reply_code=200))
        self.settle(channel_no, sorted(self.held[channel_no]), back=True)
        self.limits = {key: limit for key, limit in self.limits.items() if key[0] != channel_no}
        self.world.settle()
        if wrong:
            self.client.expect(channel_no, commands.Channel.Close, reply_code=406)
            self.client.connection.feed(self.client.encode(channel_no, commands.Channel.CloseOk))
        else:
            self.client.expect(channel_no, commands.Channel.CloseOk)
        self.last_tag[channel_no] = 0
        self.shared[channel_no] = 0
        self.take()
        self.client.call(channel_no, commands.Channel.Open)

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def prefetch_is_strict(self) -> None:
        for (channel_no, tag), limit in self.limits.items():
            used = sum(self.holders[channel_no, known] == tag for known in self.held[channel_no])
            assert used <= limit

    @invariant()
    def nothing_waits_while_somebody_has_room(self) -> None:
        room = {1: 0, 2: 0}
        for (channel_no, tag), limit in self.limits.items():
            room[channel_no] += limit - sum(self.holders[channel_no, known] == tag for known in self.held[channel_no])
        for channel_no, limit in self.shared.items():
            if limit:
                room[channel_no] = min(room[channel_no], max(0, limit - self.used(channel_no)))
        assert not any(room.values()) or not self.ready

    @invariant()
    def the_ledgers_agree(self) -> None:
        for channel_no, tags in self.held.items():
            assert len(self.client.connection._channels[channel_no].unacked) == len(tags)


class MemorySettling(Settling):
    queue_fields: ClassVar[dict[str, object]] = {"exclusive": True}


class StoredSettling(Settling):
    queue_fields: ClassVar[dict[str, object]] = {"exclusive": False, "durable": True}


class MemoryReturning(MemorySettling):
    requeues_in_place = True


class StoredReturning(StoredSettling):
    requeues_in_place = True


_SETTINGS = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestMemoryReturning = MemoryReturning.TestCase
TestMemoryReturning.settings = _SETTINGS
TestStoredReturning = StoredReturning.TestCase
TestStoredReturning.settings = _SETTINGS
TestMemoryQueue = MemorySettling.TestCase
TestMemoryQueue.settings = _SETTINGS
TestStoredQueue = StoredSettling.TestCase
TestStoredQueue.settings = _SETTINGS

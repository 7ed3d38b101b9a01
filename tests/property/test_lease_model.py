"""The lease against a model: anything may happen between any two actions of the reader, and nothing is lost or doubled.

``tests/support/lease_model.py`` keeps the ledger and compares; this file chooses what happens.
"""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.lease_model import LeaseModel

small = st.integers(0, 3)
#: What a server, and the queue, may be like.
STARTS = ("is_lazy", "hides_parked", "is_slow", "in_place", "delivers_early")


class LeaseMachine(RuleBasedStateMachine):
    """Own publishes, consumers, gets and purges, on a server that works."""

    is_shared = False

    @initialize(is_counted=st.booleans(), start=st.fixed_dictionaries(dict.fromkeys(STARTS, st.booleans())))
    def start(self, is_counted: bool, start: dict[str, bool]) -> None:
        self.model = LeaseModel(is_shared=self.is_shared, **start)
        if is_counted:
            self.model.begin_count()
            self.model.end_count()

    # ------------------------------------------------------------------ the runtime

    @rule(steps=st.integers(1, 6))
    def read(self, steps: int) -> None:
        for _ in range(steps):
            self.model.read()

    @rule(steps=st.integers(1, 3))
    def send(self, steps: int) -> None:
        for _ in range(steps):
            self.model.send()

    @rule()
    def store_all(self) -> None:
        while len(self.model.outbox) or self.model.lane is not None:
            self.model.send()

    @rule()
    def begin_count(self) -> None:
        self.model.begin_count()

    @precondition(lambda self: self.model.began)
    @rule()
    def end_count(self) -> None:
        self.model.end_count()

    @rule()
    def deadline(self) -> None:
        self.model.deadline()

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.03, 0.1, 0.2, 1.0, 11.0]))
    def tick(self, seconds: float) -> None:
        self.model.tick(seconds)

    @precondition(lambda self: self.model.store.streams)
    @rule()
    def server_catches_up(self) -> None:
        for stream in self.model.store.streams:
            stream.catch_up()

    @rule(count=st.integers(1, 9))
    def answer_out_of_turn(self, count: int) -> None:
        self.model.channel.out_of_turn = count

    @rule()
    def age_stream(self) -> None:
        self.model.age_stream()

    # ------------------------------------------------------------------ clients

    @precondition(lambda self: not self.model.queue.is_deleted)
    @rule(count=st.integers(1, 6), retry=st.booleans())
    def publish(self, count: int, retry: bool) -> None:
        self.model.publish(count, retry=retry)

    @precondition(lambda self: not self.model.queue.is_deleted and len(self.model.consumers) < 3)
    @rule(prefetch=st.integers(0, 4), no_ack=st.sampled_from([False, False, False, True]))
    def consume(self, prefetch: int, no_ack: bool) -> None:
        self.model.add_consumer(prefetch, no_ack=no_ack)

    @precondition(lambda self: self.model.consumers)
    @rule(which=small)
    def cancel(self, which: int) -> None:
        consumers = self.model.consumers
        self.model.cancel(consumers[which % len(consumers)])

    @precondition(lambda self: self.model.holders())
    @rule(which=small, at=small, count=st.integers(1, 4))
    def ack(self, which: int, at: int, count: int) -> None:
        holders = self.model.holders()
        consumer = holders[which % len(holders)]
        at %= len(consumer.unacked)
        for message in consumer.unacked[at : at + count]:
            self.model.ack(consumer, message)

    @precondition(lambda self: self.model.holders())
    @rule(which=small, at=small, count=st.integers(1, 4))
    def requeue(self, which: int, at: int, count: int) -> None:
        holders = self.model.holders()
        consumer = holders[which % len(holders)]
        at %= len(consumer.unacked)
        self.model.requeue(consumer, consumer.unacked[at : at + count])

    @precondition(lambda self: self.model.holders())
    @rule(which=small)
    def close_channel(self, which: int) -> None:
        holders = self.model.holders()
        consumer = holders[which % len(holders)]
        if consumer in self.model.consumers:
            self.model.cancel(consumer)
        self.model.requeue(consumer, list(consumer.unacked))

    @precondition(lambda self: not self.model.queue.is_deleted)
    @rule(answered=st.booleans())
    def get(self, answered: bool) -> None:
        self.model.get(answered=answered)

    @precondition(lambda self: not self.model.queue.is_deleted)
    @rule()
    def purge(self) -> None:
        self.model.purge()

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def check(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model") and self.model.run.point is not None:
            self.model.finish()


class QuietMachine(LeaseMachine):
    """Only our own doing: the counters are exact, so no Get ever asks for more than there is."""

    @invariant()
    def no_short_answer(self) -> None:
        if hasattr(self, "model"):
            assert self.model.store.short_count == 0


class SharedNameMachine(QuietMachine):
    """Another queue is reported under the same name: the counters alone must be right."""

    is_shared = True


class FaultyMachine(LeaseMachine):
    """The same with everything that goes wrong."""

    @rule(lingers=st.booleans())
    def lose_stream(self, lingers: bool) -> None:
        self.model.lose_stream(lingers=lingers)

    @rule()
    def server_notices(self) -> None:
        self.model.store.notice()

    @precondition(lambda self: self.model.lane is not None)
    @rule()
    def lose_lane(self) -> None:
        self.model.lose_lane()

    @rule(every=st.integers(1, 3))
    def refuse_stores(self, every: int) -> None:
        self.model.refuse_every(every)

    @rule(limit_bytes=st.integers(4, 20))
    def shrink_answers(self, limit_bytes: int) -> None:
        self.model.shrink_answers(limit_bytes)

    @rule()
    def refuse_get(self) -> None:
        self.model.refuse_get()

    @precondition(lambda self: not self.model.queue.is_deleted)
    @rule(count=st.integers(1, 4))
    def publish_native(self, count: int) -> None:
        self.model.publish_native(count)

    @precondition(lambda self: self.model.channel.stored)
    @rule(which=st.integers(0, 9))
    def remove(self, which: int) -> None:
        stored = sorted(self.model.channel.stored)
        self.model.remove(stored[which % len(stored)])

    @precondition(lambda self: self.model.channel.stored)
    @rule(which=st.integers(0, 9))
    def expire(self, which: int) -> None:
        stored = sorted(self.model.channel.stored)
        self.model.expire(stored[which % len(stored)])

    @rule(forget=st.integers(0, 3))
    def crash_server(self, forget: int) -> None:
        self.model.crash_server(forget)

    @precondition(lambda self: not self.model.purging)  # KubeMQ deletes idle channels only
    @rule()
    def start_channel_over(self) -> None:
        self.model.start_channel_over()

    @precondition(lambda self: not self.model.queue.is_deleted)
    @rule()
    def restart(self) -> None:
        self.model.restart()

    @precondition(lambda self: not self.model.queue.is_deleted)
    @rule()
    def delete(self) -> None:
        self.model.delete()


_settings = hypothesis.settings(max_examples=100, stateful_step_count=50)
TestQuietLease = QuietMachine.TestCase
TestQuietLease.settings = _settings
TestSharedNameLease = SharedNameMachine.TestCase
TestSharedNameLease.settings = _settings
TestFaultyLease = FaultyMachine.TestCase
TestFaultyLease.settings = _settings

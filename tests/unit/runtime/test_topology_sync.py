"""The topology log as tasks: in order, again after a lost link, and loud when an event is not taken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from connector.amqp.wire import MAX_DEPTH, Table
from connector.broker.broker import Broker
from connector.broker.exchanges.binding import BindingKey
from connector.broker.ports import Rejected, ServerInfo
from connector.broker.queue import StoredQueue
from connector.broker.requests import ExchangeDeclare, QueueDeclare
from connector.broker.topology import VERSION, ExchangeRecord, QueueRecord, encode_event, pack_table
from connector.runtime.appends import APPENDS_AT_ONCE
from connector.runtime.topology_sync import TopologySync
from tests.support.broker_model import Answer, Settings
from tests.support.fake_kubemq import FakeTopologyLog
from tests.support.waiting import until

SERVER = ServerInfo("host", "2.4.0", 1)


class Replica:
    """A broker whose topology log is real tasks; nothing else is."""

    def __init__(self, log: FakeTopologyLog) -> None:
        self.broker = Broker(Settings(), time.monotonic, self)
        self.reported: list[tuple[str, dict[str, object]]] = []
        self.sync = TopologySync(log, self.broker, self.broker.dispatch)

    def wake_lane(self, lane: int) -> None:
        """See ``Hooks``."""

    def wake_reader(self, queue: StoredQueue) -> None:
        """See ``Hooks``."""

    def refresh_counts(self, done: Callable[[], None]) -> None:
        """See ``Hooks``: nothing is stored here."""
        self.broker.on_snapshot(self.broker.begin_snapshot(), [])
        asyncio.get_running_loop().call_soon(done)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """See ``Hooks``."""
        asyncio.get_running_loop().call_later(delay_s, action)

    def stop_readers(self, queue: Any) -> None:
        """See ``Hooks``; nobody else reads."""

    def append_event(self, event_id: str, data: bytes) -> None:
        """See ``Hooks``."""
        self.sync.appends.add(event_id, data)

    def report(self, what: str, **facts: object) -> None:
        """See ``Hooks``."""
        self.reported.append((what, facts))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Run the tasks until the end of the block."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.sync.appends.run()), group.create_task(self.sync.run_follow())]
            try:
                await self.sync.loaded.wait()
                yield self
            finally:
                for task in tasks:
                    task.cancel()

    def declare(self, name: str) -> Answer:
        """A durable queue."""
        answer = Answer()
        self.broker.virtual_host("/").declare_queue(QueueDeclare(name, durable=True), None, answer)
        return answer


async def test_a_declaration_comes_back_and_is_there_after_a_restart() -> None:
    log = FakeTopologyLog()
    async with Replica(log).running() as replica:
        answers = [replica.declare(name) for name in "abc"]
        await until(lambda: all(answer.is_there for answer in answers))
        assert [answer.value.name for answer in answers] == ["a", "b", "c"]
    async with Replica(log).running() as replica:
        assert list(replica.broker.virtual_host("/").queues) == ["a", "b", "c"]


async def test_a_declaration_during_an_outage_is_answered_after_it() -> None:
    log = FakeTopologyLog()
    async with Replica(log).running() as replica:
        log.lose()
        await until(lambda: not replica.sync.is_following)
        answer = replica.declare("q")
        await until(lambda: log.follow_count == 2 and replica.sync.is_following)
        assert not answer.is_there
        replica.sync.appends.on_server(SERVER)
        await until(lambda: answer.is_there)
        assert answer.value.name == "q"


async def test_two_replicas_see_the_same() -> None:
    log = FakeTopologyLog()
    async with Replica(log).running() as one, Replica(log).running() as two:
        answers = [one.declare("q"), two.declare("q"), two.declare("r")]
        await until(lambda: all(answer.is_there for answer in answers))
        queues = [set(replica.broker.virtual_host("/").queues) for replica in (one, two)]
        assert queues[0] == queues[1] == {"q", "r"}


async def test_a_lost_link_is_followed_again() -> None:
    log = FakeTopologyLog()
    async with Replica(log).running() as replica:
        assert replica.sync.is_following
        log.lose()
        await until(lambda: log.follow_count == 2 and replica.sync.is_following)
        replica.sync.appends.on_server(SERVER)
        answer = replica.declare("q")
        await until(lambda: answer.is_there)


async def test_a_log_whose_server_was_started_anew_is_read_anew_though_its_stream_stays() -> None:
    log = FakeTopologyLog()
    async with Replica(log).running() as replica:
        replica.sync.appends.on_server(SERVER)
        assert log.follow_count == 1
        replica.sync.appends.on_server(ServerInfo("host", "2.4.0", 2))
        answer = replica.declare("q")
        await until(lambda: answer.is_there)
        assert answer.value.name == "q"
        assert log.follow_count == 2


class ForgetfulLog(FakeTopologyLog):
    """Has forgotten the first events when it is followed again."""

    forgotten = 0

    async def follow(self) -> AsyncIterator[tuple[int, bytes]]:
        async for sequence, event in super().follow():
            if not 0 < sequence <= self.forgotten:
                yield sequence, event


@pytest.mark.parametrize(("forgotten", "is_told"), [(1, False), (2, True)])
async def test_who_was_away_too_long_says_so(forgotten: int, is_told: bool) -> None:
    """What others declared meanwhile cannot be known any more: better loud than wrong in silence."""
    log = ForgetfulLog()
    async with Replica(log).running() as replica:
        answers = [replica.declare("a"), replica.declare("b")]
        await until(lambda: all(answer.is_there for answer in answers))
        log.forgotten = forgotten
        log.lose()
        await until(lambda: log.follow_count == 2 and replica.sync.is_following)
        replica.sync.appends.on_server(SERVER)
        with capture_logs() as told:
            answer = replica.declare("c")
            await until(lambda: answer.is_there)
    assert ["declarations were lost" in entry["event"] for entry in told] == [True] * is_told


async def test_an_event_that_is_not_taken_fails_its_operation() -> None:
    log = FakeTopologyLog()
    async with Replica(log).running() as replica:
        log.error = Rejected("no room")
        refused, taken = replica.declare("q"), replica.declare("r")
        await until(lambda: refused.is_there and taken.is_there)
        assert refused.error == ("Rejected", "no room")
        assert taken.value.name == "r"


async def test_what_nobody_can_read_is_skipped() -> None:
    log = FakeTopologyLog()
    log.events = [b"\xff", b'{"v":99,"type":"queue.declared"}', b"[]"]
    async with Replica(log).running() as replica:
        answer = replica.declare("q")
        await until(lambda: answer.is_there)
        assert replica.broker.topology.version == 4
        assert replica.broker.counters.topology_events_skipped == 3


def nested(depth: int) -> Table:
    table: Table = {}
    for _ in range(depth - 1):
        table = {"a": ("F", table)}
    return table


QUEUE = {"type": "queue.declared", "vhost": "default", "name": "q", "durable": True, "auto_delete": False}
EXCHANGE = {**QUEUE, "type": "exchange.declared", "internal": False, "arguments": "", "kind": "odd"}
BINDING = {"type": "queue.bound", "vhost": "default", "exchange": "amq.odd", "queue": "before", "routing_key": "k"}


@pytest.mark.parametrize(
    "broken",
    [
        QUEUE,
        {**QUEUE, "arguments": "", "durable": 1},
        EXCHANGE,
        {**BINDING, "arguments": ""},
        {**BINDING, "exchange": "amq.topic", "arguments": "AAAAAf"},
        {"type": "snapshot", "upto": 1},
        {"type": "server.started", "start_time": None},
        {**QUEUE, "arguments": "", "name": "sur\ud800"},
        {**QUEUE, "arguments": "", "vhost": "\ud800"},
        {**BINDING, "exchange": "amq.topic", "arguments": "", "routing_key": "\ud800"},
        {**QUEUE, "arguments": pack_table(nested(MAX_DEPTH + 1))},
        {"type": "queue.moving", "vhost": "default", "name": "before", "source": 0, "generation": 10**9, "reason": ""},
        {**QUEUE, "arguments": "", "generations": {"order": [10**9], "last": 10**9, "moving": {}, "left": {}}},
    ],
)
async def test_a_malformed_event_stops_nothing(broken: dict[str, Any]) -> None:
    """Neither a start nor a running connector, nor what was declared before and after it."""
    log = FakeTopologyLog()
    async with Replica(log).running() as replica:
        before = replica.declare("before")
        await until(lambda: before.is_there)
        await log.append(encode_event({"v": VERSION, **broken}))
        after = replica.declare("after")
        await until(lambda: after.is_there)
        assert after.value.name == "after"
        assert replica.broker.counters.topology_events_skipped == 1
    async with Replica(log).running() as replica:
        assert list(replica.broker.virtual_host("/").queues) == ["before", "after"]
        assert replica.broker.counters.topology_events_skipped == 1


async def test_what_no_reader_of_json_takes_stops_nothing() -> None:
    log = FakeTopologyLog()
    log.events = [b'{"v":1,"type":' + b"[" * 30_000 + b"]" * 30_000 + b"}"]
    async with Replica(log).running() as replica:
        answer = replica.declare("q")
        await until(lambda: answer.is_there)
        assert replica.broker.counters.topology_events_skipped == 1


async def test_what_is_skipped_is_told_once() -> None:
    log = FakeTopologyLog()
    log.events = [encode_event({"v": VERSION, **QUEUE})]
    with capture_logs() as told:
        async with Replica(log).running() as replica:
            log.lose()
            await until(lambda: log.follow_count == 2 and replica.sync.is_following)
    assert [entry["log_level"] for entry in told if "skipped" in entry["event"]] == ["error"]
    assert replica.broker.counters.topology_events_skipped == 1


class SpoilingLog(FakeTopologyLog):
    """Spoils what comes to it, all but its id."""

    async def append(self, event: bytes, start: int = 0) -> None:
        await super().append(event.replace(b'"durable"', b'"durables"'), start)


async def test_who_wrote_what_is_skipped_does_not_wait() -> None:
    async with Replica(SpoilingLog()).running() as replica:
        answer = replica.declare("q")
        await until(lambda: answer.is_there)
        assert answer.error[0] == "Inequivalent"
        assert not replica.broker.topology.queues


class Stumbling(Replica):
    """Fails with a queue, an exchange and a binding that the others know nothing bad of."""

    def __init__(self, log: FakeTopologyLog) -> None:
        super().__init__(log)
        vhost = self.broker.virtual_host("/")
        self.create_queue, self.create_exchange, self.bind = (
            vhost.on_queue_created, vhost.on_exchange_created, vhost.on_bound,
        )  # fmt: skip
        vhost.on_queue_created = self.on_queue_created  # type: ignore[method-assign]
        vhost.on_exchange_created = self.on_exchange_created  # type: ignore[method-assign]
        vhost.on_bound = self.on_bound  # type: ignore[method-assign]

    def on_queue_created(self, record: QueueRecord) -> None:
        """One queue is too much."""
        if record.name == "bad":
            raise KeyError(record.name)
        self.create_queue(record)

    def on_exchange_created(self, record: ExchangeRecord) -> None:
        """And one exchange."""
        if record.name == "bad":
            raise KeyError(record.name)
        self.create_exchange(record)

    def on_bound(self, key: BindingKey) -> None:
        """And one binding."""
        if key.routing_key == "bad":
            raise KeyError(key.routing_key)
        self.bind(key)

    @property
    def skipped(self) -> list[object]:
        """What came of what was told."""
        assert all(facts["is_error"] for what, facts in self.reported if what == "topology event skipped")
        return [facts["sequence"] for what, facts in self.reported if what == "topology event skipped"]


async def test_what_cannot_be_applied_is_skipped_by_all_and_never_comes_back() -> None:
    log = FakeTopologyLog()
    async with Stumbling(log).running() as one, Stumbling(log).running() as two:
        exchange, binding = Answer(), Answer()
        vhost = one.broker.virtual_host("/")
        vhost.declare_exchange(ExchangeDeclare("bad", "direct"), exchange)
        bad, good = one.declare("bad"), one.declare("good")
        await until(lambda: good.is_there)
        vhost.bind_queue("good", "amq.topic", "bad", {}, None, binding)
        await until(lambda: exchange.is_there and bad.is_there and binding.is_there)
        assert [answer.error[0] for answer in (exchange, bad, binding)] == ["Inequivalent"] * 3
        await until(lambda: len(two.skipped) == 3)
        for replica in (one, two):
            assert [name for _, name in replica.broker.topology.queues] == ["good"]
            assert not replica.broker.topology.exchanges
            assert not replica.broker.topology.bindings
            assert len(replica.skipped) == replica.broker.counters.topology_events_skipped == 3
            assert replica.broker.counters.internal_errors == 3
    async with Stumbling(log).running() as late:
        assert list(late.broker.virtual_host("/").queues) == ["good"]
        assert len(late.skipped) == 3
        late.broker.write_snapshot()
        after = late.declare("after")
        await until(lambda: after.is_there)
    async with Replica(log).running() as last:
        assert list(last.broker.virtual_host("/").queues) == ["good", "after"]
        assert not last.broker.topology.exchanges


async def test_a_snapshot_with_what_cannot_be_loaded_is_loaded_without_it() -> None:
    """Else all that it holds is lost, or no connector starts any more."""
    log = FakeTopologyLog()
    async with Replica(log).running() as first:
        answer = first.declare("good")
        await until(lambda: answer.is_there)
        snapshot = first.broker.topology.snapshot_event()
    (good,) = snapshot["queues"]
    bad = [{**good, "name": "sur\ud800"}, {**good, "name": "deep", "arguments": pack_table(nested(65))}, 7]
    binding = {"type": "queue.bound", "vhost": "default", "exchange": "amq.topic", "arguments": ""}
    log.events = [
        encode_event({
            "v": VERSION,
            **snapshot,
            "queues": [bad[0], good, *bad[1:]],
            "bindings": [{**binding, "queue": name, "routing_key": "k"} for name in ("good", "sur\ud800")],
            "undrained": [["default", "\ud800", ""]],
            "claims": [["default", "\ud800", "m"]],
            "left": [["default", "\ud800", good["generations"]]],
        })
    ]  # fmt: skip
    async with Replica(log).running() as second:
        topology = second.broker.topology
        assert list(second.broker.virtual_host("/").queues) == ["good"]
        assert len(topology.bindings) == 1
        assert not (topology.undrained)
        assert not (topology.left)
        assert [what for what, _ in second.reported] == ["topology event skipped"] * 7
        second.broker.write_snapshot()
        after = second.declare("after")
        await until(lambda: after.is_there)
    async with Replica(log).running() as third:
        assert list(third.broker.virtual_host("/").queues) == ["good", "after"]
        assert not third.reported


async def test_an_answer_that_fails_does_not_stop_the_following() -> None:
    async with Replica(FakeTopologyLog()).running() as replica:

        def fail(_result: object) -> None:
            raise KeyError("bug")

        with capture_logs() as told:
            replica.broker.virtual_host("/").declare_exchange(ExchangeDeclare("x", "direct"), fail)
            after = replica.declare("after")
            await until(lambda: after.is_there)
        assert "x" in replica.broker.virtual_host("/").exchanges
        assert replica.broker.counters.internal_errors == 1
        assert [entry["log_level"] for entry in told] == ["error"]


class HeldLog(FakeTopologyLog):
    """Takes no event until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def append(self, event: bytes, start: int = 0) -> None:
        await self.is_open.wait()
        await super().append(event, start)


class CountingLog(HeldLog):
    """Knows how many appends wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting_count = self.most_waiting = 0

    async def append(self, event: bytes, start: int = 0) -> None:
        self.waiting_count += 1
        self.most_waiting = max(self.most_waiting, self.waiting_count)
        try:
            await super().append(event, start)
        finally:
            self.waiting_count -= 1


async def test_appends_do_not_wait_for_each_other() -> None:
    """So the server can store many with one write to its disk."""
    log = CountingLog()
    async with Replica(log).running() as replica:
        log.is_open.clear()
        answers = [replica.declare(f"q-{number}") for number in range(APPENDS_AT_ONCE + 10)]
        await until(lambda: log.waiting_count == APPENDS_AT_ONCE)
        log.is_open.set()
        await until(lambda: all(answer.is_there for answer in answers))
        assert [answer.value.name for answer in answers] == list(replica.broker.virtual_host("/").queues)
    assert log.most_waiting == APPENDS_AT_ONCE


async def test_nobody_is_served_before_what_is_not_durable_is_gone() -> None:
    """Else a client that comes at once declares a queue that is deleted under it (QU-07)."""
    log = HeldLog()
    async with Replica(log).running() as replica:
        answer = Answer()
        replica.broker.virtual_host("/").declare_queue(QueueDeclare("transient"), None, answer)
        await until(lambda: answer.is_there)
    log.is_open.clear()
    late = Replica(log)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(late.sync.appends.run()), group.create_task(late.sync.run_follow())]
        await until(lambda: late.broker.is_loaded)
        assert "transient" in late.broker.virtual_host("/").queues
        assert not late.sync.loaded.is_set()
        log.is_open.set()
        await late.sync.loaded.wait()
        assert "transient" not in late.broker.virtual_host("/").queues
        for task in tasks:
            task.cancel()

"""Events on their way to the topology log: what waits through an outage, what is repeated, what is given up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from connector.broker.counters import Counters
from connector.broker.ports import NotSent, Rejected, ServerInfo, StoreError, TimedOut, Unavailable
from connector.broker.topology import decode_event, encode_event
from connector.runtime.appends import Appends
from connector.runtime.outage import Outage
from tests.support.waiting import until

FIRST, SECOND = ServerInfo("host", "2.4.0", 1), ServerInfo("host", "2.4.0", 2)


class Log:
    """Takes events, each after ``failing`` has had its say; ``names`` are those taken."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failing: dict[str, list[StoreError]] = {}

    async def append(self, event: bytes, start: int = 0) -> None:
        """See ``ports.TopologyLog``."""
        await asyncio.sleep(0)
        name = (decode_event(event) or {"name": "?"})["name"]
        if errors := self.failing.get(name):
            raise errors.pop(0)
        self.names.append(name)


class Broker:
    """The part of the broker that appends need."""

    log_start = 0

    def __init__(self) -> None:
        self.appending: dict[str, str] = {}
        self.failed: list[tuple[str, str]] = []

    def on_append_failed(self, event_id: str, error: Exception) -> None:
        """See ``Broker``."""
        self.failed.append((self.appending.pop(event_id), type(error).__name__))


class World:
    """The appends of one replica, on a server and a log that the test governs."""

    def __init__(self) -> None:
        self.log, self.broker, self._count = Log(), Broker(), 0
        outage = Outage(Counters(), time.monotonic)
        self.anew_count = 0
        self.appends = Appends(self.log, self.broker, lambda: None, outage, self._read_anew)  # type: ignore[arg-type]
        self.open(FIRST)

    def _read_anew(self) -> None:
        self.anew_count += 1

    def open(self, server: ServerInfo) -> None:
        """The log is followed, and this server has answered a Ping."""
        self.appends.on_server(server)
        self.read()

    def read(self) -> None:
        """The log is read, from its beginning to its end."""
        self.appends.on_reading()
        self.appends.on_followed()

    def add(self, name: str, kind: str = "exchange.deleted") -> None:
        """An event that says something of this name."""
        self._count += 1
        event_id = f"replica.{self._count}"
        event = {"v": 1, "id": event_id, "member": "m", "type": kind, "vhost": "/", "name": name}
        if kind == "queue.retired":
            event["generation"] = 1
        data = encode_event(event)
        assert decode_event(data) is not None
        self.broker.appending[event_id] = name
        self.appends.add(event_id, data)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Send until the end of the block."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.appends.run())
            yield self
            task.cancel()

    async def taken(self, *names: str) -> None:
        """Wait until the log has exactly these."""
        await until(lambda: len(self.log.names) >= len(names))
        assert self.log.names == list(names)

    async def lost(self, *names: str) -> None:
        """What is sent now goes into an outage: its outcome is unknown."""
        await self.failed(*names)
        self.appends.on_lost()

    async def failed(self, *names: str, error: type[StoreError] = Unavailable) -> None:
        """What is sent now fails so."""
        for name in names:
            self.log.failing[name] = [error("gone")]
            self.add(name)
        await until(lambda: not any(self.log.failing.values()))
        await idle()


async def idle(turns: int = 5) -> None:
    """Let the tasks do what they can."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_what_is_declared_in_an_outage_is_sent_in_its_order_afterwards() -> None:
    async with World().running() as world:
        world.appends.on_lost()
        for name in "abc":
            world.add(name)
        world.appends.on_followed()
        await idle()
        assert not world.log.names, "no Ping has been answered yet"
        world.open(SECOND)
        await world.taken("a", "b", "c")
    assert not world.broker.failed


async def test_what_has_its_own_retry_does_not_wait() -> None:
    """A hand-over or a burial that was right before an outage need not be right after it."""
    async with World().running() as world:
        world.appends.on_lost()
        world.add("later")
        world.add("now", "queue.retired")
        await until(lambda: world.broker.failed)
        assert world.broker.failed == [("now", "Unavailable")]
        world.open(FIRST)
        await world.taken("later")
        world.log.failing["again"] = [Unavailable("gone")]
        world.add("again", "queue.retired")
        await until(lambda: len(world.broker.failed) == 2)


async def test_what_was_given_up_is_never_sent_nor_kept() -> None:
    async with World().running() as world:
        await world.lost("unknown")
        world.add("early")
        world.add("late")
        for name in ("unknown", "early"):
            world.broker.on_append_failed(next(i for i, n in world.broker.appending.items() if n == name), TimedOut(""))
        world.appends.forget()
        assert len(world.appends) == 1
        world.open(SECOND)
        await world.taken("late")


async def test_what_may_have_arrived_is_repeated_when_its_server_is_gone_and_before_what_came_later() -> None:
    async with World().running() as world:
        await world.lost("a", "b")
        world.add("c")
        world.open(SECOND)
        await world.taken("a", "b", "c")


async def test_what_came_back_meanwhile_is_not_repeated() -> None:
    async with World().running() as world:
        await world.lost("a", "b")
        del world.broker.appending["replica.1"]
        world.open(SECOND)
        await world.taken("b")


async def test_what_may_still_arrive_is_not_repeated() -> None:
    """The same server, or another one of a cluster: a deletion that comes twice could end what was made in between."""
    for server in (FIRST, ServerInfo("other", "2.4.0", 2)):
        async with World().running() as world:
            await world.lost("a")
            world.add("b")
            world.open(server)
            await world.taken("b")
            assert "replica.1" in world.broker.appending, "it may come back"


async def test_what_is_refused_is_not_repeated() -> None:
    async with World().running() as world:
        world.log.failing["a"] = [Rejected("no room")]
        world.add("a")
        await until(lambda: world.broker.failed)
        world.add("b")
        await world.taken("b")
    assert world.broker.failed == [("a", "Rejected")]


async def test_a_stream_that_breaks_alone_waits_for_a_ping_only() -> None:
    async with World().running() as world:
        world.log.failing["a"] = [Unavailable("gone")]
        world.add("a")
        await until(lambda: not any(world.log.failing.values()))
        await idle()
        world.add("b")
        await idle()
        assert not world.log.names
        world.appends.on_server(FIRST)
        await world.taken("b")


async def test_what_was_certainly_not_sent_is_sent_in_its_place_as_soon_as_the_same_server_answers() -> None:
    async with World().running() as world:
        await world.failed("a", "b", error=NotSent)
        world.add("c")
        assert len(world.appends) == 3
        world.appends.on_server(FIRST)
        await world.taken("a", "b", "c")
    assert not world.broker.failed


async def test_what_was_not_sent_and_what_is_repeated_keep_their_order() -> None:
    async with World().running() as world:
        await world.failed("a", error=NotSent)
        world.appends.on_server(FIRST)
        await world.taken("a")
        world.log.failing = {"b": [Unavailable("gone")], "c": [NotSent("gone")], "d": [Unavailable("gone")]}
        for name in "bcd":
            world.add(name)
        await until(lambda: not any(world.log.failing.values()))
        world.add("e")
        world.appends.on_lost()
        world.open(SECOND)
        await world.taken("a", "b", "c", "d", "e")


async def test_what_was_not_sent_and_is_given_up_is_never_sent() -> None:
    async with World().running() as world:
        await world.failed("a", "b", error=NotSent)
        world.broker.on_append_failed("replica.1", TimedOut(""))
        world.appends.forget()
        assert len(world.appends) == 1
        world.appends.on_server(FIRST)
        await world.taken("b")


async def test_nothing_is_repeated_before_the_log_was_read_from_the_later_server() -> None:
    """The stream from the dead one may look as if it lived: what came at the end has perhaps not come through it."""
    async with World().running() as world:
        await world.failed("a")
        world.appends.on_server(SECOND)
        world.add("b")
        await idle()
        assert (world.log.names, world.anew_count) == ([], 1)
        world.appends.on_server(SECOND)
        assert world.anew_count == 1
        world.read()
        await world.taken("a", "b")
        assert world.anew_count == 1


async def test_a_log_that_began_to_be_read_before_the_later_server_had_answered_is_read_anew() -> None:
    async with World().running() as world:
        await world.lost("a")
        world.read()
        world.appends.on_server(SECOND)
        await idle()
        assert (world.log.names, world.anew_count) == ([], 1)
        world.read()
        await world.taken("a")


async def test_a_reading_from_another_server_of_a_cluster_proves_nothing() -> None:
    async with World().running() as world:
        await world.lost("a")
        world.open(ServerInfo("other", "2.4.0", 1))
        world.appends.on_lost()
        world.appends.on_reading()
        world.appends.on_server(SECOND)
        world.appends.on_followed()
        assert (world.log.names, world.anew_count) == ([], 1)
        world.read()
        await world.taken("a")


async def test_the_servers_of_a_cluster_may_answer_in_turns() -> None:
    async with World().running() as world:
        for _ in range(3):
            for host in ("host", "other"):
                world.appends.on_server(ServerInfo(host, "2.4.0", 1))
        assert not world.anew_count
        world.add("a")
        await world.taken("a")


async def test_what_is_added_when_another_has_failed_is_told_too() -> None:
    async with World().running() as world:
        world.appends.on_lost()
        await idle()
        told = world.broker.on_append_failed

        def on_failed(event_id: str, error: Exception) -> None:
            told(event_id, error)
            if len(world.broker.failed) == 1:
                world.add("again", "queue.retired")

        world.broker.on_append_failed = on_failed  # type: ignore[method-assign]
        world.add("first", "queue.retired")
        await until(lambda: len(world.broker.failed) == 2)
        assert not len(world.appends)

"""The log's stream of appends, and what a follower makes of what the server sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from connector.backend.kubemq import KubeMQClient, KubeMQTopologyLog
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.ports import NotSent, Rejected, TimedOut, Unavailable
from tests.support.waiting import until
from tests.unit.backend.scripted import Context, Scripted
from tests.unit.backend.settling import outcome

END = (0, b"")
Edit = Callable[[list[tuple[int, pb.Event]]], list[tuple[int, pb.Event]]]


class EventsStore:
    """A log: takes events, and shows followers what it has, edited by ``edit``; answers appends unless silenced."""

    def __init__(self, server: Scripted) -> None:
        self.events: list[pb.Event] = []
        self.subscriptions: list[pb.Subscribe] = []
        self.is_silent = False
        self.hides_markers = False
        self.refusal = ""
        self.streams = 0
        self.edit: Edit = list
        server.handlers["SendEventsStream"] = self.take
        server.handlers["SubscribeToEvents"] = self.show

    async def take(self, events: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        self.streams += 1
        async for event in events:
            self.events.append(event)
            if not self.is_silent:
                yield pb.Result(EventID=event.EventID, Sent=not self.refusal, Error=self.refusal)

    async def show(self, request: pb.Subscribe, context: Context) -> AsyncIterator[Any]:
        self.subscriptions.append(request)
        shown = self.edited()
        if request.EventsStoreTypeData == pb.Subscribe.StartFromLast:
            shown = shown[-1:]
        elif request.EventsStoreTypeData == pb.Subscribe.StartAtSequence:
            shown = [(sequence, event) for sequence, event in shown if sequence >= request.EventsStoreTypeValue]
        for sequence, event in shown:
            if not (self.hides_markers and event.Metadata == "marker"):
                yield pb.EventReceive(Sequence=sequence, Body=event.Body, Metadata=event.Metadata, Tags=event.Tags)
        await asyncio.Event().wait()

    def edited(self) -> list[tuple[int, pb.Event]]:
        """(Sequence, event) as shown."""
        return self.edit(list(enumerate(self.events, start=1)))


@pytest.fixture
def events_store(server: Scripted) -> EventsStore:
    return EventsStore(server)


@pytest.fixture
async def log(client: KubeMQClient, events_store: EventsStore) -> AsyncIterator[KubeMQTopologyLog]:
    log = KubeMQTopologyLog(client, "amqp.~test", append_timeout_s=5)
    yield log
    await log.close()


async def followed(log: KubeMQTopologyLog) -> list[tuple[int, bytes]]:
    found = []
    async with aclosing(log.follow()) as follower:
        async for event in follower:
            found.append(event)
            if event == END:
                break
    return found


async def test_an_event_is_appended_to_the_store(log: KubeMQTopologyLog, events_store: EventsStore) -> None:
    await log.append(b"a")
    await log.append(b"b")

    assert [event.Body for event in events_store.events] == [b"a", b"b"]
    for event in events_store.events:
        assert (event.Store, event.Channel, event.ClientID) == (True, "amqp.~test", "unit")
        assert event.Metadata  # KubeMQ refuses an event of which body and metadata are empty
    assert events_store.streams == 1


async def test_a_follower_asks_for_all_under_a_name_of_its_own(
    log: KubeMQTopologyLog, events_store: EventsStore
) -> None:
    await log.append(b"")
    assert await followed(log) == [(1, b""), END]
    assert await followed(log) == [(1, b""), END]

    first = events_store.subscriptions[-1]
    assert first.SubscribeTypeData == pb.Subscribe.EventsStore
    assert first.EventsStoreTypeData == pb.Subscribe.StartFromFirst
    assert first.Channel == "amqp.~test"
    names = {subscription.ClientID for subscription in events_store.subscriptions}
    assert len(names) == len(events_store.subscriptions)
    assert all(name.startswith("unit-") for name in names)


async def test_one_marker_per_follower(log: KubeMQTopologyLog, events_store: EventsStore) -> None:
    await followed(log)
    await followed(log)

    assert [event.Metadata for event in events_store.events] == ["marker", "marker"]
    assert len({event.Body for event in events_store.events}) == 2


async def test_it_begins_where_the_newest_events_say(
    log: KubeMQTopologyLog, client: KubeMQClient, events_store: EventsStore
) -> None:
    """Our own appends say it too, and the markers of one who knows."""
    for number in range(5):
        await log.append(b"%d" % number)
    await log.append(b"5", 3)
    later = KubeMQTopologyLog(client, "amqp.~test", append_timeout_s=5)
    assert await followed(later) == [(3, b"2"), (4, b"3"), (5, b"4"), (6, b"5"), END]
    assert await followed(log) == [(3, b"2"), (4, b"3"), (5, b"4"), (6, b"5"), END]
    assert events_store.events[-1].Tags == {"amqp-start": "3"}
    await later.close()


async def test_where_to_begin_is_found_behind_many_events_that_do_not_say(
    log: KubeMQTopologyLog, client: KubeMQClient, events_store: EventsStore
) -> None:
    await log.append(b"a")
    await log.append(b"b", 2)
    events_store.events += [pb.Event(Metadata="marker", Body=b"%d" % number) for number in range(2000)]
    later = KubeMQTopologyLog(client, "amqp.~test", append_timeout_s=5)
    assert await followed(later) == [(2, b"b"), END]
    looks = [each for each in events_store.subscriptions if each.EventsStoreTypeData == pb.Subscribe.StartAtSequence]
    assert len(looks) == 3  # 64 back, all, and then the log itself
    await later.close()


@pytest.mark.parametrize("start", [99, 1, -3])
async def test_a_start_that_cannot_be_is_the_beginning(
    log: KubeMQTopologyLog, client: KubeMQClient, events_store: EventsStore, start: int
) -> None:
    """As after the loss of all that KubeMQ had, of which another connector does not know yet."""
    await log.append(b"a")
    await log.append(b"b", start)
    later = KubeMQTopologyLog(client, "amqp.~test", append_timeout_s=5)
    assert await followed(later) == [(1, b"a"), (2, b"b"), END]
    await later.close()


async def test_a_redelivery_is_not_yielded_again(log: KubeMQTopologyLog, events_store: EventsStore) -> None:
    await log.append(b"a")
    await log.append(b"b")
    events_store.edit = lambda shown: [*shown[:2], *shown]

    assert await followed(log) == [(1, b"a"), (2, b"b"), END]


async def test_a_log_whose_first_events_are_gone(log: KubeMQTopologyLog, events_store: EventsStore) -> None:
    for body in (b"a", b"b", b"c"):
        await log.append(body)
    events_store.edit = lambda shown: shown[1:]

    assert await followed(log) == [(2, b"b"), (3, b"c"), END]


async def test_a_gap_is_a_lost_event(log: KubeMQTopologyLog, events_store: EventsStore) -> None:
    for body in (b"a", b"b", b"c"):
        await log.append(body)
    events_store.edit = lambda shown: [shown[0], *shown[2:]]

    with pytest.raises(Unavailable, match="events 2 to 2"):
        await followed(log)


async def test_a_replay_that_falls_silent_is_a_broken_link(client: KubeMQClient, events_store: EventsStore) -> None:
    log = KubeMQTopologyLog(client, "amqp.~test", silence_s=0.05)
    events_store.hides_markers = True

    with pytest.raises(Unavailable, match=r"within 0\.05 s"):
        await followed(log)
    await log.close()


async def test_silence_after_the_end_is_normal(client: KubeMQClient, events_store: EventsStore) -> None:
    log = KubeMQTopologyLog(client, "amqp.~test", silence_s=0.3)
    async with aclosing(log.follow()) as follower:
        assert await anext(follower) == END
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(outcome(anext(follower)))
            await asyncio.wait([waiting], timeout=0.6)
            assert not waiting.done()
            waiting.cancel()
    await log.close()


async def test_a_refused_append(log: KubeMQTopologyLog, events_store: EventsStore) -> None:
    events_store.refusal = "Error 107: invalid channel value"
    with pytest.raises(Rejected, match="Error 107"):
        await log.append(b"a")
    with pytest.raises(Unavailable, match="Error 107"):
        await followed(log)
    events_store.refusal = ""
    await log.append(b"b")
    assert events_store.streams == 1


async def test_an_append_that_is_not_answered(client: KubeMQClient, events_store: EventsStore) -> None:
    """The stream is dropped; who else waits does not know his result either."""
    log = KubeMQTopologyLog(client, append_timeout_s=0.5)
    events_store.is_silent = True
    async with asyncio.TaskGroup() as group:
        first = group.create_task(outcome(log.append(b"a")))
        await until(lambda: len(events_store.events) == 1)
        second = group.create_task(outcome(log.append(b"b")))
    assert isinstance(first.result(), TimedOut)
    assert isinstance(second.result(), (Unavailable, TimedOut))

    events_store.is_silent = False
    await log.append(b"c")
    assert events_store.streams == 2
    await log.close()


async def test_what_waits_behind_an_append_that_ends_the_stream_was_not_sent(
    log: KubeMQTopologyLog, events_store: EventsStore
) -> None:
    await log.append(b"a")
    appender = log._appender
    assert appender is not None
    async with asyncio.TaskGroup() as group, appender._turn:
        waiting = group.create_task(outcome(log.append(b"b")))
        await asyncio.sleep(0)
        await appender.close()
    assert isinstance(waiting.result(), NotSent)
    await log.append(b"c")
    assert [event.Body for event in events_store.events] == [b"a", b"c"]


async def test_an_append_that_is_given_up_leaves_the_others(log: KubeMQTopologyLog, events_store: EventsStore) -> None:
    events_store.is_silent = True
    async with asyncio.TaskGroup() as group:
        given_up = group.create_task(outcome(log.append(b"a")))
        await until(lambda: len(events_store.events) == 1)
        given_up.cancel()
    assert given_up.cancelled()

    events_store.is_silent = False
    await log.append(b"b")
    assert events_store.streams == 1


async def test_closing_ends_who_waits(client: KubeMQClient, events_store: EventsStore) -> None:
    log = KubeMQTopologyLog(client)
    await log.close()
    events_store.is_silent = True
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(outcome(log.append(b"a")))
        await until(lambda: events_store.events)
        await log.close()
    assert isinstance(waiting.result(), Unavailable)

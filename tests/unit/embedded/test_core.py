"""The parts wired together, without gRPC: idle queues, delayed messages, bodies on disk, a store that refuses."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded.catalog import IDLE_S
from connector.embedded.core import Core, GetSlots
from connector.embedded.event_log import EventLog
from connector.embedded.quirks import OFF
from connector.embedded.schema import FILE_NAME, entry_id
from connector.embedded.settling import HANDLERS, Refused
from connector.embedded.store import Commit
from connector.embedded.transaction import Transaction
from tests.support.waiting import until


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[Core]:
    core = Core(tmp_path, OFF, cache_bytes=2000)
    core.start()
    yield core
    await asyncio.to_thread(core.close)
    await until(lambda: all(task is asyncio.current_task() or task.done() for task in asyncio.all_tasks()))


def message(body: bytes, queue: str = "q", **policy: object) -> pb.QueueMessage:
    return pb.QueueMessage(ClientID="c", Channel=queue, Body=body, Policy=pb.QueueMessagePolicy(**policy))  # type: ignore[arg-type]


def opened(core: Core, max_items: int, queue: str = "q") -> Transaction:
    return Transaction(core.engine, core.catalog.queue(queue)[1], max_items)


async def published(core: Core, *messages: pb.QueueMessage) -> list[pb.SendQueueMessageResult]:
    results, _ = await core.publisher.publish(messages)
    return [pb.SendQueueMessageResult.FromString(result) for result in results]


def refuse_everything(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the disk were full."""
    monkeypatch.setattr(Commit, "error", property(lambda _: "no room", lambda *_: None), raising=False)
    monkeypatch.setattr(core.store, "_write_group", lambda commits, lazy: None)


# ---- idle queues


async def test_an_empty_queue_is_forgotten_after_a_day(core: Core) -> None:
    await published(core, message(b"1"), message(b"1", "kept"))
    opened(core, 1).settle([1])
    transaction = opened(core, 1)
    transaction.close()
    core.engine.leave(core.engine.channels["q"].members[0])
    core.catalog.forget_idle(time.time() + IDLE_S - 60)
    assert sorted(core.engine.channels) == ["kept", "q"]
    core.catalog.forget_idle(time.time() + IDLE_S + 60)
    assert sorted(core.engine.channels) == ["kept"]
    await published(core, message(b"again"))
    assert core.engine.channels["q"].last_sequence == 1


async def test_a_queue_that_is_read_is_not_forgotten(core: Core) -> None:
    await published(core, message(b"1"))
    transaction = opened(core, 1)
    transaction.settle([1])
    core.catalog.forget_idle(time.time() + 2 * IDLE_S)
    assert "q" in core.engine.channels
    transaction.close()


# ---- bodies


async def test_bodies_come_from_memory_or_disk_in_the_order_asked_for(core: Core) -> None:
    await published(core, *[message(b"%d" % number * 100) for number in range(30)])
    channel = core.engine.channels["q"]
    assert None in core.engine.records(channel, range(1, 31))
    records = await core.records(channel, [30, 1, 7])
    assert [record.message().Body[:2] for record in records.values()] == [b"29", b"00", b"66"]


async def test_a_body_that_is_nowhere_is_an_error_in_the_log_not_a_crash(
    core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    await published(core, message(b"1"))
    with caplog.at_level(logging.ERROR):
        assert list(await core.records(core.engine.channels["q"], [1, 2])) == [1]
    assert "1 messages of 'q' are not in the database" in caplog.text


# ---- delays


async def test_delayed_messages_come_in_the_order_they_are_due(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    await published(core, *[message(b"%d" % delay, DelaySeconds=delay) for delay in (3, 1, 2)])
    assert "q" not in core.engine.channels or not core.engine.channels["q"].last_sequence
    now_ns += 3_000_000_000
    core.delays.add(now_ns, 999)  # wakes it; there is no such message, and it goes on
    await until(lambda: "q" in core.engine.channels and core.engine.channels["q"].last_sequence == 3)
    records = await core.records(core.engine.channels["q"], [1, 2, 3])
    assert [record.message().Body for record in records.values()] == [b"1", b"2", b"3"]


async def test_a_delayed_message_the_disk_refuses_is_tried_again(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.embedded.delays._RETRY_NS", 1000)
    await published(core, message(b"1", DelaySeconds=1))
    refusals = ["no room", "no room"]
    write = core.store._write

    def refusing(commits: list[Commit], lazy: object) -> str:
        return refusals.pop() if commits and refusals else write(commits, lazy)  # type: ignore[arg-type]

    monkeypatch.setattr(core.store, "_write", refusing)
    await until(lambda: "q" in core.engine.channels and core.engine.channels["q"].last_sequence == 1)
    assert not refusals
    assert not core.store.load_delays()


# ---- a store that refuses


async def test_a_refused_publish_is_an_error_per_message(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_everything(core, monkeypatch)
    results = await published(core, message(b"1"), message(b""), message(b"2"))
    assert [result.Error for result in results] == ["no room", results[1].Error, "no room"]
    assert results[1].Error.startswith("Error 110")


@pytest.mark.parametrize("kind", [pb.NAckAll, pb.ReQueueAll])
async def test_a_refused_copy_leaves_the_original(
    core: Core, monkeypatch: pytest.MonkeyPatch, kind: pb.QueuesDownstreamRequestType
) -> None:
    await published(core, message(b"1"))
    transaction = opened(core, 1)
    with monkeypatch.context() as patch:
        refuse_everything(core, patch)
        with pytest.raises(Refused, match="no room"):
            await HANDLERS[kind](core, transaction, pb.QueuesDownstreamRequest(ReQueueChannel="other"))
    transaction.close()
    assert list(opened(core, 5).accepted) == [1]


async def test_a_requeue_to_a_bad_name_leaves_everything_as_it_was(core: Core) -> None:
    await published(core, message(b"1"))
    transaction = opened(core, 1)
    with pytest.raises(Refused, match="Error 120"):
        await HANDLERS[pb.ReQueueAll](core, transaction, pb.QueuesDownstreamRequest(ReQueueChannel="a b"))
    assert list(transaction.accepted) == [1]


async def test_a_log_that_cannot_be_written_is_read_all_the_same(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_everything(core, monkeypatch)
    log = EventLog(core)
    request = pb.Subscribe(Channel="es", ClientID="c", EventsStoreTypeData=pb.Subscribe.StartFromFirst)
    channel, cursor, reader = await log.open_cursor(request)
    assert await log.read(channel, cursor.position + 1, 10) == []
    log.close_cursor(channel, cursor, reader)
    await asyncio.sleep(0)
    assert not core.store.load_positions()


async def test_a_log_without_events_needs_no_write_to_be_read_after_a_start(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    before = Core(tmp_path / "again", OFF)
    before.start()
    assert await EventLog(before).create("es") == ""
    await asyncio.to_thread(before.close)
    after = Core(tmp_path / "again", OFF)  # not started: nothing is written
    async with asyncio.timeout(5):
        await EventLog(after).open_cursor(
            pb.Subscribe(Channel="es", ClientID="c", EventsStoreTypeData=pb.Subscribe.StartFromFirst)
        )
    after.close()


# ---- marks that lag or are lost


async def again(folder: Path, *, publish: int, hold: int, settle: list[int], marks: bytes | None) -> Core:
    """A core started on what another left: so many published and handed out, some settled; then its marks changed."""
    await asyncio.to_thread(folder.mkdir)
    before = Core(folder, OFF)
    before.start()
    await published(before, *[message(b"%d" % number) for number in range(1, publish + 1)])
    if hold:
        opened(before, hold).settle(settle)
    await asyncio.to_thread(before.close)
    if marks is not None:
        (folder / "delivered").write_bytes(marks)
    return Core(folder, OFF)


LAGGING = b"KMQEsent" + bytes(8)


@pytest.mark.parametrize("marks", [b"", LAGGING, bytes(4096)], ids=["lost", "lagging", "not trusted"])
@pytest.mark.parametrize("settle", [[1, 2, 3, 4], [2, 4], [1, 4]])
async def test_what_exists_is_what_the_database_holds(tmp_path: Path, marks: bytes, settle: list[int]) -> None:
    core = await again(tmp_path / "again", publish=8, hold=5, settle=settle, marks=marks)
    queue = core.engine.channels["q"]
    left = [sequence for sequence in range(1, 9) if sequence not in settle]
    assert (queue.waiting(), queue.delivered()) == (len(left), 8)  # all flagged: it is not known who was handed out
    assert list(opened(core, 10).accepted) == left
    core.close()


async def test_lost_marks_stay_the_safe_side_at_the_start_after(tmp_path: Path) -> None:
    core = await again(tmp_path / "again", publish=4, hold=2, settle=[], marks=b"")
    core.close()
    after = Core(tmp_path / "again", OFF)
    assert after.engine.channels["q"].delivered() == 4
    after.close()


async def test_marks_that_are_right_flag_only_what_was_handed_out(tmp_path: Path) -> None:
    core = await again(tmp_path / "again", publish=8, hold=5, settle=[2, 3], marks=None)
    queue = core.engine.channels["q"]
    assert (queue.waiting(), queue.delivered(), queue.returned) == (6, 5, [1, 4, 5])
    core.close()


async def test_half_a_million_messages_are_counted_fast_without_marks(tmp_path: Path) -> None:
    folder = tmp_path / "again"
    (await again(folder, publish=1, hold=1, settle=[1], marks=None)).close()
    with sqlite3.connect(folder / FILE_NAME) as connection:
        connection.execute("UPDATE channel SET last_sequence = 500001")
        rows = ((entry_id(1, sequence), 1, 0, 0, b"x" * 100) for sequence in range(2, 500_002))
        connection.executemany("INSERT INTO entry VALUES (?, ?, ?, ?, ?)", rows)
    connection.close()
    (folder / "delivered").unlink()
    began = time.process_time()
    core = Core(folder, OFF)
    assert time.process_time() - began < 2
    assert core.engine.channels["q"].waiting() == 500_000
    core.close()


async def test_a_message_that_is_nowhere_is_dropped_when_it_is_met(core: Core) -> None:
    await published(core, message(b"1"), message(b"2"), message(b"3"))
    channel = core.engine.channels["q"]
    core.engine.cache.forget(channel.shelf, [2])
    core.store.forget(channel.channel_id, [2])
    await until(lambda: not core.store.read(channel.channel_id, [2]))
    transaction = opened(core, 3)
    assert list(await core.records(channel, list(transaction.accepted))) == [1, 3]
    assert channel.waiting() == 2
    transaction.close()
    assert list(opened(core, 3).accepted) == [1, 3]


# ---- slots


async def test_gets_take_turns_on_the_slots() -> None:
    timers: list[object] = []
    slots = GetSlots(2, lambda _delay, call: timers.append(call))
    first, second, third = slots.next(), slots.next(), slots.next()
    await first.take()
    await second.take()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(third.take())
        second.give_back()
        await asyncio.sleep(0)
        assert not waiting.done()
        first.give_back()
    third.give_back()


async def test_a_slot_of_a_lost_stream_is_kept_for_its_get() -> None:
    timers = []
    slots = GetSlots(1, lambda _delay, call: timers.append(call))
    lost, following = slots.next(), slots.next()
    await lost.take()
    lost.keep_for(1)
    lost.give_back()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(following.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        timers[0]()


async def test_without_a_limit_no_get_waits_for_another() -> None:
    slot = GetSlots(0, lambda _delay, _call: None).next()
    await slot.take()
    await slot.take()
    slot.keep_for(1)
    slot.give_back()

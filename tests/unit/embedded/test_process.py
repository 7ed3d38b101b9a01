"""The embedded server as a process: what it answered survives its death, and it outlives nobody."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded.schema import FILE_NAME
from tests.contract.raw_client import (
    Kind,
    RawClient,
    bodies,
    message,
    new_channel,
    receive_counts,
    sequences,
    until_row,
)
from tests.support.waiting import until
from tests.unit.embedded.process import EmbeddedProcess, spawn

END_LIMIT_S = 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(params=["on", "off"])
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[EmbeddedProcess]:
    with EmbeddedProcess(folder, "--quirks", request.param) as process:
        yield process


# ---- crashes


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_what_was_answered_is_there_after_the_end(server: EmbeddedProcess, how: signal.Signals) -> None:
    queue, answered = new_channel(), 0
    async with RawClient(server.address) as client:
        call = client.stub.QueuesUpstream()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for batch in range(100_000):
                messages = [message(queue, b"%d" % (batch * 10 + each)) for each in range(10)]
                await call.write(pb.QueuesUpstreamRequest(RequestID=str(batch), Messages=messages))
                answer = await call.read()
                if answer is grpc.aio.EOF:
                    break
                answered += sum(not result.IsError for result in answer.Results)
                if batch == 20:
                    server.child.send_signal(how)
    server.child.communicate(timeout=END_LIMIT_S)
    server.start()
    async with RawClient(server.address) as client:
        row = await client.row(queue)
        assert row["Waiting"] >= answered >= 200
        assert row["Waiting"] % 10 == 0  # a request is stored as a whole
        answer = await client.downstream().get(queue, row["Waiting"])
        assert sequences(answer) == list(range(1, row["Waiting"] + 1))
        assert bodies(answer) == [b"%d" % each for each in range(row["Waiting"])]


async def test_after_a_kill_what_was_held_comes_first_and_delivered_tells_it(server: EmbeddedProcess) -> None:
    queue = new_channel()
    async with RawClient(server.address) as client:
        await client.publish(queue, *range(10))
        stream = client.downstream()
        answer = await stream.get(queue, 6)
        await stream.ack(answer, [2, 3])
        delivered = (await client.row(queue))["Delivered"]
        await client.stub.SendEvent(pb.Event(ClientID="c", Channel="sync", Body=b"x", Store=True))
    server.restart()
    async with RawClient(server.address) as client:
        await until_row(client, queue, FirstSequence=1, LastSequence=10, Delivered=delivered, Waiting=8, Subscribers=1)
        answer = await client.downstream().get(queue, 8)
        assert sequences(answer) == [1, 4, 5, 6, 7, 8, 9, 10]
        assert receive_counts(answer) == [1] * 8


async def test_after_an_orderly_end_acknowledgements_are_all_there(server: EmbeddedProcess) -> None:
    queue = new_channel()
    async with RawClient(server.address) as client:
        await client.publish(queue, *range(10))
        stream = client.downstream()
        await stream.ack(await stream.get(queue, 9), range(1, 9))
        server.child.send_signal(signal.SIGTERM)
        server.child.communicate(timeout=END_LIMIT_S)
    server.start()
    async with RawClient(server.address) as client:
        assert sequences(await client.downstream().get(queue, 2)) == [9, 10]


async def test_sequences_go_on_after_a_restart_of_an_empty_queue(server: EmbeddedProcess) -> None:
    queue = new_channel()
    async with RawClient(server.address) as client:
        await client.publish(queue, *range(3))
        stream = client.downstream()
        await stream.ack(await stream.get(queue, 3))
    server.restart(signal.SIGTERM)
    async with RawClient(server.address) as client:
        await client.publish(queue, "x")
        assert sequences(await client.downstream().get(queue, 1)) == [4]


async def test_rejected_and_moved_messages_survive_a_kill_once(server: EmbeddedProcess) -> None:
    queue, target = new_channel(), new_channel("target")
    async with RawClient(server.address) as client:
        await client.publish(queue, *range(3))
        stream = client.downstream()
        answer = await stream.get(queue, 3)
        await stream.tell(Kind.NAckRange, answer.TransactionId, [1])
        await stream.tell(Kind.ReQueueRange, answer.TransactionId, [2], target)
        await stream.barrier()
    server.restart()
    async with RawClient(server.address) as client:
        answer = await client.downstream().get(queue, 2)
        assert [*zip(bodies(answer), receive_counts(answer), strict=True)] == [(b"2", 1), (b"0", 2)]
        assert bodies(await client.downstream().get(target, 1)) == [b"1"]


async def test_delayed_messages_survive_a_kill(server: EmbeddedProcess) -> None:
    queue = new_channel()
    async with RawClient(server.address) as client:
        await client.publish(queue, "x", Policy=pb.QueueMessagePolicy(DelaySeconds=1))
        assert await client.row(queue) == {}
    server.restart()
    async with RawClient(server.address) as client:
        assert bodies(await client.downstream().get(queue, 1, 5000)) == [b"x"]
    server.restart()
    async with RawClient(server.address) as client:
        await until_row(client, queue, Waiting=1, LastSequence=1)


async def test_stored_events_and_where_readers_stand_survive(server: EmbeddedProcess) -> None:
    channel = new_channel("es")
    first = {"EventsStoreTypeData": pb.Subscribe.StartFromFirst, "ClientID": "reader"}
    async with RawClient(server.address) as client:
        for name in "123":
            await client.stub.SendEvent(pb.Event(EventID=name, ClientID="c", Channel=channel, Body=b"x", Store=True))
        reader = client.subscribe(channel, pb.Subscribe.EventsStore, **first)
        await until(lambda: reader.names() == ["1", "2", "3"])
    server.restart(signal.SIGTERM)
    async with RawClient(server.address) as client:
        await client.stub.SendEvent(pb.Event(EventID="4", ClientID="c", Channel=channel, Body=b"x", Store=True))
        again = client.subscribe(channel, pb.Subscribe.EventsStore, **first)
        other = client.subscribe(channel, pb.Subscribe.EventsStore, **{**first, "ClientID": "other"})
        await until(lambda: "4" in again.names() and len(other.events) == 4)
        assert again.names() in (["4"], ["3", "4"])  # the end may come between handing out and noting it
        assert [each.Sequence for each in other.events] == [1, 2, 3, 4]


async def test_a_log_is_as_long_as_its_writer_needs(server: EmbeddedProcess) -> None:
    """An event may name the Sequence from which on the log is enough; what is before the one named until then goes."""
    channel = new_channel("es")
    first = {"EventsStoreTypeData": pb.Subscribe.StartFromFirst}

    async def append(client: RawClient, start: int) -> None:
        tags = {"amqp-start": str(start)}
        await client.stub.SendEvent(pb.Event(ClientID="c", Channel=channel, Body=b"x", Store=True, Tags=tags))

    async def found(client: RawClient, name: str, count: int) -> list[int]:
        reader = client.subscribe(channel, pb.Subscribe.EventsStore, **first, ClientID=name)
        await until(lambda: len(reader.events) == count)
        return [each.Sequence for each in reader.events]

    async with RawClient(server.address) as client:
        slow = client.subscribe(channel, pb.Subscribe.EventsStore, **first, ClientID="live")
        for start in (1, 1, 1, 1, 4, 4, 4, 7):
            await append(client, start)
        assert await found(client, "early", 5) == [4, 5, 6, 7, 8]  # from 4 on: 7 is the last one named
        await until(lambda: slow.events and slow.events[-1].Sequence == 8)
    server.restart(signal.SIGTERM)
    async with RawClient(server.address) as client:
        await append(client, 99)  # nobody can know that yet: it is taken for the next one
        assert await found(client, "late", 6) == [4, 5, 6, 7, 8, 9]
        for _ in range(2):
            await append(client, 10)
        await append(client, 11)
        assert await found(client, "later", 3) == [10, 11, 12]
        assert await found(client, "early", 3) == [10, 11, 12]  # it stood at what was deleted meanwhile


async def test_messages_larger_than_the_cache_are_read_from_disk(server: EmbeddedProcess) -> None:
    queue = new_channel()
    body = b"x" * 1_000_000
    async with RawClient(server.address) as client:
        for number in range(8):
            await client.publish(queue, *[b"%d" % number + body] * 10)
        stream = client.downstream()
        for number in range(8):
            answer = await stream.get(queue, 10)
            assert bodies(answer) == [b"%d" % number + body] * 10
            await stream.ack(answer)


# ---- a full disk


async def test_a_full_disk_refuses_messages_and_loses_nothing(folder: Path) -> None:
    queue = new_channel()
    limit = 3 * 1024 * 1024
    with EmbeddedProcess(folder) as server:
        resource.prlimit(server.child.pid, resource.RLIMIT_FSIZE, (limit, limit))
        stored, large = 0, pb.SendQueueMessageResult()
        async with RawClient(server.address) as client:
            for _ in range(100):
                (answer,) = await client.upstream([message(queue, b"%d" % (stored + each)) for each in range(100)])
                large = await client.stub.SendQueueMessage(message(new_channel("large"), b"x" * 100_000))
                if answer.Results[0].IsError or large.IsError:
                    break
                stored += 100
            assert large.IsError
            assert large.Error
            (answer,) = await client.upstream([message(queue, b"x" * 5_000_000)] * 2)
            assert [result.IsError for result in answer.Results] == [True, True]
            assert not answer.IsError
            row = await client.row(queue)
            assert bodies(await client.downstream().get(queue, row["Waiting"]))[:stored] == [
                b"%d" % each for each in range(stored)
            ]
        server.restart()
        async with RawClient(server.address) as client:
            assert (await client.row(queue))["Waiting"] == row["Waiting"]
            await client.publish(queue, b"room again")
        assert "cannot be stored" in server.end()


@pytest.fixture
def small_folder(tmp_path: Path) -> Iterator[Path]:
    """A data folder on a file system of 24 MB; only root can have one."""
    disk = tmp_path / "small"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield disk / "data"
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


async def filled(client: RawClient, queue: str) -> int:
    """Publish until the disk is full; how many were stored."""
    for count in range(100):
        if (await client.stub.SendQueueMessage(message(queue, b"x" * 500_000))).IsError:
            return count
    pytest.fail("the disk is never full")


async def acknowledge_all(client: RawClient, queue: str, count: int) -> None:
    stream = client.downstream()
    for _ in range(count):
        await stream.ack(await stream.get(queue, 1))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("brim", [False, True], ids=["full", "full to the brim"])
async def test_on_a_full_disk_consuming_helps(small_folder: Path, how: signal.Signals, brim: bool) -> None:
    queue = new_channel()
    with EmbeddedProcess(small_folder) as server:
        async with RawClient(server.address) as client:
            stored = await filled(client, queue)
        if brim:
            room = os.statvfs(small_folder)
            with (small_folder.parent / "foreign").open("wb") as foreign:
                foreign.write(bytes(room.f_bavail * room.f_frsize))
        server.restart(how)
        async with RawClient(server.address) as client:
            assert (await client.row(queue))["Waiting"] == stored
            await acknowledge_all(client, queue, stored)
            await asyncio.sleep(1)
        server.restart(how)
        async with RawClient(server.address) as client:
            assert (await client.row(queue)).get("Waiting", 0) == 0
            await client.publish(queue, "room again")
            assert await filled(client, queue) > stored // 2
            assert bodies(await client.downstream().get(queue, 1)) == [b"room again"]


# ---- its life


def test_it_ends_with_its_parents_pipe(folder: Path) -> None:
    with EmbeddedProcess(folder) as server:
        assert server.close_pipe() == 0


def test_it_ignores_what_ctrl_c_sends_to_its_group(folder: Path) -> None:
    with EmbeddedProcess(folder) as server:
        server.child.send_signal(signal.SIGINT)
        with socket.create_connection(("127.0.0.1", server.port), 5):
            pass
        assert server.child.poll() is None


def test_without_a_parents_pipe_ctrl_c_ends_it(folder: Path) -> None:
    child = spawn(folder, "--port", "0")
    assert child.stdout is not None
    assert child.stdout.readline().startswith(b"listening ")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=END_LIMIT_S)
    assert child.returncode == 0


def test_a_successor_waits_for_its_predecessor(folder: Path) -> None:
    with EmbeddedProcess(folder) as server:
        successor = spawn(folder, "--port", "0", "--lock-wait", "8")
        assert successor.stdout is not None
        server.end()
        assert successor.stdout.readline().startswith(b"listening ")
        successor.kill()
        successor.communicate(timeout=END_LIMIT_S)


def refusal(child: subprocess.Popen[bytes]) -> str:
    """What a server that cannot start says; it must end with code 1 and print nothing on standard output."""
    output, errors = child.communicate(timeout=END_LIMIT_S)
    assert (child.returncode, output) == (1, b"")
    assert b"Traceback" not in errors
    return errors.decode()


def test_a_folder_in_use_is_refused_with_its_owner(folder: Path) -> None:
    with EmbeddedProcess(folder) as server:
        text = refusal(spawn(folder, "--port", "0", "--lock-wait", "0"))
        assert f"in use by another server (process {server.child.pid})" in text


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with EmbeddedProcess(tmp_path / "one") as server:
        text = refusal(spawn(tmp_path / "other", "--port", str(server.port)))
        assert f"cannot listen on 127.0.0.1:{server.port}" in text


def test_a_damaged_database_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / FILE_NAME).write_bytes(os.urandom(10_000))
    assert FILE_NAME in refusal(spawn(folder, "--port", "0"))

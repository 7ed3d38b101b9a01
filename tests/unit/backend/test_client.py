"""Connecting: which address is used, what is probed, how errors of the calls are told."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from connector.backend.kubemq import KubeMQClient, KubeMQStore
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.ports import Rejected, ServerInfo, TimedOut, Unavailable
from tests.unit.backend.scripted import Context, Scripted, ping
from tests.unit.backend.settling import closed


async def dead_address() -> str:
    """An address nobody listens at."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return f"127.0.0.1:{port}"


def told(info: ServerInfo) -> tuple[str, str, int]:
    return info.host, info.version, info.start_time


async def test_the_first_address_that_answers_is_used(server: Scripted) -> None:
    dead = await dead_address()
    client = KubeMQClient([dead, server.address, "127.0.0.1:1"], "unit")

    info = await client.connect(5)

    assert told(info) == ("scripted", "v0", 7)
    assert client.address == server.address
    assert told(await client.ping()) == told(info)
    await closed(client)


async def test_an_address_that_hangs_is_left_for_the_next(server: Scripted) -> None:
    async def hang(request: Any, context: Context) -> Any:
        await asyncio.Event().wait()

    async with Scripted(Ping=hang) as hanging:
        client = KubeMQClient([hanging.address, server.address], "unit", call_timeout_s=0.1)

        await client.connect(5)

        assert client.address == server.address
        await closed(client)


async def test_nobody_answers() -> None:
    addresses = [await dead_address(), await dead_address()]
    client = KubeMQClient(addresses, "unit")

    with pytest.raises(Unavailable) as caught:
        await client.connect(0.2)

    assert all(address in str(caught.value) for address in addresses)
    with pytest.raises(Unavailable, match="not connected"):
        await client.ping()


async def test_a_server_that_is_not_ready_is_waited_for(server: Scripted) -> None:
    refused = 0

    async def not_ready(request: Any, context: Context) -> Any:
        nonlocal refused
        refused += 1
        if refused == 3:
            server.handlers["Ping"] = ping
        await context.abort(grpc.StatusCode.UNAVAILABLE, "grpc server is not ready to accept requests")

    server.handlers["Ping"] = not_ready
    client = KubeMQClient(server.address, "unit")

    await client.connect(5)

    assert refused == 3
    await closed(client)


async def test_all_connections_are_used(server: Scripted) -> None:
    peers = set()

    async def note(request: Any, context: Context) -> Any:
        peers.add(context.peer())
        return pb.PingResult()

    server.handlers["Ping"] = note
    client = KubeMQClient(server.address, "unit", connections=3)
    await client.connect(5)

    for _ in range(3):
        await client.ping()

    assert len(peers) == 3
    await closed(client)


async def test_the_token_goes_with_every_call(server: Scripted) -> None:
    client = KubeMQClient(server.address, "unit", auth_token="secret")
    store = KubeMQStore(client)
    await store.start(5)
    with pytest.raises(Unavailable):
        await store.open_stream().get("c", 1)

    assert {name for name, _ in server.seen} == {"Ping", "QueuesInfo", "SendQueueMessagesBatch", "QueuesDownstream"}
    assert {metadata.get("authorization") for _, metadata in server.seen} == {"secret"}
    await closed(store)


async def test_a_server_without_queues_info_is_refused_in_words(server: Scripted) -> None:
    del server.handlers["QueuesInfo"]
    store = KubeMQStore(KubeMQClient(server.address, "unit"))

    with pytest.raises(Rejected, match=r"QueuesInfo.*use KubeMQ 2\.4"):
        await store.start(5)

    await closed(store)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
        (grpc.StatusCode.INTERNAL, Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, TimedOut),
    ],
)
async def test_errors_of_snapshot_and_ping_are_the_ports(
    server: Scripted, client: KubeMQClient, status: grpc.StatusCode, error: type[Exception]
) -> None:
    async def fail(request: Any, context: Context) -> Any:
        await context.abort(status, "because")

    server.handlers["QueuesInfo"] = server.handlers["Ping"] = fail

    with pytest.raises(error, match="because"):
        await client.queues_info()
    with pytest.raises(error, match="because"):
        await client.ping()
    server.handlers["SendQueueMessagesBatch"] = fail
    with pytest.raises(error):
        await client.send_batch([])


@pytest.mark.parametrize(("limit", "expected"), [(5000, 1024), (1024, 1024), (1000, 512), (3, 2), (0, 1)])
async def test_the_largest_receive_count_is_found(server: Scripted, limit: int, expected: int) -> None:
    async def check(request: pb.QueueMessagesBatchRequest, context: Context) -> pb.QueueMessagesBatchResponse:
        results = []
        for message in request.Messages:
            assert message.Policy.DelaySeconds < 0  # so that it is refused in any case
            text = "Error 134: count" if message.Policy.MaxReceiveCount > limit else "Error 135: delay"
            results.append(pb.SendQueueMessageResult(IsError=True, Error=text))
        return pb.QueueMessagesBatchResponse(Results=results)

    server.handlers["SendQueueMessagesBatch"] = check
    store = KubeMQStore(KubeMQClient(server.address, "unit"))

    await store.start(5)

    assert store.max_receive_count == expected
    await closed(store)


@pytest.mark.parametrize("arguments", [([], "id", 1), ("a:1", "", 1), ("a:1", "a.b", 1), ("a:1", "id", 0)])
def test_a_client_needs_an_address_an_id_and_a_connection(arguments: tuple[Any, str, int]) -> None:
    addresses, client_id, connections = arguments
    with pytest.raises(ValueError, match="needs"):
        KubeMQClient(addresses, client_id, connections=connections)

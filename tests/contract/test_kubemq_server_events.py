"""What the topology log and the peer channel rely on: stored and transient events.

One suite on the embedded server and on a real KubeMQ: where both agree here, an adapter that passes on the embedded one
is right about the real one.  Source: measurements on KubeMQ 2.4.0.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import grpc
import pytest
from kubemq.grpc import kubemq_pb2 as pb

from tests.contract.raw_client import (
    RawClient,
    a_second_passes,
    new_channel,
)
from tests.support.waiting import until

# ------------------------------------------------------------------------------------------------ events


def event(channel: str, name: object, **fields: Any) -> pb.Event:
    return pb.Event(**{"EventID": str(name), "ClientID": "contract", "Channel": channel, "Body": b"x", **fields})


async def listening(client: RawClient, send_to: str, *subscriptions: Any) -> None:
    """Return when all subscriptions receive: a real server needs a moment."""

    async def probe() -> None:
        while not all(subscription.events for subscription in subscriptions):
            await client.stub.SendEvent(event(send_to, "probe"))
            await asyncio.sleep(0.01)

    async with asyncio.timeout(5):
        await probe()
    await client.stub.SendEvent(event(send_to, "probed"))


async def test_events_reach_who_listens_with_wildcards_too(client: RawClient) -> None:
    word = new_channel("ev")
    exact, star, rest = (
        client.subscribe(pattern, pb.Subscribe.Events) for pattern in (f"{word}.a", f"{word}.*", f"{word}.>")
    )
    other = client.subscribe(f"{word}.b", pb.Subscribe.Events)
    await listening(client, f"{word}.a", exact, star, rest)
    sent = event(f"{word}.a", "e", Metadata="m", Tags={"k": "v"}, Body=b"\x00")
    result = await client.stub.SendEvent(sent)
    assert (result.EventID, result.Sent, result.Error) == ("e", True, "")
    for subscription in (exact, star, rest):
        await subscription.has("e")
        got = subscription.events[-1]
        assert (got.Channel, got.Metadata, got.Body, dict(got.Tags)) == (f"{word}.a", "m", b"\x00", {"k": "v"})
        assert got.Sequence == 0
    assert not other.events


async def test_one_of_a_group_gets_an_event(client: RawClient) -> None:
    channel = new_channel("ev")
    group = [client.subscribe(channel, pb.Subscribe.Events, Group="g") for _ in range(2)]
    await listening(client, channel, *group)
    names = [f"e{number}" for number in range(20)]
    for name in names:
        await client.stub.SendEvent(event(channel, name))
    await until(lambda: sum(name in each.names() for each in group for name in names) == 20)
    got = [name for each in group for name in each.names() if name.startswith("e")]
    assert sorted(got) == sorted(names)


async def store_events(client: RawClient, channel: str, *names: object) -> None:
    for name in names:
        result = await client.stub.SendEvent(event(channel, name, Store=True))
        assert (result.EventID, result.Sent, result.Error) == (str(name), True, "")


async def test_stored_events_come_in_order_with_sequences_then_live(client: RawClient) -> None:
    channel = new_channel("es")
    await store_events(client, channel, *range(5))
    first = pb.Subscribe.StartFromFirst
    subscription = client.subscribe(channel, pb.Subscribe.EventsStore, EventsStoreTypeData=first)
    await until(lambda: len(subscription.events) == 5)
    await store_events(client, channel, *range(5, 10))
    await until(lambda: len(subscription.events) == 10)
    assert subscription.names() == [str(number) for number in range(10)]
    assert [each.Sequence for each in subscription.events] == list(range(1, 11))
    assert abs(subscription.events[0].Timestamp - time.time_ns()) < 60e9


async def test_a_replay_of_many_events(client: RawClient) -> None:
    channel = new_channel("es")
    stream = client.stub.SendEventsStream()
    for number in range(1500):
        await stream.write(event(channel, number, Store=True))
    for number in range(1500):
        result = await stream.read()
        assert (result.EventID, result.Sent) == (str(number), True)
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    first = pb.Subscribe.StartFromFirst
    subscription = client.subscribe(channel, pb.Subscribe.EventsStore, EventsStoreTypeData=first)
    await until(lambda: len(subscription.events) == 1500)
    assert subscription.names() == [str(number) for number in range(1500)]


@pytest.mark.parametrize(
    ("start", "value", "expected"),
    [
        pytest.param(pb.Subscribe.StartNewOnly, 0, ["5"], id="new"),
        pytest.param(pb.Subscribe.StartFromFirst, 0, ["1", "2", "3", "4", "5"], id="first"),
        pytest.param(pb.Subscribe.StartFromLast, 0, ["4", "5"], id="last"),
        pytest.param(pb.Subscribe.StartAtSequence, 3, ["3", "4", "5"], id="sequence"),
        pytest.param(pb.Subscribe.StartAtSequence, 99, ["5"], id="sequence not reached"),
        pytest.param(pb.Subscribe.StartAtTime, 1, ["1", "2", "3", "4", "5"], id="time"),
        pytest.param(pb.Subscribe.StartAtTime, 2**62, ["5"], id="future"),
        pytest.param(pb.Subscribe.StartAtTimeDelta, 3600, ["1", "2", "3", "4", "5"], id="delta"),
    ],
)
async def test_where_a_new_reader_starts(client: RawClient, start: int, value: int, expected: list[str]) -> None:
    channel = new_channel("es")
    await store_events(client, channel, *range(1, 5))
    await a_second_passes(client)  # a real server answers before it stores
    subscription = client.subscribe(
        channel, pb.Subscribe.EventsStore, EventsStoreTypeData=start, EventsStoreTypeValue=value
    )
    if expected[0] == "5":
        await a_second_passes(client)
    await until(lambda: len(subscription.events) == len(expected) - 1)
    await store_events(client, channel, 5)
    await until(lambda: "5" in subscription.names())
    assert subscription.names() == expected


async def test_a_client_id_resumes_where_it_stood(client: RawClient) -> None:
    channel, client_id = new_channel("es"), uuid.uuid4().hex
    first = {"EventsStoreTypeData": pb.Subscribe.StartFromFirst, "ClientID": client_id}
    await store_events(client, channel, *range(3))
    reader = client.subscribe(channel, pb.Subscribe.EventsStore, **first)
    await until(lambda: len(reader.events) == 3)
    await a_second_passes(client)
    await reader.cancel()
    await a_second_passes(client)
    await store_events(client, channel, *range(3, 6))
    again = client.subscribe(channel, pb.Subscribe.EventsStore, **first)
    await until(lambda: len(again.events) == 3)
    assert again.names() == ["3", "4", "5"]


async def test_a_client_id_has_one_subscription(client: RawClient) -> None:
    channel, client_id = new_channel("es"), uuid.uuid4().hex
    first = {"EventsStoreTypeData": pb.Subscribe.StartFromFirst, "ClientID": client_id}
    await store_events(client, channel, 0)
    reader = client.subscribe(channel, pb.Subscribe.EventsStore, **first)
    await until(lambda: reader.events)
    assert await client.subscribe(new_channel("es"), pb.Subscribe.EventsStore, **first).refused()
    await store_events(client, channel, 1)
    await until(lambda: len(reader.events) == 2)


async def test_a_group_shares_its_place_in_the_log(client: RawClient) -> None:
    channel = new_channel("es")
    first = {"EventsStoreTypeData": pb.Subscribe.StartFromFirst, "Group": "g"}
    await store_events(client, channel, *range(3))
    reader = client.subscribe(channel, pb.Subscribe.EventsStore, **first)
    await until(lambda: len(reader.events) == 3)
    await a_second_passes(client)
    await reader.cancel()
    await a_second_passes(client)
    await store_events(client, channel, 3)
    other = client.subscribe(channel, pb.Subscribe.EventsStore, **first)
    await until(lambda: other.events)
    assert other.names() == ["3"]


@pytest.mark.parametrize(
    ("kind", "fields", "error"),
    [
        (pb.Subscribe.SubscribeTypeUndefined, {}, "Error 207"),
        (pb.Subscribe.Events, {"EventsStoreTypeData": pb.Subscribe.StartFromFirst}, "Error 118"),
        (pb.Subscribe.Events, {"ClientID": ""}, "Error 101"),
        (pb.Subscribe.Events, {"Channel": ""}, "Error 102"),
        (pb.Subscribe.EventsStore, {}, "Error 111"),
        (pb.Subscribe.EventsStore, {"EventsStoreTypeData": pb.Subscribe.StartAtSequence}, "Error 112"),
        (pb.Subscribe.EventsStore, {"EventsStoreTypeData": pb.Subscribe.StartAtTime}, "Error 113"),
        (pb.Subscribe.EventsStore, {"EventsStoreTypeData": pb.Subscribe.StartAtTimeDelta}, "Error 114"),
        (pb.Subscribe.EventsStore, {"EventsStoreTypeData": 2, "Channel": "a.*"}, "Error 107"),
        (pb.Subscribe.EventsStore, {"EventsStoreTypeData": 2, "Channel": "a b"}, "Error 108"),
        (pb.Subscribe.EventsStore, {"EventsStoreTypeData": 2, "Channel": "a."}, "Error 119"),
        (pb.Subscribe.EventsStore, {"EventsStoreTypeData": 2, "Channel": "a..b"}, ""),
        (pb.Subscribe.EventsStore, {"EventsStoreTypeData": 2, "ClientID": "with.dot"}, ""),
    ],
)
async def test_refused_subscriptions(client: RawClient, kind: int, fields: dict[str, Any], error: str) -> None:
    values = {"Channel": new_channel("es"), **fields}
    subscription = client.subscribe(values.pop("Channel"), kind, **values)
    assert (await subscription.refused()).startswith(error)


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"ClientID": ""}, "Error 101"),
        ({"Channel": ""}, "Error 102"),
        ({"Channel": "a.*"}, "Error 107"),
        ({"Channel": "a b"}, "Error 108"),
        ({"Body": b""}, "Error 110"),
        ({"Channel": "a."}, "Error 119"),
    ],
)
async def test_refused_events(client: RawClient, fields: dict[str, Any], error: str, store: bool) -> None:
    bad = event(new_channel("ev"), "e", Store=store)
    for name, value in fields.items():
        setattr(bad, name, value)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await client.stub.SendEvent(bad)
    assert refusal.value.code() is grpc.StatusCode.INTERNAL
    assert (refusal.value.details() or "").startswith(error)


async def test_a_stream_of_events_answers_stored_ones_and_refusals(client: RawClient) -> None:
    channel, stream = new_channel("es"), client.stub.SendEventsStream()
    for each in (
        event(channel, "transient"),
        event(channel, "stored", Store=True),
        event(channel, "refused", ClientID="", Store=True),
        event(channel, "refused too", ClientID=""),
    ):
        await stream.write(each)
    results = [await stream.read() for _ in range(3)]
    assert [(result.EventID, result.Sent) for result in results] == [
        ("stored", True),
        ("refused", False),
        ("refused too", False),
    ]
    assert results[1].Error.startswith("Error 101")
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF

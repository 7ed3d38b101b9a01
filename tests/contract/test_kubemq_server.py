"""What the adapter relies on when it publishes to queues and counts them, and what answers beside.

One suite on the embedded server and on a real KubeMQ: where both agree here, an adapter that passes on the embedded one
is right about the real one.  Source: measurements on KubeMQ 2.4.0.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import grpc
import pytest
from kubemq.grpc import kubemq_pb2 as pb

from tests.contract.raw_client import (
    AT_ONCE_S,
    Kind,
    RawClient,
    Timed,
    a_second_passes,
    bodies,
    message,
    new_channel,
    sequences,
    until_row,
)

# ------------------------------------------------------------------------------------------------ publishing


async def test_a_request_may_carry_many_queues_with_a_result_for_each_message(client: RawClient) -> None:
    one, other = new_channel(), new_channel()
    (answer,) = await client.upstream(
        [
            message(one, "1", MessageID="a"),
            message(other, "2", MessageID="b"),
            message(one, "", MessageID="c"),
            message(one, "3", MessageID="d"),
        ]
    )
    assert not answer.IsError
    assert [result.MessageID for result in answer.Results] == ["a", "b", "c", "d"]
    assert [result.IsError for result in answer.Results] == [False, False, True, False]
    assert answer.Results[2].Error.startswith("Error 110")
    assert answer.Results[0].SentAt > 0
    stream = client.downstream()
    assert bodies(await stream.get(one, 2)) == [b"1", b"3"]
    assert bodies(await stream.get(other, 1)) == [b"2"]


async def test_many_requests_in_flight_are_answered_by_their_ids(client: RawClient) -> None:
    queues = [new_channel() for _ in range(20)]
    call = client.stub.QueuesUpstream()
    for queue in queues:
        await call.write(pb.QueuesUpstreamRequest(RequestID=queue, Messages=[message(queue), message(queue)]))
    answers = [await call.read() for _ in queues]
    assert sorted(answer.RefRequestID for answer in answers) == sorted(queues)
    assert all(len(answer.Results) == 2 and not answer.Results[0].IsError for answer in answers)
    call.cancel()


async def test_sequences_count_from_1_in_the_order_of_publishing(client: RawClient, queue: str) -> None:
    await client.upstream(*[[message(queue, f"{batch}.{each}") for each in range(20)] for batch in range(3)])
    await client.publish(queue, "last")
    answer = await client.downstream().get(queue, 61)
    assert sequences(answer) == list(range(1, 62))
    assert bodies(answer) == [f"{batch}.{each}".encode() for batch in range(3) for each in range(20)] + [b"last"]


async def test_a_message_comes_as_it_was_sent(client: RawClient, queue: str) -> None:
    sent = message(queue, b"\x00\xff", MessageID="mine", Metadata='{"v":1}', Tags={"a": "b", "ä": ""})
    before_ns = time.time_ns()
    await client.stub.SendQueueMessage(sent)
    (got,) = (await client.downstream().get(queue, 1)).Messages
    assert (got.MessageID, got.ClientID, got.Channel, got.Metadata) == ("mine", "contract", queue, '{"v":1}')
    assert (got.Body, dict(got.Tags)) == (b"\x00\xff", {"a": "b", "ä": ""})
    assert abs(got.Attributes.Timestamp - before_ns) < 5e9
    assert (got.Attributes.Sequence, got.Attributes.ReceiveCount) == (1, 1)
    assert (got.Attributes.ExpirationAt, got.Attributes.DelayedTo, got.Attributes.ReRouted) == (0, 0, False)
    assert got.Policy.MaxReceiveCount == 1024


async def test_attributes_of_a_producer_are_ignored(client: RawClient, queue: str) -> None:
    attributes = pb.QueueMessageAttributes(Sequence=77, ReceiveCount=5, ExpirationAt=1, ReRouted=True)
    await client.publish(queue, "x", Attributes=attributes)
    (got,) = (await client.downstream().get(queue, 1)).Messages
    assert (got.Attributes.Sequence, got.Attributes.ReceiveCount, got.Attributes.ReRouted) == (1, 1, False)


async def test_a_message_without_an_id_gets_one(client: RawClient, queue: str) -> None:
    result = await client.stub.SendQueueMessage(message(queue, "x"))
    assert result.MessageID
    (got,) = (await client.downstream().get(queue, 1)).Messages
    assert got.MessageID == result.MessageID


@pytest.mark.parametrize(("body", "metadata"), [(b"", "m"), (b"b", "")])
async def test_metadata_or_a_body_is_enough(client: RawClient, queue: str, body: bytes, metadata: str) -> None:
    result = await client.stub.SendQueueMessage(message(queue, body, Metadata=metadata))
    assert not result.IsError


def _policy(**fields: Any) -> dict[str, Any]:
    return {"Policy": pb.QueueMessagePolicy(**fields)}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        pytest.param({"ClientID": ""}, "Error 101", id="no client id"),
        pytest.param({"Body": b""}, "Error 110", id="empty"),
        pytest.param({"Channel": ""}, "Error 120", id="no channel"),
        pytest.param({"Channel": "a b"}, "Error 120", id="space"),
        pytest.param({"Channel": "a*"}, "Error 120", id="star"),
        pytest.param({"Channel": "a.>"}, "Error 120", id="greater"),
        pytest.param({"Channel": "a."}, "Error 120", id="trailing dot"),
        pytest.param({"Channel": ".a"}, "", id="leading dot"),
        pytest.param({"Channel": "a..b"}, "", id="two dots"),
        pytest.param({"Channel": "a/b"}, "", id="slash"),
        pytest.param({"Channel": "l" * 247}, "", id="too long"),
        pytest.param({"Channel": "ä" * 124}, "", id="too long in bytes"),
        pytest.param(_policy(ExpirationSeconds=43_201), "Error 133", id="expiration"),
        pytest.param(_policy(ExpirationSeconds=-1), "Error 133", id="negative expiration"),
        pytest.param(_policy(MaxReceiveCount=1025), "Error 134", id="receive count"),
        pytest.param(_policy(DelaySeconds=43_201), "Error 135", id="delay"),
        pytest.param(_policy(MaxReceiveQueue="a b"), "Error 120", id="dead-letter queue"),
    ],
)
async def test_refused_messages_have_an_error_each(client: RawClient, fields: dict[str, Any], error: str) -> None:
    bad = message(new_channel())
    for name, value in fields.items():
        if name == "Policy":
            bad.Policy.CopyFrom(value)
        else:
            setattr(bad, name, value)
    (answer,) = await client.upstream([bad, message(new_channel())])
    assert not answer.IsError
    assert [result.IsError for result in answer.Results] == [True, False]
    assert answer.Results[0].Error.startswith(error)


@pytest.mark.parametrize("name", ["p%41", "grün", "~g1", "a~b", "A-b_c;d", "{q}", "q?", "a.b.c"])
async def test_names_that_pass(client: RawClient, name: str) -> None:
    channel = f"{new_channel()}.{name}"
    await client.publish(channel, "x")
    assert bodies(await client.downstream().get(channel, 1)) == [b"x"]


async def test_a_queue_with_a_colon_takes_messages_and_cannot_be_read(client: RawClient) -> None:
    channel = f"{new_channel()}:1"
    await client.publish(channel, "x")
    await until_row(client, channel, Waiting=1)
    answer = await client.downstream().ask(Kind.Get, Channel=channel, MaxItems=1, WaitTimeout=1)
    assert answer.Error.startswith("Error 121")


async def test_a_name_of_246_bytes_passes(client: RawClient) -> None:
    await client.publish(new_channel().ljust(246, "l"), "x")


async def test_an_upstream_request_without_messages_is_an_error(client: RawClient) -> None:
    (answer,) = await client.upstream([])
    assert answer.IsError
    assert answer.Error
    assert not answer.Results


async def test_a_batch_has_a_result_for_each_message(client: RawClient, queue: str) -> None:
    messages = [message(queue, MessageID="a"), message(queue, "", MessageID="b"), message(queue, MessageID="c")]
    answer = await client.stub.SendQueueMessagesBatch(pb.QueueMessagesBatchRequest(BatchID="b1", Messages=messages))
    assert answer.BatchID == "b1"
    assert [(result.MessageID, result.IsError) for result in answer.Results] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]
    assert not answer.HaveErrors


async def test_a_batch_has_errors_when_the_store_refuses(client: RawClient) -> None:
    messages = [message(new_channel()), message("a..b")]
    answer = await client.stub.SendQueueMessagesBatch(pb.QueueMessagesBatchRequest(BatchID="b", Messages=messages))
    assert [result.IsError for result in answer.Results] == [False, True]
    assert answer.HaveErrors


async def test_an_empty_batch_is_refused(client: RawClient) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await client.stub.SendQueueMessagesBatch(pb.QueueMessagesBatchRequest(BatchID="b"))
    assert refusal.value.code() is grpc.StatusCode.UNKNOWN


# ------------------------------------------------------------------------------------------------ policies


async def test_expired_messages_are_settled_and_not_shown(client: RawClient, queue: str) -> None:
    await client.publish(queue, "old", "old", Policy=pb.QueueMessagePolicy(ExpirationSeconds=1))
    await client.publish(queue, "new", Policy=pb.QueueMessagePolicy(ExpirationSeconds=1000))
    await a_second_passes(client)
    stream = client.downstream()
    answer = await stream.get(queue, 3)
    assert bodies(answer) == [b"new"]
    assert answer.Messages[0].Attributes.ExpirationAt > time.time_ns()
    assert await stream.active(answer) == [3]
    await until_row(client, queue, Waiting=1)


async def test_an_answer_of_expired_messages_only_is_empty_and_open(client: RawClient, queue: str) -> None:
    await client.publish(queue, "old", "old", Policy=pb.QueueMessagePolicy(ExpirationSeconds=1))
    await a_second_passes(client)
    stream = client.downstream()
    with Timed() as took:
        answer = await stream.get(queue, 2)
    assert took.seconds < AT_ONCE_S
    assert not answer.Messages
    assert await stream.active(answer) == []
    await until_row(client, queue, Waiting=0, Delivered=2)


async def test_a_delayed_message_comes_when_it_is_due(client: RawClient, queue: str) -> None:
    policy = pb.QueueMessagePolicy(DelaySeconds=1, ExpirationSeconds=100)
    with Timed() as took:
        result = await client.stub.SendQueueMessage(message(queue, "x", MessageID="m", Policy=policy))
        assert result.DelayedTo > time.time_ns()
        assert result.ExpirationAt == result.DelayedTo + 100 * 10**9
        assert await client.row(queue) == {}
        (got,) = (await client.downstream().get(queue, 1, 5000)).Messages
    assert 0.9 < took.seconds < 3
    assert (got.MessageID, got.Body, got.Policy.DelaySeconds) == ("m", b"x", 0)
    assert got.Attributes.DelayedTo == 0
    assert got.Attributes.ExpirationAt >= result.ExpirationAt


# ------------------------------------------------------------------------------------------------ QueuesInfo


async def test_the_counts_of_a_queue(client: RawClient, queue: str) -> None:
    assert await client.row(queue) == {}
    await client.publish(queue, *range(20))
    stored = {"Messages": 20, "FirstSequence": 1, "LastSequence": 20, "Sent": 20}
    assert await client.row(queue) == {**stored, "Waiting": 20}
    stream = client.downstream()
    answer = await stream.get(queue, 5)
    assert await client.row(queue) == {**stored, "Waiting": 20, "Delivered": 5, "Subscribers": 1}
    await stream.tell(Kind.AckAll, answer.TransactionId)
    # each acknowledged message pulled one more in before the transaction ended
    await until_row(client, queue, **stored, Waiting=15, Delivered=10, Subscribers=1)
    answer = await stream.get(queue, 5)
    await stream.ack(answer)
    await until_row(client, queue, **stored, Waiting=10, Delivered=15, Subscribers=1)
    await stream.close(await stream.get(queue, 10))
    await until_row(client, queue, **stored, Waiting=10, Delivered=20, Subscribers=1)


async def test_a_queue_that_was_only_read_counts_oddly(client: RawClient, queue: str) -> None:
    await client.downstream().get(queue, 1)
    assert await client.row(queue) == {"Sent": 1, "Delivered": 1, "Subscribers": 1}


async def test_every_open_transaction_is_a_subscriber(client: RawClient, queue: str) -> None:
    await client.publish(queue, *range(4))
    streams = [client.downstream() for _ in range(2)]
    for stream in streams:
        await stream.get(queue, 1)
    await until_row(client, queue, Subscribers=2, Waiting=4)
    await streams[0].cancel()
    await until_row(client, queue, Subscribers=1, Waiting=4)


async def test_totals_add_up(client: RawClient) -> None:
    one, other = new_channel(), new_channel()
    await client.publish(one, *range(3))
    await client.publish(other, *range(4))
    info = await client.info(f"{one};{other}")
    assert {queue.Name: queue.Waiting for queue in info.Queues} == {one: 3, other: 4}
    assert (info.TotalQueue, info.Sent, info.Waiting, info.Delivered) == (2, 7, 7, 0)
    everything = await client.info()
    assert everything.TotalQueue == len(everything.Queues)
    assert everything.Waiting == sum(queue.Waiting for queue in everything.Queues)


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("{}.ORDERS", "{}.ORDER"),
        ("{}.tasks_", "{}.tasks"),
        ("S{}", "{}"),
        ("_QUEUES_.{}.QUEUES", "{}"),
        ("{}.Eq", "{}.Eq"),
    ],
)
async def test_names_are_cut_and_must_be_asked_for_so(client: RawClient, name: str, reported: str) -> None:
    unique = f"x{uuid.uuid4().hex}x"
    await client.publish(name.format(unique), "x")
    assert [queue.Name for queue in (await client.info()).Queues if unique in queue.Name] == [reported.format(unique)]
    assert (await client.info(reported.format(unique))).TotalQueue == 1
    if reported != name:
        assert (await client.info(name.format(unique))).TotalQueue == 0


# ------------------------------------------------------------------------------------------------ the rest


async def test_ping(client: RawClient) -> None:
    pong = await client.stub.Ping(pb.Empty())
    assert pong.Host
    assert pong.Version
    assert 0 < pong.ServerStartTime <= time.time()


async def test_requests_nobody_answers_time_out(client: RawClient) -> None:
    for channel in (new_channel("rpc"), "kubemq.cluster.internal.requests"):
        request = pb.Request(
            RequestID="r",
            RequestTypeData=pb.Request.Query,
            ClientID="c",
            Channel=channel,
            Metadata="list-channels",
            Timeout=300,
        )
        with Timed() as took, pytest.raises(grpc.aio.AioRpcError) as refusal:
            await client.stub.SendRequest(request)
        assert (refusal.value.details() or "").startswith("Error 301")
        assert took.seconds > 0.25


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"Timeout": 0}, "Error 109"), ({"Metadata": ""}, "Error 115"), ({"RequestTypeData": 0}, "Error 206")],
)
async def test_refused_requests(client: RawClient, fields: dict[str, Any], error: str) -> None:
    values = {"RequestID": "r", "RequestTypeData": 2, "ClientID": "c", "Channel": "a", "Metadata": "m", "Timeout": 100}
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await client.stub.SendRequest(pb.Request(**{**values, **fields}))
    assert (refusal.value.details() or "").startswith(error)

"""Requests of a lane: their results, their size, and what is done about one that is never answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import pytest

from connector.backend.kubemq import KubeMQClient, KubeMQStore
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.message import Message
from connector.broker.ports import NotSent, Outgoing, StoreLane, TimedOut, TooMuch, Unavailable
from mapping.envelope import decode, encode, flagged
from tests.support.waiting import until
from tests.unit.backend.scripted import Context, Scripted
from tests.unit.backend.settling import outcome

HEADER = b"\x10\x00\x02"
STORED = pb.SendQueueMessageResult(SentAt=1)

Answering = Callable[[pb.QueuesUpstreamRequest], Sequence[pb.QueuesUpstreamResponse]]


class Copy:
    """What a lane takes."""

    def __init__(self, body: bytes, kubemq_channel: str = "amqp.default.q", **fields: Any) -> None:
        fields = {
            "exchange": "",
            "routing_key": "q",
            "header": HEADER,
            "message_id": f"~a.{body[:9].decode()}",
        } | fields
        self.message = Message(body=body, **fields)
        self.kubemq_channel = kubemq_channel


def copies(*bodies: str) -> list[Outgoing]:
    return [Copy(body.encode()) for body in bodies]


def all_stored(request: pb.QueuesUpstreamRequest) -> list[pb.QueuesUpstreamResponse]:
    return [pb.QueuesUpstreamResponse(RefRequestID=request.RequestID, Results=[STORED for _ in request.Messages])]


class Upstream:
    """Keeps the requests and answers each with what ``answer`` says."""

    def __init__(self, answer: Answering = all_stored) -> None:
        self.answer = answer
        self.requests: list[pb.QueuesUpstreamRequest] = []
        self.streams = 0
        self.is_ending = False

    async def serve(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        self.streams += 1
        async for request in requests:
            self.requests.append(request)
            for response in self.answer(request):
                yield response
            if self.is_ending:
                return


@pytest.fixture
def upstream(server: Scripted) -> Upstream:
    upstream = Upstream()
    server.handlers["QueuesUpstream"] = upstream.serve
    return upstream


@pytest.fixture
def lane(client: KubeMQClient, upstream: Upstream) -> StoreLane:
    return KubeMQStore(client, send_timeout_s=5).open_lane()


async def test_a_message_is_stored_with_envelope_policy_and_ids(lane: StoreLane, upstream: Upstream) -> None:
    batch: list[Outgoing] = [
        Copy(b"one", exchange="x", routing_key="k", message_id="~a.1"),
        Copy(b"", "amqp.default.other", message_id="~a.2", redelivered=True, delivery_count=2),
        Copy(b"three", message_id="~a.3"),
    ]

    assert await lane.send(batch) == ["", "", ""]

    (request,) = upstream.requests
    one, two, three = request.Messages
    assert (one.MessageID, one.ClientID, one.Channel, one.Body) == ("~a.1", "unit", "amqp.default.q", b"one")
    assert one.Metadata == encode("x", "k", HEADER)
    assert (two.MessageID, two.Channel, two.Body) == ("~a.2", "amqp.default.other", b"")
    assert two.Metadata == encode("", "q", HEADER, redelivered=True, delivery_count=2)
    assert (three.Channel, three.Metadata, three.Body) == ("amqp.default.q", encode("", "q", HEADER), b"three")
    for message in request.Messages:
        assert message.Policy == pb.QueueMessagePolicy(MaxReceiveCount=1024)
        assert not message.Tags


async def test_an_empty_batch_asks_nobody(lane: StoreLane, upstream: Upstream) -> None:
    assert await lane.send([]) == []
    assert upstream.requests == []


async def test_errors_are_told_per_message(lane: StoreLane, upstream: Upstream) -> None:
    results = [
        STORED,
        pb.SendQueueMessageResult(IsError=True, Error="Error 120: invalid queue name"),
        pb.SendQueueMessageResult(IsError=True),
        pb.SendQueueMessageResult(),  # the server could not hand it to its store, and says no more
        STORED,
    ]
    upstream.answer = lambda request: [pb.QueuesUpstreamResponse(RefRequestID=request.RequestID, Results=results)]

    told = await lane.send(copies("1", "2", "3", "4", "5"))

    assert told[0] == told[4] == ""
    assert told[1] == "Error 120: invalid queue name"
    assert told[2] == "refused without a reason"
    assert "did not store" in told[3]


async def test_an_error_of_the_request_is_one_of_each_message(lane: StoreLane, upstream: Upstream) -> None:
    upstream.answer = lambda request: [
        pb.QueuesUpstreamResponse(RefRequestID=request.RequestID, IsError=True, Error="Error 409: shutdown")
    ]

    assert await lane.send(copies("1", "2")) == ["Error 409: shutdown"] * 2


async def test_an_answer_that_does_not_fit_leaves_the_results_unknown(lane: StoreLane, upstream: Upstream) -> None:
    upstream.answer = lambda request: [pb.QueuesUpstreamResponse(RefRequestID=request.RequestID, Results=[STORED])]

    with pytest.raises(Unavailable, match="1 results to 2 messages"):
        await lane.send(copies("1", "2"))


async def test_a_text_that_is_no_utf_8_is_refused_alone(lane: StoreLane, upstream: Upstream) -> None:
    bad = Copy(b"bad", "amqp.default.\udcff")

    results = await lane.send([*copies("1"), bad, *copies("2"), Copy(b"bad", message_id="\udcff")])

    assert [bool(result) for result in results] == [False, True, False, True]
    assert results[1].startswith("cannot be stored")
    assert [message.Body for message in upstream.requests[0].Messages] == [b"1", b"2"]
    assert {message.Channel for message in upstream.requests[0].Messages} == {"amqp.default.q"}


async def test_a_lane_dropped_while_it_tries_a_size(server: Scripted, lane: StoreLane, upstream: Upstream) -> None:
    async def drop(request: Any, context: Context) -> pb.PingResult:
        lane.cancel()
        return pb.PingResult()

    server.handlers["Ping"] = drop

    with pytest.raises(Unavailable):
        await lane.send(copies("1"))
    assert upstream.requests == []


# ------------------------------------------------------------------------------------------------------- limits
LIMIT_BYTES = 40_000


@pytest.fixture
def small_lane(client: KubeMQClient, upstream: Upstream) -> StoreLane:
    return KubeMQStore(client, limit_bytes=LIMIT_BYTES).open_lane()


async def test_a_lane_without_a_server_has_sent_nothing(server: Scripted, lane: StoreLane, upstream: Upstream) -> None:
    await lane.send(copies("one"))
    await server.stop()
    assert isinstance(
        await outcome(lane.send(copies("two"))), Unavailable
    )  # gRPC may not know yet that nothing goes out
    for _ in range(2):
        assert isinstance(await outcome(lane.send(copies("two"))), NotSent)
    assert len(upstream.requests) == 1


async def test_of_several_requests_all_are_unknown(server: Scripted, small_lane: StoreLane, upstream: Upstream) -> None:
    """What the first of them stored has no result to tell."""

    def answer_and_end(request: pb.QueuesUpstreamRequest) -> list[pb.QueuesUpstreamResponse]:
        server.handlers.pop("QueuesUpstream")
        upstream.is_ending = True
        return all_stored(request)

    upstream.answer = answer_and_end
    with pytest.raises(Unavailable) as caught:
        await small_lane.send([Copy(bytes(9_000), message_id="~a.1") for _ in range(10)])
    assert not isinstance(caught.value, NotSent)
    assert len(upstream.requests) == 1


async def test_a_batch_over_the_limit_goes_in_several_requests(small_lane: StoreLane, upstream: Upstream) -> None:
    bodies = [b"%d" % number + bytes(9_000) for number in range(10)]

    assert await small_lane.send([Copy(body, message_id="~a.1") for body in bodies]) == [""] * 10

    assert len(upstream.requests) > 1
    assert all(request.ByteSize() <= LIMIT_BYTES for request in upstream.requests)
    assert [message.Body for request in upstream.requests for message in request.Messages] == bodies
    assert upstream.streams == 1


async def test_a_message_over_the_limit_is_refused_alone(small_lane: StoreLane, upstream: Upstream) -> None:
    large = Copy(bytes(LIMIT_BYTES), message_id="~a.2")

    results = await small_lane.send([*copies("1"), large, *copies("3"), large])

    assert [bool(result) for result in results] == [False, True, False, True]
    assert "larger than KubeMQ takes" in results[1]
    assert [message.Body for request in upstream.requests for message in request.Messages] == [b"1", b"3"]


async def test_a_message_just_under_the_limit_passes(small_lane: StoreLane, upstream: Upstream) -> None:
    body = bytes(LIMIT_BYTES - 4_300)

    assert await small_lane.send([Copy(body, message_id="~a.1")]) == [""]
    assert upstream.requests[0].ByteSize() <= LIMIT_BYTES


async def test_a_size_that_was_never_sent_is_tried_first(
    server: Scripted, client: KubeMQClient, upstream: Upstream
) -> None:
    """A request over the server's limit kills KubeMQ 2.4; a Ping over the limit does not."""
    tried = limited_pings(server, LIMIT_BYTES)
    lane = KubeMQStore(client).open_lane()
    batch: list[Outgoing] = [Copy(b"%d" % number + bytes(9_000), message_id="~a.1") for number in range(10)]
    batch.insert(3, Copy(bytes(LIMIT_BYTES), message_id="~a.2"))

    results = await lane.send(batch)

    assert [index for index, result in enumerate(results) if result] == [3]
    assert "larger than KubeMQ takes" in results[3]
    assert all(request.ByteSize() <= LIMIT_BYTES for request in upstream.requests)
    stored = [message.Body[:1] for request in upstream.requests for message in request.Messages]
    assert stored == [b"%d" % number for number in range(10)]
    count = len(tried)
    assert count > 1
    assert await lane.send(batch[:3]) == [""] * 3
    assert len(tried) == count
    lane.cancel()


async def test_what_the_start_has_tried_is_sent_at_once(
    server: Scripted, client: KubeMQClient, upstream: Upstream
) -> None:
    tried = limited_pings(server, 100_000_000)
    store = KubeMQStore(client)
    await store.start(5)
    tried.clear()
    lane = store.open_lane()

    assert await lane.send([Copy(bytes(5_000_000), message_id="~a.1")]) == [""]
    assert tried == []
    assert await lane.send([Copy(bytes(9_000_000), message_id="~a.1")] * 2) == ["", ""]
    assert len(tried) == 1
    assert await lane.send([Copy(bytes(9_000_000), message_id="~a.1")] * 3) == [""] * 3
    assert len(tried) == 1
    lane.cancel()


async def test_a_limit_that_shrank_is_too_much_once(server: Scripted, client: KubeMQClient, upstream: Upstream) -> None:
    """The server was started anew with a smaller limit; what is sent next is tried again."""

    async def exhausted(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for _ in requests:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "received message larger than max")
        yield None

    lane = KubeMQStore(client).open_lane()
    assert await lane.send(copies("1")) == [""]
    server.handlers["QueuesUpstream"] = exhausted
    lane.cancel()
    lane = KubeMQStore(client).open_lane()
    with pytest.raises(TooMuch, match="larger than max"):
        await lane.send(copies("2"))

    server.handlers["QueuesUpstream"] = upstream.serve
    tried = limited_pings(server, LIMIT_BYTES)
    assert await lane.send([Copy(bytes(10_000), message_id="~a.1")] * 5) == [""] * 5

    assert tried
    assert all(request.ByteSize() <= LIMIT_BYTES for request in upstream.requests)
    lane.cancel()


def limited_pings(server: Scripted, limit_bytes: int) -> list[int]:
    """Let the server refuse Pings over a limit; the list gets the sizes of all padded ones."""
    tried: list[int] = []

    async def ping_up_to(request: pb.Empty, context: Context) -> pb.PingResult:
        if request.ByteSize():
            tried.append(request.ByteSize())
        if request.ByteSize() > limit_bytes:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "received message larger than max")
        return pb.PingResult()

    server.handlers["Ping"] = ping_up_to
    return tried


# --------------------------------------------------------------------------------------------------- never answered
def silent_at_first() -> Answering:
    """Answers nothing to the first request, all others as they should be."""
    seen = []

    def answer(request: pb.QueuesUpstreamRequest) -> list[pb.QueuesUpstreamResponse]:
        seen.append(request)
        return [] if len(seen) == 1 else all_stored(request)

    return answer


def is_probe(request: pb.QueuesUpstreamRequest) -> bool:
    """Whether nothing of it can be stored."""
    return all(message.Policy.DelaySeconds < 0 for message in request.Messages)


def only_probes(request: pb.QueuesUpstreamRequest) -> list[pb.QueuesUpstreamResponse]:
    return all_stored(request) if is_probe(request) else []


async def test_an_unanswered_request_is_sent_again_once_and_told_before(
    client: KubeMQClient, upstream: Upstream
) -> None:
    told: list[tuple[list[bytes], int]] = []

    def tell(batch: Sequence[Outgoing]) -> None:
        told.append(([outgoing.message.body for outgoing in batch], len(upstream.requests)))

    upstream.answer = silent_at_first()
    store = KubeMQStore(client, on_repeat=tell, repeat_after_s=0.02)
    lane = store.open_lane()

    assert await lane.send(copies("1", "2")) == ["", ""]
    assert await lane.send(copies("3")) == [""]

    first, probe, second, third = upstream.requests
    assert is_probe(probe)
    assert [(m.MessageID, m.Channel, m.Body) for m in first.Messages] == [
        (m.MessageID, m.Channel, m.Body) for m in second.Messages
    ]
    assert [flagged(message.Metadata) for message in first.Messages] == [m.Metadata for m in second.Messages]
    envelope = decode(second.Messages[0].Metadata)
    assert envelope is not None
    assert envelope.redelivered  # a second copy says so: a crash forgets that there are two
    assert first.RequestID != second.RequestID
    assert told == [([b"1", b"2"], 2)]
    assert store.repeated_count == 1
    assert [message.Body for message in third.Messages] == [b"3"]
    lane.cancel()


async def test_a_late_answer_counts_and_the_second_is_skipped(client: KubeMQClient, upstream: Upstream) -> None:
    """The first answer comes after the repetition: it is taken, and the other does not disturb the next request."""
    held: list[pb.QueuesUpstreamResponse] = []

    def answer(request: pb.QueuesUpstreamRequest) -> list[pb.QueuesUpstreamResponse]:
        if len(upstream.requests) == 1:
            held.extend(all_stored(request))
            return []
        refused = pb.SendQueueMessageResult(IsError=True, Error="second")
        second = pb.QueuesUpstreamResponse(RefRequestID=request.RequestID, Results=[refused])
        return [*held, second] if len(upstream.requests) == 3 else all_stored(request)

    upstream.answer = answer
    lane = KubeMQStore(client, on_repeat=lambda batch: None, repeat_after_s=0.02).open_lane()

    assert await lane.send(copies("1")) == [""]
    assert await lane.send(copies("2")) == [""]
    lane.cancel()


async def test_without_a_listener_nothing_is_sent_twice(client: KubeMQClient, upstream: Upstream) -> None:
    upstream.answer = lambda request: []
    lane = KubeMQStore(client, send_timeout_s=0.1, repeat_after_s=0.01).open_lane()

    with pytest.raises(TimedOut):
        await lane.send(copies("1"))
    assert len(upstream.requests) == 1


async def test_nothing_answered_at_all_ends_in_time_out_and_the_lane_starts_anew(
    client: KubeMQClient, upstream: Upstream
) -> None:
    upstream.answer = lambda request: []
    lane = KubeMQStore(client, on_repeat=lambda batch: None, repeat_after_s=0.01, send_timeout_s=0.1).open_lane()
    with pytest.raises(TimedOut):
        await lane.send(copies("1"))
    first, probe = upstream.requests  # a server that stands still gets nothing twice
    assert not is_probe(first)
    assert is_probe(probe)

    upstream.answer = all_stored
    assert await lane.send(copies("2")) == [""]

    assert upstream.streams == 2
    lane.cancel()


async def test_a_large_request_is_given_more_time(client: KubeMQClient, upstream: Upstream) -> None:
    """20 MB/s: 1 MB is 50 ms on top of the 1 ms."""
    upstream.answer = only_probes
    told: list[float] = []
    loop = asyncio.get_running_loop()
    lane = KubeMQStore(
        client, on_repeat=lambda batch: told.append(loop.time()), repeat_after_s=0.001, send_timeout_s=0.5
    ).open_lane()
    start = loop.time()

    with pytest.raises(TimedOut):
        await lane.send([Copy(bytes(1_000_000), message_id="~a.1")])

    assert told[0] - start >= 0.05


async def test_how_late_is_late_follows_what_is_usual(client: KubeMQClient, upstream: Upstream) -> None:
    """Many quick answers: the one that is missing is not waited for as long as at the beginning."""
    store = KubeMQStore(client, on_repeat=lambda batch: None, repeat_after_s=1000.0)
    lane = store.open_lane()
    for number in range(300):
        await lane.send(copies(str(number)))
    upstream.answer = silent_at_first()

    assert await lane.send(copies("late")) == [""]

    assert store.repeated_count == 1
    lane.cancel()


async def test_a_lane_dropped_while_it_waits(client: KubeMQClient, upstream: Upstream) -> None:
    upstream.answer = lambda request: []
    lane = KubeMQStore(client, on_repeat=lambda batch: None, repeat_after_s=0.01).open_lane()
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(outcome(lane.send(copies("1"))))
        await until(lambda: upstream.requests)
        lane.cancel()

    assert isinstance(sending.result(), Unavailable)
    with pytest.raises(Unavailable):
        await lane.send(copies("2"))


async def test_a_sender_cancelled_while_it_waits(client: KubeMQClient, upstream: Upstream) -> None:
    upstream.answer = silent_at_first()
    lane = KubeMQStore(client).open_lane()
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(outcome(lane.send(copies("1"))))
        await until(lambda: upstream.requests)
        sending.cancel()

    assert sending.cancelled()
    assert await lane.send(copies("2")) == [""]
    lane.cancel()

"""``ports.QueueStore`` as the adapter keeps it: one suite on the embedded server and on a real KubeMQ."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from connector.backend.kubemq import KubeMQClient, KubeMQStore
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.message import Message
from connector.broker.ports import Answer, ChannelInfo, Outgoing, QueueStream, TimedOut, Unavailable
from mapping.names import reported_name
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import LIMIT_S
from tests.unit.backend.settling import closed, outcome

#: Flags and list: content_type text/plain, delivery_mode 2.
HEADER = b"\x90\x00\x0atext/plain\x02"


class Copy:
    """What a lane takes (``ports.Outgoing``)."""

    def __init__(self, message: Message, kubemq_channel: str) -> None:
        self.message = message
        self.kubemq_channel = kubemq_channel


def copies(kubemq_channel: str, bodies: Sequence[bytes], start: int = 1) -> list[Outgoing]:
    """Messages of one channel; their MessageIDs end in their numbers from ``start``."""
    return [
        Copy(Message("", "key", HEADER, body, f"~00000000000a.{number}"), kubemq_channel)
        for number, body in enumerate(bodies, start)
    ]


def numbered(count: int, start: int = 1) -> list[bytes]:
    """Bodies ``b"1"``, ``b"2"``, ..."""
    return [b"%d" % number for number in range(start, start + count)]


def sequences(answer: Answer) -> list[int]:
    return [message.sequence for message in answer.messages]


def bodies(answer: Answer) -> list[bytes]:
    return [message.body for message in answer.messages]


def new_store(address: str, get_timeout_s: float = 5.0) -> KubeMQStore:
    return KubeMQStore(
        KubeMQClient(address, f"contract-{uuid.uuid4().hex}"), get_timeout_s=get_timeout_s, on_repeat=lambda batch: None
    )


@pytest.fixture
async def store(kubemq_address: str) -> AsyncIterator[KubeMQStore]:
    store = new_store(kubemq_address)
    await store.start(LIMIT_S)
    yield store
    await closed(store)


@pytest.fixture
async def stream(store: KubeMQStore) -> AsyncIterator[QueueStream]:
    stream = store.open_stream()
    yield stream
    stream.cancel()


@pytest.fixture
def kubemq_channel() -> str:
    """A channel of this test alone."""
    return f"amqp.default.contract-{uuid.uuid4().hex}"


def proxy_of(address: str) -> TcpProxy:
    host, _, port = address.rpartition(":")
    return TcpProxy(lambda: (host, int(port)))


async def send(store: KubeMQStore, batch: Sequence[Outgoing]) -> list[str]:
    lane = store.open_lane()
    try:
        return await lane.send(batch)
    finally:
        lane.cancel()


async def row_of(store: KubeMQStore, kubemq_channel: str) -> ChannelInfo | None:
    name = reported_name(kubemq_channel)
    return next((row for row in await store.snapshot() if row.name == name), None)


async def row_when(store: KubeMQStore, kubemq_channel: str, condition: Callable[[ChannelInfo], bool]) -> ChannelInfo:
    """The channel's row once the condition holds (what a stream has asked for is counted a moment later)."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            row = await row_of(store, kubemq_channel)
            if row is not None and condition(row):
                return row


# ------------------------------------------------------------------------------------------------------ writing
async def test_what_is_stored_comes_back_in_order_as_it_was(
    store: KubeMQStore, stream: QueueStream, kubemq_channel: str
) -> None:
    batch = [
        Copy(Message("orders", "a.b.ü", HEADER, b"\x00\xff", "~00000000000a.1"), kubemq_channel),
        Copy(Message("", "tasks", b"\x00\x00", b"", "~00000000000a.2", redelivered=True), kubemq_channel),
        Copy(Message("x", "", HEADER, b"3", "~00000000000a.3", redelivered=True, delivery_count=7), kubemq_channel),
    ]
    assert await send(store, batch) == ["", "", ""]

    answer = await stream.get(kubemq_channel, 3)

    assert answer.error == ""
    assert answer.transaction_id
    for sent, read in zip(batch, answer.messages, strict=True):
        for field in ("exchange", "routing_key", "header", "body", "message_id", "redelivered", "delivery_count"):
            assert getattr(read, field) == getattr(sent.message, field)
        assert read.kubemq_channel == kubemq_channel
    assert sequences(answer) == [1, 2, 3]


async def test_one_batch_for_many_channels_keeps_the_order_of_each(store: KubeMQStore, kubemq_channel: str) -> None:
    channels = [f"{kubemq_channel}.{number}" for number in range(3)]
    batch = [copy for body in numbered(20) for channel in channels for copy in copies(channel, [body])]
    lane = store.open_lane()

    assert await lane.send(batch[:30]) == [""] * 30
    assert await lane.send(batch[30:]) == [""] * 30
    lane.cancel()

    for channel in channels:
        stream = store.open_stream()
        answer = await stream.get(channel, 20)
        assert bodies(answer) == numbered(20)
        assert sequences(answer) == list(range(1, 21))
        stream.cancel()


@pytest.mark.parametrize("refused", ["", "amqp.default.a b", "amqp.default.a*", "amqp.default.>", "amqp.default.a."])
async def test_a_refused_name_is_refused_alone(
    store: KubeMQStore, stream: QueueStream, kubemq_channel: str, refused: str
) -> None:
    good = copies(kubemq_channel, numbered(4))
    bad = copies(refused, [b"x"])

    results = await send(store, [*good[:2], *bad, *good[2:]])

    assert [bool(result) for result in results] == [False, False, True, False, False]
    assert bodies(await stream.get(kubemq_channel, 4)) == numbered(4)


async def test_a_batch_of_only_refused_messages_leaves_the_lane_usable(store: KubeMQStore, kubemq_channel: str) -> None:
    lane = store.open_lane()

    assert all(await lane.send(copies("amqp.default.a b", numbered(2))))
    assert await lane.send(copies(kubemq_channel, [b"1"])) == [""]

    lane.cancel()


async def test_bodies_over_grpcs_default_limit_pass(
    store: KubeMQStore, stream: QueueStream, kubemq_channel: str
) -> None:
    body = bytes(6_000_000)
    assert await send(store, copies(kubemq_channel, [body, body])) == ["", ""]

    assert bodies(await stream.get(kubemq_channel, 2)) == [body, body]


async def test_the_probe_at_the_start_stores_nothing(store: KubeMQStore) -> None:
    assert store.max_receive_count == 1024
    assert await row_of(store, "amqp.~probe") is None


# ------------------------------------------------------------------------------------------------------ reading
async def test_a_get_takes_no_more_than_it_asked_for(
    store: KubeMQStore, stream: QueueStream, kubemq_channel: str
) -> None:
    await send(store, copies(kubemq_channel, numbered(5)))

    first = await stream.get(kubemq_channel, 2)
    await stream.ack_range(first.transaction_id, sequences(first))
    second = await stream.get(kubemq_channel, 3)

    assert (sequences(first), sequences(second)) == ([1, 2], [3, 4, 5])
    assert first.transaction_id != second.transaction_id


async def test_a_short_answer_has_what_was_there(store: KubeMQStore, stream: QueueStream, kubemq_channel: str) -> None:
    await send(store, copies(kubemq_channel, numbered(2)))

    answer = await stream.get(kubemq_channel, 5)

    assert (answer.error, sequences(answer)) == ("", [1, 2])
    await stream.close_transaction(answer.transaction_id)


async def test_an_empty_answer_is_no_error(stream: QueueStream, kubemq_channel: str) -> None:
    answer = await stream.get(kubemq_channel, 1)

    assert (answer.error, answer.messages, list(answer.failed_acks)) == ("", [], [])
    await stream.close_transaction(answer.transaction_id)
    assert list(await stream.barrier()) == []


async def test_a_refused_get_is_an_answer_with_the_reason(
    store: KubeMQStore, stream: QueueStream, kubemq_channel: str
) -> None:
    await send(store, copies(kubemq_channel, [b"1"]))

    answer = await stream.get("amqp.default.a b", 1)

    assert answer.error
    assert answer.messages == []
    assert bodies(await stream.get(kubemq_channel, 1)) == [b"1"]


async def test_a_message_of_a_native_client_becomes_an_amqp_message(store: KubeMQStore, stream: QueueStream) -> None:
    queue = f"native-{uuid.uuid4().hex}"
    stored = pb.QueueMessage(
        MessageID="mine",
        ClientID="native",
        Channel=f"amqp.default.{queue}",
        Metadata="note",
        Body=b"b",
        Tags={"colour": "green"},
    )
    assert await store.client.send_batch([stored]) == [""]

    (message,) = (await stream.get(f"amqp.default.{queue}", 1)).messages

    assert (message.exchange, message.routing_key, message.body, message.message_id) == ("", queue, b"b", "mine")
    assert b"colour" in message.header
    assert b"green" in message.header
    assert b"note" in message.header
    assert (message.redelivered, message.sequence) == (False, 1)


# -------------------------------------------------------------------------------------------- settling, re-linking
async def test_acknowledged_messages_are_gone_and_the_rest_comes_first(
    store: KubeMQStore, stream: QueueStream, kubemq_channel: str
) -> None:
    """A refill: AckRange(settled), CloseByClient, Get(held + new); design.md section 3, points 4 and 5."""
    await send(store, copies(kubemq_channel, numbered(10)))
    held: list[int] = []
    seen: list[int] = []
    for _ in range(5):
        answer = await stream.get(kubemq_channel, len(held) + 2)
        assert sequences(answer)[: len(held)] == held
        new = sequences(answer)[len(held) :]
        assert len(new) == 2
        assert [message.message_id for message in answer.messages] == [
            f"~00000000000a.{sequence}" for sequence in sequences(answer)
        ]
        assert list(answer.failed_acks) == []
        seen += new
        held.append(new[0])  # one of each pair stays unsettled
        await stream.ack_range(answer.transaction_id, [new[1]])
        await stream.close_transaction(answer.transaction_id)

    assert seen == list(range(1, 11))
    assert sequences(await stream.get(kubemq_channel, 5)) == [1, 3, 5, 7, 9]


async def test_an_ack_of_all_completes_the_transaction(
    store: KubeMQStore, stream: QueueStream, kubemq_channel: str
) -> None:
    await send(store, copies(kubemq_channel, numbered(3)))
    answer = await stream.get(kubemq_channel, 3)
    await stream.ack_range(answer.transaction_id, [1, 2, 3])

    token = await stream.ack_range(answer.transaction_id, [1])

    assert list(await stream.barrier()) == [token]
    await row_when(store, kubemq_channel, lambda row: row.waiting == 0)


async def test_closing_a_complete_or_unknown_transaction_is_harmless(
    store: KubeMQStore, stream: QueueStream, kubemq_channel: str
) -> None:
    await send(store, copies(kubemq_channel, numbered(2)))
    answer = await stream.get(kubemq_channel, 1)
    await stream.ack_range(answer.transaction_id, [1])

    await stream.close_transaction(answer.transaction_id)
    await stream.close_transaction("unknown")

    assert list(await stream.barrier()) == []
    answer = await stream.get(kubemq_channel, 1)
    assert (sequences(answer), list(answer.failed_acks)) == ([2], [])


async def test_failed_acks_are_told_with_the_next_answer_and_only_once(
    store: KubeMQStore, stream: QueueStream, kubemq_channel: str
) -> None:
    """AckRange stops at an unknown Sequence; what came before it is acknowledged."""
    await send(store, copies(kubemq_channel, numbered(4)))
    answer = await stream.get(kubemq_channel, 4)

    good = await stream.ack_range(answer.transaction_id, [1])
    bad = await stream.ack_range(answer.transaction_id, [2, 99, 3])
    worse = await stream.ack_range("unknown", [4])
    await stream.close_transaction(answer.transaction_id)
    answer = await stream.get(kubemq_channel, 2)

    assert len({good, bad, worse}) == 3
    assert list(answer.failed_acks) == [bad, worse]
    assert sequences(answer) == [3, 4]
    assert list(await stream.barrier()) == []


async def test_closing_gives_back_in_place_before_what_is_new(
    store: KubeMQStore, stream: QueueStream, kubemq_channel: str
) -> None:
    await send(store, copies(kubemq_channel, numbered(3)))
    answer = await stream.get(kubemq_channel, 3)
    await send(store, copies(kubemq_channel, numbered(2, start=4), start=4))

    await stream.close_transaction(answer.transaction_id)
    answer = await stream.get(kubemq_channel, 5)

    assert bodies(answer) == numbered(5)
    assert sequences(answer) == [1, 2, 3, 4, 5]


async def test_a_cancelled_stream_gives_its_messages_back(store: KubeMQStore, kubemq_channel: str) -> None:
    await send(store, copies(kubemq_channel, numbered(3)))
    first = store.open_stream()
    answer = await first.get(kubemq_channel, 3)
    await first.ack_range(answer.transaction_id, [2])
    await first.barrier()

    first.cancel()

    second = store.open_stream()
    assert sequences(await second.get(kubemq_channel, 2)) == [1, 3]
    second.cancel()


async def test_a_cancelled_stream_refuses_everything(store: KubeMQStore, kubemq_channel: str) -> None:
    stream = store.open_stream()
    lane = store.open_lane()

    stream.cancel()
    lane.cancel()

    with pytest.raises(Unavailable):
        await stream.get(kubemq_channel, 1)
    with pytest.raises(Unavailable):
        await stream.ack_range("t", [1])
    with pytest.raises(Unavailable):
        await lane.send(copies(kubemq_channel, [b"1"]))


async def test_a_thousand_messages_in_one_answer(store: KubeMQStore, stream: QueueStream, kubemq_channel: str) -> None:
    await send(store, copies(kubemq_channel, numbered(1000)))

    answer = await stream.get(kubemq_channel, 1000)

    assert bodies(answer) == numbered(1000)
    await stream.ack_range(answer.transaction_id, sequences(answer))
    assert list(await stream.barrier()) == []
    await row_when(store, kubemq_channel, lambda row: row.waiting == 0)


# ------------------------------------------------------------------------------------------------- counts and ping
async def test_ping_tells_the_server_and_its_start(store: KubeMQStore) -> None:
    info = await store.ping()

    assert info.version
    assert info.host
    assert info.start_time > 1_600_000_000
    assert (await store.ping()).start_time == info.start_time


async def test_snapshot_counts(store: KubeMQStore, stream: QueueStream, kubemq_channel: str) -> None:
    """Waiting counts what is not acknowledged; FirstSequence + Delivered - 1 is the last Sequence handed out.

    Handed out is also what the server pushes into the room that an AckRange makes, a moment before it closes.
    """
    assert await row_of(store, kubemq_channel) is None

    await send(store, copies(kubemq_channel, numbered(10)))
    row = await row_when(store, kubemq_channel, lambda row: row.waiting == 10)
    assert (row.first_sequence, row.last_sequence, row.delivered) == (1, 10, 0)

    answer = await stream.get(kubemq_channel, 4)
    row = await row_when(store, kubemq_channel, lambda row: row.delivered == 4)
    assert (row.first_sequence, row.last_sequence, row.waiting, row.subscribers) == (1, 10, 10, 1)

    await stream.ack_range(answer.transaction_id, [1, 2, 3, 4])
    row = await row_when(store, kubemq_channel, lambda row: row.waiting == 6)
    assert (row.first_sequence, row.last_sequence) == (1, 10)
    assert row.delivered in {4, 8}

    answer = await stream.get(kubemq_channel, 5)
    assert sequences(answer) == [5, 6, 7, 8, 9]
    stream.cancel()
    row = await row_when(store, kubemq_channel, lambda row: row.delivered == 9)
    assert row.waiting == 6


@pytest.mark.parametrize("tail", ["ORDERS", "tasks_", "a.QUEUES", "x"])
async def test_snapshot_reports_the_trimmed_name(store: KubeMQStore, kubemq_channel: str, tail: str) -> None:
    await send(store, copies(f"{kubemq_channel}.{tail}", numbered(2)))

    await row_when(store, f"{kubemq_channel}.{tail}", lambda row: row.waiting == 2)


async def test_two_open_transactions_are_two_subscribers(store: KubeMQStore, kubemq_channel: str) -> None:
    await send(store, copies(kubemq_channel, numbered(2)))
    streams = [store.open_stream(), store.open_stream()]
    for stream in streams:
        await stream.get(kubemq_channel, 1)

    await row_when(store, kubemq_channel, lambda row: row.subscribers == 2)

    for stream in streams:
        stream.cancel()


# ------------------------------------------------------------------------------------------------------ failures
async def test_a_get_that_outlasts_its_deadline_ends_the_stream(kubemq_address: str, kubemq_channel: str) -> None:
    """The server answers a short Get after a second at the earliest."""
    store = new_store(kubemq_address, get_timeout_s=0.2)
    await store.start(LIMIT_S)
    stream = store.open_stream()

    with pytest.raises(TimedOut):
        await stream.get(kubemq_channel, 1)
    with pytest.raises(TimedOut):
        await stream.barrier()

    await closed(store)


async def test_a_link_that_breaks_under_a_get(kubemq_address: str, kubemq_channel: str) -> None:
    async with proxy_of(kubemq_address) as proxy:
        store = new_store(proxy.address)
        await store.start(LIMIT_S)
        await send(store, copies(kubemq_channel, numbered(2)))
        stream = store.open_stream()
        answer = await stream.get(kubemq_channel, 1)
        await stream.close_transaction(answer.transaction_id)
        await stream.barrier()
        async with asyncio.TaskGroup() as group:
            getting = group.create_task(outcome(stream.get(kubemq_channel, 3)))  # one is missing: it waits
            await row_when(store, kubemq_channel, lambda row: row.delivered == 2)
            await proxy.refuse()

        assert isinstance(getting.result(), Unavailable)
        with pytest.raises(Unavailable):
            await stream.get(kubemq_channel, 2)
        with pytest.raises(Unavailable):
            await store.ping()
        with pytest.raises(Unavailable):
            await store.snapshot()
        await closed(store)


async def test_after_a_broken_link_everything_works_again(kubemq_address: str, kubemq_channel: str) -> None:
    async with proxy_of(kubemq_address) as proxy:
        store = new_store(proxy.address)
        await store.start(LIMIT_S)
        lane = store.open_lane()
        await lane.send(copies(kubemq_channel, numbered(2)))
        stream = store.open_stream()
        await stream.get(kubemq_channel, 2)
        await proxy.refuse()
        with pytest.raises(Unavailable):
            await lane.send(copies(kubemq_channel, [b"lost"]))
        await proxy.accept()

        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    assert await lane.send(copies(kubemq_channel, [b"3"], start=3)) == [""]
                    break
                except Unavailable:
                    await asyncio.sleep(0)
        stream = store.open_stream()
        await row_when(store, kubemq_channel, lambda row: row.waiting == 3)
        assert bodies(await stream.get(kubemq_channel, 3)) == numbered(3)

        lane.cancel()
        stream.cancel()
        await closed(store)


async def test_start_gives_up_with_a_reason(kubemq_address: str) -> None:
    async with proxy_of(kubemq_address) as proxy:
        address = proxy.address
    store = new_store(address)

    with pytest.raises(Unavailable, match=address):
        await store.start(0.3)


async def test_start_waits_for_a_server_that_comes_late(kubemq_address: str) -> None:
    async with proxy_of(kubemq_address) as proxy:
        await proxy.refuse()
        store = new_store(proxy.address)
        async with asyncio.TaskGroup() as group:
            starting = group.create_task(store.start(LIMIT_S))
            await asyncio.sleep(0)
            await proxy.accept()

        assert starting.result().version
        await closed(store)

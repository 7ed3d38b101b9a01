"""Transactions (PU-12, PU-13), seen from the wire; RabbitMQ 3.10 answers the same wherever nothing else is said."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode
from tests.support.consuming import fill
from tests.support.dialogue import Dialogue, connect, spec
from tests.support.world import World

STORED: dict[str, Any] = {"exclusive": False, "durable": True}
BOTH_KINDS = pytest.mark.parametrize("fields", [{}, STORED], ids=["memory", "stored"])


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Dialogue:
    """Channel 1 is transactional, channel 2 looks on."""
    client = connect(world, channels=(1, 2))
    client.call(1, commands.Tx.Select)
    return client


def count(client: Dialogue, queue: str) -> int:
    ready: int = client.call(2, commands.Queue.Declare, queue=queue, passive=True).message_count
    return ready


def rest(client: Dialogue, queue: str) -> list[tuple[bytes, bool]]:
    found = []
    while (content := client.get(queue, 2, no_ack=True)) is not None:
        found.append((content.body, content.method.redelivered))
        client.world.advance(0.25)
    return found


# --------------------------------------------------------------------------------------------- the mode
@spec("1.9.2.2", "commit and rollback on a channel that is not transactional are 406.")
@pytest.mark.parametrize("kind", [commands.Tx.Commit, commands.Tx.Rollback])
def test_there_must_be_a_transaction(client: Dialogue, kind: type) -> None:
    index: int = kind.index  # type: ignore[attr-defined]
    client.send(2, kind)
    text = "PRECONDITION_FAILED - channel is not transactional"
    client.expect_close(406, text, (index >> 16, index & 0xFFFF), channel_no=2)


@spec("RabbitMQ, publisher confirms", "A channel is transactional or in confirm mode, never both.")
def test_transactions_and_confirms_exclude_each_other(client: Dialogue) -> None:
    client.send(1, commands.Confirm.Select)
    client.expect_close(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode", (85, 10))
    client.call(2, commands.Confirm.Select)
    client.send(2, commands.Tx.Select)
    text = "PRECONDITION_FAILED - cannot switch from confirm to tx mode"
    client.expect_close(406, text, (90, 10), channel_no=2)


def test_a_second_select_keeps_what_there_is(client: Dialogue) -> None:
    queue = client.declare()
    client.publish(1, queue)
    client.call(1, commands.Tx.Select)
    client.call(1, commands.Tx.Commit)
    assert count(client, queue) == 1


# --------------------------------------------------------------------------------------------- publishes
@spec("1.9", "Publishes and acknowledgements of a transaction take effect with its commit.")
@BOTH_KINDS
def test_a_publish_is_there_after_the_commit(world: World, client: Dialogue, fields: dict[str, Any]) -> None:
    queue = client.declare("q", **fields)
    client.publish(1, queue, b"a").publish(1, queue, b"b").expect_nothing()
    assert count(client, queue) == 0
    client.call(1, commands.Tx.Rollback)
    assert count(client, queue) == 0
    client.publish(1, queue, b"c").publish(1, queue, b"d")
    client.call(1, commands.Tx.Commit)
    client.call(1, commands.Tx.Commit)
    assert rest(client, queue) == [(b"c", False), (b"d", False)]
    counters = world.counters
    assert (counters.messages_received, counters.routed, counters.received_confirm) == (4, 2, 0)


def test_commit_ok_waits_until_everything_is_stored(world: World, client: Dialogue) -> None:
    client.declare("q", **STORED)
    client.declare("r", **STORED)
    world.hold_stores = True
    client.publish(1, "q").publish(1, "r")
    client.send(1, commands.Tx.Commit)
    client.send(1, commands.Basic.Qos).expect_nothing()  # waits its turn
    client.send(2, commands.Basic.Qos).expect(2, commands.Basic.QosOk)
    assert client.connection.publishing_count == 2
    assert world.answer_stores() == 2
    client.expect(1, commands.Tx.CommitOk)
    client.expect(1, commands.Basic.QosOk)
    client.expect_nothing()
    assert client.connection.in_flight.size == 0


def test_what_has_no_route_comes_back_before_commit_ok(client: Dialogue) -> None:
    queue = client.declare()
    client.publish(1, "nobody", b"m", mandatory=True, headers={"BCC": ["nobody else"]}).expect_nothing()
    client.publish(1, "nobody", b"dropped")
    client.publish(1, queue, b"kept")
    client.send(1, commands.Tx.Commit)
    returned = client.expect(1, commands.Basic.Return, reply_code=312, reply_text="NO_ROUTE", routing_key="nobody")
    assert returned.body == b"m"
    assert b"BCC" not in returned.header
    client.expect(1, commands.Tx.CommitOk)
    client.expect_nothing()
    assert rest(client, queue) == [(b"kept", False)]


@pytest.mark.parametrize(
    ("publish", "code", "text"),
    [
        ({"exchange": "missing"}, 404, "NOT_FOUND - no exchange 'missing' in vhost '/'"),
        ({"delivery_mode": 9}, 406, "PRECONDITION_FAILED - invalid message: {delivery_mode_unknown,9}"),
        (
            {"headers": {"CC": "q"}},
            406,
            'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}',
        ),
    ],
)
def test_errors_come_with_the_publish(client: Dialogue, publish: dict[str, Any], code: int, text: str) -> None:
    queue = client.declare("q")
    client.publish(1, queue)
    client.publish(1, queue, **publish)
    client.expect_close(code, text, (60, 40))
    assert count(client, queue) == 0


def test_bindings_count_when_it_is_published_queues_when_it_is_committed(client: Dialogue) -> None:
    for name in ("early", "late", "gone"):
        client.declare(name, 2)
    for name in ("early", "gone"):
        client.call(2, commands.Queue.Bind, queue=name, exchange="amq.direct", routing_key="k")
    client.publish(1, "k", b"bound", exchange="amq.direct", mandatory=True)
    client.publish(1, "default", b"named", mandatory=True)
    client.publish(1, "gone", b"returned", mandatory=True)
    client.publish(1, "none yet", b"too early", exchange="amq.direct", mandatory=True)
    client.call(2, commands.Queue.Bind, queue="late", exchange="amq.direct", routing_key="k")
    client.call(2, commands.Queue.Bind, queue="late", exchange="amq.direct", routing_key="none yet")
    client.call(2, commands.Queue.Unbind, queue="early", exchange="amq.direct", routing_key="k")
    client.call(2, commands.Queue.Delete, queue="gone")
    client.declare("default", 2)
    client.send(1, commands.Tx.Commit)
    assert client.expect(1, commands.Basic.Return).body == b"returned"
    assert client.expect(1, commands.Basic.Return).body == b"too early"
    client.expect(1, commands.Tx.CommitOk)
    assert rest(client, "early") == [(b"bound", False)]
    assert rest(client, "default") == [(b"named", False)]
    assert rest(client, "late") == []


def test_copies_go_with_the_commit_too(client: Dialogue) -> None:
    for name in ("a", "b", "c"):
        client.declare(name, 2)
    client.publish(1, "a", b"m", headers={"CC": ["b"], "BCC": ["c"]})
    client.call(1, commands.Tx.Commit)
    contents = [client.get(name, 2) for name in ("a", "b", "c")]
    assert all(b"BCC" not in content.header and b"CC" in content.header for content in contents)


def test_a_commit_that_could_not_store_everything_settles_nothing(world: World, client: Dialogue) -> None:
    """RabbitMQ says the same, but settles first: a message could be gone and its answer never stored."""
    client.declare("q", **STORED)
    client.declare("work")
    fill(client, "work", 1)
    client.get("work")
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    world.hold_stores = True
    client.publish(1, "q")
    client.send(1, commands.Tx.Commit)
    world.answer_stores("KubeMQ says no")
    client.expect_close(406, "PRECONDITION_FAILED - partial tx completion", (90, 20))
    assert rest(client, "work") == [(b"0", True)]
    assert world.counters.internal_errors == 0


def test_a_transaction_has_a_size(world: World) -> None:
    client = Dialogue(world, tx_max_bytes=10_000).shake_hands(channels=(1, 2))
    client.call(1, commands.Tx.Select)
    queue = client.declare()
    for _ in range(2):
        for _ in range(4):
            client.publish(1, queue, bytes(2000))
        client.call(1, commands.Tx.Commit)
    for _ in range(4):
        client.publish(1, queue, bytes(2000))
    client.call(1, commands.Tx.Rollback)
    for _ in range(5):
        client.publish(1, queue, bytes(2000))
    text = "PRECONDITION_FAILED - transaction is larger than configured max size 10000"
    client.expect_close(406, text, (60, 40))
    assert count(client, queue) == 8


def test_the_limit_is_for_all_channels_of_a_client(world: World) -> None:
    client = Dialogue(world, tx_max_bytes=10_000).shake_hands(channels=(1, 2, 3))
    queue = client.declare(channel_no=3)
    for channel_no in (1, 2):
        client.call(channel_no, commands.Tx.Select)
        for _ in range(2):
            client.publish(channel_no, queue, bytes(2000))
    client.publish(2, queue, bytes(2000))
    text = "PRECONDITION_FAILED - transaction is larger than configured max size 10000"
    client.expect_close(406, text, (60, 40), channel_no=2)
    assert client.connection.tx_bytes < 5000, "what the closed channel had is free"
    client.publish(1, queue, bytes(2000))
    client.call(1, commands.Tx.Commit)
    assert client.connection.tx_bytes == 0


# --------------------------------------------------------------------------------------------- acknowledgements
@BOTH_KINDS
def test_a_rollback_gives_the_decisions_back(world: World, client: Dialogue, fields: dict[str, Any]) -> None:
    queue = client.declare("q", **fields)
    fill(client, queue, 5)
    client.call(1, commands.Basic.Qos, prefetch_count=4)
    client.consume(queue)
    assert len(client.deliveries()) == 4
    client.send(1, commands.Basic.Nack, delivery_tag=2, requeue=True)
    client.send(1, commands.Basic.Reject, delivery_tag=1, requeue=False)
    client.send(1, commands.Basic.Ack, delivery_tag=3).expect_nothing()
    client.call(1, commands.Tx.Rollback)
    client.expect_nothing()
    client.send(1, commands.Basic.Ack, delivery_tag=3, multiple=True)
    client.send(1, commands.Tx.Commit)
    world.advance(0.25)
    items = [item for _, item in client.received()]
    (content,) = [item for item in items if not isinstance(item, commands.Tx.CommitOk)]
    assert (len(items), content.body, content.method.redelivered) == (2, b"4", False)
    client.call(1, commands.Channel.Close)
    assert sorted(rest(client, queue)) == [(b"3", True), (b"4", True)]
    assert (world.counters.acknowledged, world.counters.rejected, world.counters.requeued) == (3, 0, 2)


@BOTH_KINDS
def test_a_commit_settles_in_the_order_of_the_decisions(world: World, client: Dialogue, fields: dict[str, Any]) -> None:
    queue = client.declare("q", **fields)
    fill(client, queue, 6)
    for _ in range(6):
        client.get(queue)
        world.advance(0.25)
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    client.send(1, commands.Basic.Nack, delivery_tag=3, multiple=True, requeue=True)
    client.send(1, commands.Basic.Nack, delivery_tag=4, requeue=False)
    client.send(1, commands.Basic.Reject, delivery_tag=5, requeue=True)
    client.publish(1, queue, b"new")
    client.send(1, commands.Tx.Commit)
    world.advance(1.0)
    client.expect(1, commands.Tx.CommitOk)
    assert rest(client, queue) == [(b"new", False), (b"1", True), (b"2", True), (b"4", True)]
    client.call(1, commands.Channel.Close)
    assert rest(client, queue) == [(b"5", True)]
    assert (world.counters.acknowledged, world.counters.rejected, world.counters.requeued) == (1, 1, 4)


def test_commit_ok_waits_for_the_proof_of_the_acknowledgements(world: World, client: Dialogue) -> None:
    queue = client.declare("q", **STORED)
    fill(client, queue, 2)
    client.get(queue)
    (stored,) = world.broker.stored_queues()
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    assert not stored.lease.settled
    client.connection.feed(client.encode(1, commands.Tx.Commit))
    world.broker.dispatch()
    client.connection.flush()
    client.expect_nothing()
    world.settle()
    client.expect(1, commands.Tx.CommitOk)
    assert not stored.lease.settled
    assert not stored.lease.sent
    assert list(world.kubemq.channels[stored.kubemq_channel]) == [2]


def test_a_proof_that_does_not_come_ends_the_connection(world: World, client: Dialogue) -> None:
    queue = client.declare("q", **STORED)
    fill(client, queue, 1)
    client.get(queue)
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    world.kubemq.is_away = True
    client.send(1, commands.Tx.Commit).expect_nothing()
    world.advance(16.0, client.connection)
    client.expect_connection_close(541, "INTERNAL_ERROR - KubeMQ did not answer in time", (90, 20))


@spec("1.8.3.13", "A delivery is settled once: also within a transaction.")
def test_a_tag_decided_about_is_unknown_until_a_rollback(client: Dialogue) -> None:
    queue = client.declare("q")
    fill(client, queue, 2)
    client.get(queue)
    client.get(queue)
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    client.send(1, commands.Basic.Nack, delivery_tag=0, multiple=True)
    client.send(1, commands.Basic.Ack, delivery_tag=0, multiple=True).expect_nothing()
    client.send(1, commands.Basic.Nack, delivery_tag=2, multiple=True, requeue=True)
    client.expect_close(406, "PRECONDITION_FAILED - unknown delivery tag 2", (60, 120))
    assert rest(client, queue) == [(b"0", True), (b"1", True)]


def test_recover_leaves_alone_what_is_decided_about(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 2)
    client.get(queue)
    client.get(queue)
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    client.call(1, commands.Basic.Recover, requeue=True)
    client.call(1, commands.Tx.Commit)
    assert rest(client, queue) == [(b"1", True)]


def test_room_comes_back_with_the_commit(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 4)
    client.call(1, commands.Basic.Qos, prefetch_count=2, global_=True)
    client.consume(queue)
    assert len(client.deliveries()) == 2
    client.send(1, commands.Basic.Ack, delivery_tag=2, multiple=True).expect_nothing()
    client.send(1, commands.Tx.Commit)
    client.expect(1, commands.Tx.CommitOk)
    assert len(client.deliveries()) == 2


# --------------------------------------------------------------------------------------------- ends
@pytest.mark.parametrize("way", ["close", "error", "lost", "connection.close"])
def test_without_a_commit_nothing_happens(world: World, client: Dialogue, way: str) -> None:
    other = connect(world, channels=(1, 2))
    queue = client.declare("q", exclusive=False, auto_delete=True)
    fill(client, queue, 2)
    client.get(queue)
    client.get(queue)
    client.publish(1, queue, b"never")
    client.send(1, commands.Basic.Ack, delivery_tag=2)
    if way == "close":
        client.call(1, commands.Channel.Close)
    elif way == "error":
        client.send(1, commands.Basic.Ack, delivery_tag=9)
    elif way == "lost":
        client.lose()
    else:
        client.call(0, commands.Connection.Close)
    assert rest(other, queue) == [(b"0", True), (b"1", True)]


def test_a_commit_under_way_is_finished_before_a_close_is_answered(world: World, client: Dialogue) -> None:
    client.declare("q", **STORED)
    client.declare("work")
    fill(client, "work", 1)
    client.get("work")
    world.hold_stores = True
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    client.publish(1, "q", b"kept")
    client.send(1, commands.Tx.Commit)
    client.publish(1, "q", b"not committed")
    client.send(0, commands.Connection.Close).expect_nothing()
    world.answer_stores()
    client.expect(1, commands.Tx.CommitOk)
    client.expect(0, commands.Connection.CloseOk)
    other = connect(world, channels=(1, 2))
    assert rest(other, "q") == [(b"kept", False)]


def test_a_connection_lost_during_a_commit_keeps_what_was_published_and_takes_nothing_twice(
    world: World, client: Dialogue
) -> None:
    other = connect(world, channels=(1, 2))
    client.declare("q", **STORED)
    client.declare("work", exclusive=False, auto_delete=True)
    fill(client, "work", 1)
    client.get("work")
    world.hold_stores = True
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    client.publish(1, "q", b"kept")
    client.connection.feed(client.encode(1, commands.Tx.Commit) + client.frames().publish("q", b"not committed"))
    client.lose()
    world.hold_stores = False
    world.answer_stores()
    assert rest(other, "q") == [(b"kept", False)]
    assert rest(other, "work") == [(b"0", True)]


def test_a_channel_that_ends_during_a_commit_is_waited_for(world: World, client: Dialogue) -> None:
    client.declare("q", **STORED)
    client.get(client.declare("work"))
    world.hold_stores = True
    client.publish(1, "q", b"kept")
    client.send(1, commands.Tx.Commit)
    client.connection.method_ids = (0, 0)
    client.connection.on_failure(AmqpError(ReplyCode.PRECONDITION_FAILED, "test"), client.connection._channels[1])
    client.world.settle()
    client.expect(1, commands.Channel.Close)
    client.send(0, commands.Connection.Close).expect_nothing()
    world.answer_stores()
    client.expect(0, commands.Connection.CloseOk)

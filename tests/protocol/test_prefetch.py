"""basic.qos: the limit of each consumer and the one of the channel (CO-19 to CO-23)."""

from __future__ import annotations

import pytest
from pamqp import commands

from tests.support.consuming import bodies, fill, tags_of
from tests.support.dialogue import Dialogue, connect, spec
from tests.support.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Dialogue:
    return connect(world, channels=(1, 2))


# --------------------------------------------------------------------------------------------- prefetch
@spec("RabbitMQ, consumer prefetch", "global=false: the limit of each consumer made from now on; 0 is no limit.")
def test_qos_is_for_new_consumers(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 20)
    client.call(1, commands.Basic.Qos, prefetch_count=2)
    client.consume(queue, "a")
    first = client.deliveries()
    client.call(1, commands.Basic.Qos, prefetch_count=3)
    client.consume(queue, "b")
    second = client.deliveries()
    assert [item.method.consumer_tag for item in first + second] == ["a"] * 2 + ["b"] * 3
    client.send(1, commands.Basic.Ack, delivery_tag=1)
    assert [item.method.consumer_tag for item in client.deliveries()] == ["a"]
    client.send(1, commands.Basic.Ack, delivery_tag=0, multiple=True)
    assert len(client.deliveries()) == 5
    client.call(1, commands.Basic.Qos, prefetch_count=0)
    client.consume(queue, "c")
    assert [item.method.consumer_tag for item in client.deliveries()] == ["c"] * 9


@spec("RabbitMQ, consumer prefetch", "global=true: a limit shared by all consumers of the channel; both limits hold.")
def test_the_channels_limit_is_shared_by_its_consumers(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 10)
    client.call(1, commands.Basic.Qos, prefetch_count=2)
    client.call(1, commands.Basic.Qos, prefetch_count=3, global_=True)
    client.send(1, commands.Basic.Consume, queue=queue, consumer_tag="a", nowait=True)
    client.send(1, commands.Basic.Consume, queue=queue, consumer_tag="b", nowait=True)
    assert tags_of(client) == ["a", "a", "b"]
    client.send(1, commands.Basic.Ack, delivery_tag=3)
    assert tags_of(client) == ["b"]
    client.send(1, commands.Basic.Ack, delivery_tag=2, multiple=True)
    assert sorted(tags_of(client)) == ["a", "b"]
    client.send(1, commands.Basic.Ack, delivery_tag=0, multiple=True)
    assert sorted(tags_of(client)) in (["a", "a", "b"], ["a", "b", "b"])


def test_the_channels_limit_may_change_while_it_is_used(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 12)
    client.call(1, commands.Basic.Qos, prefetch_count=2, global_=True)
    client.consume(queue)
    assert len(client.deliveries()) == 2
    client.call(1, commands.Basic.Qos, prefetch_count=5, global_=True)
    assert len(client.deliveries()) == 3
    client.call(1, commands.Basic.Qos, prefetch_count=3, global_=True)
    client.send(1, commands.Basic.Ack, delivery_tag=2, multiple=True).expect_nothing()
    client.send(1, commands.Basic.Ack, delivery_tag=3)
    assert len(client.deliveries()) == 1
    client.call(1, commands.Basic.Qos, prefetch_count=0, global_=True)
    assert len(client.deliveries()) == 6


def test_the_channels_limit_is_for_what_consumers_hold(client: Dialogue) -> None:
    """Neither what a get took, nor what nobody acknowledges, nor another channel's consumers."""
    queue = client.declare()
    fill(client, queue, 10)
    client.get(queue)
    client.call(1, commands.Basic.Qos, prefetch_count=2, global_=True)
    client.get(queue)
    client.consume(queue, "a")
    assert tags_of(client) == ["a", "a"]
    client.consume(queue, "b", 2)
    assert len(client.deliveries(2)) == 6
    client.call(2, commands.Basic.Cancel, consumer_tag="b")
    client.consume(queue, "c", no_ack=True)
    fill(client, queue, 3)
    assert tags_of(client) == ["c", "c", "c"]
    client.send(1, commands.Basic.Ack, delivery_tag=1).expect_nothing()


def test_what_goes_back_gives_its_room_back(client: Dialogue) -> None:
    queue = client.declare()
    fill(client, queue, 4)
    client.call(1, commands.Basic.Qos, prefetch_count=2, global_=True)
    client.consume(queue)
    assert bodies(client.deliveries()) == [b"0", b"1"]
    client.send(1, commands.Basic.Nack, delivery_tag=1, requeue=True)
    assert bodies(client.deliveries()) == [b"2"]
    client.send(1, commands.Basic.Recover, requeue=True).expect(1, commands.Basic.RecoverOk)
    assert bodies(client.deliveries()) == [b"3", b"0"]
    client.call(1, commands.Basic.Cancel, consumer_tag="t")
    client.consume(queue, "u")
    client.expect_nothing()
    client.send(1, commands.Basic.Reject, delivery_tag=4, requeue=False)
    assert tags_of(client) == ["u"]


def test_a_shared_limit_starves_no_queue(client: Dialogue) -> None:
    for name in ("q1", "q2", "q3"):
        client.declare(name)
        fill(client, name, 6)
    client.call(1, commands.Basic.Qos, prefetch_count=1, global_=True)
    for name in ("q1", "q2", "q3"):
        client.send(1, commands.Basic.Consume, queue=name, consumer_tag=name, nowait=True)
    served = []
    for tag in range(1, 13):
        served += tags_of(client)
        client.send(1, commands.Basic.Ack, delivery_tag=tag)
    assert len(served) == 12
    assert min(served.count(name) for name in ("q1", "q2", "q3")) >= 2


def test_a_limit_in_octets_is_540(client: Dialogue) -> None:
    client.send(1, commands.Basic.Qos, prefetch_size=1000)
    client.expect_connection_close(540, "NOT_IMPLEMENTED - prefetch_size!=0 (1000)", (60, 10))

"""Two connectors share declarations, queues in KubeMQ, and queues in each other's memory (HA-01, HA-03, HA-04)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pika.exceptions
import pytest

from tests.replicas.conftest import Pair
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(120)  # starts processes, waits until one is missed

Connect = Callable[..., Any]
WAITING = "consumers wait: another connector reads the queue"


def got(channel: Any, queue: str) -> bytes | None:
    """One message by basic.get."""
    body: bytes | None = channel.basic_get(queue, auto_ack=True)[2]
    return body


def receive(channel: Any, bodies: list[bytes], count: int) -> None:
    """Let the channel's consumers work until so many bodies are there."""

    def look() -> bool:
        channel.connection.process_data_events(0.01)
        return len(bodies) >= count

    wait_until(look)


def collect(channel: Any, queue: str) -> list[bytes]:
    """Consume; what comes is in the list."""
    bodies: list[bytes] = []
    channel.basic_consume(queue, lambda _c, _m, _p, body: bodies.append(body), auto_ack=True)
    return bodies


def test_a_declaration_is_known_everywhere_when_it_is_answered(steady: Pair, connect: Connect, name: str) -> None:
    here, there = connect(steady.a), connect(steady.b)
    for number in range(30):
        queue, exchange = f"{name}-{number}", f"{name}-x{number}"
        here.queue_declare(queue, durable=True)
        here.exchange_declare(exchange, "fanout", durable=True)
        here.queue_bind(queue, exchange)
        there.basic_publish(exchange, "", b"%d" % number, mandatory=True)
        here, there = there, here
    for number in range(30):
        assert got(here, f"{name}-{number}") == b"%d" % number
        here.queue_delete(f"{name}-{number}")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
            there.queue_declare(f"{name}-{number}", passive=True)
        there = there.connection.channel()


def test_of_two_who_create_one_thing_both_get_the_winners_answer(steady: Pair, connect: Connect, name: str) -> None:
    """Every round one declares it durable, the other auto-delete too: exactly one is answered 406."""
    channels = [connect(steady.a), connect(steady.b)]
    for number in range(15):
        answers: list[str] = ["", ""]
        start = threading.Barrier(2)

        def declare(index: int, queue: str = f"{name}-{number}") -> None:
            start.wait()  # noqa: B023 # joined below
            try:
                channels[index].queue_declare(queue, durable=True, auto_delete=bool(index))
            except pika.exceptions.ChannelClosedByBroker as error:
                answers[index] = f"{error.reply_code} {error.reply_text}"  # noqa: B023
                channels[index] = channels[index].connection.channel()

        threads = [threading.Thread(target=declare, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [answer for answer in answers if answer]
        assert len(refused) == 1, answers
        assert refused[0].startswith("406 PRECONDITION_FAILED - inequivalent arg 'auto_delete'")
        winner = answers.index("")
        for channel in channels:
            channel.queue_declare(f"{name}-{number}", durable=True, auto_delete=bool(winner))
        channels[0].queue_delete(f"{name}-{number}")


def test_two_who_create_one_queue_in_memory(steady: Pair, connect: Connect, name: str) -> None:
    """Exclusive queues are in no log: one of two wins all the same."""
    channels = [connect(steady.a), connect(steady.b)]
    for number in range(10):
        answers: list[int] = [0, 0]
        start = threading.Barrier(2)

        def declare(index: int, queue: str = f"{name}-{number}") -> None:
            start.wait()  # noqa: B023 # joined below
            try:
                channels[index].queue_declare(queue, exclusive=True)
            except pika.exceptions.ChannelClosedByBroker as error:
                answers[index] = error.reply_code  # noqa: B023
                channels[index] = channels[index].connection.channel()

        threads = [threading.Thread(target=declare, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == [0, 405]


def test_counts_are_exact_wherever_it_was_published(steady: Pair, connect: Connect, name: str) -> None:
    here, there = connect(steady.a), connect(steady.b)
    here.queue_declare(name, durable=True)
    for number in range(1, 21):
        there.basic_publish("", name, b"x", mandatory=True)
        assert here.queue_declare(name, passive=True).method.message_count == number
        assert there.queue_declare(name, passive=True).method.message_count == number
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="not empty"):
        there.queue_delete(name, if_empty=True)
    there = there.connection.channel()
    assert there.queue_purge(name).method.message_count == 20
    assert here.queue_declare(name, passive=True).method.message_count == 0
    assert there.queue_delete(name, if_empty=True).method.message_count == 0


def test_whoever_asks_for_a_queue_that_nobody_uses_reads_it(steady: Pair, connect: Connect, name: str) -> None:
    here, there = connect(steady.a), connect(steady.b)
    here.queue_declare(name, durable=True)
    for number in range(12):
        there.basic_publish("", name, b"%d" % number, mandatory=True)
    for number in range(6):
        body, flag = there.basic_get(name, auto_ack=True)[2], None
        assert (body, flag) == (b"%d" % (2 * number), None)
        assert got(here, name) == b"%d" % (2 * number + 1)
    assert got(here, name) is None
    assert got(there, name) is None
    here.queue_delete(name)


def test_consumers_elsewhere_wait_and_are_served_when_the_queue_is_free(
    steady: Pair, connect: Connect, name: str
) -> None:
    here, there = connect(steady.a), connect(steady.b)
    here.queue_declare(name, durable=True)
    first, second = collect(here, name), collect(there, name)
    here.basic_publish("", name, b"1", mandatory=True)
    receive(here, first, 1)
    there.basic_publish("", name, b"2", mandatory=True)
    receive(here, first, 2)
    assert first == [b"1", b"2"]
    assert here.queue_declare(name, passive=True).method.consumer_count == 2
    waiting = "kubemq_amqp_consumers_waiting"
    wait_until(lambda: steady.b.metrics()[waiting] == 1 and steady.a.metrics()[waiting] == 0)
    wait_until(
        lambda: any(e["queue"] == name for e in steady.b.entries("consumers wait: another connector reads the queue"))
    )
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="in use on connector") as refused:
        connect(steady.b).basic_get(name)
    assert refused.value.reply_code == 405
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="in use"):
        connect(steady.b).queue_delete(name, if_unused=True)
    here.connection.close()
    publisher = connect(steady.a)
    publisher.basic_publish("", name, b"3", mandatory=True)
    receive(there, second, 1)
    assert second == [b"3"]
    there.queue_delete(name)


def test_replies_reach_an_exclusive_queue_on_another_connector(steady: Pair, connect: Connect, name: str) -> None:
    client, server = connect(steady.a), connect(steady.b)
    replies = client.queue_declare("", exclusive=True).method.queue
    server.queue_declare(name, durable=True)
    bodies = collect(client, replies)

    def serve(channel: Any, _method: Any, properties: Any, body: bytes) -> None:
        channel.basic_publish("", properties.reply_to, body.upper(), mandatory=True)

    server.basic_consume(name, serve, auto_ack=True)
    for number in range(10):
        client.basic_publish("", name, b"question %d" % number, pika.BasicProperties(reply_to=replies), mandatory=True)

        def answered(count: int = number + 1) -> bool:
            server.connection.process_data_events(0.005)
            client.connection.process_data_events(0.005)
            return len(bodies) == count

        wait_until(answered)
    assert bodies == [b"QUESTION %d" % number for number in range(10)]
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="RESOURCE_LOCKED"):
        connect(steady.b).queue_declare(replies, passive=True)
    client.connection.close()
    late = connect(steady.b)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        late.queue_declare(replies, passive=True)
    server.queue_delete(name)


def test_direct_replies_reach_another_connector(steady: Pair, connect: Connect, name: str) -> None:
    client, server = connect(steady.a, confirms=False), connect(steady.b)
    server.queue_declare(name, durable=True)
    bodies = collect(client, "amq.rabbitmq.reply-to")
    client.basic_publish("", name, b"q", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    addresses: list[str] = []
    server.basic_consume(name, lambda _c, _m, properties, _b: addresses.append(properties.reply_to), auto_ack=True)

    def asked() -> bool:
        client.connection.process_data_events(0.005)
        server.connection.process_data_events(0.005)
        return bool(addresses)

    wait_until(asked)
    assert server.queue_declare(addresses[0], passive=True).method.consumer_count == 1
    server.basic_publish("", addresses[0], b"a", mandatory=True)
    receive(client, bodies, 1)
    assert bodies == [b"a"]
    client.close()
    invented = f"amq.rabbitmq.reply-to.x.{addresses[0].rpartition('.')[2]}"
    for address in (addresses[0], invented):
        with pytest.raises(pika.exceptions.UnroutableError):
            server.basic_publish("", address, b"late", mandatory=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
            connect(steady.b).queue_declare(address, passive=True)
    server.queue_delete(name)


def test_a_fanout_reaches_queues_in_every_memory_and_a_confirm_means_all(
    steady: Pair, connect: Connect, name: str
) -> None:
    subscribers = [connect(connector) for connector in (*steady.both, *steady.both)]
    subscribers[0].exchange_declare(name, "fanout")
    queues = [channel.queue_declare("", exclusive=True).method.queue for channel in subscribers]
    for channel, queue in zip(subscribers, queues, strict=True):
        channel.queue_bind(queue, name)
    for number, connector in enumerate((*steady.both, *steady.both)):
        connect(connector).basic_publish(name, "", b"%d" % number, mandatory=True)
        for channel, queue in zip(subscribers, queues, strict=True):  # confirmed: it is there
            assert got(channel, queue) == b"%d" % number
    subscribers[0].queue_unbind(queues[0], name)
    connect(steady.b).basic_publish(name, "", b"last", mandatory=True)
    assert got(subscribers[0], queues[0]) is None
    assert got(subscribers[1], queues[1]) == b"last"
    subscribers[0].exchange_delete(name)


def test_a_shared_queue_in_one_memory_is_used_from_the_other(steady: Pair, connect: Connect, name: str) -> None:
    """Auto-delete and not durable: it lives in its declarer's memory, and anybody may use it."""
    here, there = connect(steady.a), connect(steady.b)
    here.queue_declare(name, auto_delete=True)
    here.exchange_declare(f"{name}-x", "direct")
    there.queue_bind(name, f"{name}-x", "k")
    there.basic_publish(f"{name}-x", "k", b"1", mandatory=True)
    there.basic_publish("", name, b"2", mandatory=True)
    assert there.queue_declare(name, auto_delete=True).method.message_count == 2
    assert there.queue_purge(name).method.message_count == 2
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="lives on connector"):
        there.basic_get(name)
    there = there.connection.channel()
    there.confirm_delivery()
    there.queue_unbind(name, f"{name}-x", "k")
    with pytest.raises(pika.exceptions.UnroutableError):
        there.basic_publish(f"{name}-x", "k", b"3", mandatory=True)
    assert there.queue_delete(name).method.message_count == 0
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        here.queue_declare(name, passive=True)


def test_an_auto_delete_queue_goes_with_the_last_consumer_of_all(steady: Pair, connect: Connect, name: str) -> None:
    here, there = connect(steady.a), connect(steady.b)
    here.queue_declare(name, durable=True, auto_delete=True)
    collect(here, name)
    collect(there, name)
    wait_until(lambda: connect(steady.a).queue_declare(name, passive=True).method.consumer_count == 2)
    here.connection.close()
    assert connect(steady.a).queue_declare(name, passive=True).method.consumer_count == 1
    there.connection.close()

    def is_gone() -> bool:
        try:
            connect(steady.a).queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            return bool(error.reply_code == 404)
        return False

    wait_until(is_gone)


def test_a_consumer_of_a_queue_in_the_other_memory_takes_over_from_one_there(
    steady: Pair, connect: Connect, name: str
) -> None:
    """A worker comes back on another connector before the first one misses it: nothing is lost, and order is kept."""
    here, there, publisher = connect(steady.a), connect(steady.b), connect(steady.b)
    here.queue_declare(name, auto_delete=True)
    here.basic_qos(prefetch_count=1)
    held: list[bytes] = []
    here.basic_consume(name, lambda _c, _m, _p, body: held.append(body))
    there.queue_declare(name, auto_delete=True)
    there.basic_qos(prefetch_count=3)
    got: list[tuple[bytes, bool, int]] = []
    there.basic_consume(name, lambda _c, m, _p, body: got.append((body, m.redelivered, m.delivery_tag)))
    for number in range(10):
        publisher.basic_publish("", name, b"%d" % number, mandatory=True)
    receive(here, held, 1)

    def came(count: int) -> bool:
        there.connection.process_data_events(0.01)
        return len(got) >= count

    acked: list[int] = []

    def all_came() -> bool:
        if came(len(acked) + 1):
            for _, _, tag in got[len(acked) :]:
                there.basic_ack(tag)
                acked.append(tag)
        return len(acked) == 10

    wait_until(lambda: came(3))
    here.connection.close()
    wait_until(all_came)
    assert sorted(body for body, _, _ in got) == [b"%d" % number for number in range(10)]
    assert [body for body, redelivered, _ in got if redelivered] == held
    fresh = [body for body, redelivered, _ in got if not redelivered]
    assert fresh == sorted(fresh)
    assert publisher.queue_declare(name, passive=True).method.message_count == 0
    there.connection.close()

    def is_gone() -> bool:
        try:
            connect(steady.a).queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            return bool(error.reply_code == 404)
        return False

    wait_until(is_gone)


@pytest.mark.parametrize("durable", [True, False])
def test_of_two_exclusive_consumers_one_is_refused(steady: Pair, connect: Connect, name: str, durable: bool) -> None:
    channels = [connect(steady.a), connect(steady.b)]
    for number in range(10):
        queue = f"{name}-{number}"
        channels[number % 2].queue_declare(queue, durable=durable, auto_delete=not durable)
        answers: list[str] = ["", ""]
        start = threading.Barrier(2)

        def consume(index: int, queue: str = queue) -> None:
            start.wait()  # noqa: B023 # joined below
            try:
                channels[index].basic_consume(queue, lambda *_: None, exclusive=True)
            except pika.exceptions.ChannelClosedByBroker as error:
                answers[index] = f"{error.reply_code} {error.reply_text}"  # noqa: B023
                channels[index] = channels[index].connection.channel()

        threads = [threading.Thread(target=consume, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [answer for answer in answers if answer]
        assert refused == [f"403 ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"]
        channels[0].queue_delete(queue)

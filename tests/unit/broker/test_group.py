"""Two brokers on one log and one store, in one process: who reads, who takes over, and who waits."""

from __future__ import annotations

from typing import Any

import pytest

from connector.broker.errors import AccessRefused
from connector.broker.message import Message
from connector.broker.ports import ServerInfo, Unavailable
from connector.broker.queue import StoredQueue
from connector.broker.requests import QueueDeclare
from tests.support.broker_model import Answer, Consumer, Publisher
from tests.support.replica_model import Pair, Trio


def test_who_declares_reads_and_gives_what_it_does_not_use() -> None:
    pair = Pair()
    answer = pair.a.start(pair.a.vhost.declare_queue, _declare("q"), None)
    pair.run()
    assert answer.value.name == "q"
    here, there = pair.a.vhost.queues["q"], pair.b.vhost.queues["q"]
    assert (here.is_owned, there.is_owned) == (True, False)
    consumer = Consumer()
    there.add_consumer(consumer)
    pair.run()
    assert (here.is_owned, there.is_owned) == (False, True)
    second = Consumer()
    here.add_consumer(second)
    pair.run()
    assert (here.is_owned, there.is_owned) == (False, True)
    assert pair.a.group.waiting_consumer_count() == 1
    there.remove_consumer(consumer)
    pair.run(2)
    assert (here.is_owned, there.is_owned) == (True, False)


def test_a_hung_one_is_buried_and_comes_back_as_another() -> None:
    pair = Pair()
    pair.a.start(pair.a.vhost.declare_queue, _declare("q"), None)
    pair.run()
    there = pair.b.vhost.queues["q"]
    there.add_consumer(Consumer())
    pair.a.vhost.queues["q"].add_consumer(Consumer())
    pair.run()
    first = pair.a.group.me if pair.a.vhost.queues["q"].is_owned else pair.b.group.me
    hung, other = (pair.a, pair.b) if first == pair.a.group.me else (pair.b, pair.a)
    hung.is_hung = True
    pair.run(8)
    assert other.vhost.queues["q"].is_owned
    assert first not in other.broker.topology.members.living
    assert not hung.group.may_read()
    hung.is_hung = False
    pair.run(3)
    assert not hung.vhost.queues["q"].is_owned
    assert hung.group.me != first
    assert set(other.broker.topology.members.living) == {hung.group.me, other.group.me}
    assert hung.group.may_read()


def _auto_delete(pair: Pair, *, durable: bool) -> tuple[Any, Any]:
    """An auto-delete queue of ``a``'s, as both see it."""
    pair.a.start(pair.a.vhost.declare_queue, QueueDeclare("q", durable=durable, auto_delete=True), None)
    pair.run()
    return pair.a.vhost.queues["q"], pair.b.vhost.queues["q"]


def _is_gone(pair: Pair) -> bool:
    return not any("q" in replica.vhost.queues for replica in pair.all)


@pytest.mark.parametrize("durable", [True, False])
def test_an_auto_delete_queue_goes_when_its_last_consumers_go_at_once(durable: bool) -> None:
    pair = Pair()
    here, there = _auto_delete(pair, durable=durable)
    first, second = Consumer(), Consumer()
    here.add_consumer(first)
    there.add_consumer(second)
    pair.run()
    here.remove_consumer(first)
    there.remove_consumer(second)
    pair.run()
    assert _is_gone(pair)


@pytest.mark.parametrize("durable", [True, False])
def test_an_auto_delete_queue_goes_when_the_last_consumer_was_not_where_it_is(durable: bool) -> None:
    pair = Pair()
    here, there = _auto_delete(pair, durable=durable)
    first, second = Consumer(), Consumer()
    here.add_consumer(first)
    pair.run()
    there.add_consumer(second)
    pair.run()
    here.remove_consumer(first)
    pair.run(0.5)
    assert not _is_gone(pair)
    there.remove_consumer(second)
    pair.run()
    assert _is_gone(pair)


def test_an_auto_delete_queue_that_had_no_consumer_stays() -> None:
    pair = Pair()
    _auto_delete(pair, durable=False)
    pair.run(3)
    assert not _is_gone(pair)


def _memory_queue(pair: Pair, here: Consumer | None, there: Consumer) -> tuple[Any, Any]:
    """A queue in the memory of ``a``, with consumers."""
    queues = _auto_delete(pair, durable=False)
    if here is not None:
        queues[0].add_consumer(here)
    queues[1].add_consumer(there)
    pair.run()
    return queues


def _publish(pair: Pair, *numbers: int) -> None:
    """In turn on one and the other."""
    for number in numbers:
        replica = pair.all[number % 2]
        replica.vhost.queues["q"].publish(Message("", "q", b"", b"%d" % number), Publisher(), number)
        pair.run(0.1)
    pair.run(0.5)


def test_a_consumer_elsewhere_is_served_of_a_queue_in_memory() -> None:
    pair, there = Pair(), Consumer(2)
    _, queue = _memory_queue(pair, None, there)
    _publish(pair, *range(5))
    assert there.bodies == [b"0", b"1"]
    assert pair.b.group.waiting_consumer_count() == 0
    assert _counts(pair) == (3, 1)
    while there.got:
        before = [message.redelivered for message in there.got]
        assert not any(before)
        queue.settle(there.got.pop(0))
        pair.run(0.5)
    assert _counts(pair) == (0, 1)
    assert (pair.a.broker.memory_bytes, pair.b.broker.memory_bytes) == (0, 0)


def _counts(pair: Pair) -> tuple[int, int]:
    answers: list[tuple[int, int]] = []
    failed = Answer()
    pair.b.vhost.queues["q"].count(lambda ready, consumers: answers.append((ready, consumers)), failed)
    pair.run(0.5)
    assert not failed.is_there
    return answers[0]


def test_consumers_elsewhere_get_what_those_here_have_no_room_for() -> None:
    pair, here, there = Pair(), Consumer(1), Consumer(1)
    mine, _ = _memory_queue(pair, here, there)
    _publish(pair, 0, 1, 2)
    assert (here.bodies, there.bodies) == ([b"0"], [b"1"])
    mine.settle(here.got.pop())
    pair.run(0.5)
    assert here.bodies == [b"2"]


def test_what_a_consumer_elsewhere_refuses_comes_back_redelivered() -> None:
    pair, there = Pair(), Consumer(1)
    _, queue = _memory_queue(pair, None, there)
    _publish(pair, 0, 1)
    queue.requeue([there.got.pop()])
    pair.run(0.5)
    assert [(m.body, m.redelivered) for m in there.got] == [(b"1", False)]
    queue.settle(there.got.pop())
    pair.run(0.5)
    assert [(m.body, m.redelivered, m.delivery_count) for m in there.got] == [(b"0", True, 1)]


def test_what_a_dead_connector_had_is_delivered_again_where_the_queue_is() -> None:
    pair, here, there = Pair(), Consumer(), Consumer(2)
    mine, _ = _memory_queue(pair, None, there)
    _publish(pair, 0, 1, 2)
    assert there.bodies == [b"0", b"1"]
    mine.add_consumer(here)
    pair.run(0.5)
    assert here.bodies == [b"2"]
    pair.b.is_hung = True
    pair.run(8)
    assert [(m.body, m.redelivered) for m in here.got] == [(b"2", False), (b"0", True), (b"1", True)]


def test_what_nobody_elsewhere_has_seen_goes_back_as_it_was() -> None:
    pair, here, there = Pair(), Consumer(), Consumer(2)
    mine, queue = _memory_queue(pair, None, there)
    second = Consumer(2)
    mine.add_consumer(second)  # keeps the queue
    second.limit = 0
    pair.run(0.5)
    there.limit = 0  # sent on its way, then there is no room any more
    _publish(pair, 0, 1)
    assert not there.got
    queue.remove_consumer(there)
    pair.run(0.5)
    mine.add_consumer(here)
    pair.run(0.5)
    assert [(m.body, m.redelivered) for m in here.got] == [(b"0", False), (b"1", False)]
    assert pair.b.broker.memory_bytes == 0


@pytest.mark.parametrize("durable", [True, False])
def test_of_two_exclusive_consumers_on_two_connectors_one_is_refused(durable: bool) -> None:
    pair = Pair()
    here, there = _auto_delete(pair, durable=durable)
    second = Consumer(exclusive=True)
    answer = Answer()
    assert not here.needs_admission(Consumer(exclusive=True))
    there.admit(second, answer)
    here.add_consumer(Consumer(exclusive=True))
    pair.run()
    assert answer.error == ("AccessRefused", "queue 'q' in vhost '/' in exclusive use")


def test_whoever_is_admitted_first_excludes_the_others_until_it_comes_or_declines() -> None:
    pair = Pair()
    here, there = _auto_delete(pair, durable=False)
    for _ in range(2):
        answer = Answer()
        there.admit(Consumer(exclusive=True), answer)
        pair.run()
        assert answer.value is None
        with pytest.raises(AccessRefused):
            here.add_consumer(Consumer())
        there.decline()
        pair.run()
    here.add_consumer(Consumer())
    pair.run()
    with pytest.raises(AccessRefused):
        there.add_consumer(Consumer(exclusive=True))


def test_a_plain_consumer_is_admitted_where_the_exclusive_one_has_just_gone() -> None:
    pair = Pair()
    here, there = _auto_delete(pair, durable=False)
    first, second, answer = Consumer(exclusive=True), Consumer(), Answer()
    here.add_consumer(first)
    pair.run()
    assert there.needs_admission(second)
    refused = Answer()
    there.admit(second, refused)
    pair.run()
    assert refused.error[0] == "AccessRefused"
    here.record.auto_delete = False
    here.remove_consumer(first)
    there.admit(second, answer)
    pair.run()
    assert answer.value is None
    there.add_consumer(second)


def test_who_starts_under_a_name_follows_who_had_it_at_once() -> None:
    pair = Pair(name="pod-0")  # ``a`` lives: it is taken for dead all the same, and comes back as another
    first = pair.a.group.me
    assert first.endswith("-2")
    pair.run(5)
    assert set(pair.b.broker.topology.members.living) == {first, pair.b.group.me}
    assert pair.b.group.me.endswith("-1")
    assert pair.a.group.may_read()
    assert pair.b.group.may_read()
    old = pair.b.group.me
    pair.start_b()  # after a crash
    assert old not in pair.b.broker.topology.members.living
    assert pair.b.group.is_ready


def _declare(name: str) -> Any:
    return QueueDeclare(name, durable=True)


def test_what_a_dead_one_may_not_have_examined_is_in_doubt_with_its_successor() -> None:
    """KubeMQ and the reader of a queue end together: the successor looks at the queue before that counts as done."""
    pair = Pair()
    pair.a.start(pair.a.vhost.declare_queue, _declare("q"), None)
    pair.run()
    for replica in pair.all:
        replica.broker.recovery.on_server(ServerInfo("kubemq", "2", 1))
    pair.run()
    dead, other = (pair.a, pair.b) if pair.a.vhost.queues["q"].is_owned else (pair.b, pair.a)
    assert other.broker.topology.server_start == 1
    dead.is_hung = True
    other.broker.recovery.on_server(ServerInfo("kubemq", "2", 2))
    pair.run()
    assert other.broker.topology.server_start == 1
    pair.run(8)
    queue = other.vhost.queues["q"]
    assert isinstance(queue, StoredQueue)
    assert queue.is_owned
    assert queue.lease.may_withhold


def test_after_a_restart_of_kubemq_what_others_publish_waits_for_the_reader_to_look() -> None:
    """What the restarted server takes before the queue has moved may go into a subscription of its dead self."""
    pair = Pair()
    pair.a.start(pair.a.vhost.declare_queue, _declare("q"), None)
    pair.run()
    for start in (1, 2):
        for replica in pair.all:
            replica.broker.recovery.on_server(ServerInfo("kubemq", "2", start))
        if start == 1:
            pair.run()
    owner, other = (pair.a, pair.b) if pair.a.vhost.queues["q"].is_owned else (pair.b, pair.a)
    publisher = Publisher()
    other.vhost.publish("", "q", b"\0\0", b"1", publisher, 7)
    pair.run(0.5)
    assert (publisher.stored, other.stored("q")) == ([], [])
    pair.run()
    assert (publisher.stored, owner.stored("q")) == ([7], [b"1"])


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_queue_in_memory_waits_for_one_of_its_name_that_is_on_its_way_into_the_log(succeeds: bool) -> None:
    """Who declares on two connectors at once gets one queue, and the other declare is compared with it."""
    pair = Pair()
    a, b = pair.a, pair.b
    a.hold_log = True
    shared = a.start(a.vhost.declare_queue, _declare("q"), None)
    local = b.start(b.vhost.declare_queue, QueueDeclare("q", exclusive=True), object())
    pair.run()
    assert not local.is_there
    if succeeds:
        a.hold_log = False
        pair.run()
        assert shared.value.name == "q"
        assert local.error[0] == "Locked"
        assert [type(replica.vhost.queues["q"]) for replica in pair.all] == [StoredQueue, StoredQueue]
    else:
        event_id, _ = a.waiting_log.pop()
        a.broker.on_append_failed(event_id, Unavailable("gone"))
        pair.run()
        assert local.value.name == "q"
        assert shared.error[0] == "Unavailable"


def _reply(pair: Pair, address: str, *, retry: bool = False) -> Publisher:
    """``b`` sends a reply; what became of it."""
    publisher = Publisher(retry=retry)
    assert pair.b.vhost.publish("", address, b"\0\0", b"reply", publisher, 7) == 1
    return publisher


def _declared(pair: Pair, address: str) -> Answer:
    """``b`` looks whether anybody reads there."""
    answer = pair.b.start(pair.b.vhost.declare_queue, QueueDeclare(address, passive=True), None)
    pair.run(0.5)
    return answer


def test_a_direct_reply_to_another_connector_has_a_route_while_its_reader_is_there() -> None:
    pair, reader = Pair(), Consumer(no_ack=True)
    queue = pair.a.vhost.replies.open()
    queue.add_consumer(reader)
    assert (_declared(pair, queue.name).value.name, _declared(pair, queue.name).value.consumer_count) == (queue.name, 1)
    publisher = _reply(pair, queue.name)
    pair.run(0.5)
    assert (reader.bodies, publisher.doubted, publisher.stored, publisher.unrouted) == ([b"reply"], [7], [7], [])
    queue.remove_consumer(reader)
    pair.run(0.5)
    publisher = _reply(pair, queue.name)
    assert not publisher.unrouted  # nobody waits for the answer
    pair.run(0.5)
    assert (publisher.stored, publisher.unrouted) == ([], [(7, b"reply")])
    assert _declared(pair, queue.name).error == ("NotFound", f"no queue '{queue.name}' in vhost '/'")
    assert (pair.a.broker.memory_bytes, pair.b.broker.memory_bytes) == (0, 0)


def test_an_address_that_nobody_gave_out_is_not_there() -> None:
    pair = Pair()
    address = f"amq.rabbitmq.reply-to.x.{pair.a.broker.replica}"
    assert _declared(pair, address).error[0] == "NotFound"
    publisher = _reply(pair, address)
    pair.run(0.5)
    assert publisher.unrouted == [(7, b"reply")]


def test_what_became_of_a_reply_is_told_before_the_answer_to_a_later_question() -> None:
    pair = Pair()
    address = f"amq.rabbitmq.reply-to.x.{pair.a.broker.replica}"
    publisher = _reply(pair, address)
    known: list[list[tuple[int, bytes]]] = []
    declare = QueueDeclare(address, passive=True)
    pair.b.vhost.declare_queue(declare, None, lambda _result: known.append(list(publisher.unrouted)))
    pair.run(0.5)
    assert known == [[(7, b"reply")]]


def test_replies_to_a_connector_that_does_not_answer_end_when_it_is_buried() -> None:
    """As any publish to its memory: nacked, as the reader may have it; without confirms it comes back."""
    pair = Pair()
    queue = pair.a.vhost.replies.open()
    queue.add_consumer(Consumer(no_ack=True))
    pair.a.is_hung = True
    confirmed, plain = _reply(pair, queue.name), _reply(pair, queue.name, retry=True)
    answer = _declared(pair, queue.name)
    assert (answer.is_there, confirmed.refused, plain.unrouted) == (False, [], [])
    pair.run(8)
    assert confirmed.refused == [(7, "the connector that had the queue is gone")]
    assert plain.unrouted == [(7, b"reply")]
    assert answer.error[0] == "NotFound"
    assert pair.b.vhost.publish("", queue.name, b"\0\0", b"reply", Publisher(), 8) == 0
    assert pair.b.broker.memory_bytes == 0


def test_a_queue_may_be_deleted_before_all_have_heard_that_it_was_declared() -> None:
    pair = Pair()
    pair.b.is_hung = True
    declared = pair.a.start(pair.a.vhost.declare_queue, _declare("q"), None)
    pair.run(0.5)
    deleted = pair.a.start(pair.a.vhost.delete_queue, "q", None, False, False)
    pair.run(0.5)
    assert (declared.is_there, deleted.is_there) == (False, False)
    pair.b.is_hung = False
    pair.run()
    assert (declared.value.message_count, declared.value.consumer_count, deleted.value) == (0, 0, 0)


def test_what_waits_for_counts_while_its_queue_is_given_away_is_done_with_its_next_reader() -> None:
    pair, consumer, counted = Pair(), Consumer(1), Answer()
    a, b = pair.a, pair.b
    a.start(a.vhost.declare_queue, _declare("q"), None)
    pair.run()
    queue = a.vhost.queues["q"]
    waiting: list[Any] = []
    a.group.when_told = waiting.append  # type: ignore[assignment]
    got = a.start(queue.get)
    deleted = a.start(a.vhost.delete_queue, "q", None, False, True)
    queue.count(lambda *counts: counted(counts), counted)
    b.vhost.queues["q"].add_consumer(consumer)
    pair.run()
    b.publish("", "q", b"1", b"2", b"3")
    pair.run()
    assert (consumer.bodies, queue.is_owned, len(waiting)) == ([b"1"], False, 3)
    del a.group.when_told
    for go_on in waiting:
        go_on()
    pair.run(4)
    assert got.error[0] == "Locked"
    assert deleted.error[0] == "Inequivalent"
    assert counted.value == (2, 1)


def test_consumers_of_a_queue_that_went_with_its_connector_are_forgotten_by_all() -> None:
    trio = Trio()
    trio.c.start(trio.c.vhost.declare_queue, QueueDeclare(""), object())
    trio.run()
    (name,) = trio.c.vhost.queues
    consumer = Consumer(exclusive=True)
    there = trio.b.vhost.queues[name]
    there.admit(consumer, lambda _result: there.add_consumer(consumer))
    trio.run()
    assert trio.a.vhost.queues[name].consumer_count == 1
    trio.c.is_hung = True
    trio.run(9)
    assert consumer.is_cancelled
    trio.c.is_hung = False
    trio.run(2)
    assert [replica.vhost.queues[name].consumer_count for replica in trio.all] == [0, 0, 0]


def test_what_is_told_of_a_queue_that_waits_for_one_of_its_name_comes_after_it() -> None:
    pair = Pair()
    a, b = pair.a, pair.b
    a.hold_log = True
    a.start(a.vhost.declare_queue, _declare("q"), None)
    declared = b.start(b.vhost.declare_queue, QueueDeclare("q", auto_delete=True), None)
    pair.run()
    bound = b.start(b.vhost.bind_queue, "q", "amq.fanout", "", {}, None)
    pair.run()
    event_id, _ = a.waiting_log.pop()
    a.broker.on_append_failed(event_id, Unavailable("gone"))
    pair.run()
    assert (declared.value.name, bound.value) == ("q", None)
    assert a.publish("amq.fanout", "", b"1") == 1

"""Queues as clients declare, purge and delete them; every text is what RabbitMQ 3.10 says after ``NAME - ``."""

from __future__ import annotations

import pytest

from connector.broker.errors import BrokerError
from connector.broker.memory_queue import MemoryQueue
from connector.broker.ports import Unavailable
from connector.broker.queue import StoredQueue
from connector.broker.requests import DeclaredQueue
from connector.broker.topology import QueueRecord, name_event, queue_declared, queue_deleted
from tests.support.broker_model import BrokerModel, Consumer, Publisher

LOCKED = (
    "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally declared on another "
    "connection or the exclusive property value does not match that of the original declaration."
)


@pytest.fixture
def model() -> BrokerModel:
    return BrokerModel()


# --------------------------------------------------------------------------------------------------- declare
def test_declare_answers_name_ready_and_consumers(model: BrokerModel) -> None:
    assert model.declare("q", durable=True).value == DeclaredQueue("q", 0, 0)
    model.publish("", "q", b"1", b"2", b"3")
    model.consume("q", Consumer(2))
    assert model.declare("q", durable=True).value == DeclaredQueue("q", 1, 1)  # two are unacked
    assert model.declare("q", passive=True).value == DeclaredQueue("q", 1, 1)


def test_many_declares_share_a_count_and_it_is_never_older_than_a_second(model: BrokerModel) -> None:
    model.declare("first", durable=True)
    asked = model.ask_count
    answers = [model.declare(f"q-{number}", durable=True) for number in range(3)]
    answers.append(model.declare("first", durable=True))
    assert [answer.value.message_count for answer in answers] == [0, 0, 0, 0]
    assert model.ask_count == asked
    model.tick(2.0)
    model.store.publish_native("amqp.default.q-0", b"native")
    model.store.publish_native("amqp.default.new", b"native")
    assert model.declare("q-0", durable=True).value.message_count == 1
    assert model.declare("new", durable=True).value.message_count == 1


def test_passive_ignores_all_but_the_name(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    answer = model.declare("q", passive=True, exclusive=True, auto_delete=True, arguments={"x-message-ttl": ("S", b"")})
    assert answer.value == DeclaredQueue("q", 0, 0)
    assert model.declare("nope", passive=True).error == ("NotFound", "no queue 'nope' in vhost '/'")


def test_the_reserved_prefix(model: BrokerModel) -> None:
    text = "queue name 'amq.q' contains reserved prefix 'amq.*'"
    assert model.declare("amq.q").error == ("AccessRefused", text)


def test_line_ends_are_stripped(model: BrokerModel) -> None:
    assert model.declare("q\r\n", durable=True).value.name == "q"
    assert model.declare("\nq", passive=True).value.name == "q"
    assert model.declare_exchange("x\r\n").value is None
    assert model.declare_exchange("x", passive=True).value is None


def test_server_named(model: BrokerModel) -> None:
    one, two = model.declare("").value.name, model.declare("", durable=True).value.name
    assert one.startswith("amq.gen-")
    assert two.startswith("amq.gen-")
    assert one != two
    assert isinstance(model.vhost.find_queue(one, None), MemoryQueue)
    assert isinstance(model.vhost.find_queue(two, None), StoredQueue)
    assert model.declare(one, passive=True).value.name == one


@pytest.mark.parametrize(
    ("flags", "is_stored"),
    [
        ({}, True),
        ({"durable": True}, True),
        ({"durable": True, "auto_delete": True}, True),
        ({"auto_delete": True}, False),
        ({"exclusive": True}, False),
        ({"exclusive": True, "durable": True}, False),
    ],
)
def test_which_queues_live_in_memory(model: BrokerModel, flags: dict[str, bool], is_stored: bool) -> None:
    me = object()
    model.declare("q", owner=me, **flags)
    assert model.vhost.find_queue("q", me).is_stored is is_stored
    assert bool(model.log) is is_stored  # only what all replicas know is in the log


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({}, "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"),
        (
            {"durable": True, "auto_delete": True},
            "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            {"durable": True, "arguments": {"x-message-ttl": ("I", 5)}},
            (
                "inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': "
                "received the value '5' of type 'signedint' but current is none"
            ),
        ),
        (
            {"durable": True, "arguments": {"x-queue-mode": ("S", b"lazy")}},
            (
                "inequivalent arg 'x-queue-mode' for queue 'q' in vhost '/': "
                "received the value 'lazy' of type 'longstr' but current is none"
            ),
        ),
    ],
)
def test_a_different_redeclaration(model: BrokerModel, flags: dict[str, object], text: str) -> None:
    model.declare("q", durable=True)
    assert model.declare("q", **flags).error == ("Inequivalent", text)


def test_different_arguments(model: BrokerModel) -> None:
    model.declare("q", durable=True, arguments={"x-queue-mode": ("S", b"lazy")})
    label = "inequivalent arg 'x-queue-mode' for queue 'q' in vhost '/'"
    answer = model.declare("q", durable=True, arguments={"x-queue-mode": ("S", b"default")})
    assert answer.error == ("Inequivalent", f"{label}: received 'default' but current is 'lazy'")
    answer = model.declare("q", durable=True, arguments={"x-queue-mode": ("V", None)})
    assert answer.error == ("Inequivalent", f"{label}: received none but current is 'lazy'")
    text = f"{label}: received none but current is the value 'lazy' of type 'longstr'"
    assert model.declare("q", durable=True).error == ("Inequivalent", text)


def test_unknown_arguments_and_widths_do_not_differ(model: BrokerModel) -> None:
    model.declare("q", durable=True, arguments={"x-queue-version": ("I", 2), "x-mine": ("S", b"a")})
    answer = model.declare("q", durable=True, arguments={"x-queue-version": ("l", 2), "x-other": ("V", None)})
    assert isinstance(answer.value, DeclaredQueue)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"x-queue-type": ("S", b"classic")}, {}),
        ({}, {"x-queue-type": ("S", b"classic")}),
        ({}, {"x-queue-leader-locator": ("S", b"balanced")}),
        ({"x-queue-type": ("S", b"quorum")}, {"x-queue-type": ("S", b"quorum"), "x-queue-mode": ("S", b"lazy")}),
    ],
)
def test_what_a_type_of_queue_does_not_know_is_not_compared(
    model: BrokerModel, first: dict[str, object], second: dict[str, object]
) -> None:
    model.declare("q", durable=True, arguments=first)
    assert isinstance(model.declare("q", durable=True, arguments=second).value, DeclaredQueue)


def test_no_type_is_not_quorum(model: BrokerModel) -> None:
    model.declare("q", durable=True, arguments={"x-queue-type": ("S", b"quorum")})
    text = "received none but current is the value 'quorum' of type 'longstr'"
    error = model.declare("q", durable=True).error
    assert error == ("Inequivalent", f"inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': {text}")


def test_an_exclusive_queue_is_its_owners(model: BrokerModel) -> None:
    me, other = object(), object()
    model.declare("q", owner=me, exclusive=True)
    assert model.declare("q", owner=me, exclusive=True, durable=True).value.name == "q"
    assert model.declare("q", owner=me).error == ("Locked", LOCKED)
    assert model.declare("q", owner=other, exclusive=True).error == ("Locked", LOCKED)
    assert model.declare("q", owner=other, passive=True).error == ("Locked", LOCKED)
    assert model.delete("q", owner=other).error == ("Locked", LOCKED)
    assert model.call(model.vhost.purge_queue, "q", other).error == ("Locked", LOCKED)
    assert model.bind("q", "amq.direct", owner=other).error == ("Locked", LOCKED)
    with pytest.raises(BrokerError, match="cannot obtain exclusive access"):
        model.vhost.find_queue("q", other)


def test_unbinding_a_foreign_exclusive_queue(model: BrokerModel) -> None:
    me, other = object(), object()
    model.declare("q", owner=me, exclusive=True)
    assert model.unbind("q", "amq.direct", owner=other).value is None  # nothing is bound
    model.bind("q", "amq.direct", owner=me)
    assert model.unbind("q", "amq.direct", owner=other).error == ("Locked", LOCKED)


def test_a_common_queue_cannot_become_exclusive(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    assert model.declare("q", owner=object(), durable=True, exclusive=True).error == ("Locked", LOCKED)


def test_exclusive_queues_go_with_their_owner(model: BrokerModel) -> None:
    me, other = object(), object()
    model.declare("q", owner=me, exclusive=True)
    model.declare("r", owner=other, exclusive=True)
    consumer = Consumer()
    model.vhost.find_queue("q", me).add_consumer(consumer)
    model.vhost.on_owner_gone(me)
    model.vhost.on_owner_gone(me)
    assert consumer.is_cancelled
    assert list(model.vhost.queues) == ["r"]
    assert model.declare("q", owner=other, exclusive=True).value.name == "q"


def test_a_fresh_count_is_asked_for_when_the_old_one_is_old(model: BrokerModel) -> None:
    """Native producers add to a queue that nobody consumes; a monitor asks passively (QU-01)."""
    model.declare("q", durable=True)
    model.publish("", "q", b"1")
    model.store.publish_native("amqp.default.q", b"2")
    model.now += 5.0
    assert model.declare("q", passive=True).value.message_count == 2


# ------------------------------------------------------------------------------------------ races in the log
def test_two_declare_the_same_queue_at_once(model: BrokerModel) -> None:
    model.hold_log = True
    one, same, other = model.declare("q", durable=True), model.declare("q", durable=True), model.declare("q")
    model.answer_log()
    model.settle()
    assert one.value == same.value == DeclaredQueue("q", 0, 0)
    assert other.error[0] == "Inequivalent"
    assert model.broker.counters.queues_created == 1
    assert model.broker.counters.queues_declared == 2


def test_a_throw_away_queue_waits_for_a_shared_one_of_its_name(model: BrokerModel) -> None:
    model.hold_log = True
    shared = model.declare("q", durable=True)
    local = model.declare("q", auto_delete=True)
    mine = model.declare("q", owner=object(), exclusive=True)
    model.answer_log()
    model.settle()
    assert shared.value.name == "q"
    assert local.error[0] == "Inequivalent"
    assert mine.error == ("Locked", LOCKED)


def test_another_replica_was_faster(model: BrokerModel) -> None:
    model.hold_log = True
    mine = model.declare("q", durable=True)
    model.apply_foreign(queue_declared(QueueRecord("default", "q", durable=True, auto_delete=True)))
    model.answer_log()
    model.settle()
    assert mine.error[0] == "Inequivalent"


def test_a_shared_queue_replaces_a_throw_away_one(model: BrokerModel) -> None:
    """Another replica knows nothing of what lives in our memory."""
    model.declare("q", auto_delete=True)
    consumer = model.consume("q")
    model.apply_foreign(queue_declared(QueueRecord("default", "q", durable=True)))
    model.settle()
    assert consumer.is_cancelled
    assert model.vhost.find_queue("q", None).is_stored


def test_the_log_refuses(model: BrokerModel) -> None:
    model.hold_log = True
    declared, waiting = model.declare("q", durable=True), model.declare("q", durable=True)
    model.refuse_log(Unavailable("no link"))
    model.settle()
    assert declared.error == ("Unavailable", "no link")
    model.answer_log()  # the one who waited has tried by itself
    model.settle()
    assert waiting.value.name == "q"


# ---------------------------------------------------------------------------------------------------- delete
def test_delete_counts_what_is_ready(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.publish("", "q", b"1", b"2", b"3")
    consumer = model.consume("q", Consumer(1))
    assert model.delete("q").value == 2
    assert consumer.is_cancelled
    assert model.stored("q") == []
    assert model.publish("", "q", b"4") == 0
    assert model.broker.counters.queues_deleted == 1


def test_deleting_what_is_missing(model: BrokerModel) -> None:
    assert model.delete("nope").value == 0
    assert model.delete("nope", if_unused=True, if_empty=True).value == 0


@pytest.mark.parametrize("flags", [{"durable": True}, {"auto_delete": True}])
def test_delete_if(model: BrokerModel, flags: dict[str, bool]) -> None:
    model.declare("q", **flags)
    model.publish("", "q", b"1")
    assert model.delete("q", if_empty=True).error == ("Inequivalent", "queue 'q' in vhost '/' not empty")
    model.consume("q", Consumer(0))
    assert model.delete("q", if_unused=True).error == ("Inequivalent", "queue 'q' in vhost '/' in use")
    both = model.delete("q", if_unused=True, if_empty=True)
    assert both.error == ("Inequivalent", "queue 'q' in vhost '/' in use")
    assert model.delete("q").value == 1


def test_a_consumer_comes_while_the_queue_is_counted_for_its_deletion(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.now += 5.0  # the count is old
    answer = model.start(model.vhost.delete_queue, "q", None, True, False)
    model.vhost.find_queue("q", None).add_consumer(Consumer())
    model.settle()
    assert answer.error == ("Inequivalent", "queue 'q' in vhost '/' in use")


def test_two_delete_the_same_queue_at_once(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.publish("", "q", b"1")
    model.hold_log = True
    one, two = model.delete("q"), model.delete("q")
    model.answer_log()
    model.hold_log = False
    model.settle()
    assert (one.value, two.value) == (1, 0)
    assert model.broker.counters.queues_deleted == 1


def test_a_queue_is_gone_when_it_is_counted_for_its_deletion(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.now += 5.0  # the count is old
    answer = model.start(model.vhost.delete_queue, "q", None, False, False)
    model.apply_foreign(name_event("queue.deleted", "default", "q"))
    model.settle()
    assert answer.value == 0


def test_the_log_does_not_take_a_deletion(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.hold_log = True
    answer = model.delete("q")
    model.refuse_log(Unavailable("no link"))
    assert answer.error == ("Unavailable", "no link")
    assert model.publish("", "q", b"1") == 1


def test_a_redeclaration_waits_until_the_old_channel_is_empty(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.publish("", "q", *[b"%d" % n for n in range(30)])
    model.hold_log = True
    deleted = model.delete("q")
    model.answer_log(1)
    again = model.declare("q", durable=True)
    assert not again.is_there
    model.hold_log = False
    model.settle()
    assert deleted.value == 30
    assert again.value == DeclaredQueue("q", 0, 0)
    assert model.publish("", "q", b"new") == 1
    assert model.consume("q").bodies == [b"new"]


def test_publishes_to_a_deleted_queue_are_dropped_and_confirmed(model: BrokerModel) -> None:
    """As RabbitMQ does; and they never land in a queue of the same name (PU-17)."""
    model.declare("q", durable=True)
    model.hold_lanes = True
    receipt = Publisher()
    model.publish("", "q", b"late", receipt=receipt)
    model.hold_log = True
    model.call(model.vhost.delete_queue, "q", None, False, False)
    model.vhost.find_queue("q", None)
    model.hold_log = model.hold_lanes = False
    model.settle()
    assert receipt.stored == [1]
    model.declare("q", durable=True)
    assert model.stored("q") == []


def test_auto_delete_after_the_last_of_at_least_one_consumer(model: BrokerModel) -> None:
    for name, flags in (("stored", {"durable": True}), ("memory", {})):
        model.declare(name, auto_delete=True, **flags)
        one, two = model.consume(name), model.consume(name)
        queue = model.vhost.find_queue(name, None)
        queue.remove_consumer(one)
        model.settle()
        assert name in model.vhost.queues
        queue.remove_consumer(two)
        queue.remove_consumer(two)
        model.settle()
        assert name not in model.vhost.queues


# ----------------------------------------------------------------------------------------------------- purge
@pytest.mark.parametrize("flags", [{"durable": True}, {"auto_delete": True}])
def test_purge_removes_what_is_ready(model: BrokerModel, flags: dict[str, bool]) -> None:
    model.declare("q", **flags)
    model.publish("", "q", *[b"%d" % n for n in range(12)])
    consumer = model.consume("q", Consumer(2))
    assert model.call(model.vhost.purge_queue, "q", None).value == 10
    model.publish("", "q", b"new")
    queue = model.vhost.find_queue("q", None)
    assert queue.ready_count == 1
    assert queue.unacked_count == 2
    queue.requeue(consumer.got)
    consumer.got = []
    model.settle()
    assert [message.body for message in consumer.got] == [b"new", b"0"]


def test_purging_what_is_missing(model: BrokerModel) -> None:
    answer = model.call(model.vhost.purge_queue, "nope", None)
    assert answer.error == ("NotFound", "no queue 'nope' in vhost '/'")


def test_a_purge_waits_for_a_count(model: BrokerModel) -> None:
    """Without one it would say 0 of a full queue after a restart."""
    model.declare("q", durable=True)
    model.publish("", "q", b"1", b"2")
    later = BrokerModel(model, count_is_late=True)
    answer = later.call(later.vhost.purge_queue, "q", None)
    assert not answer.is_there
    later.count_is_late = False
    later.settle()
    assert answer.value == 2
    assert later.stored("q") == []


def test_a_late_deletion_leaves_a_queue_declared_since(model: BrokerModel) -> None:
    """Its event names the queue it was of, not only the name."""
    model.declare("q", durable=True)
    late = queue_deleted(model.vhost.queues["q"].record)
    model.delete("q")
    model.declare("q", durable=True)
    model.apply_foreign(late)
    assert "q" in model.vhost.queues
    model.apply_foreign(queue_deleted(model.vhost.queues["q"].record))
    assert "q" not in model.vhost.queues

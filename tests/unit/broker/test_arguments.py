"""Queue arguments: what RabbitMQ 3.10 refuses and its very words, what is not built, and what is nobody's business."""

from __future__ import annotations

import pytest

from connector.amqp.wire import Field, Table
from connector.broker.arguments import MAX_EXPIRY_MS, check_equivalent, check_queue
from connector.broker.errors import Inequivalent, NotImplementedHere
from connector.broker.requests import QueueDeclare
from connector.broker.topology import QueueRecord

LABEL = "queue 'q' in vhost '/'"
TEXT: Field = ("S", b"a")


def refused(arguments: Table, **flags: bool) -> str:
    """The text after ``for queue 'q' in vhost '/'``, or the whole one where it is built differently."""
    with pytest.raises(Inequivalent) as caught:
        check_queue(QueueDeclare("q", **({"durable": True} | flags), arguments=arguments), LABEL)
    return str(caught.value)


@pytest.mark.parametrize("name", ["x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (TEXT, '"expected integer, got longstr"'),
        (("t", True), '"expected integer, got bool"'),
        (("d", 1.0), '"expected integer, got double"'),
        (("I", -1), "{value_negative,-1}"),
        (("l", -5), "{value_negative,-5}"),
    ],
)
def test_numbers(name: str, value: Field, reason: str) -> None:
    assert refused({name: value}) == f"invalid arg '{name}' for {LABEL}: {reason}"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("x-expires", ("I", 0), "{value_zero,0}"),
        ("x-expires", ("l", MAX_EXPIRY_MS + 1), "{value_too_large,3153600000001}"),
        ("x-message-ttl", ("l", MAX_EXPIRY_MS + 1), "{value_too_large,3153600000001}"),
        ("x-max-priority", ("I", 256), "{max_value_exceeded,256}"),
        ("x-dead-letter-routing-key", TEXT, "routing_key_but_no_dlx_defined"),
        ("x-dead-letter-routing-key", ("I", 5), "{unacceptable_type,signedint}"),
        ("x-overflow", TEXT, "invalid_overflow"),
        ("x-overflow", ("I", 5), "{unacceptable_type,signedint}"),
        ("x-queue-mode", ("S", b"foo"), "\"unsupported queue mode 'foo'\""),
        ("x-queue-mode", ("I", 5), "{unacceptable_type,signedint}"),
        ("x-queue-type", ("S", b"foo"), "\"unsupported queue type 'foo'\""),
        ("x-queue-type", ("I", 5), "{unacceptable_type,signedint}"),
        ("x-single-active-consumer", TEXT, "{unacceptable_type,longstr}"),
    ],
)
def test_values(name: str, value: Field, reason: str) -> None:
    assert refused({name: value}) == f"invalid arg '{name}' for {LABEL}: {reason}"


def test_the_dead_letter_exchange_is_a_name() -> None:
    text = f"invalid type 'signedint' for arg 'x-dead-letter-exchange' in {LABEL}"
    assert refused({"x-dead-letter-exchange": ("I", 5)}) == text


def test_what_only_quorum_queues_have() -> None:
    text = f"invalid arg 'x-delivery-limit' for {LABEL} of queue type rabbit_classic_queue"
    assert refused({"x-delivery-limit": ("I", -1)}) == text
    assert refused({"x-delivery-limit": ("I", 5), "x-queue-type": ("S", b"classic")}) == text


@pytest.mark.parametrize("argument", [{"x-queue-mode": ("S", b"lazy")}, {"x-max-priority": ("I", 3)}])
def test_what_only_classic_queues_have(argument: Table) -> None:
    (name,) = argument
    text = f"invalid arg '{name}' for {LABEL} of queue type rabbit_quorum_queue"
    assert refused({"x-queue-type": ("S", b"quorum"), **argument}, durable=False) == text  # before the flags


def test_of_several_differences_the_first_in_rabbitmqs_order_is_named() -> None:
    record = QueueRecord("default", "q", durable=True)
    arguments: Table = {"x-single-active-consumer": ("t", True), "x-queue-mode": ("S", b"lazy")}
    with pytest.raises(Inequivalent, match=r"^inequivalent arg 'x-queue-mode' for"):
        check_equivalent(record, QueueDeclare("q", durable=True, arguments=arguments), LABEL)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"durable": False}, "non-durable"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"auto_delete": True}, "auto-delete"),
    ],
)
def test_quorum_queues_are_plain(flags: dict[str, bool], what: str) -> None:
    assert refused({"x-queue-type": ("S", b"quorum")}, **flags) == f"invalid property '{what}' for {LABEL}"


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": ("I", 0)},
        {"x-expires": ("I", 1)},
        {"x-max-length": ("B", 0)},
        {"x-max-priority": ("u", 255)},
        {"x-dead-letter-exchange": ("S", b"")},
        {"x-dead-letter-exchange": TEXT, "x-dead-letter-routing-key": TEXT},
        {"x-overflow": ("S", b"reject-publish")},
        {"x-queue-type": ("S", b"stream")},
        {"x-queue-type": ("S", b"quorum"), "x-delivery-limit": ("I", 3)},
    ],
)
def test_what_is_not_built_is_refused_not_ignored(arguments: Table) -> None:
    with pytest.raises(NotImplementedHere, match=r"^queue argument 'x-[a-z-]+' is not supported$"):
        check_queue(QueueDeclare("q", durable=True, arguments=arguments), LABEL)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-single-active-consumer": ("t", False)},
        {"x-single-active-consumer": ("t", True)},
        {"x-overflow": ("S", b"drop-head")},
        {"x-queue-mode": ("S", b"lazy")},
        {"x-queue-mode": ("S", b"default")},
        {"x-queue-type": ("S", b"classic")},
        {"x-queue-type": ("S", b"quorum")},
        {"x-queue-version": ("I", 2), "x-queue-master-locator": TEXT, "x-queue-leader-locator": TEXT},
        {"x-ha-policy": TEXT, "x-quorum-initial-group-size": ("I", 3), "x-anything": ("V", None)},
    ],
)
def test_what_is_taken(arguments: Table) -> None:
    check_queue(QueueDeclare("q", durable=True, arguments=arguments), LABEL)


@pytest.mark.parametrize(
    ("asked", "current", "text"),
    [
        (("I", 6), ("I", 5), "received '6' but current is '5'"),
        (TEXT, ("I", 5), "received 'a' but current is '5'"),
        (None, ("I", 5), "received none but current is the value '5' of type 'signedint'"),
        (("l", 5), None, "received the value '5' of type 'long' but current is none"),
        (("S", b"\xff"), None, "received the value '\N{REPLACEMENT CHARACTER}' of type 'longstr' but current is none"),
        (("t", True), None, "received the value 'true' of type 'bool' but current is none"),
        (("t", True), ("I", 1), "received 'true' but current is '1'"),
    ],
)
def test_redeclared_with_another_value(asked: Field | None, current: Field | None, text: str) -> None:
    name = "x-message-ttl"
    record = QueueRecord("default", "q", durable=True, arguments={name: current} if current else {})
    request = QueueDeclare("q", durable=True, arguments={name: asked} if asked else {})
    with pytest.raises(Inequivalent) as caught:
        check_equivalent(record, request, LABEL)
    assert str(caught.value) == f"inequivalent arg '{name}' for {LABEL}: {text}"


@pytest.mark.parametrize("letter", list("bBsuIilL"))
def test_an_integer_is_equal_in_any_width(letter: str) -> None:
    record = QueueRecord("default", "q", durable=True, arguments={"x-message-ttl": ("I", 60)})
    check_equivalent(record, QueueDeclare("q", durable=True, arguments={"x-message-ttl": (letter, 60)}), LABEL)


def test_unknown_arguments_are_never_compared() -> None:
    record = QueueRecord("default", "q", durable=True, arguments={"x-mine": TEXT})
    check_equivalent(record, QueueDeclare("q", durable=True, arguments={"x-yours": TEXT}), LABEL)


def test_the_durable_flag_of_an_exclusive_queue_says_nothing() -> None:
    record = QueueRecord("default", "q", exclusive=True)
    check_equivalent(record, QueueDeclare("q", durable=True, exclusive=True), LABEL)

"""Queue arguments: which are valid, which have an effect that is not built yet, and when two declarations agree.

Owns the rules of QU-03 and QU-12 to QU-14; texts are RabbitMQ 3.10's.  Arguments it does not know are ignored,
never compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from connector.broker.errors import Inequivalent, NotImplementedHere

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.amqp.wire import Field, Table
    from connector.broker.requests import QueueDeclare
    from connector.broker.topology import QueueRecord

#: AMQP type letters by the names RabbitMQ's texts use.
TYPE_NAMES = {
    "S": "longstr", "I": "signedint", "l": "long", "L": "long", "t": "bool", "b": "byte", "B": "unsignedbyte",
    "s": "short", "u": "unsignedshort", "i": "unsignedint", "f": "float", "d": "double", "F": "table", "A": "array",
    "T": "timestamp", "x": "binary", "V": "void", "D": "decimal",
}  # fmt: skip
INTEGERS = frozenset("bBsuIilL")
MAX_PRIORITY = 255
#: 100 years in ms: RabbitMQ's largest timer.
MAX_EXPIRY_MS = 100 * 365 * 86_400_000
#: Arguments compared by a redeclaration, in RabbitMQ's order, which decides what a refusal names; which they are
#: depends on the type of the queue that exists.
COMPARED = (
    "x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-length",
    "x-max-length-bytes", "x-max-priority", "x-overflow", "x-queue-mode", "x-queue-version",
    "x-single-active-consumer", "x-queue-type", "x-queue-master-locator", "x-consumer-timeout",
)  # fmt: skip
COMPARED_QUORUM = (
    "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-expires", "x-max-length",
    "x-max-length-bytes", "x-max-in-memory-length", "x-max-in-memory-bytes", "x-overflow", "x-single-active-consumer",
    "x-queue-type", "x-quorum-initial-group-size", "x-delivery-limit", "x-message-ttl", "x-queue-leader-locator",
    "x-consumer-timeout",
)  # fmt: skip
_CLASSIC, _QUORUM = ("S", b"classic"), ("S", b"quorum")


class InvalidArgument(Exception):
    """Inside this module: an argument's value is refused; the text is RabbitMQ's term."""


def _type_name(value: Field) -> str:
    return TYPE_NAMES.get(value[0], value[0])


def _integer(value: Field, lowest: int, highest: int | None = None, term: str = "value_too_large") -> None:
    kind, number = value
    if kind not in INTEGERS or not isinstance(number, int):
        raise InvalidArgument(f'"expected integer, got {_type_name(value)}"')
    if number < 0:
        raise InvalidArgument(f"{{value_negative,{number}}}")
    if number < lowest:
        raise InvalidArgument("{value_zero,0}")
    if highest is not None and number > highest:
        raise InvalidArgument(f"{{{term},{number}}}")


def _text(value: Field) -> str:
    kind, text = value
    if kind != "S" or not isinstance(text, bytes):
        raise InvalidArgument(f"{{unacceptable_type,{_type_name(value)}}}")
    return text.decode("utf-8", "surrogateescape")


def _one_of(value: Field, allowed: tuple[str, ...], term: str) -> None:
    text = _text(value)
    if text not in allowed:
        raise InvalidArgument(term.format(text))


def _boolean(value: Field) -> None:
    if value[0] != "t":
        raise InvalidArgument(f"{{unacceptable_type,{_type_name(value)}}}")


_CHECKS: dict[str, Callable[[Field], object]] = {
    "x-expires": lambda v: _integer(v, 1, MAX_EXPIRY_MS),
    "x-message-ttl": lambda v: _integer(v, 0, MAX_EXPIRY_MS),
    "x-max-length": lambda v: _integer(v, 0),
    "x-max-length-bytes": lambda v: _integer(v, 0),
    "x-max-priority": lambda v: _integer(v, 0, MAX_PRIORITY, "max_value_exceeded"),
    "x-dead-letter-routing-key": _text,
    "x-single-active-consumer": _boolean,
    "x-consumer-timeout": lambda v: _integer(v, 0),
    "x-overflow": lambda v: _one_of(v, ("drop-head", "reject-publish", "reject-publish-dlx"), "invalid_overflow"),
    "x-queue-mode": lambda v: _one_of(v, ("default", "lazy"), "\"unsupported queue mode '{}'\""),
    "x-queue-type": lambda v: _one_of(v, ("classic", "quorum", "stream"), "\"unsupported queue type '{}'\""),
}
#: What the other type of queue does not have, in the order in which RabbitMQ looks; others are ignored (QU-13).
_QUORUM_ONLY = ("x-delivery-limit",)
_CLASSIC_ONLY = ("x-max-priority", "x-queue-mode")
_DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"

_CONSUMER_CHECKS: dict[str, Callable[[Field], object]] = {
    "x-cancel-on-ha-failover": _boolean,
    "x-consumer-timeout": lambda v: _integer(v, 0),
}

#: Arguments whose effect comes with later work, unless the value asks for nothing.
_NOT_BUILT = {
    "x-expires": (), "x-message-ttl": (), "x-max-length": (), "x-max-length-bytes": (), "x-max-priority": (),
    "x-delivery-limit": (), "x-dead-letter-exchange": (), "x-dead-letter-routing-key": (),
    "x-overflow": (b"drop-head",), "x-queue-type": (b"classic", b"quorum"),
}  # fmt: skip


def check_queue(request: QueueDeclare, label: str) -> None:
    """Refuse what RabbitMQ refuses (Inequivalent, 406) and what is not built yet (NotImplementedHere, 540).

    ``label`` is ``queue 'q' in vhost '/'``.
    """
    arguments = request.arguments
    for name, check in _CHECKS.items():
        _check(name, check, arguments, label)
    check_name(arguments, _DEAD_LETTER_EXCHANGE, label)
    if "x-dead-letter-routing-key" in arguments and _DEAD_LETTER_EXCHANGE not in arguments:
        raise Inequivalent(f"invalid arg 'x-dead-letter-routing-key' for {label}: routing_key_but_no_dlx_defined")
    _check_queue_type(request, label)
    for name, harmless in _NOT_BUILT.items():
        if name in arguments and arguments[name][1] not in harmless:
            raise NotImplementedHere(f"queue argument '{name}' is not supported")


def _check_queue_type(request: QueueDeclare, label: str) -> None:
    """Some flags and arguments go with one type of queue only."""
    arguments = request.arguments
    is_quorum = arguments.get("x-queue-type") == _QUORUM
    for name in _CLASSIC_ONLY if is_quorum else _QUORUM_ONLY:
        if name in arguments:
            kind = "quorum" if is_quorum else "classic"
            raise Inequivalent(f"invalid arg '{name}' for {label} of queue type rabbit_{kind}_queue")
    if is_quorum:
        for is_set, what in (
            (request.auto_delete, "auto-delete"),
            (request.exclusive, "exclusive-owner"),
            (not request.durable, "non-durable"),
        ):
            if is_set:
                raise Inequivalent(f"invalid property '{what}' for {label}")


def check_name(arguments: Table, name: str, label: str) -> None:
    """Raise Inequivalent unless the argument, if there, names an exchange by a string."""
    value = arguments.get(name)
    if value is not None and value[0] != "S":
        raise Inequivalent(f"invalid type '{_type_name(value)}' for arg '{name}' in {label}")


class ConsumerArguments(NamedTuple):
    """What a consumer asks for: its priority (CO-33), and how long it may take to acknowledge (None: as its queue)."""

    priority: int = 0
    timeout_s: float | None = None


def check_consumer(arguments: Table, label: str) -> ConsumerArguments:
    """Read a consumer's arguments; raises Inequivalent as RabbitMQ does."""
    kind, priority = arguments.get("x-priority", ("I", 0))
    if kind not in INTEGERS or not isinstance(priority, int):
        reason = f'"expected integer, got {TYPE_NAMES.get(kind, kind)}"'
        raise Inequivalent(f"invalid arg 'x-priority' for {label}: {reason}")
    for name, check in _CONSUMER_CHECKS.items():
        _check(name, check, arguments, label)
    return ConsumerArguments(priority, acknowledgement_timeout_s(arguments))


def acknowledgement_timeout_s(arguments: Table) -> float | None:
    """What valid arguments of a consumer or a queue say (CO-35); None when they say nothing."""
    _, timeout_ms = arguments.get("x-consumer-timeout", ("V", None))
    return timeout_ms / 1000 if isinstance(timeout_ms, int) else None


def _check(name: str, check: Callable[[Field], object], arguments: Table, label: str) -> None:
    if name in arguments:
        try:
            check(arguments[name])
        except InvalidArgument as error:
            raise Inequivalent(f"invalid arg '{name}' for {label}: {error}") from None


def check_equivalent(record: QueueRecord, request: QueueDeclare, label: str) -> None:
    """Raise Inequivalent unless the redeclaration agrees in flags and known arguments (QU-03)."""
    durable = request.durable and not record.exclusive
    for flag, asked, current in (
        ("durable", durable, record.durable),
        ("auto_delete", request.auto_delete, record.auto_delete),
    ):
        if asked != current:
            raise Inequivalent(
                f"inequivalent arg '{flag}' for {label}: "
                f"received '{str(asked).lower()}' but current is '{str(current).lower()}'"
            )
    kind = record.arguments.get("x-queue-type", _CLASSIC)
    arguments = request.arguments
    if kind == _CLASSIC == arguments.get("x-queue-type", _CLASSIC):  # which is what no type means
        arguments = {**arguments, "x-queue-type": kind}
        known = {**record.arguments, "x-queue-type": kind}
    else:
        known = record.arguments
    compare_tables(COMPARED_QUORUM if kind == _QUORUM else COMPARED, arguments, known, label)


def compare_tables(names: tuple[str, ...], asked: Table, current: Table, label: str) -> None:
    """Raise Inequivalent when one of the named arguments differs."""
    for name in names:
        _compare(name, asked.get(name), current.get(name), label)


def _compare(name: str, asked: Field | None, current: Field | None, label: str) -> None:
    if asked == current:
        return
    if asked and current and asked[0] in INTEGERS and current[0] in INTEGERS and asked[1] == current[1]:
        return
    raise Inequivalent(
        f"inequivalent arg '{name}' for {label}: "
        f"received {_describe(asked, current)} but current is {_describe(current, asked)}"
    )


def _describe(value: Field | None, other: Field | None) -> str:
    """A value as RabbitMQ puts it; where the other one is missing, with its type."""
    if value is None or (value[0] == "V" and other is not None):
        return "none"
    content = "undefined" if value[0] == "V" else value[1]
    if isinstance(content, bytes):
        content = content.decode("utf-8", "replace")
    elif isinstance(content, bool):
        content = str(content).lower()
    return f"'{content}'" if other is not None else f"the value '{content}' of type '{_type_name(value)}'"

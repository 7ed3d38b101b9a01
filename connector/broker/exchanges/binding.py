"""What a binding is: its whole identity, and the destination a matcher hands out.

Owns the canonical form of binding arguments, so that two spellings of one table are one binding.  Knows names, not
queues or exchanges.  Source: EX-12, EX-13; ``rabbit_binding`` sorts the arguments by key before it compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, cast

from connector.amqp.wire import write_table

if TYPE_CHECKING:
    from connector.amqp.wire import Field, Table

Kind: TypeAlias = Literal["queue", "exchange"]
QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"

#: An empty table in AMQP encoding.
NO_ARGUMENTS = b"\x00\x00\x00\x00"


class Destination(NamedTuple):
    """Where a binding leads: a queue or another exchange, of the same virtual host."""

    name: str
    kind: Kind = QUEUE


class BindingKey(NamedTuple):
    """A binding's whole identity; ``arguments`` in AMQP encoding, see ``canonical_arguments``."""

    exchange: str
    destination: str
    routing_key: str
    arguments: bytes = NO_ARGUMENTS
    kind: Kind = QUEUE


def canonical_arguments(arguments: Table) -> bytes:
    """Encode binding arguments so that equal tables are equal bytes.

    The order of the keys does not matter at the top, but does inside tables; the two letters of a 64-bit integer are
    one type, -0.0 is 0.0; the width of a number matters, although matching ignores it (RabbitMQ 3.10).
    """
    if not arguments:
        return NO_ARGUMENTS
    return write_table({key: _canonical(arguments[key]) for key in sorted(arguments)})


def _canonical(field: Field) -> Field:
    letter, value = field
    match letter:
        case "L":
            return ("l", value)
        case "d" | "f" if value == 0:
            return (letter, 0.0)
        case "A":
            return ("A", [_canonical(item) for item in cast("list[Field]", value)])
        case "F":
            return ("F", {key: _canonical(item) for key, item in cast("Table", value).items()})
        case _:
            return field

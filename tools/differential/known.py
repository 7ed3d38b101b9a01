"""The differences that ``docs/compat.md`` states: what is not compared, and why.

Owns the list and nothing else.  A difference that is in neither place is a bug.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from tools.differential.operations import SLOTS, Operation
from tools.differential.side import View


class Known(NamedTuple):
    """An operation whose answer may differ; the sequence ends there, as the two sides go on differently."""

    name: str
    reason: str
    applies: Callable[[Operation, View, View], bool]


FRAME_ERROR, UNEXPECTED_FRAME = 501, 505
_COUNT_HEADER = re.compile(r"\(\'x-delivery-count\', \(\'[a-zA-Z]\', \d+\)\)(, )?")


def normal(view: View) -> View:
    """Level what is different in what messages carry.

    The header ``x-delivery-count``: RabbitMQ has it on quorum queues only, here every message that comes back has it.
    Texts about frames and methods that cannot be read: RabbitMQ prints these as Erlang terms.
    Type letter ``L``: RabbitMQ turns it into ``l``, the same type, when it rewrites headers without BCC.
    """
    answer = _stripped(view.answer)
    is_unreadable = answer[:2] == ("connection.close", FRAME_ERROR) or (
        answer[:2] == ("connection.close", UNEXPECTED_FRAME) and answer[3] == 0
    )
    if is_unreadable:
        answer = (*answer[:2], "", *answer[3:])
    return View(answer, _stripped(view.events), _stripped(view.deliveries), view.counts)


def _stripped(value: Any) -> Any:
    if isinstance(value, str):
        return _COUNT_HEADER.sub("", value).replace(", ]", "]").replace("('L', ", "('l', ")
    if isinstance(value, dict):
        return {name: _stripped(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_stripped(item) for item in value)
    return value


def _is_unknown_type(operation: Operation, ours: View, theirs: View) -> bool:
    return (
        operation.kind == "declare_exchange"
        and ours.answer[:2] == ("channel.close", 406)
        and theirs.answer[:2] == ("connection.close", 503)
    )


def _is_their_failure(operation: Operation, ours: View, theirs: View) -> bool:
    return (
        operation.kind == "declare_queue"
        and ours.answer[:2] == ("channel.close", 406)
        and theirs.answer[:3] == ("connection.close", 541, "INTERNAL_ERROR")
    )


def _is_their_crash(operation: Operation, ours: View, theirs: View) -> bool:
    is_unknown_method = operation.kind == "odd" and operation.fields["what"] == "no_such_method"
    return is_unknown_method and ours.answer[:2] == ("connection.close", 503) and theirs.answer == ("lost",)


def _is_their_last_delivery(operation: Operation, ours: View, theirs: View) -> bool:
    """A connection ends with an error; channel by channel there, so what one held may come once more to the next."""
    ours, theirs = normal(ours), normal(theirs)
    ended = SLOTS[operation.slot][0]

    def elsewhere(deliveries: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {key: got for key, got in deliveries.items() if SLOTS[int(key.partition("/")[0])][0] != ended}

    return (
        theirs.answer[0] == "connection.close"
        and ours._replace(deliveries={}) == theirs._replace(deliveries={})
        and ours.deliveries == elsewhere(theirs.deliveries) != theirs.deliveries
    )


KNOWN: tuple[Known, ...] = (
    Known("unknown exchange type", "406 as in RabbitMQ 4, not 503", _is_unknown_type),
    Known("unsupported queue type", "406; RabbitMQ fails with 541 when the queue has no name", _is_their_failure),
    Known("unknown method", "503; RabbitMQ drops the connection", _is_their_crash),
    Known("last deliveries", "none while a connection ends with an error", _is_their_last_delivery),
)

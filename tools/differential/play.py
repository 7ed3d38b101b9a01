"""Plays a sequence to both brokers in step, and compares after every operation.

Owns what "the same" means in time: the reference goes first, and the connector has ``side.LIMIT_S`` to show the same.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tools.differential.actions import ACTIONS
from tools.differential.client import Silent
from tools.differential.known import KNOWN, Known, normal
from tools.differential.operations import REPLY_TO, Operation
from tools.differential.side import Key, Side, Slot, View

SLOW_S = 0.06


class Difference(NamedTuple):
    """The first operation that went differently."""

    place: int
    operation: Operation
    reference: View | str
    connector: View | str

    @property
    def summary(self) -> str:
        """One line."""
        return f"operation {self.place}: {self.operation.line()}"

    def __str__(self) -> str:
        lines = [self.summary]
        for name in View._fields:
            theirs, ours = getattr(self.reference, name, self.reference), getattr(self.connector, name, self.connector)
            if theirs != ours:
                lines += [f"  {name}", f"    RabbitMQ:  {_text(theirs)}", f"    connector: {_text(ours)}"]
        return "\n".join(lines)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


class Player:
    """Plays sequences; ``performed`` counts the operations of the last, ``ended_by`` known differences over all."""

    def __init__(self, url: str, reference_url: str) -> None:
        self._urls = (reference_url, url)
        self._prefix = f"d{secrets.token_hex(3)}"
        self._numbers = itertools.count()
        self.performed = 0
        self.ended_by: Counter[str] = Counter()

    def play(self, operations: Sequence[Operation], *, is_slow: bool = False) -> Difference | None:
        """Play to the end or to the first difference, which is returned."""
        prefix = f"{self._prefix}.{next(self._numbers)}."
        reference, connector = (Side(url, prefix) for url in self._urls)
        self.performed = 0
        operation = operations[0]
        try:
            for operation in operations:
                found = _step(reference, connector, operation, SLOW_S if is_slow else 0.0)
                self.performed += 1
                if found is None:
                    continue
                theirs, ours = found
                known = _known(operation, ours, theirs)
                if known is None:
                    return Difference(self.performed - 1, operation, theirs, ours)
                self.ended_by[known.name] += 1
                return None
        except Silent as silent:
            return Difference(self.performed, operation, "", str(silent))
        finally:
            reference.close()
            connector.close()
        return None


def _step(reference: Side, connector: Side, operation: Operation, quiet_s: float) -> tuple[View, View] | None:
    adapted = _adapt(reference, operation)
    if adapted is None:
        return None
    key = None
    if operation.kind == "settle":
        key = _agree(reference.slots[operation.slot], connector.slots[operation.slot], operation)
        if key is None:
            return None
    action = ACTIONS[operation.kind]
    reference.perform(action, adapted, key)
    theirs = reference.quiet(quiet_s)
    connector.perform(action, adapted, key)
    goal = normal(theirs)
    ours = normal(connector.until(lambda view: normal(view) == goal or _known(operation, view, theirs) is not None))
    return None if goal == ours else (goal, ours)


def _known(operation: Operation, ours: View, theirs: View) -> Known | None:
    return next((known for known in KNOWN if known.applies(operation, ours, theirs)), None)


def _adapt(side: Side, operation: Operation) -> Operation | None:
    """Keep away from what ``docs/compat.md`` states as different; None leaves the operation out."""
    slot, fields = side.slots[operation.slot], operation.fields
    match operation.kind:
        case "tx_commit" | "tx_rollback" if not (slot.is_tx or fields["anyway"]):
            return None  # only an error, and too often
        case "declare_queue" if fields["name"] not in side.alive and _is_held_of(side, fields["name"]):
            return None  # what is settled of a deleted queue is another message of its successor there
        case "get" if (fields["name"] or slot.last_queue) in side.has_single_active:
            return None  # 405 here
        case "get" if slot.is_global:  # what was got counts there
            return operation._replace(fields={**fields, "no_ack": True})
        case "cancel" if _holds_single_active(side, slot, fields["tag"]):
            return None  # the next consumer waits here
        case "consume" if slot.consumers.get(fields["tag"], ("", ""))[1] == REPLY_TO:
            return None  # two consumers of one tag, which deliveries do not tell apart
        case "consume" if slot.is_global and slot.consumers:
            return None  # which of several goes on under a common limit is chance there
        case "consume" if slot.is_global:  # those without acknowledgements are stopped there
            return operation._replace(fields={**fields, "no_ack": False})
        case "qos" if fields.get("is_global") and not slot.is_global:
            is_plain = len(slot.consumers) <= 1 and not any(no_ack for *_, no_ack in slot.consumers.values())
            return operation if is_plain and not slot.has_got else None
    return operation


def _is_held_of(side: Side, queue: str) -> bool:
    return any(held == queue for slot in side.slots for held, _ in (*slot.held, *slot.uncommitted))


def _holds_single_active(side: Side, slot: Slot, tag: str) -> bool:
    queue = slot.consumers[tag][1] if tag in slot.consumers else ""
    keys = (*slot.held, *slot.uncommitted)
    return queue in side.has_single_active and any(held == queue for held, _ in keys)


def _agree(theirs: Slot, ours: Slot, operation: Operation) -> Key | None:
    """Choose the message to settle: with ``multiple``, one up to which both sides hold the same."""
    keys = sorted(theirs.held, key=theirs.held.__getitem__)
    start = int(operation.fields["pick"] * len(keys))
    for key in keys[start:]:
        if not operation.fields["multiple"] or _up_to(theirs, key) == _up_to(ours, key):
            return key
    return None


def _up_to(slot: Slot, key: Key) -> set[Key]:
    last = slot.held.get(key, 0)
    return {key for key, tag in slot.held.items() if tag <= last}

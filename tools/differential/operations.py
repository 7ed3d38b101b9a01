"""What a sequence is made of, and how one is drawn from a seed.

Owns the operations as plain values that can be written as JSON lines.  An operation names things by symbols (``q0``,
``x1``, ``gen0``: the first server-named queue), never by what the server made of them, and deliveries by their place
among the unacknowledged ones; so any operation can be left out and the rest still means something.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

QUEUES = ("q0", "q1", "q2", "q3")
EXCHANGES = ("x0", "x1", "x2")
GENERATED = ("gen0", "gen1")
#: Where replies go: the channel's own, and the addresses that servers made of it, in the order of their appearance.
REPLY_TO = "amq.rabbitmq.reply-to"
ADDRESSES = ("reply0", "reply1")
#: Declared with the type quorum, too.  Nothing is read from it: RabbitMQ's quorum queues are counted late.
QUORUM = "qq"
PREDECLARED = ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match")
TYPES = ("direct", "fanout", "topic", "headers")
#: (connection, channel, whether it has confirms): where an operation may be performed.
SLOTS = ((0, 1, True), (0, 2, False), (1, 1, True))
TAGS = ("c0", "c1", "c2", "")
KEYS = ("a", "b", "a.b", "a.b.c", "", ".", "a..b")
PATTERNS = (*KEYS, "*", "#", "a.*", "*.b", "#.b", "a.#", "a.#.c", "*.*", "#.#")

#: What the server does only after it has answered: ends of queues, what a lost channel held.
ROUGH = frozenset(
    (
        "cancel", "close_channel", "close_connection", "delete_queue", "delete_exchange", "unbind_queue",
        "unbind_exchange",
    )
)  # fmt: skip
#: What moves no message and ends nothing: unless it fails, only its answer is compared, and the rest at the next one.
STILL = frozenset(("declare_exchange", "bind_queue", "bind_exchange", "confirm_select", "tx_select"))

#: Field tables as JSON has them: name to [type letter, value].
JsonTable = dict[str, list[Any]]


class Operation(NamedTuple):
    """One step: what, in which slot, with which fields."""

    kind: str
    slot: int
    fields: dict[str, Any]

    def line(self) -> str:
        """Return it as a line of a replay file."""
        return json.dumps([self.kind, self.slot, self.fields], ensure_ascii=False)


def read_line(line: str) -> Operation:
    """The reverse of ``Operation.line``."""
    kind, slot, fields = json.loads(line)
    return Operation(kind, slot, fields)


QUEUE_ARGUMENTS: tuple[JsonTable, ...] = (
    {"x-queue-type": ["S", "classic"]},
    {"x-queue-mode": ["S", "lazy"]},
    {"x-queue-mode": ["S", "default"]},
    {"x-overflow": ["S", "drop-head"]},
    {"x-queue-version": ["I", 1]},
    {"x-queue-master-locator": ["S", "client-local"]},
    {"x-single-active-consumer": ["t", False]},
    {"x-single-active-consumer": ["t", True]},
    {"x-single-active-consumer": ["t", True]},
    {"x-unknown": ["F", {"k": ["d", 1.5]}]},
    {"x-unknown": ["S", "other"]},
)
#: Refused by both; among them arguments that the connector does not know otherwise.
BAD_QUEUE_ARGUMENTS: tuple[JsonTable, ...] = (
    {"x-queue-type": ["S", "odd"]},
    {"x-queue-type": ["I", 1]},
    {"x-queue-mode": ["S", "odd"]},
    {"x-queue-mode": ["t", True]},
    {"x-overflow": ["S", "odd"]},
    {"x-overflow": ["l", 1]},
    {"x-expires": ["I", 0]},
    {"x-expires": ["S", "1"]},
    {"x-expires": ["l", 10**13]},
    {"x-message-ttl": ["I", -1]},
    {"x-message-ttl": ["d", 1.0]},
    {"x-max-length": ["l", -5]},
    {"x-max-length": ["S", "many"]},
    {"x-max-length-bytes": ["I", -1]},
    {"x-max-priority": ["I", 256]},
    {"x-max-priority": ["I", -1]},
    {"x-max-priority": ["S", "high"]},
    {"x-single-active-consumer": ["S", "true"]},
    {"x-dead-letter-exchange": ["I", 1]},
    {"x-dead-letter-routing-key": ["S", "k"]},
    {"x-dead-letter-routing-key": ["V", None]},
    {"x-delivery-limit": ["I", 3]},
    {"x-single-active-consumer": ["t", True]},
)
QUORUM_ARGUMENTS: tuple[JsonTable, ...] = (
    {"x-queue-type": ["S", "quorum"]},
    {"x-queue-type": ["S", "quorum"]},
    {"x-queue-type": ["S", "quorum"], "x-single-active-consumer": ["t", True]},
    {"x-queue-type": ["S", "quorum"], "x-quorum-initial-group-size": ["I", 1]},
    {"x-queue-type": ["S", "quorum"], "x-queue-mode": ["S", "lazy"]},
    {"x-queue-type": ["S", "classic"]},
    {},
)
_HEADER_VALUES: tuple[list[Any], ...] = (
    ["I", 1], ["l", 1], ["L", 1], ["S", "a"], ["V", None], ["A", []], ["d", 1.0], ["t", True], ["s", 1], ["b", 1],
    ["I", 2], ["S", "1"], ["S", ""], ["t", False], ["B", 1], ["u", 1], ["i", 1], ["f", 1.0], ["d", 1.5], ["T", 1],
    ["x", "a"], ["D", [0, 1]], ["D", [1, 10]], ["F", {}], ["F", {"a": ["I", 1]}], ["F", {"a": ["l", 1]}],
    ["A", [["I", 1]]], ["A", [["l", 1]]], ["A", [["S", "a"], ["V", None]]],
)  # fmt: skip
_MATCHES: tuple[list[Any], ...] = (
    ["S", "all"], ["S", "all"], ["S", "any"], ["S", "any"], ["S", "any-with-x"], ["S", "all-with-x"], ["S", "odd"],
    ["I", 1],
)  # fmt: skip


#: What most clients never do; ``actions.py`` knows what these are.
ODD = (
    "immediate", "stop", "go", "go", "secure", "second_open", "deliver", "get_empty", "qos_ok", "cancel_ok", "flow_ok",
    "unopened", "no_header", "method_in_content", "no_method", "body_alone", "long_body", "other_class", "bad_end",
    "no_such_method", "short_method", "odd_frame_kind", "heartbeat_on_channel",
)  # fmt: skip


class Draw:
    """Draws the operations of one sequence."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 # nothing secret
        self._number = 0
        self._queues = {name: self._queue_fields() for name in QUEUES}
        self._exchanges = {name: self._exchange_fields() for name in EXCHANGES}
        self._bindings: list[Operation] = []

    def sequence(self, length: int) -> list[Operation]:
        """Some declarations to begin with, then ``length`` operations of any kind."""
        begin = [Operation("declare_queue", self._slot(), {"name": name, **self._queues[name]}) for name in QUEUES[:3]]
        begin += [
            Operation("declare_exchange", self._slot(), {"name": name, **self._exchanges[name]})
            for name in EXCHANGES[:2]
        ]
        begin += [self._bind_queue() for _ in range(3)]
        kinds, weights = zip(*_WEIGHTS.items(), strict=True)
        chosen = self._random.choices(kinds, weights, k=length)
        return begin + [getattr(self, f"_{kind}")() for kind in chosen]

    # ------------------------------------------------------------------ small choices

    def _one(self, values: tuple[Any, ...]) -> Any:
        return self._random.choice(values)

    def _is(self, probability: float) -> bool:
        return self._random.random() < probability

    def _slot(self) -> int:
        return self._one((0, 0, 0, 0, 1, 1, 2, 2))

    def _queue(self) -> str:
        if self._is(0.85):
            return self._one(QUEUES)
        return self._one((*GENERATED, *GENERATED, *GENERATED, "", "", "nope", "nope", REPLY_TO, ADDRESSES[0]))

    def _exchange(self) -> str:
        if self._is(0.75):
            return self._one(EXCHANGES)
        return self._one((*PREDECLARED, *PREDECLARED, "", "nope"))

    def _nowait(self) -> bool:
        return self._is(0.1)

    def _table(self, probability: float) -> JsonTable:
        if not self._is(probability):
            return {}
        names = self._random.sample(("h", "i", "x-j"), self._random.randint(0, 2))
        few = _HEADER_VALUES[:10] if self._is(0.6) else _HEADER_VALUES
        return {name: self._one(few) for name in names}

    def _queue_fields(self) -> dict[str, Any]:
        kind = self._random.random()
        return {
            "durable": kind < 0.4,
            "exclusive": kind > 0.85,
            "auto_delete": self._is(0.15),
            "arguments": self._one(QUEUE_ARGUMENTS) if self._is(0.25) else {},
        }

    def _exchange_fields(self) -> dict[str, Any]:
        arguments: JsonTable = {}
        if self._is(0.25):
            arguments = {"alternate-exchange": ["S", self._one((*EXCHANGES, "amq.fanout", "nope"))]}
        return {
            "type": self._one(TYPES),
            "durable": self._is(0.3),
            "auto_delete": self._is(0.25),
            "internal": self._is(0.1),
            "arguments": arguments,
        }

    # ------------------------------------------------------------------ declarations

    def _declare_queue(self) -> Operation:
        if self._is(0.15):
            fields = {**self._queue_fields(), "name": "", "passive": False}
            return Operation("declare_queue", self._slot(), fields)
        if self._is(0.06):
            return self._declare_quorum()
        name = self._queue() if self._is(0.95) else self._one(("amq.mine", "q0\n", "q 0", "amq.gen-mine"))
        fields = dict(self._queues.get(name) or self._queue_fields())
        if self._is(0.2):
            fields = self._queue_fields()
        if self._is(0.15):
            fields["arguments"] = {**fields["arguments"], **self._one(BAD_QUEUE_ARGUMENTS)}
        asked = {"passive": self._is(0.15), "nowait": bool(name) and name not in GENERATED and self._nowait()}
        return Operation("declare_queue", self._slot(), {"name": name, **asked, **fields})

    def _declare_quorum(self) -> Operation:
        fields = {"durable": self._is(0.8), "exclusive": self._is(0.1), "auto_delete": self._is(0.1)}
        asked = {"passive": self._is(0.1), "arguments": self._one(QUORUM_ARGUMENTS)}
        return Operation("declare_queue", self._slot(), {"name": QUORUM, **asked, **fields})

    def _declare_exchange(self) -> Operation:
        name = self._exchange() if self._is(0.95) else self._one(("amq.mine", "x0\n", "x 0"))
        fields = dict(self._exchanges.get(name) or self._exchange_fields())
        if self._is(0.2):
            fields = self._exchange_fields()
        if self._is(0.08):
            fields["arguments"] = {"alternate-exchange": self._one((["I", 1], ["V", None], ["t", True]))}
        if self._is(0.02):
            fields["type"] = self._one(("odd", "", "x-odd"))
        asked = {"passive": self._is(0.15), "nowait": self._nowait()}
        return Operation("declare_exchange", self._slot(), {"name": name, **asked, **fields})

    def _bind_queue(self) -> Operation:
        arguments = self._table(0.4)
        if self._is(0.3):
            arguments["x-match"] = self._one(_MATCHES)
        fields = {
            "queue": self._queue() if self._is(0.97) else QUORUM,
            "exchange": self._exchange(),
            "key": self._one((*PATTERNS, *QUEUES)),
            "nowait": self._nowait(),
            "arguments": arguments,
        }
        self._bindings.append(Operation("bind_queue", self._slot(), fields))
        return self._bindings[-1]

    def _bind_exchange(self) -> Operation:
        fields = {**self._bind_queue().fields, "destination": self._exchange()}
        del fields["queue"]
        if fields["exchange"].startswith("amq."):  # what is bound to each other must not stay for the next sequence
            fields["destination"] = self._one(EXCHANGES)
        self._bindings[-1] = Operation("bind_exchange", self._slot(), fields)
        return self._bindings[-1]

    def _unbind(self) -> Operation:
        found = self._random.choice(self._bindings)
        fields = dict(found.fields)
        if self._is(0.2):
            fields["key"] = self._one(PATTERNS)
        return Operation(f"un{found.kind}", self._slot(), fields)

    def _delete_queue(self) -> Operation:
        flags = {"if_unused": self._is(0.3), "if_empty": self._is(0.3), "nowait": self._nowait()}
        if self._is(0.08):
            fields = {"name": QUORUM, **flags, "if_unused": False, "if_empty": False}
            return Operation("delete_queue", self._slot(), fields)
        return Operation("delete_queue", self._slot(), {"name": self._queue(), **flags})

    def _delete_exchange(self) -> Operation:
        flags = {"if_unused": self._is(0.4), "nowait": self._nowait()}
        return Operation("delete_exchange", self._slot(), {"name": self._exchange(), **flags})

    def _purge(self) -> Operation:
        return Operation("purge", self._slot(), {"name": self._queue(), "nowait": self._nowait()})

    # ------------------------------------------------------------------ messages

    def _publish(self) -> Operation:
        self._number += 1
        headers = self._table(0.5)
        for name in ("CC", "BCC"):
            if self._is(0.08):
                copies = [["S", self._one((*QUEUES, *KEYS))], ["I", 1], ["S", self._one((*QUEUES, "nope"))]]
                headers[name] = self._one((["A", copies], ["A", copies[:1]], ["S", "q0"]))
        exchange = self._exchange() if self._is(0.6) else ""
        fields = {
            "exchange": exchange,
            "key": self._one((*KEYS, *QUEUES)) if exchange else self._queue(),
            "mandatory": self._is(0.5),
            "headers": headers,
            "properties": self._one(({}, {"type": "t"}, {"delivery_mode": 2}, {"priority": 3, "message_id": "m"})),
            "body": f"m{self._number}",
        }
        if self._is(0.03):
            odd = ({"expiration": "soon"}, {"expiration": "-1"}, {"user_id": "nobody"}, {"user_id": "guest"})
            fields["properties"] = self._one(odd)
        if self._is(0.05):
            fields["properties"] = {"reply_to": self._one((REPLY_TO, REPLY_TO, *ADDRESSES)), "correlation_id": "c"}
        if self._is(0.04):  # a reply; RabbitMQ returns every mandatory one
            fields |= {"exchange": "", "key": self._one(ADDRESSES), "mandatory": False}
        return Operation("publish", self._slot(), fields)

    def _burst(self) -> Operation:
        """To one queue, mostly: several consumers and limits share what comes at once."""
        self._number += 1
        exchange = self._exchange() if self._is(0.2) else ""
        key = self._one(KEYS) if exchange else self._queue()
        fields = {"exchange": exchange, "key": key, "count": self._one((2, 3, 5, 9)), "body": f"m{self._number}"}
        return Operation("burst", self._slot(), fields)

    def _get(self) -> Operation:
        return Operation("get", self._slot(), {"name": self._queue(), "no_ack": self._is(0.3)})

    def _consume(self) -> Operation:
        arguments: JsonTable = {}
        if self._is(0.1):
            arguments = {"x-priority": self._one((["I", 1], ["I", -1], ["l", 5], ["S", "high"], ["d", 1.0]))}
        fields = {
            "name": self._queue(),
            "tag": self._one(TAGS),
            "no_ack": self._is(0.25),
            "no_local": self._is(0.1),
            "exclusive": self._is(0.1),
            "arguments": arguments,
        }
        fields["nowait"] = bool(fields["tag"]) and self._nowait()
        if self._is(0.06):
            fields |= {"name": REPLY_TO, "no_ack": self._is(0.9)}
        return Operation("consume", self._slot(), fields)

    def _cancel(self) -> Operation:
        return Operation("cancel", self._slot(), {"tag": self._one(TAGS[:3]), "nowait": self._nowait()})

    def _settle(self) -> Operation:
        fields = {
            "how": self._one(("ack", "ack", "nack", "nack", "reject")),
            "pick": round(self._random.random(), 2),
            "multiple": self._is(0.25),
            "requeue": self._is(0.7),
        }
        return Operation("settle", self._slot(), fields)

    def _settle_unknown(self) -> Operation:
        fields = {"how": self._one(("ack", "nack", "reject")), "tag": 99, "multiple": self._is(0.3)}
        return Operation("settle_unknown", self._slot(), fields)

    def _settle_all(self) -> Operation:
        how = self._one(("ack", "nack"))
        return Operation("settle_unknown", self._slot(), {"how": how, "tag": 0, "multiple": True})

    def _recover(self) -> Operation:
        return Operation("recover", self._slot(), {"requeue": self._is(0.97), "is_async": self._is(0.2)})

    def _qos(self) -> Operation:
        is_global = self._is(0.2)
        fields = {"count": self._one((0, 1, 1, 2, 5)), "size": 1 if self._is(0.02) else 0, "is_global": is_global}
        return Operation("qos", self._slot(), fields)

    def _tx_select(self) -> Operation:
        return Operation("tx_select", 1 if self._is(0.95) else self._slot(), {})

    def _tx_end(self) -> Operation:
        kind = self._one(("tx_commit", "tx_commit", "tx_commit", "tx_rollback"))
        return Operation(kind, 1 if self._is(0.95) else self._slot(), {"anyway": self._is(0.05)})

    def _confirm_select(self) -> Operation:
        return Operation("confirm_select", self._slot(), {"nowait": self._nowait()})

    def _close_channel(self) -> Operation:
        return Operation("close_channel", self._slot(), {})

    def _close_connection(self) -> Operation:
        return Operation("close_connection", self._slot(), {})

    def _odd(self) -> Operation:
        return Operation("odd", self._slot(), {"what": self._one(ODD)})


_WEIGHTS: dict[str, float] = {
    "declare_queue": 12, "declare_exchange": 9, "bind_queue": 13, "bind_exchange": 5, "unbind": 7, "delete_queue": 4,
    "delete_exchange": 3, "purge": 3, "publish": 26, "burst": 4, "get": 9, "consume": 8, "cancel": 4, "settle": 14,
    "settle_unknown": 1, "settle_all": 2, "recover": 2, "qos": 4, "close_channel": 2, "close_connection": 0.5,
    "odd": 1, "tx_select": 2, "tx_end": 5, "confirm_select": 0.5,
}  # fmt: skip


def draw(seed: int, length: int) -> list[Operation]:
    """Return the operations of this seed, always the same."""
    return Draw(seed).sequence(length)


def shrink(
    operations: list[Operation], fails: Callable[[list[Operation]], bool], attempts: int = 60
) -> list[Operation]:
    """Drop operations, large parts first, as long as the rest still fails."""
    size = max(1, len(operations) // 2)
    while attempts > 0:
        at = len(operations)
        is_shorter = False
        while at > 0 and attempts > 0:
            start = max(0, at - size)
            shorter = operations[:start] + operations[at:]
            attempts -= 1
            if shorter and fails(shorter):
                operations = shorter
                is_shorter = True
            at = start
        if size == 1 and not is_shorter:
            break
        size = max(1, size // 2)
    return operations

"""One of the two brokers: performs operations, waits until their effects are there, and tells what it saw.

Owns the connections, the names behind the symbols and the deliveries that are held.  Must not know the other side.
What it tells (``View``) is free of everything that may differ by chance: prefixes, generated names and tags, and the
order of deliveries to different consumers.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any, NamedTuple

from pamqp import commands

from connector.amqp.header import build as build_header
from connector.amqp.header import parse as parse_header
from connector.amqp.methods import build
from connector.amqp.wire import Field, Table
from tools.differential.client import Arrival, Channel, Client, Silent
from tools.differential.operations import EXCHANGES, QUEUES, SLOTS, JsonTable, Operation

CONTROL = 9
#: What the server does only after it has answered: ends of queues, what a lost channel held.
ROUGH = frozenset(
    (
        "cancel", "close_channel", "close_connection", "delete_queue", "delete_exchange", "unbind_queue",
        "unbind_exchange",
    )
)  # fmt: skip
ROUGH_S = 0.02
LIMIT_S = 3.0
_POLL_S = 0.004
#: The name of a queue that was refused, which shows in texts alone.
_GENERATED = re.compile(r"amq\.gen-[A-Za-z0-9_-]{22}")

#: A message by what both sides call the same: its queue and its body.
Key = tuple[str, str]


class View(NamedTuple):
    """What came of an operation: its answer, what nobody asked for by slot, deliveries by consumer, counts by queue."""

    answer: tuple[Any, ...]
    events: dict[int, list[Any]]
    deliveries: dict[str, list[Any]]
    counts: dict[str, Any]


class Slot:
    """One channel, with the consumers and held deliveries of its client."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.connection, self.channel_no, self.has_confirms = SLOTS[number]
        self.channel: Channel
        self.last_queue = ""
        self.held: dict[Key, int] = {}
        self.consumers: dict[str, tuple[str, str, bool]] = {}

    def reset(self, channel: Channel) -> None:
        """Begin anew on this channel."""
        self.channel = channel
        self.last_queue = ""
        self.held = {}
        self.consumers = {}


class Side:
    """One broker, for one sequence."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._prefix = prefix
        self._generated: list[str] = []
        self._alive: dict[str, None] = {}
        self._known: dict[str, int] = {}
        self._clients = [Client(url), Client(url)]
        self._is_rough = False
        self._answer: tuple[Any, ...] = ()
        self._events: dict[int, list[Any]] = {}
        self._deliveries: dict[str, list[Any]] = {}
        self.slots = [Slot(number) for number in range(len(SLOTS))]
        for index in range(len(self._clients)):
            self._open_all(index)

    # ------------------------------------------------------------------ one operation

    def perform(self, operation: Operation, key: Key | None) -> None:
        """Do it; ``key`` is the message of a settlement."""
        self._answer, self._events, self._deliveries = (), {}, {}
        self._is_rough = operation.kind in ROUGH
        slot = self.slots[operation.slot]
        handler = getattr(self, f"_{operation.kind}")
        fields = dict(operation.fields)
        if key is not None:
            fields["key"] = key
        answer = handler(slot, fields)
        self._gather()
        if not self._answer:  # no close
            self._answer = answer or ("done",)
        self._clean_up()

    def quiet(self, quiet_s: float) -> View:
        """Wait until nothing changes any more."""
        deadline = time.monotonic() + LIMIT_S
        pause_s = max(quiet_s, ROUGH_S if self._is_rough else 0.0)
        seen: View | None = None
        while True:
            view = self._look()
            if view == seen or time.monotonic() > deadline:
                return view
            seen = view
            time.sleep(pause_s)

    def until(self, wanted: View, normal: Any) -> View:
        """Wait until the view is the wanted one after ``normal``, or for ``LIMIT_S``."""
        deadline = time.monotonic() + LIMIT_S
        goal = normal(wanted)
        while True:
            view = self._look()
            if normal(view) == goal or time.monotonic() > deadline:
                return view
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Take away everything that the sequence has made."""
        for client in self._clients:
            with contextlib.suppress(Silent):
                client.close()
        janitor = Client(self._url)
        queues = [build(commands.Queue.Delete, queue=name) for name in (*map(self._name, QUEUES), *self._generated)]
        exchanges = [build(commands.Exchange.Delete, exchange=self._name(name)) for name in EXCHANGES]
        for number, method in enumerate((*queues, *exchanges), 1):  # a channel each: some may be refused
            janitor.open(number)
            janitor.call(number, method)
        janitor.close()

    # ------------------------------------------------------------------ names

    def _name(self, symbol: str) -> str:
        if not symbol or symbol.startswith("amq."):
            return symbol
        if symbol.startswith("gen"):
            index = int(symbol[3:])
            return self._generated[index] if index < len(self._generated) else self._prefix + symbol
        return self._prefix + symbol

    def _key(self, symbol: str) -> str:
        is_name = symbol in QUEUES or symbol.startswith("gen")
        return self._name(symbol) if is_name else symbol

    def _symbol(self, text: str) -> str:
        for index, name in enumerate(self._generated):
            text = text.replace(name, f"gen{index}")
        return _GENERATED.sub("gen?", text).replace(self._prefix, "")

    def _table(self, table: JsonTable) -> Table:
        return {name: self._field(*field) for name, field in table.items()}

    def _field(self, letter: str, value: Any) -> Field:
        if letter == "S":
            is_name = value in EXCHANGES or value in QUEUES or value == "nope"
            return letter, (self._name(value) if is_name else value).encode()
        if letter == "A":
            return letter, [self._field(*item) for item in value]
        return letter, self._table(value) if letter == "F" else value

    def _header(self, header: bytes) -> list[Any]:
        parsed = parse_header(header)
        return [str(parsed.properties()), self._symbol(str(sorted(parsed.headers().items())))]

    # ------------------------------------------------------------------ what comes

    def _client(self, slot: Slot) -> Client:
        return self._clients[slot.connection]

    def _open_all(self, index: int) -> None:
        for symbol in self._known:
            self._clients[index].open(self._control(symbol))
        for slot in self.slots:
            if slot.connection == index:
                self._open(slot)

    def _open(self, slot: Slot) -> None:
        client = self._client(slot)
        slot.reset(client.open(slot.channel_no))
        if slot.has_confirms:
            client.call(slot.channel_no, build(commands.Confirm.Select))

    def _gather(self) -> None:
        """Take over what has come, errors too."""
        for slot in self.slots:
            while slot.channel.events:
                self._on_event(slot, slot.channel.events.popleft())
            if slot.channel.error is not None:
                self._on_close("channel.close", slot.channel.error)
        for client in self._clients:
            if client.error is not None:
                self._on_close("connection.close", client.error)

    def _on_close(self, what: str, method: Any) -> None:
        self._answer = (what, method.reply_code, self._symbol(method.reply_text), method.class_id, method.method_id)

    def _clean_up(self) -> None:
        """Open again what was closed."""
        for slot in self.slots:
            if slot.channel.error is not None and not self._client(slot).is_over:
                self._is_rough = True
                self._open(slot)
        for index, client in enumerate(self._clients):
            if client.is_over:
                self._is_rough = True
                self._clients[index] = Client(self._url)
                self._open_all(index)

    def _on_event(self, slot: Slot, arrival: Arrival) -> None:
        method, kind = arrival.method, type(arrival.method)
        events = self._events.setdefault(slot.number, [])
        if kind is commands.Basic.Deliver:
            tag, queue, no_ack = slot.consumers[method.consumer_tag]
            body = arrival.body.decode()
            if not no_ack:
                slot.held[queue, body] = method.delivery_tag
            content = [body, method.exchange, self._symbol(method.routing_key), method.redelivered]
            self._deliveries.setdefault(f"{slot.number}/{tag}/{queue}", []).append(
                [self._symbol(str(content)), self._header(arrival.header)]
            )
        elif kind is commands.Basic.Return:
            address = [self._symbol(method.exchange), self._symbol(method.routing_key)]
            reply = ["return", method.reply_code, method.reply_text]
            events.append([*reply, *address, arrival.body.decode(), self._header(arrival.header)])
        elif kind is commands.Basic.Cancel:
            tag, queue, _ = slot.consumers[method.consumer_tag]
            self._deliveries.setdefault(f"{slot.number}/{tag}/{queue}", []).append("cancelled")
        else:
            events.append([method.name, method.delivery_tag, method.multiple])

    def _look(self) -> View:
        """Let everything said so far arrive, count, and return what there is."""
        self._synchronise()
        counts = self._count()
        self._synchronise()
        self._gather()
        self._clean_up()
        events = {number: events for number, events in self._events.items() if events}
        return View(self._answer, events, {k: list(v) for k, v in self._deliveries.items()}, counts)

    def _synchronise(self) -> None:
        """Have every channel answer something that changes nothing."""
        passive = build(commands.Exchange.Declare, exchange="amq.direct", passive=True)
        for slot in self.slots:
            self._client(slot).send(slot.channel_no, passive)
        for slot in self.slots:
            self._client(slot).answer(slot.channel_no)

    def _count(self) -> dict[str, Any]:
        """Ready messages and consumers of every queue ever declared, as its owner is told; None for what is gone."""
        counts: dict[str, Any] = dict.fromkeys(self._alive)
        for client in self._clients:
            missing = [symbol for symbol in self._alive if counts[symbol] is None]
            for symbol in missing:
                client.send(
                    self._control(symbol), build(commands.Queue.Declare, queue=self._name(symbol), passive=True)
                )
            for symbol in missing:
                answer = client.answer(self._control(symbol))
                if answer is not None:
                    counts[symbol] = (answer.method.message_count, answer.method.consumer_count)
                elif not client.is_over:
                    client.open(self._control(symbol))
        self._alive = {symbol: None for symbol in self._alive if counts[symbol] is not None}
        return counts

    def _control(self, symbol: str) -> int:
        """The channel that asks about this queue: one each, so that all can be asked at once."""
        return CONTROL + self._known.setdefault(symbol, len(self._known))

    # ------------------------------------------------------------------ operations

    def _ask(self, slot: Slot, method: Any) -> tuple[Any, ...]:
        answer = self._client(slot).call(slot.channel_no, method)
        return (answer.name,) if answer is not None else ()

    def _tell(self, slot: Slot, method: Any) -> None:
        """Send what has no answer; what it causes shows at the next one."""
        self._client(slot).send(slot.channel_no, method)
        self._synchronise()

    def _declare_queue(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        flags = {name: fields.get(name, False) for name in ("passive", "durable", "exclusive", "auto_delete")}
        arguments = self._table(fields["arguments"])
        method = build(commands.Queue.Declare, queue=self._name(fields["name"]), arguments=arguments, **flags)
        answer = self._client(slot).call(slot.channel_no, method)
        if answer is None:
            return ()
        if answer.queue.startswith("amq.gen-") and answer.queue not in self._generated:
            self._generated.append(answer.queue)
        slot.last_queue = self._symbol(answer.queue)
        self._alive[slot.last_queue] = None
        if slot.last_queue not in self._known:
            for client in self._clients:
                client.open(self._control(slot.last_queue))
        return answer.name, slot.last_queue, answer.message_count, answer.consumer_count

    def _declare_exchange(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        flags = {name: fields.get(name, False) for name in ("passive", "durable", "auto_delete", "internal")}
        method = build(
            commands.Exchange.Declare,
            exchange=self._name(fields["name"]), exchange_type=fields["type"],
            arguments=self._table(fields["arguments"]), **flags,
        )  # fmt: skip
        return self._ask(slot, method)

    def _binding(self, slot: Slot, kind: Any, fields: dict[str, Any]) -> tuple[Any, ...]:
        names = (
            {"queue": self._name(fields["queue"]), "exchange": self._name(fields["exchange"])}
            if "queue" in fields
            else {"destination": self._name(fields["destination"]), "source": self._name(fields["exchange"])}
        )
        arguments = self._table(fields["arguments"])
        return self._ask(slot, build(kind, routing_key=self._key(fields["key"]), arguments=arguments, **names))

    def _bind_queue(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        return self._binding(slot, commands.Queue.Bind, fields)

    def _unbind_queue(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        return self._binding(slot, commands.Queue.Unbind, fields)

    def _bind_exchange(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        return self._binding(slot, commands.Exchange.Bind, fields)

    def _unbind_exchange(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        return self._binding(slot, commands.Exchange.Unbind, fields)

    def _delete_queue(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        flags = {"if_unused": fields["if_unused"], "if_empty": fields["if_empty"]}
        method = build(commands.Queue.Delete, queue=self._name(fields["name"]), **flags)
        answer = self._client(slot).call(slot.channel_no, method)
        return (answer.name, answer.message_count) if answer else ()

    def _delete_exchange(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        return self._ask(
            slot, build(commands.Exchange.Delete, exchange=self._name(fields["name"]), if_unused=fields["if_unused"])
        )

    def _purge(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        answer = self._client(slot).call(slot.channel_no, build(commands.Queue.Purge, queue=self._name(fields["name"])))
        return (answer.name, answer.message_count) if answer else ()

    def _publish(self, slot: Slot, fields: dict[str, Any]) -> None:
        is_default = not fields["exchange"]
        method = build(
            commands.Basic.Publish,
            exchange=self._name(fields["exchange"]),
            routing_key=self._name(fields["key"]) if is_default else self._key(fields["key"]),
            mandatory=fields["mandatory"],
        )
        headers = self._table(fields["headers"])
        header = build_header(fields["properties"], headers or None)
        client = self._client(slot)
        client.publish(slot.channel_no, method, header, fields["body"].encode())
        if slot.has_confirms:
            client.await_confirm(slot.channel_no)
        else:
            self._synchronise()

    def _get(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        method = build(commands.Basic.Get, queue=self._name(fields["name"]), no_ack=fields["no_ack"])
        got = self._client(slot).ask(slot.channel_no, method)
        if got is None:
            return ()
        kind: type = type(got.method)
        if kind is not commands.Basic.GetOk:
            return (kind.__name__,)
        body = got.body.decode()
        if not fields["no_ack"]:
            slot.held[fields["name"] or slot.last_queue, body] = got.method.delivery_tag
        content = [body, got.method.exchange, got.method.routing_key, got.method.redelivered, got.method.message_count]
        return got.method.name, self._symbol(str(content)), self._header(got.header)

    def _consume(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        tag, queue = fields["tag"], fields["name"] or slot.last_queue
        known = (tag, queue, fields["no_ack"])
        if tag:
            slot.consumers.setdefault(tag, known)  # a delivery may overtake us otherwise
        method = build(
            commands.Basic.Consume,
            queue=self._name(fields["name"]), consumer_tag=tag, no_ack=fields["no_ack"],
            exclusive=fields["exclusive"], arguments=self._table(fields["arguments"]),
        )  # fmt: skip
        answer = self._client(slot).call(slot.channel_no, method)
        if answer is None:
            return ()
        slot.consumers[answer.consumer_tag] = known
        return answer.name, tag

    def _cancel(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        return self._ask(slot, build(commands.Basic.Cancel, consumer_tag=fields["tag"]))

    def _settle(self, slot: Slot, fields: dict[str, Any]) -> None:
        tag = slot.held[fields["key"]]
        is_multiple = fields["multiple"] and fields["how"] != "reject"
        for key, held in list(slot.held.items()):
            if held == tag or (is_multiple and held < tag):
                del slot.held[key]
        self._settle_tag(slot, fields["how"], tag, fields["requeue"], is_multiple)

    def _settle_unknown(self, slot: Slot, fields: dict[str, Any]) -> None:
        if not fields["tag"]:
            slot.held = {}
        self._settle_tag(slot, fields["how"], fields["tag"], True, fields["multiple"])

    def _settle_tag(self, slot: Slot, how: str, tag: int, requeue: bool, multiple: bool) -> None:
        fields: dict[str, Any] = {"delivery_tag": tag}
        if how != "reject":
            fields["multiple"] = multiple
        if how != "ack":
            fields["requeue"] = requeue
        self._tell(slot, build(getattr(commands.Basic, how.title()), **fields))

    def _recover(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        slot.held = {}
        return self._ask(slot, build(commands.Basic.Recover, requeue=fields["requeue"]))

    def _qos(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        return self._ask(slot, build(commands.Basic.Qos, prefetch_count=fields["count"], prefetch_size=fields["size"]))

    def _close_channel(self, slot: Slot, _fields: dict[str, Any]) -> tuple[Any, ...]:
        answer = self._ask(slot, build(commands.Channel.Close, reply_code=200))
        if not self._client(slot).is_over:
            self._gather()
            self._open(slot)
        return answer

    def _close_connection(self, slot: Slot, _fields: dict[str, Any]) -> tuple[Any, ...]:
        self._client(slot).close()
        return ("closed",)

    def _odd(self, slot: Slot, fields: dict[str, Any]) -> tuple[Any, ...]:
        what = fields["what"]
        if what == "immediate":
            method = build(commands.Basic.Publish, routing_key=self._name("q0"), immediate=True)
            self._client(slot).publish(slot.channel_no, method, build_header({}), b"")
            self._synchronise()
            return ()
        if what == "flow":
            return self._ask(slot, build(commands.Channel.Flow, active=False))
        if what == "tx_commit":
            return self._ask(slot, build(commands.Tx.Commit))
        return self._ask(slot, build(commands.Connection.Secure, challenge=b""))

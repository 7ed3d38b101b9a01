"""One of the two brokers: performs operations, waits until their effects are there, and tells what it saw.

Owns the connections, the names behind the symbols and the deliveries that are held.  Must not know the other side,
nor what the operations are (``actions.py``).  What it tells (``View``) is free of everything that may differ by
chance: prefixes, generated names and tags, and the order of deliveries to different consumers.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import commands

from connector.amqp.header import parse as parse_header
from connector.amqp.methods import build
from tools.differential.client import Arrival, Channel, Client, Silent
from tools.differential.operations import EXCHANGES, QUEUES, ROUGH, SLOTS, STILL, JsonTable, Operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.amqp.wire import Field, Table

    Action = Callable[["Side", "Slot", dict[str, Any]], tuple[Any, ...] | None]

#: The channel of each connection that counts.
CONTROL = 9
LIMIT_S = 3.0
#: How often the connector is looked at again, and how long the reference needs to be the same twice.
_POLL_S = 0.004
_ROUGH_S = 0.02
#: What servers make up: the name of a queue that was refused (it shows in texts alone), an address for replies.
_GENERATED = re.compile(r"amq\.gen-[A-Za-z0-9_-]{22}")
_CONFIRMS = ("Basic.Ack", "Basic.Nack")
_REPLY_ADDRESS = re.compile(r"amq\.rabbitmq\.reply-to\.[A-Za-z0-9_./+=-]{8,}")

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
        self.reset(Channel(self.channel_no))

    def reset(self, channel: Channel) -> None:
        """Begin anew on this channel."""
        self.channel = channel
        self.last_queue = ""
        self.held: dict[Key, int] = {}
        self.uncommitted: dict[Key, int] = {}
        self.consumers: dict[str, tuple[str, str, bool]] = {}
        self.is_tx = False
        self.is_global = False
        self.has_got = False
        self.published = 0


class Side:
    """One broker, for one sequence."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._prefix = prefix
        self.generated: list[str] = []
        #: what was perhaps declared
        self.queue_names: set[str] = set()
        self.exchange_names: set[str] = set()
        self.addresses: list[str] = []
        #: existing queues, each with the connection that is told its counts
        self.alive: dict[str, int] = {}
        self.has_single_active: set[str] = set()
        self.clients = [Client(url), Client(url)]
        self.is_rough = self.is_still = False
        self._answer: tuple[Any, ...] = ()
        self._events: dict[int, list[Any]] = {}
        self._deliveries: dict[str, list[Any]] = {}
        self.slots = [Slot(number) for number in range(len(SLOTS))]
        for index in range(len(self.clients)):
            self._open_all(index)

    # ------------------------------------------------------------------ one operation

    def perform(self, action: Action, operation: Operation, key: Key | None) -> None:
        """Do it; ``key`` is the message of a settlement."""
        self._answer, self._events, self._deliveries = (), {}, {}
        self.is_rough = operation.kind in ROUGH
        fields = dict(operation.fields)
        if key is not None:
            fields["key"] = key
        answer = action(self, self.slots[operation.slot], fields)
        self.gather()
        self.is_still = operation.kind in STILL and not self._answer
        if not self._answer:  # no close
            self._answer = answer or ("done",)
        self._clean_up()

    def quiet(self, quiet_s: float) -> View:
        """Wait until nothing changes any more."""
        deadline = time.monotonic() + LIMIT_S
        view = self._look()
        while not self.is_still and time.monotonic() < deadline:
            seen = view
            if quiet_s or self.is_rough:
                time.sleep(max(quiet_s, _ROUGH_S))
                view = self._look()
            elif self._has_more():
                view = self._look()
            if view == seen:
                break
        return view

    def until(self, is_wanted: Callable[[View], bool]) -> View:
        """Wait until the view is a wanted one, or for ``LIMIT_S``."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            view = self._look()
            if is_wanted(view) or time.monotonic() > deadline:
                return view
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Take away everything that the sequence has made."""
        for client in self.clients:
            with contextlib.suppress(Silent):
                client.close()
        janitor = Client(self._url)
        queues = [build(commands.Queue.Delete, queue=name) for name in (*self.queue_names, *self.generated)]
        exchanges = [build(commands.Exchange.Delete, exchange=name) for name in self.exchange_names]
        janitor.open(1)
        for method in (*queues, *exchanges):
            janitor.send(1, method)
        for _ in (*queues, *exchanges):
            if janitor.answer(1) is None:
                break
        janitor.close()

    # ------------------------------------------------------------------ names

    def name(self, symbol: str) -> str:
        """What this broker calls it."""
        for prefix, names in (("gen", self.generated), ("reply", self.addresses)):
            if symbol.startswith(prefix) and symbol[len(prefix) :].isdigit():
                index = int(symbol[len(prefix) :])
                return names[index] if index < len(names) else self._prefix + symbol
        return symbol if not symbol or symbol.startswith("amq.") else self._prefix + symbol

    def key(self, symbol: str) -> str:
        """A routing key, which may be the name of a queue."""
        is_name = symbol in QUEUES or symbol.startswith(("gen", "reply"))
        return self.name(symbol) if is_name else symbol

    def symbol(self, text: str) -> str:
        """The reverse of ``name``, for any text."""
        for address in _REPLY_ADDRESS.findall(text):
            if address not in self.addresses:
                self.addresses.append(address)
        for prefix, names in (("gen", self.generated), ("reply", self.addresses)):
            for index, name in enumerate(names):
                text = text.replace(name, f"{prefix}{index}")
        return _GENERATED.sub("gen?", text).replace(self._prefix, "")

    def table(self, table: JsonTable) -> Table:
        """A field table, with this broker's names."""
        return {name: self._field(*field) for name, field in table.items()}

    def _field(self, letter: str, value: Any) -> Field:
        if letter in "Sx":
            is_name = value in EXCHANGES or value in QUEUES or value == "nope"
            return letter, (self.name(value) if is_name else value).encode()
        if letter == "A":
            return letter, [self._field(*item) for item in value]
        if letter == "D":
            return letter, tuple(value)
        return letter, self.table(value) if letter == "F" else value

    def header(self, header: bytes) -> list[Any]:
        """Properties and headers of a message, as text."""
        parsed = parse_header(header)
        return [self.symbol(str(parsed.properties())), self.symbol(str(sorted(parsed.headers().items())))]

    # ------------------------------------------------------------------ what comes

    def client(self, slot: Slot) -> Client:
        """The connection of this slot."""
        return self.clients[slot.connection]

    def reconnect(self, index: int) -> None:
        """A new connection in the place of one that is over."""
        self.clients[index] = Client(self._url)
        self._open_all(index)

    def _open_all(self, index: int) -> None:
        self.clients[index].open(CONTROL)
        for slot in self.slots:
            if slot.connection == index:
                self.open(slot)

    def open(self, slot: Slot) -> None:
        """Open the slot's channel again."""
        client = self.client(slot)
        slot.reset(client.open(slot.channel_no))
        if slot.has_confirms:
            client.call(slot.channel_no, build(commands.Confirm.Select))

    def gather(self) -> None:
        """Take over what has come, errors too."""
        for slot in self.slots:
            while slot.channel.events:
                self._on_event(slot, slot.channel.events.popleft())
            if slot.channel.error is not None:
                self._on_close("channel.close", slot.channel.error)
        for client in self.clients:
            if client.error is not None:
                self._on_close("connection.close", client.error)

    def _on_close(self, what: str, method: Any) -> None:
        self._answer = (what, method.reply_code, self.symbol(method.reply_text), method.class_id, method.method_id)

    def _clean_up(self) -> None:
        """Open again what was closed."""
        for slot in self.slots:
            if slot.channel.error is not None and not self.client(slot).is_over:
                self.is_rough = True
                self.open(slot)
        for index, client in enumerate(self.clients):
            if client.is_over:
                self.is_rough = True
                self.reconnect(index)

    def _on_event(self, slot: Slot, arrival: Arrival) -> None:
        method, kind = arrival.method, type(arrival.method)
        events = self._events.setdefault(slot.number, [])
        if kind is commands.Basic.Deliver:
            self._on_delivery(slot, arrival)
        elif kind is commands.Basic.Return:
            address = [self.symbol(method.exchange), self.symbol(method.routing_key)]
            reply = ["return", method.reply_code, method.reply_text]
            events.append([*reply, *address, arrival.body.decode(), self.header(arrival.header)])
        elif kind is commands.Basic.Cancel:
            tag, queue, _ = slot.consumers.pop(method.consumer_tag)
            self._deliveries.setdefault(f"{slot.number}/{tag}/{queue}", []).append("cancelled")
        else:
            events.append([method.name, method.delivery_tag])

    def _on_delivery(self, slot: Slot, arrival: Arrival) -> None:
        method = arrival.method
        tag, queue, no_ack = slot.consumers[method.consumer_tag]
        body = arrival.body.decode()
        if not no_ack:
            slot.held[queue, body] = method.delivery_tag
        content = [body, method.exchange, self.symbol(method.routing_key), method.redelivered]
        self._deliveries.setdefault(f"{slot.number}/{tag}/{queue}", []).append(
            [self.symbol(str(content)), self.header(arrival.header)]
        )

    # ------------------------------------------------------------------ looking

    def _look(self) -> View:
        """Count, let everything that was sent before that arrive, and return what there is."""
        counts: dict[str, Any] = {}
        if not self.is_still:
            counts = self._count()
            self.synchronise()
        self.gather()
        self._clean_up()
        events = {number: _ordered(events) for number, events in self._events.items() if events}
        return View(self._answer, events, {k: list(v) for k, v in self._deliveries.items()}, counts)

    def _has_more(self) -> bool:
        """Whether something still comes that nobody asked for."""
        self.synchronise()
        is_told = any(slot.channel.events or slot.channel.error for slot in self.slots)
        return is_told or any(client.is_over for client in self.clients)

    def synchronise(self) -> None:
        """Have every channel answer something that changes nothing."""
        passive = build(commands.Exchange.Declare, exchange="amq.direct", passive=True)
        for slot in self.slots:
            self.client(slot).send(slot.channel_no, passive)
        for slot in self.slots:
            self.client(slot).answer(slot.channel_no)

    def _count(self) -> dict[str, Any]:
        """Ready messages and consumers of every queue, as its owner is told; None for what is gone since last time."""
        counts: dict[str, Any] = dict.fromkeys(self.alive)
        for index in range(len(self.clients)):
            self._ask_counts(index, [symbol for symbol in counts if self.alive[symbol] == index], counts)
        lost = [symbol for symbol in counts if counts[symbol] is None]
        for index in range(len(self.clients)):  # perhaps it is another's by now
            others = [symbol for symbol in lost if self.alive[symbol] != index]
            self._ask_counts(index, others, counts)
            for symbol in others:
                if counts[symbol] is not None:
                    self.alive[symbol] = index
        for symbol in lost:
            if counts[symbol] is None:
                del self.alive[symbol]
        return counts

    def _ask_counts(self, index: int, symbols: list[str], counts: dict[str, Any]) -> None:
        """Ask for all at once; at one that is refused the channel closes, and those after it are asked again."""
        client, left = self.clients[index], list(symbols)
        while left and not client.is_over:
            for symbol in left:
                client.send(CONTROL, build(commands.Queue.Declare, queue=self.name(symbol), passive=True))
            while left:
                symbol = left.pop(0)
                answer = client.answer(CONTROL)
                if answer is None:
                    break
                counts[symbol] = (answer.method.message_count, answer.method.consumer_count)
            else:
                return
            if not client.is_over:
                client.open(CONTROL)


def _ordered(events: list[Any]) -> list[Any]:
    """Confirms in ascending order, in the places where there are some: which of several comes first is chance."""
    confirms = iter(sorted(event for event in events if event[0] in _CONFIRMS))
    return [next(confirms) if event[0] in _CONFIRMS else event for event in events]

"""From a publish to the queues that get a copy: one decision over the whole graph of exchanges (EX-20).

Owns the walk along exchange bindings and alternate exchanges, and the CC and BCC headers.  Pure: it sees names and
bindings, never queues' contents.  Rules are those of RabbitMQ 3.10's ``rabbit_exchange:route`` and
``rabbit_basic:header_routes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from connector.amqp.header import parse
from connector.amqp.wire import write_table
from connector.broker.arguments import TYPE_NAMES
from connector.broker.errors import AccessRefused, Inequivalent, NotFound
from connector.broker.exchanges.binding import QUEUE, Destination
from connector.broker.exchanges.direct import Direct
from connector.broker.exchanges.fanout import Fanout
from connector.broker.exchanges.headers import Headers
from connector.broker.exchanges.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping

    from connector.amqp.wire import Field, Table
    from connector.broker.exchanges.exchange import Exchange

#: Exchange types by the name clients declare.
TYPES: dict[str, type[Exchange]] = {"direct": Direct, "fanout": Fanout, "topic": Topic, "headers": Headers}
#: What every virtual host has, and its types.
PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}

#: The property flag of the headers table, in the first octet of a content header.
_HAS_HEADERS = 0x20


class View(Protocol):
    """What routing needs of a virtual host."""

    @property
    def title(self) -> str:
        """Its name in texts."""

    @property
    def exchanges(self) -> Mapping[str, Exchange]:
        """All exchanges but the default one."""

    @property
    def queues(self) -> Container[str]:
        """Names of the queues that exist."""


class HeaderReader:
    """A message's headers table, read when a headers exchange first asks.

    ``was_read`` tells that the route depends on more than exchange and key, and must not be remembered for them.
    """

    __slots__ = ("_header", "_table", "was_read")

    def __init__(self, header: bytes) -> None:
        self._header = header
        self._table: Table = {}
        self.was_read = False

    def __call__(self) -> Table:
        """Return the table, empty when the message has none."""
        if not self.was_read:
            self.was_read = True
            self._table = parse(self._header).headers()
        return self._table


def source_of(view: View, exchange: str) -> Exchange | None:
    """Return the exchange a client publishes to, None for the default one; raises NotFound and AccessRefused."""
    if not exchange:
        return None
    found = view.exchanges.get(exchange)
    if found is None:
        raise NotFound(f"no exchange '{exchange}' in vhost '{view.title}'")
    if found.record.internal:
        raise AccessRefused(f"cannot publish to internal exchange '{exchange}' in vhost '{view.title}'")
    return found


def resolve(
    view: View, exchange: str, routing_key: str, headers: Callable[[], Table], copies: Collection[str] = ()
) -> list[str]:
    """Names of the existing queues a message goes to, each once, nearest first.

    ``copies`` are further routing keys (CC, BCC).  Every exchange is visited once, so cycles end and diamonds give one
    copy, and sees the same keys.  An exchange where nothing is bound to match hands on to its alternate exchange; one
    that leads to another exchange has a route, whatever becomes of it there.  Raises NotFound, and AccessRefused for
    an internal exchange, which is reached only from other exchanges.
    """
    keys = (routing_key, *copies)
    start = source_of(view, exchange)
    if start is None:
        return [name for name in dict.fromkeys(keys) if name in view.queues]
    queues: dict[str, None] = {}
    visited = {exchange}
    pending = [start]
    for current in pending:
        for name, kind in _next(current, keys, headers):
            if kind == QUEUE:
                queues[name] = None
            elif name not in visited:
                visited.add(name)
                found = view.exchanges.get(name)
                if found is not None:
                    pending.append(found)
    return [name for name in queues if name in view.queues]


def _next(exchange: Exchange, keys: tuple[str, ...], headers: Callable[[], Table]) -> Iterable[Destination]:
    targets: Collection[Destination]
    if len(keys) == 1:
        targets = exchange.route(keys[0], headers)
    else:
        targets = {target: None for key in keys for target in exchange.route(key, headers)}
    if not targets and exchange.alternate is not None:
        return (Destination(exchange.alternate, "exchange"),)
    return targets


def split_copies(header: bytes) -> tuple[tuple[str, ...], bytes]:
    """Read the CC and BCC headers: (further routing keys, the header to deliver), BCC taken out (EX-16).

    Array items that are not long strings are ignored.  Raises Inequivalent when either is not an array.
    """
    if not (header[0] & _HAS_HEADERS and b"CC" in header):
        return (), header
    parsed = parse(header)
    table = parsed.headers()
    copies = (*_keys(table, "CC"), *_keys(table, "BCC"))
    at = parsed.headers_at
    if "BCC" in table and at is not None:
        del table["BCC"]
        header = header[: at.start] + write_table(table) + header[at.stop :]
    return copies, header


def _keys(table: Table, name: str) -> list[str]:
    letter, value = table.get(name, ("A", []))
    if letter != "A":
        raise Inequivalent(f'invalid message: {{unacceptable_type_in_header,"{name}",{TYPE_NAMES[letter]}}}')
    items = cast("list[Field]", value)
    return [cast("bytes", key).decode("utf-8", "surrogateescape") for kind, key in items if kind == "S"]

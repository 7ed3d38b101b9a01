"""Events on their way to the topology log, in the order in which they were made, through an outage of KubeMQ.

Owns what waits to be sent, and what was sent with an unknown outcome.  Declarations wait, as somebody waits for each
of them; whatever else is written fails at once, and whoever writes it tries again (a snapshot: when the next is due).
Nothing is sent but while the log is followed and KubeMQ has answered a Ping since the last loss.  A declaration that
comes twice could undo what came between, so one of unknown outcome is repeated only where its first copy cannot come
any more: the server that it was sent to was started anew, and the log was read to its end since.  A stream from a
server that was started anew proves nothing: the log is read anew.  What was certainly not sent only waits again, and
what the broker has given up is never sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from connector.broker.ports import NotSent, Rejected, StoreError, Unavailable
from connector.broker.topology import decode_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.broker import Broker
    from connector.broker.ports import ServerInfo, TopologyLog
    from connector.runtime.outage import Outage

#: So many events are on their way to the log at a time.
APPENDS_AT_ONCE = 256
#: What clients wait for.
DECLARATIONS = frozenset(
    {"queue.declared", "queue.deleted", "queue.bound", "queue.unbound", "exchange.declared", "exchange.deleted"}
)


class Server(NamedTuple):
    """One life of a KubeMQ server."""

    host: str
    start_time: int


class Appends:
    """The events of one replica; ``read_anew`` ends the present reading of the log and begins another."""

    def __init__(
        self,
        topology_log: TopologyLog,
        broker: Broker,
        settle: Callable[[], None],
        outage: Outage,
        read_anew: Callable[[], None],
    ) -> None:
        self._log = topology_log
        self._broker = broker
        self._settle = settle
        self._outage = outage
        self._read_anew = read_anew
        self._waiting: dict[str, bytes] = {}
        self._unsent: dict[str, bytes] = {}  # these wait as well, in their numbers' places
        self._unknown: dict[str, tuple[bytes, Server | None]] = {}
        self._server: Server | None = None
        self._read_from: Server | None = None  # who had answered when the present reading of the log began
        self._is_followed = False
        self._is_answered = True
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._unsent) + len(self._unknown)

    def add(self, event_id: str, data: bytes) -> None:
        """Send it after everything added before."""
        self._waiting[event_id] = data
        self._wake.set()

    def on_lost(self) -> None:
        """The log is not followed any more."""
        self._is_followed = self._is_answered = False
        self._wake.set()

    def on_reading(self) -> None:
        """A reading of the log begins."""
        self._read_from = self._server

    def on_followed(self) -> None:
        """The log has been read to its end."""
        self._is_followed = True
        self._go_on()

    def on_server(self, server: ServerInfo) -> None:
        """KubeMQ has answered a Ping."""
        self._server = Server(server.host, server.start_time)
        self._read_from = self._read_from or self._server
        if not self._is_answered or self._is_gone(self._read_from):
            self._is_answered = True
            self._go_on()

    def forget(self) -> None:
        """What the broker has given up is neither sent nor kept."""
        awaited = self._broker.appending
        self._waiting = {event_id: data for event_id, data in self._waiting.items() if event_id in awaited}
        self._unsent = {event_id: data for event_id, data in self._unsent.items() if event_id in awaited}
        self._unknown = {event_id: sent for event_id, sent in self._unknown.items() if event_id in awaited}

    async def run(self) -> None:
        """Send, many at a time: the server stores those together."""
        gate = asyncio.Semaphore(APPENDS_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                await gate.acquire()
                self._wake.clear()  # first: who is told of a failure may add something
                found = self._next()
                if found is None:
                    gate.release()
                else:
                    self._wake.set()
                    group.create_task(self._send(*found, gate), name="topology append")

    @property
    def _is_open(self) -> bool:
        return self._is_followed and self._is_answered

    def _go_on(self) -> None:
        """Send what waits, and before it what is certainly not in the log."""
        if not self._is_open:
            return
        self.forget()
        again = {event_id: data for event_id, (data, server) in self._unknown.items() if self._is_gone(server)}
        if self._is_gone(self._read_from) or (again and self._read_from != self._server):
            self._is_followed = False
            self._read_anew()
        else:
            for event_id in again:
                del self._unknown[event_id]
            again |= self._unsent
            self._unsent = {}
            self._waiting = {event_id: again[event_id] for event_id in sorted(again, key=_number)} | self._waiting
        self._wake.set()

    def _is_gone(self, server: Server | None) -> bool:
        """Whether the present server is a later life of this one."""
        present = self._server
        return server is not None and present is not None and server.host == present.host and server != present

    def _next(self) -> tuple[str, bytes] | None:
        """The next one to be sent; while nothing can be, what need not wait fails."""
        waiting = self._waiting
        if not self._is_open:
            for event_id in [event_id for event_id, data in waiting.items() if not _is_declaration(data)]:
                del waiting[event_id]
                self._fail(event_id, Unavailable("KubeMQ does not answer"))
            return None
        while waiting:
            event_id = next(iter(waiting))
            data = waiting.pop(event_id)
            if event_id in self._broker.appending:
                return event_id, data
        return None

    async def _send(self, event_id: str, data: bytes, gate: asyncio.Semaphore) -> None:
        server = self._server
        try:
            await self._log.append(data, self._broker.log_start)
        except Rejected as error:
            self._outage.on_loss("declarations", error)
            self._fail(event_id, error)
        except StoreError as error:
            self._outage.on_loss("declarations", error)
            self._is_answered = False
            self._wake.set()
            if not _is_declaration(data):
                self._fail(event_id, error)
            elif isinstance(error, NotSent):
                self._unsent[event_id] = data
            else:
                self._unknown[event_id] = (data, server)
        finally:
            gate.release()

    def _fail(self, event_id: str, error: StoreError) -> None:
        self._broker.on_append_failed(event_id, error)
        self._settle()


def _is_declaration(data: bytes) -> bool:
    event = decode_event(data)
    return event is not None and event["type"] in DECLARATIONS


def _number(event_id: str) -> int:
    """An event's place among those of its replica."""
    return int(event_id.rpartition(".")[2])

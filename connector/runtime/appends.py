"""Events on their way to the topology log, in the order in which they were made, through an outage of KubeMQ.

Owns what waits to be sent, and what was sent with an unknown outcome.  Declarations wait, as somebody waits for each
of them; whatever else is written has a retry of its own and fails at once.  Nothing is sent but while the log is
followed and KubeMQ has answered a Ping since the last loss.  A declaration that comes twice could undo what came
between, so one of unknown outcome is repeated only where its first copy cannot come any more: the server that it was
sent to was started anew, and the log was read to its end since.  What the broker has given up is never sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from connector.broker.ports import Rejected, StoreError, Unavailable
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
    """The events of one replica."""

    def __init__(self, topology_log: TopologyLog, broker: Broker, settle: Callable[[], None], outage: Outage) -> None:
        self._log = topology_log
        self._broker = broker
        self._settle = settle
        self._outage = outage
        self._waiting: dict[str, bytes] = {}
        self._unknown: dict[str, tuple[bytes, Server | None]] = {}
        self._server: Server | None = None
        self._is_followed = False
        self._is_answered = True
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._unknown)

    def add(self, event_id: str, data: bytes) -> None:
        """Send it after everything added before."""
        self._waiting[event_id] = data
        self._wake.set()

    def on_lost(self) -> None:
        """The log is not followed any more."""
        self._is_followed = self._is_answered = False
        self._wake.set()

    def on_followed(self) -> None:
        """The log has been read to its end."""
        self._is_followed = True
        self._go_on()

    def on_server(self, server: ServerInfo) -> None:
        """KubeMQ has answered a Ping."""
        self._server = Server(server.host, server.start_time)
        if not self._is_answered:
            self._is_answered = True
            self._go_on()

    def forget(self) -> None:
        """What the broker has given up is neither sent nor kept."""
        awaited = self._broker.appending
        self._waiting = {event_id: data for event_id, data in self._waiting.items() if event_id in awaited}
        self._unknown = {event_id: sent for event_id, sent in self._unknown.items() if event_id in awaited}

    async def run(self) -> None:
        """Send, many at a time: the server stores those together."""
        gate = asyncio.Semaphore(APPENDS_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait()
                await gate.acquire()
                found = self._next()
                if found is None:
                    self._wake.clear()
                    gate.release()
                else:
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
        for event_id in again:
            del self._unknown[event_id]
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
            if _is_declaration(data):
                self._unknown[event_id] = (data, server)
            else:
                self._fail(event_id, error)
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

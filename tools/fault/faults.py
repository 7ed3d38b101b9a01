"""Carrying out the faults of a scenario at their times, and noting them in the ledger.

Owns how each kind is done.  Faults of one process wait for each other; those of links and of other processes overlap.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

from tests.support.ledger import Ledger
from tests.support.server import ConnectorProcess
from tests.support.tcp_proxy import TcpProxy, Way
from tools.fault.rig import Child, Rig, Server
from tools.fault.scenario import Fault, FaultKind

DELAY_S = 0.05

_WAYS = {"UP": Way.UP, "DOWN": Way.DOWN}


class Faults:
    """The faults of one run; ``run`` performs one of them at its time."""

    def __init__(self, rig: Rig, ledger: Ledger) -> None:
        self._rig = rig
        self._ledger = ledger
        connector = asyncio.Lock()
        self._locks = {
            "CONNECTOR": connector,
            # the embedded child comes and goes with the connector
            "BACKEND": connector if isinstance(rig.server, Child) else asyncio.Lock(),
        }

    async def run(self, fault: Fault) -> None:
        """Wait for its time, do it, undo it."""
        await asyncio.sleep(max(0.0, self._ledger.began_at + fault.at_s - self._ledger.now()))
        whom, _, what = fault.kind.name.partition("_")
        if whom == "CLIENT":
            await self._client(fault, what)
        elif what in {"KILL", "TERM", "STOP"}:
            async with self._locks[whom]:
                await self._process(fault, whom, what)
        else:
            await self._backend_link(fault, what)

    # ------------------------------------------------------------------ processes

    async def _process(self, fault: Fault, whom: str, what: str) -> None:
        connector, server = self._rig.connector, self._rig.server
        if connector is None or server is None:
            return
        action = self._connector if whom == "CONNECTOR" else self._backend
        is_crash = fault.kind is FaultKind.CONNECTOR_KILL
        noted = self._ledger.disturb(whom.lower(), fault.kind.name, is_crash=is_crash)
        try:
            await action(connector, server, fault, what)
        finally:
            self._ledger.heal(noted)

    async def _connector(self, connector: ConnectorProcess, _: Server, fault: Fault, what: str) -> None:
        if what == "STOP":
            await self._freeze(lambda number: os.kill(connector.pid, number), fault.seconds)
            return
        await asyncio.to_thread(connector.kill if what == "KILL" else connector.terminate)
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(connector.start, wait=False)
        await self._rig.wait_ready()

    async def _backend(self, _: ConnectorProcess, server: Server, fault: Fault, what: str) -> None:
        if what == "STOP":
            await self._freeze(server.send, fault.seconds)
            return
        await server.end(signal.SIGKILL if what == "KILL" else signal.SIGTERM)
        if not isinstance(server, Child):
            await asyncio.sleep(fault.seconds)
        await server.start()

    async def _freeze(self, send: Callable[[signal.Signals], None], seconds: float) -> None:
        send(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            send(signal.SIGCONT)

    # ------------------------------------------------------------------ links

    async def _backend_link(self, fault: Fault, what: str) -> None:
        proxy = self._rig.backend_proxy
        if proxy is None:
            return
        noted = self._ledger.disturb("backend", fault.kind.name)
        try:
            if what == "CUT":
                await proxy.refuse()
                await asyncio.sleep(fault.seconds)
                await proxy.accept()
            elif what == "BLINK":
                await proxy.cut()
            else:
                await self._disturb_link(proxy, what, fault.seconds)
        finally:
            self._ledger.heal(noted)

    async def _client(self, fault: Fault, what: str) -> None:
        proxies = self._rig.proxies
        noted = self._ledger.disturb(f"client {fault.client or '*'}", fault.kind.name)
        try:
            if what == "CUT_ALL":
                await asyncio.gather(*[proxy.cut() for proxy in proxies.values()])
            elif what == "CUT":
                await proxies[fault.client].cut()
            else:
                await self._disturb_link(proxies[fault.client], what, fault.seconds)
        finally:
            self._ledger.heal(noted)

    async def _disturb_link(self, proxy: TcpProxy, what: str, seconds: float) -> None:
        verb, _, way = what.partition("_")
        begin, end = self._ways_of(proxy, verb, _WAYS.get(way, Way.UP))
        await begin()
        await asyncio.sleep(seconds)
        await end()

    def _ways_of(
        self, proxy: TcpProxy, verb: str, way: Way
    ) -> tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]:
        async def begin() -> None:
            if verb == "HALF":
                proxy.half_close(way)
            elif verb == "STALL":
                proxy.stall(way)
            else:
                for each in Way:
                    proxy.delay(each, DELAY_S)

        async def end() -> None:
            if verb == "HALF":
                await proxy.cut()
            elif verb == "STALL":
                proxy.resume(way)
            else:
                for each in Way:
                    proxy.delay(each, 0.0)

        return begin, end

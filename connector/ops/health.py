"""The ops port: is the process alive, is it ready, what has it counted (OP-01, OP-02, OP-05, OP-08).

Owns three pages, ``/healthz``, ``/readyz`` and ``/metrics``, and the address that they share with those of
``definitions.py`` and ``queues.py``.  Must not know what is checked: readiness is a callable that answers from
memory, so a page never waits for KubeMQ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from connector.ops import definitions, queues
from connector.ops.api import Api

#: Each check by name: does it pass, and what to tell (empty where there is nothing to tell).
Checks = Callable[[], Mapping[str, tuple[bool, str]]]

_STOP_TIMEOUT_S = 1.0

_Page = Callable[[web.Request], Awaitable[web.Response]]


class OpsServer:
    """The running server; ``port`` is the real one where 0 was asked for."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self._runner = runner
        self.port = port

    async def stop(self) -> None:
        """Stop listening and end what is open."""
        await self._runner.cleanup()


async def start_ops(
    host: str, port: int, checks: Checks, registry: CollectorRegistry, api: Api | None = None
) -> OpsServer:
    """Listen; raises OSError when the address cannot be had."""
    pages = web.Application(client_max_size=definitions.MAX_DOCUMENT_BYTES)
    if api is not None:
        definitions.add_pages(pages, api)
        queues.add_pages(pages, api)
    pages.router.add_get("/healthz", _healthz)
    pages.router.add_get("/readyz", _readyz(checks))
    pages.router.add_get("/metrics", _metrics(registry))
    runner = web.AppRunner(pages, access_log=None, handle_signals=False, shutdown_timeout=_STOP_TIMEOUT_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return OpsServer(runner, runner.addresses[0][1])


async def _healthz(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


def _readyz(checks: Checks) -> _Page:
    async def readyz(_request: web.Request) -> web.Response:
        results = checks()
        is_ready = all(passed for passed, _detail in results.values())
        answer = {
            "status": "ok" if is_ready else "not ready",
            "checks": {name: {"ok": passed, "detail": detail} for name, (passed, detail) in results.items()},
        }
        return web.json_response(answer, status=HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)

    return readyz


def _metrics(registry: CollectorRegistry) -> _Page:
    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    return metrics

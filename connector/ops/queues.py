"""Queues over HTTP, at RabbitMQ's paths: GET /api/queues, those of a virtual host, and one queue.

Owns the pages.  Must not know a queue: that is behind ``QueueView``.  Source: RabbitMQ's management API (OP-11).
"""

from __future__ import annotations

from typing import Any, Protocol

from aiohttp import web

from connector.ops.api import Api, guarded


class QueueView(Protocol):
    """What the pages ask for; each row is a JSON object."""

    async def rows(self, vhost: str | None) -> list[dict[str, Any]]:
        """All queues, or those of one virtual host."""

    async def row(self, vhost: str, name: str) -> dict[str, Any]:
        """One queue."""


def add_pages(pages: web.Application, api: Api) -> None:
    """Add the pages."""
    for path in ("/api/queues", "/api/queues/{vhost}"):
        pages.router.add_get(path, guarded(api, lambda: api.queues, _rows))
    pages.router.add_get("/api/queues/{vhost}/{name}", guarded(api, lambda: api.queues, _row))


async def _rows(view: QueueView, request: web.Request) -> web.Response:
    return web.json_response(await view.rows(request.match_info.get("vhost")))


async def _row(view: QueueView, request: web.Request) -> web.Response:
    return web.json_response(await view.row(request.match_info["vhost"], request.match_info["name"]))

"""Definitions over HTTP, at RabbitMQ's paths: GET and POST /api/definitions, and the same with a virtual host.

Owns the pages.  Must not know what a definition is: that is behind ``Desk``.  Source: RabbitMQ's management API
(OP-14); a POST is answered with a report, where RabbitMQ says nothing.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Protocol

from aiohttp import web

from connector.ops.api import Api, error, guarded

MAX_DOCUMENT_BYTES = 64 * 1024**2


class Desk(Protocol):
    """What the pages ask for."""

    def export(self, vhost: str | None) -> dict[str, Any]:
        """All definitions, or those of one virtual host."""

    async def apply(self, document: object, vhost: str | None) -> dict[str, Any]:
        """Apply a document; the report has ``failed`` when not all of it was applied.

        And ``retry`` when KubeMQ did not take some of it, so that the same document may succeed later.
        """


def add_pages(pages: web.Application, api: Api) -> None:
    """Add the pages."""
    for path in ("/api/definitions", "/api/definitions/{vhost}"):
        pages.router.add_get(path, guarded(api, lambda: api.desk, _export))
        pages.router.add_post(path, guarded(api, lambda: api.desk, _apply))


async def _export(desk: Desk, request: web.Request) -> web.Response:
    return web.json_response(desk.export(request.match_info.get("vhost")))


async def _apply(desk: Desk, request: web.Request) -> web.Response:
    try:
        document = await request.json()
    except (ValueError, LookupError):  # no JSON, or in no encoding
        return error(HTTPStatus.BAD_REQUEST, "bad_request", "the body is not JSON")
    except RecursionError:
        return error(HTTPStatus.BAD_REQUEST, "bad_request", "the body is nested too deep")
    report = await desk.apply(document, request.match_info.get("vhost"))
    return web.json_response(report, status=HTTPStatus.SERVICE_UNAVAILABLE if report["retry"] else HTTPStatus.OK)

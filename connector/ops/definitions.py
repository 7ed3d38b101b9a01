"""Definitions over HTTP, at RabbitMQ's paths: GET and POST /api/definitions, and the same with a virtual host.

Owns the pages, the login (basic, the AMQP users) and the status codes.  Must not know what a definition is: that is
behind ``Desk``.  Source: RabbitMQ's management API (OP-14); a POST is answered with a
report, where RabbitMQ says nothing.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Protocol

from aiohttp import web

MAX_DOCUMENT_BYTES = 64 * 1024**2


class Desk(Protocol):
    """What the pages ask for."""

    def export(self, vhost: str | None) -> dict[str, Any]:
        """All definitions, or those of one virtual host."""

    async def apply(self, document: object, vhost: str | None) -> dict[str, Any]:
        """Apply a document; the report has ``failed`` when KubeMQ did not take all of it."""


class Api:
    """What the pages need; ``desk`` is None until declarations can be answered.

    ``authenticate`` gets user, password and the peer's address.  Exceptions of type ``unknown`` mean that there is no
    such virtual host, ``invalid`` that the document is wrong.
    """

    def __init__(
        self,
        authenticate: Callable[[str, bytes, str], bool],
        *,
        unknown: type[Exception],
        invalid: type[Exception],
    ) -> None:
        self.authenticate = authenticate
        self.unknown = unknown
        self.invalid = invalid
        self.desk: Desk | None = None


def add_pages(pages: web.Application, api: Api) -> None:
    """Add the pages."""
    for path in ("/api/definitions", "/api/definitions/{vhost}"):
        pages.router.add_get(path, _guarded(api, _export))
        pages.router.add_post(path, _guarded(api, _apply))


_Page = Callable[[web.Request], Awaitable[web.Response]]


def _guarded(api: Api, page: Callable[[Api, Desk, web.Request], Awaitable[web.Response]]) -> _Page:
    async def guarded(request: web.Request) -> web.Response:
        if not _is_allowed(api, request):
            answer = _error(HTTPStatus.UNAUTHORIZED, "not_authorized", "Login failed")
            answer.headers["WWW-Authenticate"] = 'Basic realm="kubemq-amqp"'
            return answer
        if api.desk is None:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", "the connector is starting")
        try:
            return await page(api, api.desk, request)
        except api.unknown as error:
            return _error(HTTPStatus.NOT_FOUND, "not_found", str(error))
        except api.invalid as error:
            return _error(HTTPStatus.BAD_REQUEST, "bad_request", str(error))

    return guarded


def _is_allowed(api: Api, request: web.Request) -> bool:
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    try:
        user, colon, password = b64decode(encoded, validate=True).partition(b":")
    except binascii.Error:
        return False
    if scheme.lower() != "basic" or not colon:
        return False
    return api.authenticate(user.decode("utf-8", "surrogateescape"), password, request.remote or "")


async def _export(_api: Api, desk: Desk, request: web.Request) -> web.Response:
    return web.json_response(desk.export(request.match_info.get("vhost")))


async def _apply(_api: Api, desk: Desk, request: web.Request) -> web.Response:
    try:
        document = await request.json()
    except ValueError:
        return _error(HTTPStatus.BAD_REQUEST, "bad_request", "the body is not JSON")
    report = await desk.apply(document, request.match_info.get("vhost"))
    return web.json_response(report, status=HTTPStatus.SERVICE_UNAVAILABLE if report["failed"] else HTTPStatus.OK)


def _error(status: HTTPStatus, error: str, reason: str) -> web.Response:
    return web.json_response({"error": error, "reason": reason}, status=status)

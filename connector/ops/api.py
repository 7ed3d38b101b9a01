"""What the pages below /api share: the login, the virtual host, and how an error is told.

Owns basic authentication with the AMQP users and the status codes.  Must not know what a page is about.  Source:
RabbitMQ's management API (OP-11, OP-14).
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web

if TYPE_CHECKING:
    from connector.ops.definitions import Desk
    from connector.ops.queues import QueueView

Page = Callable[[web.Request], Awaitable[web.Response]]
Part = TypeVar("Part")


class Api:
    """What the pages need; ``desk`` and ``queues`` are None until declarations can be answered.

    ``authenticate`` gets user, password and the peer's address.  Exceptions of type ``unknown`` mean that there is no
    such virtual host or queue, ``invalid`` that the document is wrong.
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
        self.queues: QueueView | None = None


def guarded(
    api: Api, part: Callable[[], Part | None], page: Callable[[Part, web.Request], Awaitable[web.Response]]
) -> Page:
    """The page for those who have logged in, with the part of the API that it shows."""

    async def answer(request: web.Request) -> web.Response:
        if not _is_allowed(api, request):
            refusal = error(HTTPStatus.UNAUTHORIZED, "not_authorized", "Login failed")
            refusal.headers["WWW-Authenticate"] = 'Basic realm="kubemq-amqp"'
            return refusal
        shown = part()
        if shown is None:
            return error(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", "the connector is starting")
        try:
            return await page(shown, request)
        except api.unknown as reason:
            return error(HTTPStatus.NOT_FOUND, "not_found", str(reason))
        except api.invalid as reason:
            return error(HTTPStatus.BAD_REQUEST, "bad_request", str(reason))

    return answer


def error(status: HTTPStatus, name: str, reason: str) -> web.Response:
    """An error as RabbitMQ's API tells it."""
    return web.json_response({"error": name, "reason": reason}, status=status)


def _is_allowed(api: Api, request: web.Request) -> bool:
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    try:
        user, colon, password = b64decode(encoded, validate=True).partition(b":")
    except binascii.Error:
        return False
    if scheme.lower() != "basic" or not colon:
        return False
    return api.authenticate(user.decode("utf-8", "surrogateescape"), password, request.remote or "")

"""The definitions pages, asked over HTTP; what they answer with is the desk's."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import pytest
from aiohttp import ClientSession
from prometheus_client import CollectorRegistry

from connector.ops.api import Api
from connector.ops.health import start_ops


def login(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


GUEST = login("guest", "secret")


class Desk:
    def __init__(self) -> None:
        self.applied: list[tuple[object, str | None]] = []
        self.has_failed = self.may_retry = False

    def export(self, vhost: str | None) -> dict[str, Any]:
        if vhost == "nope":
            raise LookupError("vhost nope not found")
        return {"vhost": vhost}

    async def apply(self, document: object, vhost: str | None) -> dict[str, Any]:
        if document == []:
            raise ValueError("the document is not a JSON object")
        self.applied.append((document, vhost))
        return {"created": {}, "failed": self.has_failed, "retry": self.may_retry}


def authenticate(user: str, password: bytes, peer_host: str) -> bool:
    return (user, password, peer_host) == ("guest", b"secret", "127.0.0.1")


@pytest.fixture
def api() -> Api:
    api = Api(authenticate, unknown=LookupError, invalid=ValueError)
    api.desk = Desk()
    return api


@pytest.fixture
async def http(api: Api) -> AsyncIterator[ClientSession]:
    server = await start_ops("127.0.0.1", 0, dict, CollectorRegistry(), api)
    async with ClientSession(f"http://127.0.0.1:{server.port}") as session:
        yield session
    await server.stop()


async def test_everything_or_one_virtual_host(http: ClientSession) -> None:
    for path, vhost in (("", None), ("/%2F", "/"), ("/a%2Fb", "a/b"), ("/team", "team")):
        async with http.get(f"/api/definitions{path}", headers=GUEST) as answer:
            assert (answer.status, await answer.json()) == (200, {"vhost": vhost})


async def test_a_document_is_applied_and_reported_on(http: ClientSession, api: Api) -> None:
    async with http.post("/api/definitions", json={"queues": []}, headers=GUEST) as answer:
        assert (answer.status, await answer.json()) == (200, {"created": {}, "failed": False, "retry": False})
    async with http.post("/api/definitions/team", json={"queues": [1]}, headers=GUEST) as answer:
        assert answer.status == 200
    assert isinstance(api.desk, Desk)
    assert api.desk.applied == [({"queues": []}, None), ({"queues": [1]}, "team")]
    api.desk.has_failed = True
    async with http.post("/api/definitions", json={}, headers=GUEST) as answer:
        assert (answer.status, (await answer.json())["failed"]) == (200, True)
    api.desk.may_retry = True
    async with http.post("/api/definitions", json={}, headers=GUEST) as answer:
        assert answer.status == 503


async def test_a_large_document(http: ClientSession) -> None:
    async with http.post("/api/definitions", data=BytesIO(b'["' + b"q" * 5_000_000 + b'"]'), headers=GUEST) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("headers", [{}, login("guest", "wrong"), login("nobody", "secret")])
async def test_without_a_login_nothing_is_told(http: ClientSession, headers: dict[str, str]) -> None:
    async with http.get("/api/definitions", headers=headers) as answer:
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Basic ")
        assert await answer.json() == {"error": "not_authorized", "reason": "Login failed"}


@pytest.mark.parametrize("header", ["Basic", "Basic %%%", "Bearer Z3Vlc3Q6c2VjcmV0", "Basic Z3Vlc3Q="])
async def test_a_broken_login_is_none(http: ClientSession, header: str) -> None:
    async with http.get("/api/definitions", headers={"Authorization": header}) as answer:
        assert answer.status == 401


async def test_what_is_wrong_is_said(http: ClientSession, api: Api) -> None:
    async with http.get("/api/definitions/nope", headers=GUEST) as answer:
        assert answer.status == 404
        assert await answer.json() == {"error": "not_found", "reason": "vhost nope not found"}
    for body, encoding, reason in (
        ("[]", "utf-8", "the document is not a JSON object"),
        ("{", "utf-8", "the body is not JSON"),
        ("{}", "none-such", "the body is not JSON"),
        ('{"queues":' + "[" * 30_000 + "]" * 30_000 + "}", "utf-8", "the body is nested too deep"),
    ):
        headers = {**GUEST, "Content-Type": f"application/json; charset={encoding}"}
        async with http.post("/api/definitions", data=body.encode(), headers=headers) as answer:
            assert answer.status == 400
            assert await answer.json() == {"error": "bad_request", "reason": reason}
    api.desk = None
    async with http.get("/api/definitions", headers=GUEST) as answer:
        assert answer.status == 503

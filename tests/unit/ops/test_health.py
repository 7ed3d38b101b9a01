"""The ops pages, asked over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession
from prometheus_client import CollectorRegistry, Counter

from connector.ops.health import OpsServer, start_ops

Results = dict[str, tuple[bool, str]]


@pytest.fixture
def results() -> Results:
    return {"kubemq": (True, "127.0.0.1:50000"), "topology": (True, "")}


@pytest.fixture
async def ops(results: Results) -> AsyncIterator[OpsServer]:
    registry = CollectorRegistry()
    Counter("apples", "Apples eaten", registry=registry).inc(3)
    server = await start_ops("127.0.0.1", 0, lambda: results, registry)
    yield server
    await server.stop()


@pytest.fixture
async def http(ops: OpsServer) -> AsyncIterator[ClientSession]:
    async with ClientSession(f"http://127.0.0.1:{ops.port}") as session:
        yield session


async def test_alive_even_when_not_ready(http: ClientSession, results: Results) -> None:
    results["kubemq"] = (False, "")
    async with http.get("/healthz") as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok"})


async def test_ready_when_all_checks_pass(http: ClientSession) -> None:
    async with http.get("/readyz") as answer:
        assert answer.status == 200
        assert await answer.json() == {
            "status": "ok",
            "checks": {"kubemq": {"ok": True, "detail": "127.0.0.1:50000"}, "topology": {"ok": True, "detail": ""}},
        }


async def test_not_ready_when_one_fails_and_the_answer_says_which(http: ClientSession, results: Results) -> None:
    results["topology"] = (False, "replaying")
    async with http.get("/readyz") as answer:
        assert answer.status == 503
        body = await answer.json()
    assert body["status"] == "not ready"
    assert body["checks"]["topology"] == {"ok": False, "detail": "replaying"}
    assert body["checks"]["kubemq"]["ok"]


async def test_metrics_in_prometheus_text(http: ClientSession) -> None:
    async with http.get("/metrics") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert "apples_total 3.0\n" in await answer.text()


async def test_metrics_in_openmetrics_when_asked(http: ClientSession) -> None:
    async with http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await answer.text()).endswith("# EOF\n")


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/", 404), ("POST", "/healthz", 405)])
async def test_nothing_else_is_there(http: ClientSession, method: str, path: str, status: int) -> None:
    async with http.request(method, path) as answer:
        assert answer.status == status


async def test_a_taken_port_is_an_oserror_and_leaves_nothing_open(ops: OpsServer) -> None:
    with pytest.raises(OSError, match="address already in use"):
        await start_ops("127.0.0.1", ops.port, dict, CollectorRegistry())


async def test_after_stop_nobody_listens() -> None:
    server = await start_ops("127.0.0.1", 0, dict, CollectorRegistry())
    await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)

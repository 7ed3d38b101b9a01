"""A KubeMQ server after a crash, as far as a rescue meets it: scripted calls and a monitoring page over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc
import pytest

from connector.backend.kubemq import rescue
from connector.backend.kubemq.rescue import Subscription
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from tests.unit.backend.scripted import Context, Scripted

NOW, BEFORE = "NowNowNowNow", "BeforeBefore"  # how the running process and the crashed one sign
QUEUE = "amqp.default.q"


class Member:
    """One subscription on a queue; ``answers``: the server gets an answer when it asks the client."""

    def __init__(self, client_id: str, pending: int, mark: str, *, answers: bool = False, name: str = QUEUE) -> None:
        self.client_id = client_id
        self.pending = pending
        self.inbox = f"_INBOX.{mark}0000000001"
        self.answers = answers
        self.name = f"_QUEUES_.{name}"
        self.is_offline = False
        self.trend: list[int] = []  # what is pending at later looks

    @property
    def row(self) -> dict[str, Any]:
        """As the page shows it."""
        return {
            "client_id": self.client_id,
            "inbox": self.inbox,
            "pending_count": self.pending,
            "is_offline": self.is_offline,
        }

    @property
    def found(self) -> Subscription:
        """As the rescuer tells of it."""
        return Subscription(self.name.removeprefix("_QUEUES_."), self.client_id, self.pending, self.inbox)


class CrashedServer:
    """What a server knows after a crash: its members and clients.  Its page is plain HTTP; ``monitor`` is where."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.clients: dict[str, str] = {}
        self.monitor = ""
        self.shows_clients = True
        self.provoked: list[str] = []

    def add(self, *members: Member) -> None:
        """Members, and their clients' inboxes."""
        self.members += members
        self.clients.update((member.client_id, member.inbox) for member in members)

    def drop(self, client_id: str) -> bool:
        """Whether the server drops a dead client when it should."""
        return bool(client_id)

    async def subscribe(self, request: pb.Subscribe, context: Context) -> AsyncIterator[pb.EventReceive]:
        """Register a client; one that is known already is asked, and dropped when it does not answer."""
        client_id = request.ClientID
        if client_id in self.clients:
            self.provoked.append(client_id)
            if any(member.answers for member in self.members if member.client_id == client_id):
                await context.abort(grpc.StatusCode.INTERNAL, "stan: clientID already registered")
            if self.drop(client_id):
                self.members = [member for member in self.members if member.client_id != client_id]
        self.clients[client_id] = f"_INBOX.{NOW}0000000009"
        try:
            await asyncio.Event().wait()
        finally:
            self.clients.pop(client_id, None)
        yield pb.EventReceive()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request for a page."""
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        url = urlsplit(request.split()[1])
        query = {name: int(values[0]) for name, values in parse_qs(url.query).items()}
        offset, limit = query.get("offset", 0), query.get("limit", 1024)
        name = url.path.rpartition("/")[2].removesuffix("z")
        rows = self._channels() if name == "channels" else self._clients()
        page = {"server_id": f"{NOW}0000000000", "total": len(rows), name: rows[offset : offset + limit]}
        body = json.dumps(page).encode()
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    def _channels(self) -> list[dict[str, Any]]:
        rows: dict[str, list[dict[str, Any]]] = {}
        for member in self.members:
            rows.setdefault(member.name, []).append(member.row)
            if member.trend:
                member.pending = member.trend.pop(0)
        return [{"name": name, "subscriptions": subscriptions} for name, subscriptions in sorted(rows.items())]

    def _clients(self) -> list[dict[str, Any]]:
        return [{"id": name, "hb_inbox": inbox} for name, inbox in self.clients.items() if self.shows_clients]


@asynccontextmanager
async def crashed_server(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CrashedServer]:
    """``server`` answers subscriptions as such a server does, and its page is there; rescuers do not wait long."""
    for name, seconds in (("_BETWEEN_LOOKS_S", 0), ("_POLL_S", 0.005), ("_DROP_LIMIT_S", 0.5)):
        monkeypatch.setattr(rescue, name, seconds)
    crashed = CrashedServer()
    server.handlers["SubscribeToEvents"] = crashed.subscribe
    page = await asyncio.start_server(crashed.serve, "127.0.0.1", 0)
    async with page:
        host, port = page.sockets[0].getsockname()
        crashed.monitor = f"{host}:{port}"
        yield crashed

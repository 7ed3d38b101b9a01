"""Frees what a crashed KubeMQ server withholds in subscriptions of its dead self.

Owns the server's monitoring page, how dead inner clients are told from living ones, and how the server is made to drop
them.  A server reads queues through inner clients in its own process; after a crash it restores the subscriptions of
those it had before, as if they lived.  A process signs all inboxes it makes with one random mark, so whoever has the
mark of another process is dead.  A subscription to an Events Store channel under a dead client's ID makes the server
ask that client for an answer, and drop it and return its messages when there is none.  Measured: docs/adr/0005.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from connector.backend.kubemq.calls import Inbound
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.ports import StoreError, TimedOut, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from connector.backend.kubemq.store import KubeMQStore

#: How queue channels are called on the monitoring page.
_QUEUE_PREFIX = "_QUEUES_."
_OURS = "amqp."
#: A channel for the subscriptions that end dead clients.
_RESCUE = "amqp.~rescue"
_INBOX = "_INBOX."
_MARK_LENGTH = 12
#: What the server says of a client that answered it; and how often, before we believe that it is not busy with its ID.
_LIVES = "already registered"
_ANSWERS = 3
_PAGE = 1024
_HTTP_TIMEOUT_S = 5.0
_SAMPLE_LIMIT_S = 10.0
_BETWEEN_LOOKS_S = 1.0
_DROP_LIMIT_S = 20.0
_POLL_S = 0.3
_PROVOKE_S = 5.0


class Subscription(NamedTuple):
    """One member of a queue's group: the inner client it belongs to, and how many messages it has unacknowledged."""

    kubemq_channel: str
    client_id: str
    pending_count: int
    inbox: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it for as long as it is there."""
        return self.kubemq_channel, self.client_id, self.inbox


class Found(NamedTuple):
    """What two looks at the page have shown.

    ``living``: of the running server's own clients.  ``changing``: of another process, but just come or acknowledging.
    """

    dead: list[Subscription]
    living: list[Subscription]
    changing: list[Subscription]


class Outcome(NamedTuple):
    """What has become of the dead: ``answering`` are those whose client answered the server, so it is not dead."""

    freed: list[Subscription]
    answering: list[Subscription]
    left: list[Subscription]


class Rescuer:
    """Works on one server; ``monitor`` is HOST:PORT of its monitoring page.  Methods raise StoreError."""

    def __init__(self, store: KubeMQStore, monitor: str) -> None:
        self._store = store
        self._monitor = monitor
        self._answers: dict[str, int] = {}
        self.said: dict[str, str] = {}  #: what the server said when a dead client was provoked, by its ID

    async def find(self) -> Found:
        """Look twice: dead is what both times belongs to another process, and acknowledged nothing in between."""
        async with self._sample() as marks:
            first = {row.key: row.pending_count for row in await self._foreign(await self.subscriptions(), marks)}
            await asyncio.sleep(_BETWEEN_LOOKS_S)
            rows = await self.subscriptions()
            foreign = {row.key for row in await self._foreign(rows, marks)}
        found = Found([], [], [])
        for row in rows:
            if row.key not in foreign:
                found.living.append(row)
            elif row.pending_count < first.get(row.key, sys.maxsize):
                found.changing.append(row)
            else:
                found.dead.append(row)
        return found

    async def subscriptions(self) -> list[Subscription]:
        """Every subscription on a queue of ours."""
        channels = await self._rows("channelsz", "channels")
        return [row for channel in channels for row in _subscriptions(channel)]

    async def free(self, dead: Iterable[Subscription]) -> Outcome:
        """Have them dropped; ``left`` are those that are still there after the deadline."""
        wanted = {row.key: row for row in dead}
        clients = {row.client_id for row in wanted.values()}
        tasks = [asyncio.create_task(self._provoke(client_id)) for client_id in clients]
        deadline = time.monotonic() + _DROP_LIMIT_S
        try:
            while True:
                there = {row.key for row in await self.subscriptions()} & wanted.keys()
                answering = {key for key in there if self._is_answering(wanted[key].client_id)}
                if there == answering or time.monotonic() > deadline:
                    break
                await asyncio.sleep(_POLL_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return Outcome(
            [row for key, row in wanted.items() if key not in there],
            [row for key, row in wanted.items() if key in answering],
            [row for key, row in wanted.items() if key in there - answering],
        )

    def _is_answering(self, client_id: str) -> bool:
        return self._answers.get(client_id, 0) >= _ANSWERS

    async def _provoke(self, client_id: str) -> None:
        """Subscribe under a dead client's ID for a moment, again and again, until it answers or we are cancelled.

        The server drops what it knows of the client when the second one with its ID comes, or goes.
        """
        while not self._is_answering(client_id):
            subscription = self._subscribe(client_id)
            try:
                async with asyncio.timeout(_PROVOKE_S):
                    await subscription.read()
            except TimeoutError:
                pass
            except StoreError as error:
                self.said[client_id] = str(error)
                if _LIVES in str(error):
                    self._answers[client_id] = self._answers.get(client_id, 0) + 1
            finally:
                subscription.drop()
            await asyncio.sleep(_POLL_S)

    def _subscribe(self, client_id: str) -> Inbound[pb.EventReceive]:
        request = pb.Subscribe(
            SubscribeTypeData=pb.Subscribe.EventsStore,
            ClientID=client_id,
            Channel=_RESCUE,
            EventsStoreTypeData=pb.Subscribe.StartNewOnly,
        )
        return Inbound(lambda: self._store.client.open_subscription(request))

    # ------------------------------------------------------------------ who lives

    @asynccontextmanager
    async def _sample(self) -> AsyncIterator[set[str]]:
        """The marks of the server's process: of the page's own ID, and of a client that is made for this.

        It also proves that the page is that of the server we speak to.
        """
        client_id = f"{self._store.client.client_id}-sample"
        subscription = self._subscribe(client_id)
        reading = asyncio.create_task(subscription.read())
        try:
            inbox = await self._inbox_of(client_id, reading)
            server_id = str((await self._page("clientsz", "?limit=1")).get("server_id", ""))
            marks = {_mark(inbox), _mark(server_id)}
            if "" in marks:
                raise Unavailable(f"the monitoring page at {self._monitor} does not tell who lives")
            yield marks
        finally:
            subscription.drop()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _inbox_of(self, client_id: str, reading: asyncio.Task[pb.EventReceive]) -> str:
        """Of a client that is just coming."""
        deadline = time.monotonic() + _SAMPLE_LIMIT_S
        while True:
            inbox = (await self._clients()).get(client_id)
            if inbox is not None:
                return inbox
            if reading.done():
                await reading
            if time.monotonic() > deadline:
                raise Unavailable(f"the monitoring page at {self._monitor} does not show this server's clients")
            await asyncio.sleep(_POLL_S)

    async def _foreign(self, rows: list[Subscription], marks: set[str]) -> list[Subscription]:
        """Those that another process has made, for a client of another process."""
        clients = await self._clients()
        return [
            row for row in rows if _is_foreign(row.inbox, marks) and _is_foreign(clients.get(row.client_id, ""), marks)
        ]

    async def _clients(self) -> dict[str, str]:
        """Who is registered with the server, and where it answers when the server asks."""
        rows = await self._rows("clientsz", "clients")
        return {str(row.get("id", "")): str(row.get("hb_inbox", "")) for row in rows}

    # ------------------------------------------------------------------ the page

    async def _rows(self, page: str, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        offset = 0
        while True:
            answer = await self._page(page, f"?subs={int(page == 'channelsz')}&limit={_PAGE}&offset={offset}")
            rows += answer.get(name) or []
            offset += _PAGE
            if offset >= int(answer.get("total", 0)):
                return rows

    async def _page(self, page: str, query: str) -> dict[str, Any]:
        return await asyncio.to_thread(self._fetch, f"{page}{query}")

    def _fetch(self, page_and_query: str) -> dict[str, Any]:
        url = f"http://{self._monitor}/streaming/{page_and_query}"
        try:
            with urllib.request.urlopen(url, timeout=_HTTP_TIMEOUT_S) as response:
                page: dict[str, Any] = json.load(response)
        except TimeoutError as error:
            raise TimedOut(f"{self._monitor} does not answer") from error
        except (OSError, ValueError) as error:
            raise Unavailable(f"no monitoring page at {self._monitor}: {error}") from error
        return page


def _mark(text: str) -> str:
    """What a process puts before everything it names; empty when this is no such name."""
    name = text.removeprefix(_INBOX)
    return name[:_MARK_LENGTH] if len(name) > _MARK_LENGTH else ""


def _is_foreign(inbox: str, marks: set[str]) -> bool:
    mark = _mark(inbox)
    return bool(mark) and mark not in marks


def _subscriptions(channel: dict[str, Any]) -> list[Subscription]:
    """The rows of one channel of the page, where it is a queue of ours."""
    name = str(channel.get("name", "")).removeprefix(_QUEUE_PREFIX)
    if not name.startswith(_OURS):
        return []
    return [
        Subscription(name, str(row.get("client_id", "")), int(row.get("pending_count", 0)), str(row.get("inbox", "")))
        for row in channel.get("subscriptions") or []
        if row.get("client_id") and not row.get("is_offline")  # else the group's last member has gone: all may be read
    ]

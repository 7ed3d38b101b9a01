"""Frees what a crashed KubeMQ server withholds in subscriptions of its dead self.

Owns the server's monitoring page, how dead inner clients are told from living ones, and how the server is made to drop
them.  A server reads queues through a pool of inner clients, used in turn; after a crash it restores the subscriptions
of the pool it had before, as if they lived.  Whoever of the pool answers now is living; a subscription of anybody else
on a queue of ours is dead.  A subscription to an Events Store channel under a dead client's ID makes the server see
that it is dead, drop it and return its messages.  Measured: docs/adr/0005.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from connector.backend.kubemq.calls import Inbound
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.broker.ports import Rejected, StoreError, TimedOut, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from connector.backend.kubemq.store import KubeMQStore

#: How queue channels are called on the monitoring page.
_QUEUE_PREFIX = "_QUEUES_."
_OURS = "amqp."
#: A channel for finding the living clients, and one for the subscriptions that end dead ones.
_ROLL_CALL = "amqp.~rollcall"
_RESCUE = "amqp.~rescue"
#: The pool has 200 inner clients in turn; other readers take some of the turns.
_ROLL_CALLS = 600
_PAGE = 1024
_HTTP_TIMEOUT_S = 5.0
_DROP_LIMIT_S = 20.0
_POLL_S = 0.2
_PROVOKE_S = 5.0


class Subscription(NamedTuple):
    """One member of a queue's group: the inner client it belongs to, and how many messages it has unacknowledged."""

    kubemq_channel: str
    client_id: str
    pending_count: int


class Rescuer:
    """Works on one server; ``monitor`` is HOST:PORT of its monitoring page.  Methods raise StoreError."""

    def __init__(self, store: KubeMQStore, monitor: str) -> None:
        self._store = store
        self._monitor = monitor
        self.said: dict[str, str] = {}  #: what the server said when a dead client was provoked, by its ID

    async def subscriptions(self) -> list[Subscription]:
        """Every subscription on a queue of ours."""
        found: list[Subscription] = []
        offset = 0
        while True:
            page = await asyncio.to_thread(self._fetch, offset)
            channels = page.get("channels") or []
            found += [row for channel in channels for row in _subscriptions(channel)]
            offset += _PAGE
            if offset >= int(page.get("total", 0)):
                return found

    async def dead(self) -> list[Subscription]:
        """Those whose client is none of the server's living ones."""
        living = await self._living()
        return [
            row
            for row in await self.subscriptions()
            if row.client_id not in living and row.kubemq_channel != _ROLL_CALL
        ]

    async def free(self, dead: Iterable[Subscription]) -> list[Subscription]:
        """Have them dropped; returns those that are still there after the deadline."""
        wanted = {(row.kubemq_channel, row.client_id) for row in dead}
        tasks = [asyncio.create_task(self._provoke(client_id)) for client_id in {client for _, client in wanted}]
        deadline = time.monotonic() + _DROP_LIMIT_S
        try:
            while True:
                left = [row for row in await self.subscriptions() if (row.kubemq_channel, row.client_id) in wanted]
                if not left or time.monotonic() > deadline:
                    return left
                await asyncio.sleep(_POLL_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _provoke(self, client_id: str) -> None:
        """Subscribe under a dead client's ID for a moment, again and again, until cancelled.

        The server drops what it knows of the client when the second one with its ID comes, or goes.
        """
        request = pb.Subscribe(
            SubscribeTypeData=pb.Subscribe.EventsStore,
            ClientID=client_id,
            Channel=_RESCUE,
            EventsStoreTypeData=pb.Subscribe.StartNewOnly,
        )
        while True:
            subscription = Inbound(lambda: self._store.client.open_subscription(request))
            try:
                async with asyncio.timeout(_PROVOKE_S):
                    await subscription.read()
            except TimeoutError:
                pass
            except StoreError as error:
                self.said[client_id] = str(error)
            finally:
                subscription.drop()
            await asyncio.sleep(_POLL_S)

    async def _living(self) -> set[str]:
        """IDs of the pool: each of so many Gets is served by the next of them, and stays open while we look."""
        stream = self._store.open_stream()
        try:
            errors = await self._store.client.send_batch(
                [
                    pb.QueueMessage(
                        MessageID=uuid.uuid4().hex,
                        ClientID=self._store.client.client_id,
                        Channel=_ROLL_CALL,
                        Metadata="roll call",
                    )
                    for _ in range(_ROLL_CALLS)
                ]
            )
            refused = next((error for error in errors if error), "")
            if refused:
                raise Rejected(refused)
            answers = [await stream.get(_ROLL_CALL, 1) for _ in range(_ROLL_CALLS)]
            living = {row.client_id for row in await self.subscriptions() if row.kubemq_channel == _ROLL_CALL}
            for answer in answers:
                if answer.messages:
                    await stream.ack_range(answer.transaction_id, [message.sequence for message in answer.messages])
            await stream.barrier()
        finally:
            stream.cancel()
        if not living:
            raise Unavailable(f"the monitoring page at {self._monitor} does not show this server's queues")
        return living

    def _fetch(self, offset: int) -> dict[str, Any]:
        url = f"http://{self._monitor}/streaming/channelsz?subs=1&limit={_PAGE}&offset={offset}"
        try:
            with urllib.request.urlopen(url, timeout=_HTTP_TIMEOUT_S) as response:
                page: dict[str, Any] = json.load(response)
        except TimeoutError as error:
            raise TimedOut(f"{self._monitor} does not answer") from error
        except (OSError, ValueError) as error:
            raise Unavailable(f"no monitoring page at {self._monitor}: {error}") from error
        return page


def _subscriptions(channel: dict[str, Any]) -> list[Subscription]:
    """The rows of one channel of the page, where it is a queue of ours."""
    name = str(channel.get("name", "")).removeprefix(_QUEUE_PREFIX)
    if not name.startswith(_OURS):
        return []
    return [
        Subscription(name, str(row.get("client_id", "")), int(row.get("pending_count", 0)))
        for row in channel.get("subscriptions") or []
        if row.get("client_id") and not row.get("is_offline")  # else the group's last member has gone: all may be read
    ]

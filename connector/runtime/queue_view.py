"""Queues as the API shows them: RabbitMQ's fields, and where the messages are in KubeMQ.

Owns the row of a queue; implements ``ops.queues.QueueView`` over one replica's broker.  Counts of queues that other
connectors read are theirs (``broker/figures.py``), and a page waits for them, and for KubeMQ's count of what nobody has
counted yet, a second each at most.  All else comes from memory, as fresh as the last QueuesInfo call.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from connector.broker.backlog import NEVER
from connector.broker.definitions import table_to_json
from connector.broker.errors import NotFound
from connector.broker.figures import ChannelFigures, Figures, figures_of
from connector.broker.ports import StoreError
from connector.broker.queue import StoredQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from connector.broker.broker import Broker
    from connector.broker.queue import Queue
    from connector.broker.sources import Source
    from connector.broker.vhost import VirtualHost

#: A page waits so long for KubeMQ.
COUNT_S = 1.0


class BrokerQueues:
    """The view; ``rows`` and ``row`` raise NotFound; ``count`` asks KubeMQ and may raise StoreError."""

    def __init__(self, broker: Broker, count: Callable[[], Awaitable[None]]) -> None:
        self._broker = broker
        self._count = count

    async def rows(self, vhost: str | None) -> list[dict[str, Any]]:
        """All queues, or those of one virtual host."""
        broker = self._broker
        hosts = list(broker.vhosts.values()) if vhost is None else [broker.virtual_host(vhost)]
        await self._ask([] if vhost is None else [hosts[0].name])
        await self._count_unknown(queue for host in hosts for queue in host.queues.values())
        return [self._row(host, queue) for host in hosts for queue in host.queues.values()]

    async def row(self, vhost: str, name: str) -> dict[str, Any]:
        """One queue."""
        host = self._broker.virtual_host(vhost)
        if name in host.queues:
            await self._ask([host.name, name])
            await self._count_unknown([host.queues[name]] if name in host.queues else [])
        queue = host.queues.get(name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{host.title}'")
        return self._row(host, queue)

    async def _ask(self, scope: list[str]) -> None:
        """The connectors that read such queues, or keep them in their memory."""
        if self._broker.group is not None:
            have_told = asyncio.Event()
            self._broker.group.survey.look(scope, have_told.set)
            await have_told.wait()

    async def _count_unknown(self, queues: Iterable[Queue]) -> None:
        """By KubeMQ, one call for all: what nobody reads, whose reader does not answer, or is ours since a moment."""
        if any(isinstance(queue, StoredQueue) and self._is_unknown(queue) for queue in queues):
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(COUNT_S):
                    await self._count()

    def _is_unknown(self, queue: StoredQueue) -> bool:
        group = self._broker.group
        if queue.is_owned or group is None:
            return any(source.lease.counts.known_at == NEVER for source in queue.sources)
        return not group.survey.is_known(queue)

    def _figures(self, queue: Queue) -> Figures:
        group = self._broker.group
        return figures_of(queue, self._broker.clock()) if group is None else group.survey.figures(queue)

    def _row(self, host: VirtualHost, queue: Queue) -> dict[str, Any]:
        record = queue.record
        figures = self._figures(queue)
        return {
            "name": queue.name,
            "vhost": host.title,
            "type": "classic",
            "durable": record.durable,
            "auto_delete": record.auto_delete,
            "exclusive": record.exclusive,
            "arguments": table_to_json(record.arguments),
            "state": "running",
            "node": self._broker.away.owner_of(queue) if not queue.is_owned else self._broker.member,
            "consumers": queue.consumer_count,
            "consumers_waiting": figures.waiting,
            "messages": figures.ready + figures.unacked,
            "messages_ready": figures.ready,
            "messages_unacknowledged": figures.unacked,
            "kubemq": self._kubemq(queue, figures) if isinstance(queue, StoredQueue) else None,
        }

    def _kubemq(self, queue: StoredQueue, figures: Figures) -> dict[str, Any]:
        generations = queue.record.generations
        told = {channel.generation: channel for channel in figures.channels}
        return {
            "channel": queue.kubemq_channel,
            "channels": [
                _channel(source, told.get(source.generation, ChannelFigures(source.generation, 0)))
                for source in queue.sources
            ],
            "moving": [
                {"from": number, "to": moving.target, "reason": moving.reason}
                for number, moving in generations.moving.items()
            ],
            "in_doubt": figures.is_held,
        }


def _channel(source: Source, figures: ChannelFigures) -> dict[str, Any]:
    """One of the queue's channels; ``shared``: somebody else reads it too."""
    return {
        "name": source.kubemq_channel,
        "generation": source.generation,
        "messages_ready": figures.ready,
        "messages_unacknowledged": figures.unacked,
        "messages_withheld": figures.withheld,
        "oldest_message_seconds": figures.oldest_s,
        "shared": figures.is_shared,
    }

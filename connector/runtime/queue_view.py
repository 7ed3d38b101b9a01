"""Queues as the API shows them: RabbitMQ's fields, and where the messages are in KubeMQ.

Owns the row of a queue; implements ``ops.queues.QueueView`` over one replica's broker.  Everything comes from memory:
a page never waits for KubeMQ, and counts are as fresh as the last QueuesInfo call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from connector.broker.definitions import table_to_json
from connector.broker.errors import NotFound
from connector.broker.queue import StoredQueue

if TYPE_CHECKING:
    from connector.broker.broker import Broker
    from connector.broker.queue import Queue
    from connector.broker.sources import Source
    from connector.broker.vhost import VirtualHost


class BrokerQueues:
    """The view; ``rows`` and ``row`` raise NotFound."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def rows(self, vhost: str | None) -> list[dict[str, Any]]:
        """All queues, or those of one virtual host."""
        broker = self._broker
        hosts = list(broker.vhosts.values()) if vhost is None else [broker.virtual_host(vhost)]
        return [self._row(host, queue) for host in hosts for queue in host.queues.values()]

    def row(self, vhost: str, name: str) -> dict[str, Any]:
        """One queue."""
        host = self._broker.virtual_host(vhost)
        queue = host.queues.get(name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{host.title}'")
        return self._row(host, queue)

    def _row(self, host: VirtualHost, queue: Queue) -> dict[str, Any]:
        record = queue.record
        ready, unacked = queue.ready_count, queue.unacked_count
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
            "consumers_waiting": queue.waiting_count,
            "messages": ready + unacked,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
            "kubemq": self._kubemq(queue) if isinstance(queue, StoredQueue) else None,
        }

    def _kubemq(self, queue: StoredQueue) -> dict[str, Any]:
        generations = queue.record.generations
        return {
            "channel": queue.kubemq_channel,
            "channels": [self._channel(source) for source in queue.sources],
            "moving": [
                {"from": number, "to": moving.target, "reason": moving.reason}
                for number, moving in generations.moving.items()
            ],
            "in_doubt": queue.is_held,
        }

    def _channel(self, source: Source) -> dict[str, Any]:
        """One of the queue's channels; ``shared``: somebody else reads it too."""
        lease = source.lease
        since = lease.oldest_since if lease.ready_count or lease.mine_count else None
        return {
            "name": source.kubemq_channel,
            "generation": source.generation,
            "messages_ready": lease.ready_count,
            "messages_unacknowledged": len(lease.held) + len(lease.adopted.held),
            "messages_withheld": lease.unreadable_count,
            "oldest_message_seconds": None if since is None else round(self._broker.clock() - since, 1),
            "shared": lease.sharing.is_on,
        }

"""Direct reply-to: the addresses of consumers that wait for replies without having declared a queue (EX-14).

Owns the addresses of one virtual host.  Behind each is a queue in memory that nobody else can name: it is reached
through the default exchange only, and goes with its consumer.  Texts and counts are RabbitMQ 3.10's.
"""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING

from connector.broker.memory_queue import MemoryQueue
from connector.broker.requests import DeclaredQueue
from connector.broker.topology import QueueRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from connector.broker.queue import Hub, Queue
    from connector.broker.remote_queue import RemoteReply

#: What a client consumes from, and puts into reply_to, to be given an address; addresses begin with it and a dot.
REPLY_TO = "amq.rabbitmq.reply-to"


def is_reply_name(name: str) -> bool:
    """True for names that are never those of a queue."""
    return name.startswith(REPLY_TO)


class Replies:
    """The addresses in use."""

    def __init__(self, vhost: str, hub: Hub) -> None:
        self._vhost = vhost
        self._hub = hub
        #: the queue behind an address of another connector, None when there is no such connector
        self.elsewhere: Callable[[str, str], RemoteReply | None] = lambda _vhost, _name: None
        #: what stands behind the last dot of our addresses, so that other connectors find us
        self.place = ""
        self._queues: dict[str, MemoryQueue] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def open(self) -> Queue:
        """A new address, with the queue that its one consumer is to be attached to; it is the queue's name."""
        token = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode("ascii").rstrip("=")
        place = f".{self.place}" if self.place else ""
        record = QueueRecord(self._vhost, f"{REPLY_TO}.{token}{place}", auto_delete=True)
        queue = self._queues[record.name] = MemoryQueue(record, self._hub)
        return queue

    def close(self, queue: Queue) -> None:
        """Its consumer is gone: what comes now has no route."""
        if self._queues.pop(queue.name, None) is not None:
            queue.close(lambda: None)

    def by_name(self, name: str) -> MemoryQueue | None:
        """The queue behind an address of ours."""
        return self._queues.get(name)

    def find(self, routing_keys: Iterable[str]) -> tuple[Queue, ...]:
        """The queues behind those of the keys that are addresses in use; another connector's may turn out not to be."""
        queues = self._queues
        found = [queues.get(key) or self.elsewhere(self._vhost, key) for key in routing_keys if is_reply_name(key)]
        return tuple([queue for queue in found if queue is not None])

    def declare(self, name: str, done: Callable[[DeclaredQueue | None], None]) -> None:
        """``done`` gets what a declaration of a reply name says; None when nobody reads there."""
        declared = DeclaredQueue(name, 0, 1)
        queue = None if name == REPLY_TO or name in self._queues else self.elsewhere(self._vhost, name)
        if queue is not None:
            queue.look_for(lambda is_there: done(declared if is_there else None))
        else:
            done(declared if name == REPLY_TO or name in self._queues else None)

"""What the session needs from both sides, as protocols; no code.

Downwards the broker (``connector.broker`` has the classes), upwards the runtime that owns socket, clock and log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.amqp.errors import AmqpError
    from connector.amqp.wire import Table
    from connector.broker.message import Message
    from connector.broker.ports import Consumer, Done, Receipt
    from connector.broker.requests import ExchangeDeclare, QueueDeclare
    from connector.session.connection import Connection


class Queue(Protocol):
    """A queue as one client uses it."""

    name: str
    is_stored: bool  #: its messages live in KubeMQ, not in this connector's memory
    consumer_timeout_s: float | None  #: time to acknowledge a delivery; 0 for no limit, None for the connector's

    @property
    def label(self) -> str:
        """What texts call it: kind, name and virtual host."""

    def needs_admission(self, consumer: Consumer) -> bool:
        """Whether another connector must say first if this one may attach."""

    def admit(self, consumer: Consumer, done: Done) -> None:
        """Ask it; then attach the consumer, or ``decline``."""

    def decline(self) -> None:
        """The consumer that was admitted does not come."""

    def add_consumer(self, consumer: Consumer) -> None:
        """Attach; raises AccessRefused (exclusive use).  Delivery starts at the next ``dispatch``."""

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach: no delivery after this returns."""

    def get(self, done: Done) -> None:
        """One message: ``done`` gets (Message, ready messages left), None when empty, or an exception."""

    def settle(self, message: Message) -> None:
        """The message is done with."""

    def requeue(self, messages: list[Message]) -> None:
        """Delivered before, ascending: to the tail or to their old place, redelivered."""

    def give_back(self, message: Message) -> None:
        """The client never saw it: back in its place."""

    def credit_changed(self) -> None:
        """A consumer has room again."""

    def when_acknowledged(self, done: Callable[[], None]) -> None:
        """Call ``done`` when everything settled and requeued so far has provably arrived where it is kept."""


#: What ``VirtualHost.route`` gives to ``publish_to``; nobody looks inside.
Queues: TypeAlias = tuple[Any, ...]


class Replies(Protocol):
    """The addresses of direct reply-to in one virtual host."""

    def open(self) -> Queue:
        """A new address: the name of a queue for one consumer, which goes with it."""


class VirtualHost(Protocol):
    """One virtual host; slow operations call ``done`` once, now or later, with the result or an exception."""

    @property
    def name(self) -> str:
        """The name shown to clients."""

    @property
    def replies(self) -> Replies:
        """Where direct replies go."""

    def publish(self, exchange: str, routing_key: str, header: bytes, body: bytes, receipt: Receipt, token: int) -> int:
        """Route; returns to how many queues, so many results follow.  Raises NotFound, AccessRefused."""

    def route(self, exchange: str, routing_key: str, header: bytes) -> tuple[Queues, bytes]:
        """Where a message goes as things stand now, and the header it goes with; raises as ``publish``."""

    def publish_to(
        self,
        queues: Queues,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
        receipt: Receipt,
        token: int,
    ) -> int:
        """As ``publish``, to those of the queues that ``route`` gave which still exist."""

    def declare_queue(self, request: QueueDeclare, owner: object, done: Done) -> None:
        """Result: DeclaredQueue."""

    def delete_queue(self, name: str, owner: object, if_unused: bool, if_empty: bool, done: Done) -> None:
        """Result: number of ready messages deleted."""

    def purge_queue(self, name: str, owner: object, done: Done) -> None:
        """Result: number of messages purged."""

    def declare_exchange(self, request: ExchangeDeclare, done: Done) -> None:
        """Result: nothing."""

    def delete_exchange(self, name: str, if_unused: bool, done: Done) -> None:
        """Result: nothing."""

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str, arguments: Table, owner: object, done: Done
    ) -> None:
        """Result: nothing."""

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str, arguments: Table, owner: object, done: Done
    ) -> None:
        """Result: nothing."""

    def bind_exchange(self, destination: str, source: str, routing_key: str, arguments: Table, done: Done) -> None:
        """Result: nothing."""

    def unbind_exchange(self, destination: str, source: str, routing_key: str, arguments: Table, done: Done) -> None:
        """Result: nothing."""

    def find_queue(self, name: str, owner: object) -> Queue:
        """The queue, for consume and get; raises NotFound or Locked."""

    def on_owner_gone(self, owner: object) -> None:
        """The connection is gone: its exclusive queues go."""


class Broker(Protocol):
    """All virtual hosts."""

    def virtual_host(self, name: str) -> VirtualHost:
        """Find one by its AMQP name; raises NotFound."""


class Authenticator(Protocol):
    """Who may log in."""

    def __call__(self, user: str, password: bytes, peer_host: str) -> bool:
        """True when the user may log in with this password from this address."""


class LedgerOwner(Protocol):
    """Who a ledger belongs to: the channel."""

    def on_confirms_ready(self) -> None:
        """Results wait for ``take_confirms``; called once until they are taken."""

    def on_publish_lost(self, reason: str) -> None:
        """A publish without confirms was not stored: the client must be told somehow."""

    def on_unrouted(self, message: Message, *, mandatory: bool) -> None:
        """A publish that seemed to have a route had none; its confirm follows."""


class Runtime(Protocol):
    """What a connection asks of whoever owns its socket.

    Nothing here may call back into the connection, but for ``write``, during which ``Connection.on_write_blocked``
    may come.
    """

    def write(self, data: bytes) -> None:
        """Send; never blocks."""

    def wants_flush(self) -> None:
        """Output waits: call ``Connection.flush`` at the end of this turn.  Called once until it is flushed."""

    def wants_read(self) -> None:
        """What was read is kept: call ``Connection.read_on`` when nothing blocks it strictly.  May be called again."""

    def pause_reading(self) -> None:
        """Read no more from the socket."""

    def resume_reading(self) -> None:
        """Read again."""

    def close(self) -> None:
        """Send what was written, then close the socket; ``Connection.lost`` follows."""

    def abort(self) -> None:
        """Close the socket at once, whatever is not sent; ``Connection.lost`` follows."""

    def on_opened(self, connection: Connection) -> None:
        """The client is in (connection.open-ok): ``connection.info`` is complete."""

    def on_error(self, connection: Connection, channel_no: int, error: AmqpError, cause: BaseException) -> None:
        """A channel or (number 0) the connection is closed for this error; ``cause`` is what was raised.

        An INTERNAL_ERROR whose cause is neither an AmqpError nor one of the broker's exceptions is a bug: log it
        with its traceback.
        """

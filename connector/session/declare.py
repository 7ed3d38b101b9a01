"""Exchanges, queues and bindings: from the method to the broker's slow operation and back.

Owns the reading of the methods (empty names, CR and LF, no-wait).  Must not know the rules of equivalence, arguments
and names: the broker has them.  Source: ``rabbit_channel:expand_shortcuts``, ``strip_cr_lf``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from pamqp import commands

from connector.amqp.methods import build
from connector.broker.requests import DeclaredQueue, ExchangeDeclare, QueueDeclare

if TYPE_CHECKING:
    from pamqp.base import Frame

    from connector.amqp.wire import Table
    from connector.session.channel import Channel


def _clean(name: str) -> str:
    """A name read from a file with its line end (RabbitMQ strips them)."""
    return name.replace("\r", "").replace("\n", "")


def _plain_reply(channel: Channel, method: Any, ok: type[Frame]) -> Callable[[Any], None]:
    """Answer with a method without fields, unless the client does not wait for it (PC-15)."""

    def reply(_result: object) -> None:
        if not method.nowait:
            channel.reply(build(ok))

    return reply


def _counting_reply(channel: Channel, method: Any, ok: type[Frame]) -> Callable[[Any], None]:
    """Likewise with a number of messages."""

    def reply(message_count: int) -> None:
        if not method.nowait:
            channel.reply(build(ok, message_count=message_count))

    return reply


# --------------------------------------------------------------------------------------------- exchanges
def on_exchange_declare(channel: Channel, method: commands.Exchange.Declare) -> None:
    """Declare, or ask whether it exists."""
    request = ExchangeDeclare(
        name=_clean(method.exchange),
        type=method.exchange_type,
        passive=bool(method.passive),
        durable=bool(method.durable),
        auto_delete=bool(method.auto_delete),
        internal=bool(method.internal),
        arguments=cast("Table", method.arguments),
    )
    done = channel.wait(_plain_reply(channel, method, commands.Exchange.DeclareOk))
    channel.vhost.declare_exchange(request, done)


def on_exchange_delete(channel: Channel, method: commands.Exchange.Delete) -> None:
    """Delete; a missing one is fine."""
    done = channel.wait(_plain_reply(channel, method, commands.Exchange.DeleteOk))
    channel.vhost.delete_exchange(_clean(method.exchange), bool(method.if_unused), done)


def on_exchange_bind(channel: Channel, method: commands.Exchange.Bind) -> None:
    """Bind an exchange to another (EX-12)."""
    done = channel.wait(_plain_reply(channel, method, commands.Exchange.BindOk))
    destination, source = _clean(method.destination), _clean(method.source)
    channel.vhost.bind_exchange(destination, source, method.routing_key, cast("Table", method.arguments), done)


def on_exchange_unbind(channel: Channel, method: commands.Exchange.Unbind) -> None:
    """Take such a binding away."""
    done = channel.wait(_plain_reply(channel, method, commands.Exchange.UnbindOk))
    destination, source = _clean(method.destination), _clean(method.source)
    channel.vhost.unbind_exchange(destination, source, method.routing_key, cast("Table", method.arguments), done)


# --------------------------------------------------------------------------------------------- queues
def on_queue_declare(channel: Channel, method: commands.Queue.Declare) -> None:
    """Declare, or ask for the counts; the channel remembers the name (QU-02)."""
    request = QueueDeclare(
        name=_clean(method.queue),
        passive=bool(method.passive),
        durable=bool(method.durable),
        exclusive=bool(method.exclusive),
        auto_delete=bool(method.auto_delete),
        arguments=cast("Table", method.arguments),
    )

    def reply(queue: DeclaredQueue) -> None:
        channel.last_queue = queue.name
        if not method.nowait:
            channel.reply(
                build(
                    commands.Queue.DeclareOk,
                    queue=queue.name,
                    message_count=queue.message_count,
                    consumer_count=queue.consumer_count,
                )
            )

    def orphan(_queue: DeclaredQueue) -> None:
        if channel.connection.is_over:  # an exclusive queue must not outlive its connection (QU-05)
            channel.vhost.on_owner_gone(channel.connection)

    channel.vhost.declare_queue(request, channel.connection, channel.wait(reply, orphan))


def on_queue_purge(channel: Channel, method: commands.Queue.Purge) -> None:
    """Drop what is ready; here RabbitMQ takes the name as it is."""
    name = channel.queue_name(method.queue)
    done = channel.wait(_counting_reply(channel, method, commands.Queue.PurgeOk), takes_long=True)
    channel.vhost.purge_queue(name, channel.connection, done)


def on_queue_delete(channel: Channel, method: commands.Queue.Delete) -> None:
    """Delete; a missing one is fine."""
    name = channel.queue_name(_clean(method.queue))
    done = channel.wait(_counting_reply(channel, method, commands.Queue.DeleteOk), takes_long=True)
    channel.vhost.delete_queue(name, channel.connection, bool(method.if_unused), bool(method.if_empty), done)


def _binding(channel: Channel, method: commands.Queue.Bind | commands.Queue.Unbind) -> tuple[str, str, str]:
    """Return queue, exchange and routing key; with neither queue nor key the key is the queue's name (EX-13)."""
    queue = channel.queue_name(_clean(method.queue))
    key = method.routing_key
    return queue, _clean(method.exchange), queue if not (method.queue or key) else key


def on_queue_bind(channel: Channel, method: commands.Queue.Bind) -> None:
    """Bind a queue to an exchange."""
    queue, exchange, key = _binding(channel, method)
    done = channel.wait(_plain_reply(channel, method, commands.Queue.BindOk))
    channel.vhost.bind_queue(queue, exchange, key, cast("Table", method.arguments), channel.connection, done)


def on_queue_unbind(channel: Channel, method: commands.Queue.Unbind) -> None:
    """Take a binding away; this method has no no-wait."""
    queue, exchange, key = _binding(channel, method)
    done = channel.wait(lambda _result: channel.reply(build(commands.Queue.UnbindOk)))
    channel.vhost.unbind_queue(queue, exchange, key, cast("Table", method.arguments), channel.connection, done)

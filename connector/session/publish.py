"""basic.publish: from checked content to the broker, and back as basic.return.

Owns what is checked of a message before it is taken (PU-10, PU-11, PU-14, PU-16) and the return of what has no route
(PU-03).  Must not know how routing works or where messages go.  Source: ``rabbit_channel`` 3.10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from connector.amqp.errors import AmqpError
from connector.amqp.frames import encode_return
from connector.amqp.header import CACHED_MAX_BYTES, EMPTY, parse
from connector.amqp.header_edits import with_reply_to
from connector.amqp.reply_codes import ReplyCode
from connector.broker.replies import REPLY_TO
from connector.broker.routing import split_copies
from mapping.policy import invalid_expiration

if TYPE_CHECKING:
    from connector.session.channel import Channel
    from connector.session.confirms import PublishLedger
    from connector.session.ports import Queues

MANDATORY, IMMEDIATE = 1, 2

_REPLY_TO = REPLY_TO.encode()

#: transient and persistent
_DELIVERY_MODES = (None, 1, 2)


class Outgoing(NamedTuple):
    """A checked publish that waits for the commit of its transaction; ``bits`` as for ``on_basic_publish``.

    ``queues`` is what ``VirtualHost.route`` gave when it came; None: routed at the commit.
    """

    exchange: str
    routing_key: str
    bits: int
    header: bytes
    body: bytes
    queues: Queues | None


def on_basic_publish(channel: Channel, exchange: str, routing_key: str, bits: int, header: bytes, body: bytes) -> None:
    """Check, number, route; ``bits`` are MANDATORY and IMMEDIATE."""
    if bits & IMMEDIATE:
        raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
    if header != channel.checked_header:
        try:
            header = check_header(channel, header)
        except AmqpError:
            channel.vhost.route(exchange, routing_key, EMPTY)  # RabbitMQ looks for the exchange first
            raise
    counters = channel.counters
    counters.messages_received += 1
    if channel.tx is not None:
        channel.tx.publish(exchange, routing_key, bits, header, body)
        return
    ledger = channel.publishes
    copies = channel.vhost.publish(exchange, routing_key, header, body, ledger, ledger.begin())
    if ledger.confirming:
        counters.received_confirm += 1
    if not copies:
        drop(channel, exchange, routing_key, bits, header, body)
    elif not ledger.doubts or ledger.is_certain(copies, mandatory=bool(bits & MANDATORY)):
        counters.routed += 1
    ledger.routed(copies, len(header) + len(body))


def hand_over(channel: Channel, ledger: PublishLedger, message: Outgoing) -> None:
    """The commit's part of a publish."""
    exchange, routing_key, bits, header, body, queues = message
    vhost, token = channel.vhost, ledger.begin()
    if queues is None:
        copies = vhost.publish(exchange, routing_key, header, body, ledger, token)
    else:
        copies = vhost.publish_to(queues, exchange, routing_key, header, body, ledger, token)
    if not copies:
        drop(channel, exchange, routing_key, bits, header, body)
    elif not ledger.doubts or ledger.is_certain(copies, mandatory=bool(bits & MANDATORY)):
        channel.counters.routed += 1
    ledger.routed(copies, len(header) + len(body))


def drop(channel: Channel, exchange: str, routing_key: str, bits: int, header: bytes, body: bytes) -> None:
    """It has no route: back to a client that wants to know."""
    if bits & MANDATORY:
        channel.counters.unroutable_returned += 1
        _return(channel, exchange, routing_key, split_copies(header)[1], body)
    else:
        channel.counters.unroutable_dropped += 1


def _return(channel: Channel, exchange: str, routing_key: str, header: bytes, body: bytes) -> None:
    """Send it back whole, before its confirm (PU-03, PU-04)."""
    code = ReplyCode.NO_ROUTE
    frame_max = channel.connection.frame_max
    channel.output.put(
        encode_return(channel.number, int(code), code.name, exchange, routing_key, header, body, frame_max)
    )


def on_content_too_large(channel: Channel, size: int) -> None:
    """The header announced more than is allowed, or than there is room for; the body is not even gathered (PU-10)."""
    policy = channel.connection.policy
    largest = policy.max_body_bytes
    if size <= largest:
        reason = (
            f"message size {size}: with the messages under way on other channels more than {policy.client_bodies_bytes}"
        )
        raise AmqpError(ReplyCode.CONTENT_TOO_LARGE, reason)
    reason = f"message size {size} is larger than configured max size {largest}"
    raise AmqpError(ReplyCode.PRECONDITION_FAILED, reason)


def check_header(channel: Channel, header: bytes) -> bytes:
    """Refuse what RabbitMQ refuses, and what is not built; return the header to send.

    That is the same, and is remembered where it is short, unless it asks for a direct reply.  Raises 502 malformed, 406
    invalid, 540 for per-message expiration.
    """
    properties = parse(header)
    if properties.reply_to == _REPLY_TO:
        if channel.replies is None:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "fast reply consumer does not exist")
        header = with_reply_to(properties, channel.replies.queue.name)
    if properties.user_id is not None:
        _check_user(channel, properties.user_id)
    if properties.expiration is not None:
        _check_expiration(properties.expiration)
    if properties.delivery_mode not in _DELIVERY_MODES:
        reason = f"invalid message: {{delivery_mode_unknown,{properties.delivery_mode}}}"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, reason)
    if header is properties.raw and len(header) <= CACHED_MAX_BYTES:
        channel.checked_header = header
    return header


def _check_user(channel: Channel, user_id: bytes) -> None:
    """The property, where it is set, is the name the client logged in with (PU-16)."""
    user = channel.connection.info.user
    if user_id != user.encode("utf-8", "surrogateescape"):
        claimed = user_id.decode("utf-8", "replace")
        reason = f"user_id property set to '{claimed}' but authenticated user was '{user}'"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, reason)


def _check_expiration(expiration: bytes) -> None:
    if problem := invalid_expiration(expiration):
        reason = f"invalid expiration '{expiration.decode('utf-8', 'replace')}': {problem}"
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, reason)
    raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "per-message expiration is not supported")

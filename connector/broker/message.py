"""The message as the broker sees it: routing facts, raw header bytes, body, and where KubeMQ keeps it.

Owns the one object that exists per message in memory.  Knows nothing of sockets, channels or gRPC; the header
stays the raw property bytes the publisher sent (see ``connector.amqp.header``).
"""

from __future__ import annotations


class Message:
    """One message: published here, or read from a KubeMQ channel.

    ``header`` is the AMQP content header from the property flags on (no class, weight or size).  ``sequence`` is
    the KubeMQ Sequence inside ``kubemq_channel`` (0 while the message was never stored), ``message_id`` the KubeMQ
    MessageID, unique per stored copy (KI-05).  ``delivery_count`` counts earlier failed deliveries (requeues).
    ``envelope_bytes`` is what all but the body takes in KubeMQ, as read there (0: not known).
    """

    __slots__ = (
        "body",
        "delivery_count",
        "envelope_bytes",
        "exchange",
        "header",
        "kubemq_channel",
        "message_id",
        "redelivered",
        "routing_key",
        "sequence",
    )

    def __init__(
        self,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
        message_id: str = "",
        sequence: int = 0,
        kubemq_channel: str = "",
        redelivered: bool = False,
        delivery_count: int = 0,
        envelope_bytes: int = 0,
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.header = header
        self.body = body
        self.message_id = message_id
        self.sequence = sequence
        self.kubemq_channel = kubemq_channel
        self.redelivered = redelivered
        self.delivery_count = delivery_count
        self.envelope_bytes = envelope_bytes

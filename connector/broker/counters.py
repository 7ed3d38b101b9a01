"""What the connector has counted since it started: plain integers that the hot path adds to.

Owns the numbers, not their names outside: ``connector.ops.metrics`` reads them when somebody asks (OP-08, OP-09).
Nothing here is a rate, a gauge or a label; what can be counted by looking (open connections, ready messages) is not
kept here.
"""

from __future__ import annotations


class Counters:
    """One per process; every attribute only grows.

    Connections and channels, declarations, messages in (``received`` to ``unroutable_returned``), messages out
    (``delivered`` to ``requeued``), and what happened towards KubeMQ.
    """

    __slots__ = (
        "acknowledged",
        "auth_failures",
        "channels_closed",
        "channels_opened",
        "confirmed",
        "connections_closed",
        "connections_opened",
        "connections_refused",
        "delivered",
        "delivered_no_ack",
        "get_empty",
        "got",
        "got_no_ack",
        "internal_errors",
        "kubemq_errors",
        "kubemq_requests",
        "link_losses",
        "messages_received",
        "nacked",
        "queues_created",
        "queues_declared",
        "queues_deleted",
        "received_confirm",
        "redelivered",
        "rejected",
        "requeued",
        "routed",
        "topology_events_skipped",
        "unroutable_dropped",
        "unroutable_returned",
    )

    def __init__(self) -> None:
        self.connections_opened = 0  # got as far as connection.open-ok
        self.connections_closed = 0  # of those opened
        self.connections_refused = 0  # over the connection limit, or a handshake that failed
        self.auth_failures = 0
        self.channels_opened = 0
        self.channels_closed = 0

        self.queues_declared = 0  # every queue.declare that was not passive and succeeded
        self.queues_created = 0  # of those, the ones that made the queue
        self.queues_deleted = 0

        self.messages_received = 0
        self.received_confirm = 0  # of those, on a channel in confirm mode
        self.confirmed = 0  # publishes answered with basic.ack (one each, however coalesced)
        self.nacked = 0  # publishes answered with basic.nack
        self.routed = 0  # publishes that reached at least one queue
        self.unroutable_dropped = 0
        self.unroutable_returned = 0

        self.delivered = 0  # basic.deliver to a consumer that acknowledges
        self.delivered_no_ack = 0  # basic.deliver to a consumer that does not
        self.got = 0  # basic.get-ok, to be acknowledged
        self.got_no_ack = 0
        self.get_empty = 0
        self.redelivered = 0  # of all delivered and got, the ones with redelivered=true
        self.acknowledged = 0  # messages, however acknowledged
        self.rejected = 0  # rejected without requeue
        self.requeued = 0

        self.kubemq_requests = 0
        self.kubemq_errors = 0  # requests that failed, and messages that KubeMQ refused
        self.link_losses = 0  # times the link to KubeMQ broke
        self.topology_events_skipped = 0  # of the log: malformed, of an unknown version, or not to be applied
        self.internal_errors = 0  # bugs: an exception nobody had expected

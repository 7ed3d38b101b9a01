"""Metrics for Prometheus: reads plain counters and gauges when somebody asks, so counting costs an addition.

Owns names and labels: RabbitMQ's own where it has the number, so that its dashboards and alerts work (OP-08), and
``kubemq_amqp_*`` for what is ours (OP-09).  Must not know where the numbers come from.  No label names a queue, a
channel or a client: their number is not bounded (OP-10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from connector.broker.counters import Counters
from connector.version import VERSION


@dataclass(slots=True)
class Gauges:
    """What can be counted by looking, at one moment; counts unless the name says bytes."""

    connections: int
    channels: int
    consumers: int
    queues: int
    messages_ready: int
    messages_unacked: int
    outbox_count: int
    outbox_bytes: int
    memory_queues_bytes: int
    is_kubemq_connected: bool
    queues_shared: int = 0
    messages_withheld: int = 0
    oldest_message_s: float = 0.0
    queues_in_doubt: int = 0
    tasks: int = 0
    kubemq_moves: int = 0
    partial_bytes: int = 0
    held_bytes: int = 0
    in_flight_bytes: int = 0
    queued_bytes: int = 0
    tx_bytes: int = 0
    output_bytes: int = 0
    paused_connections: int = 0
    members: int = 1
    consumers_waiting: int = 0


_PROTOCOL = {"protocol": "amqp091"}
_QUEUE_TYPE = {"protocol": "amqp091", "queue_type": "rabbit_classic_queue"}
_DELIVERED = ("delivered", "delivered_no_ack", "got", "got_no_ack")

#: name without ``_total``, labels, what it counts, and the counters that are added up for it
_COUNTERS: tuple[tuple[str, Mapping[str, str], str, tuple[str, ...]], ...] = (
    ("rabbitmq_connections_opened", {}, "Connections opened", ("connections_opened",)),
    ("rabbitmq_connections_closed", {}, "Connections closed", ("connections_closed",)),
    ("rabbitmq_channels_opened", {}, "Channels opened", ("channels_opened",)),
    ("rabbitmq_channels_closed", {}, "Channels closed", ("channels_closed",)),
    ("rabbitmq_queues_declared", {}, "Queues declared", ("queues_declared",)),
    ("rabbitmq_queues_created", {}, "Queues created", ("queues_created",)),
    ("rabbitmq_queues_deleted", {}, "Queues deleted", ("queues_deleted",)),
    ("rabbitmq_global_messages_received", _PROTOCOL, "Messages received from publishers", ("messages_received",)),
    (
        "rabbitmq_global_messages_received_confirm",
        _PROTOCOL,
        "Messages received from publishers expecting confirmations",
        ("received_confirm",),
    ),
    ("rabbitmq_global_messages_confirmed", _PROTOCOL, "Messages confirmed to publishers", ("confirmed",)),
    ("rabbitmq_global_messages_routed", _PROTOCOL, "Messages routed to at least one queue", ("routed",)),
    (
        "rabbitmq_global_messages_unroutable_dropped",
        _PROTOCOL,
        "Messages published as non-mandatory that no queue took",
        ("unroutable_dropped",),
    ),
    (
        "rabbitmq_global_messages_unroutable_returned",
        _PROTOCOL,
        "Messages published as mandatory that no queue took",
        ("unroutable_returned",),
    ),
    ("rabbitmq_global_messages_delivered", _QUEUE_TYPE, "Messages delivered to consumers and gets", _DELIVERED),
    (
        "rabbitmq_global_messages_delivered_consume_manual_ack",
        _QUEUE_TYPE,
        "Messages delivered to consumers that acknowledge",
        ("delivered",),
    ),
    (
        "rabbitmq_global_messages_delivered_consume_auto_ack",
        _QUEUE_TYPE,
        "Messages delivered to consumers that do not acknowledge",
        ("delivered_no_ack",),
    ),
    (
        "rabbitmq_global_messages_delivered_get_manual_ack",
        _QUEUE_TYPE,
        "Messages taken by basic.get, to be acknowledged",
        ("got",),
    ),
    (
        "rabbitmq_global_messages_delivered_get_auto_ack",
        _QUEUE_TYPE,
        "Messages taken by basic.get without acknowledgement",
        ("got_no_ack",),
    ),
    ("rabbitmq_global_messages_get_empty", _QUEUE_TYPE, "basic.get on an empty queue", ("get_empty",)),
    ("rabbitmq_global_messages_redelivered", _QUEUE_TYPE, "Messages delivered again", ("redelivered",)),
    ("rabbitmq_global_messages_acknowledged", _QUEUE_TYPE, "Messages acknowledged", ("acknowledged",)),
    ("rabbitmq_auth_attempts_failed", {"protocol": "amqp091"}, "Refused logins", ("auth_failures",)),
    (
        "kubemq_amqp_connections_refused",
        {},
        "Connections over the limit or with a bad handshake",
        ("connections_refused",),
    ),
    ("kubemq_amqp_messages_nacked", {}, "Published messages answered with basic.nack", ("nacked",)),
    ("kubemq_amqp_messages_rejected", {}, "Messages rejected without requeue", ("rejected",)),
    ("kubemq_amqp_messages_requeued", {}, "Messages put back by consumers", ("requeued",)),
    ("kubemq_amqp_kubemq_requests", {}, "Requests sent to KubeMQ", ("kubemq_requests",)),
    ("kubemq_amqp_kubemq_errors", {}, "Requests and messages that KubeMQ did not accept", ("kubemq_errors",)),
    ("kubemq_amqp_link_losses", {}, "Times the link to KubeMQ broke", ("link_losses",)),
    (
        "kubemq_amqp_topology_events_skipped",
        {},
        "Events of the topology log that were malformed, of an unknown version, or could not be applied",
        ("topology_events_skipped",),
    ),
    ("kubemq_amqp_internal_errors", {}, "Bugs: exceptions nobody expected; must stay 0", ("internal_errors",)),
)

#: name, what it shows, and the gauges that are added up for it
_GAUGES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("rabbitmq_connections", "Connections currently open", ("connections",)),
    ("rabbitmq_channels", "Channels currently open", ("channels",)),
    ("rabbitmq_consumers", "Consumers currently connected", ("consumers",)),
    ("rabbitmq_queues", "Queues available", ("queues",)),
    ("rabbitmq_queue_messages", "Messages ready and unacknowledged", ("messages_ready", "messages_unacked")),
    ("rabbitmq_queue_messages_ready", "Messages ready to be delivered", ("messages_ready",)),
    ("rabbitmq_queue_messages_unacked", "Messages delivered and not acknowledged", ("messages_unacked",)),
    ("kubemq_amqp_outbox_messages", "Messages waiting to be stored in KubeMQ", ("outbox_count",)),
    ("kubemq_amqp_outbox_bytes", "Bytes waiting to be stored in KubeMQ", ("outbox_bytes",)),
    ("kubemq_amqp_memory_queues_bytes", "Bytes in queues kept in memory", ("memory_queues_bytes",)),
    ("kubemq_amqp_shared_queues", "Queues whose channel somebody else reads too", ("queues_shared",)),
    ("kubemq_amqp_oldest_message_seconds", "Age of the oldest message stored, as far as known", ("oldest_message_s",)),
    ("kubemq_amqp_withheld_messages", "Stored, but a crashed KubeMQ server withholds them", ("messages_withheld",)),
    ("kubemq_amqp_queues_in_doubt", "Queues examined or moved after a restart of KubeMQ", ("queues_in_doubt",)),
    ("kubemq_amqp_partial_bytes", "Bytes of messages that have arrived in part", ("partial_bytes",)),
    ("kubemq_amqp_held_bytes", "Bytes read from KubeMQ and not acknowledged", ("held_bytes",)),
    ("kubemq_amqp_in_flight_bytes", "Bytes published and not stored yet, of all clients", ("in_flight_bytes",)),
    ("kubemq_amqp_tx_bytes", "Bytes published in transactions that are not committed", ("tx_bytes",)),
    ("kubemq_amqp_queued_bytes", "Bytes waiting behind slow methods, of all clients", ("queued_bytes",)),
    ("kubemq_amqp_output_bytes", "Bytes waiting to be sent to clients", ("output_bytes",)),
    ("kubemq_amqp_paused_connections", "Clients not read for now, for any reason", ("paused_connections",)),
    ("kubemq_amqp_tasks", "Tasks of the event loop: some for each active queue, none for an idle one", ("tasks",)),
    ("kubemq_amqp_kubemq_moves", "Times that another KubeMQ address took over", ("kubemq_moves",)),
    ("kubemq_amqp_members", "Living connectors on this KubeMQ, as this one sees it", ("members",)),
    ("kubemq_amqp_consumers_waiting", "Consumers here of queues that another connector reads", ("consumers_waiting",)),
    ("kubemq_amqp_kubemq_connected", "1 while KubeMQ answers", ("is_kubemq_connected",)),
)


class BrokerCollector(Collector):
    """Turns counters and gauges into metric families at each scrape.

    ``marks`` are the high marks of the buffers by setting name; they are shown beside what they bound.
    """

    def __init__(
        self,
        read_counters: Callable[[], Counters],
        read_gauges: Callable[[], Gauges],
        marks: Mapping[str, int],
    ) -> None:
        self._read_counters = read_counters
        self._read_gauges = read_gauges
        self._marks = marks

    def collect(self) -> Iterator[Metric]:
        """Yield every family once, read at this moment."""
        counters = self._read_counters()
        for name, labels, text, fields in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=list(labels))
            counter.add_metric(list(labels.values()), sum(getattr(counters, field) for field in fields))
            yield counter
        gauges = self._read_gauges()
        for name, text, fields in _GAUGES:
            yield GaugeMetricFamily(name, text, value=sum(getattr(gauges, field) for field in fields))
        high = GaugeMetricFamily("kubemq_amqp_high_mark", "Where a buffer stops its senders", labels=["setting"])
        for setting, mark in self._marks.items():
            high.add_metric([setting], mark)
        yield high
        yield InfoMetricFamily("kubemq_amqp_build", "This connector", value={"version": VERSION})


def make_registry(collector: BrokerCollector) -> CollectorRegistry:
    """Return a registry of our numbers and the process's own (memory, descriptors, CPU, collections)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(collector)
    return registry

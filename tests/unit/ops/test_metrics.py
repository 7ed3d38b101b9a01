"""Metrics: every counter is shown, under RabbitMQ's names where it has them, read at the moment of asking."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from connector.broker.counters import Counters
from connector.ops.metrics import BrokerCollector, Gauges, make_registry
from connector.version import VERSION


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def gauges() -> Gauges:
    return Gauges(
        connections=1,
        channels=2,
        consumers=3,
        queues=4,
        messages_ready=50,
        messages_unacked=6,
        outbox_count=7,
        outbox_bytes=8,
        memory_queues_bytes=9,
        is_kubemq_connected=True,
    )


@pytest.fixture
def registry(counters: Counters, gauges: Gauges) -> CollectorRegistry:
    marks = {"in_flight_high_bytes": 64, "output_high_bytes": 5}
    return make_registry(BrokerCollector(lambda: counters, lambda: gauges, marks))


def lines(registry: CollectorRegistry) -> list[str]:
    return generate_latest(registry).decode().splitlines()


def test_each_counter_moves_a_metric_of_its_own(registry: CollectorRegistry, counters: Counters) -> None:
    for value, name in enumerate(Counters.__slots__, 1):
        before = set(lines(registry))
        setattr(counters, name, 1000 + value)
        moved = [line for line in set(lines(registry)) - before if line.startswith(("rabbitmq_", "kubemq_"))]
        assert any(line.endswith(f" {1000.0 + value}") for line in moved), name


@pytest.mark.parametrize(
    ("counter", "line"),
    [
        ("connections_opened", "rabbitmq_connections_opened_total 3.0"),
        ("connections_closed", "rabbitmq_connections_closed_total 3.0"),
        ("channels_opened", "rabbitmq_channels_opened_total 3.0"),
        ("queues_created", "rabbitmq_queues_created_total 3.0"),
        ("messages_received", 'rabbitmq_global_messages_received_total{protocol="amqp091"} 3.0'),
        ("received_confirm", 'rabbitmq_global_messages_received_confirm_total{protocol="amqp091"} 3.0'),
        ("confirmed", 'rabbitmq_global_messages_confirmed_total{protocol="amqp091"} 3.0'),
        ("routed", 'rabbitmq_global_messages_routed_total{protocol="amqp091"} 3.0'),
        ("unroutable_dropped", 'rabbitmq_global_messages_unroutable_dropped_total{protocol="amqp091"} 3.0'),
        (
            "acknowledged",
            'rabbitmq_global_messages_acknowledged_total{protocol="amqp091",queue_type="rabbit_classic_queue"} 3.0',
        ),
        (
            "get_empty",
            'rabbitmq_global_messages_get_empty_total{protocol="amqp091",queue_type="rabbit_classic_queue"} 3.0',
        ),
        ("nacked", "kubemq_amqp_messages_nacked_total 3.0"),
        ("link_losses", "kubemq_amqp_link_losses_total 3.0"),
    ],
)
def test_counters_have_rabbitmqs_names(
    registry: CollectorRegistry, counters: Counters, counter: str, line: str
) -> None:
    setattr(counters, counter, 3)
    assert line in lines(registry)


def test_delivered_counts_consumers_and_gets(registry: CollectorRegistry, counters: Counters) -> None:
    counters.delivered, counters.delivered_no_ack, counters.got, counters.got_no_ack = 1, 2, 4, 8
    name = 'rabbitmq_global_messages_delivered_total{protocol="amqp091",queue_type="rabbit_classic_queue"}'
    assert f"{name} 15.0" in lines(registry)


def test_gauges_are_read_when_asked(registry: CollectorRegistry, gauges: Gauges) -> None:
    assert {
        "rabbitmq_connections 1.0",
        "rabbitmq_channels 2.0",
        "rabbitmq_consumers 3.0",
        "rabbitmq_queues 4.0",
        "rabbitmq_queue_messages 56.0",
        "rabbitmq_queue_messages_ready 50.0",
        "rabbitmq_queue_messages_unacked 6.0",
        "kubemq_amqp_outbox_messages 7.0",
        "kubemq_amqp_outbox_bytes 8.0",
        "kubemq_amqp_memory_queues_bytes 9.0",
        "kubemq_amqp_kubemq_connected 1.0",
        'kubemq_amqp_high_mark{setting="in_flight_high_bytes"} 64.0',
        'kubemq_amqp_high_mark{setting="output_high_bytes"} 5.0',
        f'kubemq_amqp_build_info{{version="{VERSION}"}} 1.0',
    } <= set(lines(registry))
    gauges.is_kubemq_connected = False
    gauges.messages_unacked = 0
    assert {"kubemq_amqp_kubemq_connected 0.0", "rabbitmq_queue_messages 50.0"} <= set(lines(registry))


def test_the_process_is_measured_too(registry: CollectorRegistry) -> None:
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines(registry))

"""Times and caps: RabbitMQ's reading of ``expiration``, KubeMQ's limits."""

from __future__ import annotations

import pytest

from mapping import policy


@pytest.mark.parametrize(
    ("text", "value_ms"),
    [
        (b"0", 0),
        (b"007", 7),
        (b"+5", 5),
        (b"-0", 0),
        (b"60000", 60_000),
        (b"2592000000", 2_592_000_000),
        (b"315360000000", 315_360_000_000),
        (b"315360000001", None),
        (b"99999999999999999999", None),
        (b"9" * 255, None),
        (b"-1", None),
        (b"1.5", None),
        (b"", None),
        (b" 5", None),
        (b"5 ", None),
        (b"5\n", None),
        (b"0x10", None),
        (b"1_000", None),
        (b"later", None),
        ("٣".encode(), None),
    ],
)
def test_expiration_is_read_as_rabbitmq_reads_it(text: bytes, value_ms: int | None) -> None:
    assert policy.parse_expiration(text) == value_ms


def test_expiration_is_written_as_decimal_text() -> None:
    assert policy.expiration_text(60_000) == b"60000"
    assert policy.expiration_text(-3) == b"0"


def test_caps_come_from_the_servers_config() -> None:
    config = {
        "queue": {"maxReceiveCount": 10, "maxNumberOfMessages": 500, "maxInflight": 100, "maxDelaySeconds": 5},
        "grpc": {"bodyLimit": 4096},
        "store": {"maxRetention": 60},
    }
    assert policy.caps_from_config(config) == policy.ServerCaps(
        max_receive_count=10,
        max_messages_per_get=500,
        max_inflight=100,
        max_expiration_s=43_200,
        max_delay_s=5,
        max_message_bytes=4096,
        retention_s=3600,
    )


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"queue": None, "grpc": [], "store": "x"},
        {"queue": {"maxReceiveCount": "7", "maxInflight": True, "maxDelaySeconds": -1}},
    ],
)
def test_odd_config_leaves_the_defaults(config: dict[str, object]) -> None:
    assert policy.caps_from_config(config) == policy.ServerCaps()


def test_the_receive_limit_is_explicit() -> None:
    assert policy.MAX_RECEIVE_COUNT == policy.ServerCaps().max_receive_count > 0

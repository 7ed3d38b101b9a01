"""Limits and times where AMQP and KubeMQ count differently.

Owns AMQP's ``expiration`` (milliseconds as text), the policy every stored message carries and the server's caps; reads
and sends nothing itself.  Rules: RabbitMQ 3.10's check of ``expiration`` (measured), KubeMQ's ``config/queue.go`` and
its check of message policies (features PU-11, KI-06, KI-07).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

MAX_EXPIRATION_MS = 315_360_000_000
"""Ten years: the largest ``expiration`` RabbitMQ 3.10 takes."""

MAX_RECEIVE_COUNT = 1024
"""KubeMQ's own default, sent explicitly (0 means the same).  Closing a transaction counts no receive, so only a native
consumer's NAck comes near it; a server set to less refuses a higher one: see ``ServerCaps.max_receive_count``."""

_EXPIRATION = re.compile(rb"([+-]?[0-9]+)(.*)", re.DOTALL)


def parse_expiration(text: bytes) -> int | None:
    """Return the milliseconds of an ``expiration`` property, or None where RabbitMQ answers ``invalid expiration``.

    Decimal digits, nothing around them but a sign; 0..MAX_EXPIRATION_MS.
    """
    return None if invalid_expiration(text) else int(text)


def invalid_expiration(text: bytes) -> str:
    """Return what RabbitMQ finds wrong with an ``expiration``, as its term; empty when it is valid."""
    found = _EXPIRATION.fullmatch(text)
    if found is None:
        return "no_integer"
    digits, rest = found.groups()
    if rest:
        quoted = rest.decode("utf-8", "replace").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'{{leftover_string,"{quoted}"}}'
    if int(digits) < 0:
        return f"{{value_negative,{int(digits)}}}"
    return f"{{value_too_large,{int(digits)}}}" if int(digits) > MAX_EXPIRATION_MS else ""


def expiration_text(value_ms: int) -> bytes:
    """Return the ``expiration`` property for so many milliseconds; what is past counts as 0."""
    return b"%d" % max(0, value_ms)


class ServerCaps(NamedTuple):
    """What one KubeMQ server allows; the defaults are those of a server without settings of its own."""

    max_receive_count: int = MAX_RECEIVE_COUNT
    max_messages_per_get: int = 1024
    max_inflight: int = 2048
    max_expiration_s: int = 43_200
    max_delay_s: int = 43_200
    max_message_bytes: int = 104_857_600
    retention_s: int = 86_400


def caps_from_config(config: Mapping[str, object]) -> ServerCaps:
    """Return the caps in the JSON object of KubeMQ's ``GET /config``; what is missing or odd keeps its default."""
    default = ServerCaps()
    return ServerCaps(
        max_receive_count=_cap(config, "queue", "maxReceiveCount", default.max_receive_count),
        max_messages_per_get=_cap(config, "queue", "maxNumberOfMessages", default.max_messages_per_get),
        max_inflight=_cap(config, "queue", "maxInflight", default.max_inflight),
        max_expiration_s=_cap(config, "queue", "maxExpirationSeconds", default.max_expiration_s),
        max_delay_s=_cap(config, "queue", "maxDelaySeconds", default.max_delay_s),
        max_message_bytes=_cap(config, "grpc", "bodyLimit", default.max_message_bytes),
        retention_s=60 * _cap(config, "store", "maxRetention", default.retention_s // 60),
    )


def _cap(config: Mapping[str, object], section: str, key: str, default: int) -> int:
    values = config.get(section)
    value = values.get(key) if isinstance(values, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default

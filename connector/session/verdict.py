"""What a client decides about a delivery."""

from __future__ import annotations

from enum import Enum, auto


class Verdict(Enum):
    """basic.ack; nack and reject without requeue; nack and reject with it."""

    ACKNOWLEDGED = auto()
    REJECTED = auto()
    REQUEUED = auto()

"""AMQP 0-9-1 reply codes with their scope.

Owns the numbers, names and hard/soft split of the specification (section 1.2, "constants"; RabbitMQ uses the same
set).  Knows nothing of who raises them.
"""

from __future__ import annotations

from enum import IntEnum


class ReplyCode(IntEnum):
    """A reply code; ``name`` is the text RabbitMQ puts in front of every reply text."""

    REPLY_SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def is_hard(self) -> bool:
        """True when the code ends the connection, false when it ends only the channel."""
        return self not in _SOFT


_SOFT = frozenset(
    {
        ReplyCode.REPLY_SUCCESS,
        ReplyCode.CONTENT_TOO_LARGE,
        ReplyCode.NO_ROUTE,
        ReplyCode.NO_CONSUMERS,
        ReplyCode.ACCESS_REFUSED,
        ReplyCode.NOT_FOUND,
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
    }
)

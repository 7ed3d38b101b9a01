"""KubeMQ MessageIDs of the copies this connector stores.

Owns their form: ``~<replica>.<count>``, or ``~<replica>:<count>`` where the copy may be handed out before it is read.
Knows nothing of messages or of AMQP's message-id, which is the publisher's and may repeat.  Rule: a copy is known by
(KubeMQ channel, Sequence, MessageID), so every stored copy has one of its own (features KI-05, design "Identity").
"""

from __future__ import annotations

import re
from itertools import count

_REPLICA = re.compile(r"[0-9a-f]{12}")
_OURS = re.compile(r"~[0-9a-f]{12}[.:][0-9]+")
_EARLY = re.compile(r"~[0-9a-f]{12}:[0-9]+")


def is_ours(message_id: str) -> bool:
    """Tell whether a MessageID was made by ``MessageIds`` of any replica."""
    return _OURS.fullmatch(message_id) is not None


def is_early(message_id: str) -> bool:
    """Tell whether a client may have the copy although nobody has read it from its channel."""
    return _EARLY.fullmatch(message_id) is not None


class MessageIds:
    """The MessageIDs of one run of one replica."""

    __slots__ = ("_counter", "_early_prefix", "_prefix")

    def __init__(self, replica: str) -> None:
        """Take the replica's id: 12 hex digits, fresh at every start, as the count starts again.

        Raises ValueError for anything else.
        """
        if _REPLICA.fullmatch(replica) is None:
            raise ValueError(f"a replica id is 12 lower-case hex digits, not {replica!r}")
        self._prefix = "~" + replica + "."
        self._early_prefix = "~" + replica + ":"
        self._counter = count(1)

    def next(self) -> str:
        """Return a MessageID that no other copy has."""
        return self._prefix + str(next(self._counter))

    def next_early(self) -> str:
        """Return one for a copy that may be handed out before it is read."""
        return self._early_prefix + str(next(self._counter))

"""What a connection may do: limits and times, as ``app`` takes them from the settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.amqp.wire import Table
    from connector.session.ports import Authenticator

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class SessionPolicy:
    """The same for all connections of a listener."""

    authenticate: Authenticator
    server_properties: Table = field(default_factory=dict)
    channel_max: int = 2047
    frame_max_bytes: int = 131072
    heartbeat_s: int = 60
    max_body_bytes: int = 16 * MIB
    handshake_timeout_s: float = 10.0
    #: Wait for close-ok, or for a client to read our last words, this long before the socket is closed.
    closing_timeout_s: float = 5.0
    #: A declare, bind or get without a result for so long ends its connection with 541.
    wait_deadline_s: float = 15.0
    #: A delivery without an acknowledgement for so long closes its channel (CO-35); 0 for no limit.
    consumer_timeout_s: float = 1800.0
    #: Let a client whose login failed wait this long (SE-01).
    refusal_delay_s: float = 1.0
    #: Output waiting for the socket, at which deliveries stop (PC-17).
    output_high_bytes: int = MIB
    #: Replies written to a client that does not read, at which its requests are not read either and its gets wait.
    unread_high_bytes: int = 16 * MIB
    #: Published in the open transactions of one connection; more is refused with 406, as only a commit makes room.
    tx_max_bytes: int = 64 * MIB
    #: What the contents on one connection that have begun may add up to; one alone is always taken.
    client_bodies_bytes: int = 128 * MIB
    #: Published and not stored yet, at which reading pauses (PU-09).
    in_flight_high_bytes: int = 16 * MIB
    #: What waits behind a slow method of its channel, or is that, at which reading pauses (PC-16).
    queued_high_bytes: int = 4 * MIB

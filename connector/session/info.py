"""Who a connection is, for logs, metrics and the API: plain text, no secrets (PC-24)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from connector.amqp.handshake import Handshake
    from connector.amqp.wire import Table


@dataclass(slots=True)
class ConnectionInfo:
    """Filled while the handshake goes on; ``peer`` is host:port as one reads it, ``peer_host`` its address alone."""

    peer: str
    peer_host: str
    user: str = ""
    vhost: str = ""
    product: str = ""
    version: str = ""
    platform: str = ""
    connection_name: str = ""
    cancel_notify: bool = False  # the client takes the server's basic.cancel
    blocked_notify: bool = False  # the client takes connection.blocked

    def read(self, handshake: Handshake) -> None:
        """Take over what the client has said so far."""
        properties = handshake.client_properties
        self.user = handshake.user
        self.vhost = handshake.vhost
        self.product = _text(properties, "product")
        self.version = _text(properties, "version")
        self.platform = _text(properties, "platform")
        self.connection_name = _text(properties, "connection_name")
        self.cancel_notify = "consumer_cancel_notify" in handshake.capabilities
        self.blocked_notify = "connection.blocked" in handshake.capabilities

    def context(self) -> dict[str, str]:
        """What a log line about this connection says of it: only what is known."""
        known = {
            "connection": self.peer,
            "name": self.connection_name,
            "user": self.user,
            "vhost": self.vhost,
            "client": f"{self.product} {self.version}".strip(),
        }
        return {key: value for key, value in known.items() if value}


def _text(properties: Table, key: str) -> str:
    kind, value = properties.get(key, ("V", None))
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None or kind in "FA" else str(value)

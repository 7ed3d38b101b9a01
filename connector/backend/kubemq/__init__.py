"""KubeMQ behind the broker's ports: ``KubeMQStore`` for queues, ``KubeMQTopologyLog`` for the declarations' log."""

from connector.backend.kubemq.client import KubeMQClient
from connector.backend.kubemq.store import KubeMQStore
from connector.backend.kubemq.topology_log import KubeMQTopologyLog

__all__ = ["KubeMQClient", "KubeMQStore", "KubeMQTopologyLog"]

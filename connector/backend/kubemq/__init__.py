"""KubeMQ behind the broker's ports: ``KubeMQStore`` for queues, ``KubeMQTopologyLog`` for the declarations' log."""

import connector.backend.kubemq.grpc_settings  # noqa: F401 # before gRPC's core starts
from connector.backend.kubemq.client import KubeMQClient
from connector.backend.kubemq.store import KubeMQStore
from connector.backend.kubemq.topology_log import KubeMQTopologyLog

__all__ = ["KubeMQClient", "KubeMQStore", "KubeMQTopologyLog"]

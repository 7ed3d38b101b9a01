"""A small KubeMQ-compatible server on SQLite, in a process of its own (``python -m connector.embedded``).

Owns everything behind the gRPC port of the default backend.  Knows nothing of AMQP and imports no other connector
code: the connector reaches it through gRPC exactly as it reaches a real KubeMQ (docs/adr/0002-embedded-server.md).
"""

"""AMQP and KubeMQ in each other's terms, as pure functions on plain values.

Owns the names of KubeMQ channels, the envelope in a KubeMQ message's Metadata, the view of native messages, KubeMQ
MessageIDs and policy values.  Does no I/O and keeps no state but bounded memo tables; of the connector it knows only
``connector.amqp.header`` and ``connector.amqp.wire``.  The rules are public: ``docs/mapping.md``.
"""

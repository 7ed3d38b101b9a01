"""The ledger of the lease's model: what each published body may and must still experience."""

from __future__ import annotations


class Item:
    """One published body: how often it may be delivered, and whether it must be."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.deliveries = 0
        self.allowed = 1
        self.is_seen = False  # a client saw it: from now on it carries redelivered
        self.is_settled = False
        self.is_confirmed = False
        self.may_vanish = False  # taken by retention, a foreign reader, a purge, a delete, or never stored
        self.may_flag = False  # stored again after an unknown result: a copy of it says redelivered
        self.is_doubled = False  # a second copy that nobody remembers may come without redelivered
        self.life = 0  # in which life of the connector it was last delivered
        self.is_purgeable = False  # published during a purge: before it or after it, nobody can tell
        self.is_purged = False  # must not be delivered any more

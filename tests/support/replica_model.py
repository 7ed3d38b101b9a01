"""Several brokers on one log and one store, in one process, driven by hand as ``BrokerModel`` is.

Owns what carries the log, the beats and the frames between them.
"""

from __future__ import annotations

from typing import Any

from connector.broker.members import Member
from connector.broker.peers import beat
from tests.support.broker_model import BrokerModel


class Identity:
    """A process on a host that nobody knows."""

    host = "somewhere"
    process = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def has_ended(self, member: Member) -> bool:
        del member
        return False


class Replica(BrokerModel):
    """One of several; ``is_hung`` for one that neither hears nor says anything."""

    def __init__(self, *others: Replica, name: str = "") -> None:
        self.others = others
        self.is_hung = False
        super().__init__()
        if others:
            self.store, self.log = others[0].store, others[0].log
        self.group = self.broker.enter(Identity(name), 6.0, lambda: None, is_alone=False)
        self.seen = 0
        self.group.join()


class Pair:
    """Carries the log, the beats and the frames between two."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.a = Replica(name=name)
        self.run()
        self.start_b()

    def start_b(self) -> None:
        self.b = Replica(self.a, name=self.name)
        self.run()

    @property
    def all(self) -> list[Replica]:
        there = (self.a, getattr(self, "b", None), getattr(self, "c", None))
        return [replica for replica in there if replica is not None]

    def run(self, seconds: float = 1.0) -> None:
        steps = round(seconds / 0.05)
        for _ in range(steps):
            for replica in self.all:
                replica.now += 0.05
                if not replica.is_hung:
                    self._turn(replica)

    def _turn(self, replica: Replica) -> None:
        while replica.waiting_log and not replica.hold_log:
            replica.log.append(replica.waiting_log.pop(0)[1])
        while replica.seen < len(replica.log):
            replica.seen += 1
            replica._apply(replica.seen, replica.log[replica.seen - 1])
        group = replica.group
        number = group.tenure.beat(replica.now)
        data: Any = beat(group.me, number, replica.broker.drains.applied_upto)
        assert data
        group.tenure.on_own(number, replica.now)
        for other in self.all:
            if other is not replica and not other.is_hung:
                other.group.on_heard(group.me)
                other.group.peers.on_applied(group.me, replica.broker.drains.applied_upto)
        for member, frame in group.peers.next_frames():
            for other in self.all:
                if other.group.me == member and not other.is_hung:
                    other.group.peers.on_frame(frame)
        group.tick()
        replica.settle(0.0)


class Trio(Pair):
    """Three of them."""

    def __init__(self) -> None:
        super().__init__()
        self.c = Replica(self.a)
        self.run()

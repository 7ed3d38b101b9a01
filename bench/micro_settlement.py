# ruff: noqa: INP001 - a script, in no package
"""Microbenchmark of settlement: ``python bench/micro_settlement.py`` prints one JSON object, microseconds per message.

``read_deliver_ack``: the whole way of a message through the lease and the channel's ledger, in batches: filed from a
Get's answer, handed out, acknowledged by the client, acknowledged in KubeMQ; the reader's calls in the reader's order,
without gRPC.  ``relink``: what a refill costs for each message that consumers hold.  ``requeue``: as the first, but a
copy is stored in between.  ``ledger``: the delivery tags alone.  ``confirm``: a publish in the confirm ledger, from its
number to the coalesced ack.  Best of several rounds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any, cast

from connector.broker.counters import Counters
from connector.broker.lease import Event, Lease
from connector.broker.message import Message
from connector.broker.ports import Answer
from connector.session.confirms import PublishLedger
from connector.session.unacked import Unacked

ROUNDS = 7
MESSAGES = 10_000
#: Persistent, text/plain: what PerfTest and pika send.
HEADER = b"\x90\x00\x0atext/plain\x02"


class Reading:
    """A lease with all that is around it, driven without a loop; each Get brings ``credit`` new messages."""

    def __init__(self, credit: int) -> None:
        self.lease = Lease(lambda: credit, time.perf_counter)
        self.unacked = Unacked()
        self._sequences = count(1)
        self._tokens = count(1)
        self._last = 0

    def messages(self, number: int) -> list[Message]:
        """New ones, as the adapter makes them."""
        self._last += number
        return [
            Message("", "tasks", HEADER, bytes(100), f"~0123456789ab.{at}", at, "amqp.default.tasks")
            for at in (next(self._sequences) for _ in range(number))
        ]

    def know(self, new: int) -> None:
        """KubeMQ tells that so many are unread."""
        lease = self.lease
        known = lease.mine_count + sum(len(batch) for _, _, batch in lease.sent)
        lease.on_snapshot(known + new, lease.begin_snapshot(), self._last)

    def get(self, new: list[Message], held: list[Message]) -> None:
        """One refill: acknowledge what is settled, read what is held again and what is new."""
        lease = self.lease
        lease.next_step()
        sequences = lease.acks_due()
        if sequences:
            lease.acks_sent(next(self._tokens), sequences)
        lease.on_event(Event.CLOSED)
        size = lease.get_size()
        if size != len(held) + len(new):
            raise SystemExit(f"the lease asks for {size} of {len(held)} held and {len(new)} new ones")
        lease.on_event(Event.GET_SENT)
        if not lease.on_answer(Answer("transaction", held + new)):
            raise SystemExit("an acknowledgement counts as refused")

    def deliver(self) -> list[int]:
        """Hand out all that is ready; returns the delivery tags."""
        lease, tags = self.lease, []
        while lease.ready:
            tags.append(self.unacked.add(cast("Any", (None, lease.take(), None))))
        return tags

    def ack(self, tags: list[int]) -> None:
        """What ``basic.ack`` does for each."""
        for tag in tags:
            self.lease.settle(self.unacked.take(tag)[1])

    def requeue(self, tags: list[int]) -> None:
        """What ``basic.nack`` with requeue does for each, the copy being stored at once."""
        for tag in tags:
            message = self.unacked.take(tag)[1]
            self.lease.start_move(message)
            self.lease.finish_move(message)


def best(prepare: Callable[[], Callable[[], None]], per_round: int) -> float:
    """Microseconds per message of the fastest round; each round gets something of its own."""
    times = []
    for _ in range(ROUNDS):
        run = prepare()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return round(min(times) / per_round * 1e6, 3)


def settlement(batch: int, settle: Callable[[Reading, list[int]], None]) -> Callable[[], Callable[[], None]]:
    """Batches read, delivered and settled, one after the other."""

    def prepare() -> Callable[[], None]:
        reading = Reading(batch)
        batches = [reading.messages(batch) for _ in range(MESSAGES // batch)]
        reading.know(MESSAGES)

        def run() -> None:
            for new in batches:
                reading.get(new, [])
                settle(reading, reading.deliver())

        return run

    return prepare


def relinking(held: int, refills: int) -> Callable[[], Callable[[], None]]:
    """Refills of one new message, acknowledged at once, while so many are held."""

    def prepare() -> Callable[[], None]:
        reading = Reading(held)
        kept = reading.messages(held)
        reading.know(held)
        reading.get(kept, [])
        reading.deliver()
        batches = [reading.messages(1) for _ in range(refills)]

        def run() -> None:
            for new in batches:
                reading.know(1)
                reading.get(new, kept)
                reading.ack(reading.deliver())

        return run

    return prepare


def ledger() -> Callable[[], None]:
    """Tags given and taken in order, a hundred outstanding."""
    unacked = Unacked()
    entry = cast("Any", (None, None, None))

    def run() -> None:
        for _ in range(MESSAGES // 100):
            for tag in [unacked.add(entry) for _ in range(100)]:
                unacked.take(tag)

    return run


class Owner:
    """A channel and its mark, which do nothing."""

    def on_confirms_ready(self) -> None:
        """Ignore it."""

    def on_publish_lost(self, reason: str) -> None:
        """Ignore it."""

    def on_unrouted(self, message: object, *, mandatory: bool) -> None:
        """Ignore it."""

    def add(self, size_bytes: int) -> None:
        """Ignore it."""

    def remove(self, size_bytes: int) -> None:
        """Ignore it."""


def confirming(batch: int) -> Callable[[], Callable[[], None]]:
    """Publishes accepted, stored and confirmed, a batch at a time."""

    def prepare() -> Callable[[], None]:
        publishes = PublishLedger(Owner(), cast("Any", Owner()), Counters(), confirming=True)

        def run() -> None:
            for _ in range(MESSAGES // batch):
                tokens = []
                for _ in range(batch):
                    tokens.append(publishes.begin())
                    publishes.routed(1, 100)
                for token in tokens:
                    publishes.on_stored(token)
                publishes.take_confirms()

        return run

    return prepare


def main() -> None:
    """Measure and print."""
    batches = (1, 10, 100, 1000)
    refills = 200
    results = {
        "read_deliver_ack": {str(size): best(settlement(size, Reading.ack), MESSAGES) for size in batches},
        "requeue": {str(size): best(settlement(size, Reading.requeue), MESSAGES) for size in batches[2:]},
        "relink": {str(held): best(relinking(held, refills), refills * held) for held in (100, 1000)},
        "ledger": best(ledger, MESSAGES),
        "confirm": {str(size): best(confirming(size), MESSAGES) for size in batches},
    }
    json.dump({"unit": "microseconds", "python": sys.version.split()[0], **results}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

"""Transactions: what a channel has published and settled since the last commit, kept until the next.

Owns the buffer and what a commit does with it: first every publish is stored, then the deliveries are settled, then
that has provably arrived, then commit-ok (PU-12).  A commit that could not store everything settles nothing: the
channel is closed and what it held is delivered again.  There is no atomicity beyond that, as in RabbitMQ.  Source:
``rabbit_channel`` 3.10, ``tx.*``.  Must not know how storing and settling work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode
from connector.session import consume, publish
from connector.session.confirms import OVERHEAD_BYTES, PublishLedger
from connector.session.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from connector.broker.message import Message
    from connector.session.channel import Channel
    from connector.session.ports import Queue
    from connector.session.unacked import Entry


class Transaction:
    """One channel's; implements ``ports.LedgerOwner`` for the publishes of a commit."""

    __slots__ = ("_channel", "_decisions", "_failure", "_is_committing", "_publishes", "_size", "ledger")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._publishes: list[publish.Outgoing] = []
        self._decisions: list[tuple[Verdict, dict[int, Entry]]] = []
        self._size = 0
        self._failure = ""
        self._is_committing = False
        self.ledger = PublishLedger(self, channel.connection.in_flight, channel.counters, confirming=False)

    @property
    def unfinished_count(self) -> int:
        """Publishes and decisions that wait for a commit, and one for a commit under way."""
        return len(self._publishes) + sum(len(taken) for _, taken in self._decisions) + self._is_committing

    # ------------------------------------------------------------------ what the channel does meanwhile

    def publish(self, exchange: str, routing_key: str, bits: int, header: bytes, body: bytes) -> None:
        """Keep a checked publish; raises NotFound and the like now, and 406 for more than a transaction may hold.

        Bindings count as they are now, queues as they are at the commit, as with RabbitMQ.
        """
        connection = self._channel.connection
        size = len(header) + len(body) + OVERHEAD_BYTES
        self._size += size
        connection.tx_bytes += size
        most = connection.policy.tx_max_bytes
        if connection.tx_bytes > most:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"transaction is larger than configured max size {most}")
        queues, stripped = self._channel.vhost.route(exchange, routing_key, header)
        if exchange:
            self._publishes.append(publish.Outgoing(exchange, routing_key, bits, stripped, body, queues))
        else:
            self._publishes.append(publish.Outgoing(exchange, routing_key, bits, header, body, None))

    def decide(self, verdict: Verdict, delivery_tag: int, *, multiple: bool) -> None:
        """Keep a decision; raises 406 for a tag that is unknown, or decided about already."""
        taken = self._channel.unacked.take_tagged(delivery_tag, multiple=multiple)
        if self._decisions and self._decisions[-1][0] is verdict:
            self._decisions[-1][1].update(taken)
        else:
            self._decisions.append((verdict, taken))

    def roll_back(self) -> None:
        """Forget the publishes; the deliveries are undecided again, under the tags they have."""
        self._publishes.clear()
        self._forget_size()
        undecided: dict[int, Entry] = {}
        for _, taken in self._decisions:
            undecided.update(taken)
        self._decisions.clear()
        self._channel.unacked.restore(undecided)

    def _forget_size(self) -> None:
        self._channel.connection.tx_bytes -= self._size
        self._size = 0

    # ------------------------------------------------------------------ commit

    def commit(self) -> None:
        """Publish, and go on when the last result is there."""
        channel = self._channel
        publishes, self._publishes = self._publishes, []
        self._forget_size()
        self._failure = ""
        self._is_committing = True
        for message in publishes:
            publish.hand_over(channel, self.ledger, message)
        stored = channel.wait(self._on_stored, is_bounded=False)  # the lanes have a deadline
        self.ledger.when_settled(lambda: stored(None))

    def on_confirms_ready(self) -> None:
        """Nobody is told one by one."""

    def on_publish_lost(self, reason: str) -> None:
        """A copy could not be stored."""
        self._failure = reason

    def on_unrouted(self, message: Message, *, mandatory: bool) -> None:
        """As the channel's own publishes."""
        self._channel.on_unrouted(message, mandatory=mandatory)

    def _on_stored(self, _result: object) -> None:
        if self._failure:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "partial tx completion")
        channel = self._channel
        decisions, self._decisions = self._decisions, []
        queues: dict[Queue, None] = {}
        for verdict, taken in decisions:
            entries = list(taken.values())
            queues.update((queue, None) for queue, _, _ in entries)
            _APPLY[verdict](channel, entries)
        settled = channel.wait(self._on_settled)
        _when_all(queues, lambda: settled(None))

    def _on_settled(self, _result: object) -> None:
        self._is_committing = False
        self._channel.reply(commands.Tx.CommitOk())


_APPLY: dict[Verdict, Callable[[Channel, list[Entry]], None]] = {
    Verdict.ACKNOWLEDGED: consume.acknowledge,
    Verdict.REJECTED: consume.reject,
    Verdict.REQUEUED: consume.requeue,
}


def _when_all(queues: Iterable[Queue], done: Callable[[], None]) -> None:
    """Call ``done`` when what these queues were told has provably arrived."""
    left = 1

    def one_less() -> None:
        nonlocal left
        left -= 1
        if not left:
            done()

    for queue in queues:
        left += 1
        queue.when_acknowledged(one_less)
    one_less()


# ---------------------------------------------------------------------------- the methods
def on_tx_select(channel: Channel, method: commands.Tx.Select) -> None:
    """From now on the channel works in transactions; a second time changes nothing (PU-13)."""
    if channel.publishes.confirming:
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.tx is None:
        channel.tx = Transaction(channel)
    channel.reply(commands.Tx.SelectOk())


def on_tx_commit(channel: Channel, method: commands.Tx.Commit) -> None:
    """Do all that was kept."""
    _transaction(channel).commit()


def on_tx_rollback(channel: Channel, method: commands.Tx.Rollback) -> None:
    """Undo all that was kept; nothing is delivered again."""
    _transaction(channel).roll_back()
    channel.reply(commands.Tx.RollbackOk())


def _transaction(channel: Channel) -> Transaction:
    if channel.tx is None:
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")
    return channel.tx

"""What ends messages of a transaction: ack, nack and requeue, of all or of some.

Owns one function per request type of QueuesDownstream and the copies they store.  Rule: KubeMQ as measured: a range
stops at the first unknown Sequence with what came before it done; a nack is a copy at the tail with one more failed
delivery; a requeue is a new message in another queue.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded.core import Core
from connector.embedded.publishing import Intake
from connector.embedded.records import Record, dead_letter
from connector.embedded.transaction import Transaction


class Refused(Exception):
    """A request that is answered with an error."""


async def _ack_all(_core: Core, transaction: Transaction, _request: pb.QueuesDownstreamRequest) -> None:
    transaction.settle(list(transaction.accepted))
    transaction.close()


async def _ack_range(_core: Core, transaction: Transaction, request: pb.QueuesDownstreamRequest) -> None:
    good, bad = _checked_range(transaction, request)
    if good:
        transaction.settle(good)
    _end_range(transaction, bad)


async def _nack_all(core: Core, transaction: Transaction, _request: pb.QueuesDownstreamRequest) -> None:
    await _nack(core, transaction, sorted(transaction.accepted))
    transaction.close()


async def _nack_range(core: Core, transaction: Transaction, request: pb.QueuesDownstreamRequest) -> None:
    good, bad = _checked_range(transaction, request)
    await _nack(core, transaction, good)
    _end_range(transaction, bad)


async def _requeue_all(core: Core, transaction: Transaction, request: pb.QueuesDownstreamRequest) -> None:
    _check_target(request)
    await _requeue(core, transaction, sorted(transaction.accepted), request.ReQueueChannel)
    transaction.close()


async def _requeue_range(core: Core, transaction: Transaction, request: pb.QueuesDownstreamRequest) -> None:
    _check_target(request)
    good, bad = _checked_range(transaction, request)
    await _requeue(core, transaction, good, request.ReQueueChannel)
    _end_range(transaction, bad)


async def _close_by_client(_core: Core, transaction: Transaction, _request: pb.QueuesDownstreamRequest) -> None:
    transaction.close()


Handler = Callable[[Core, Transaction, pb.QueuesDownstreamRequest], Awaitable[None]]

#: What to do with an open transaction, by request type; each may raise Refused.
HANDLERS: dict[pb.QueuesDownstreamRequestType, Handler] = {
    pb.AckAll: _ack_all,
    pb.AckRange: _ack_range,
    pb.NAckAll: _nack_all,
    pb.NAckRange: _nack_range,
    pb.ReQueueAll: _requeue_all,
    pb.ReQueueRange: _requeue_range,
    pb.CloseByClient: _close_by_client,
}


async def _nack(core: Core, transaction: Transaction, sequences: Sequence[int]) -> None:
    """A copy of each at the tail; at its receive limit a dead letter instead, or nothing."""
    if not sequences:
        return
    now_ns = time.time_ns()
    intake = core.publisher.intake()
    for record in (await core.records(transaction.member.channel, sequences)).values():
        message = record.message()
        policy = message.Policy
        if not policy.MaxReceiveCount or record.receive_count + 2 <= policy.MaxReceiveCount:
            copy = Record(record.data, now_ns, record.receive_count + 1, record.expires_at_ns)
            intake.add_record(transaction.member.channel.name, copy)
        elif policy.MaxReceiveQueue:
            intake.add_record(policy.MaxReceiveQueue, dead_letter(message, record.expires_at_ns, now_ns))
    await _replace(core, transaction, sequences, intake)


async def _requeue(core: Core, transaction: Transaction, sequences: Sequence[int], target: str) -> None:
    """A new message of each, as if its producer had sent it to ``target``."""
    if not sequences:
        return
    intake = core.publisher.intake()
    for record in (await core.records(transaction.member.channel, sequences)).values():
        message = record.message()
        message.Channel = target
        problem = intake.add(message)
        if problem:
            raise Refused(problem)
    await _replace(core, transaction, sequences, intake)


async def _replace(core: Core, transaction: Transaction, sequences: Sequence[int], intake: Intake) -> None:
    """Store copies and delete their originals as one; refused, the originals are the queue's again."""
    engine, channel = core.engine, transaction.member.channel
    transaction.settle(sequences, forget=False)
    intake.settle_with_it(channel.channel_id, sequences)
    await intake.save(on_refused=lambda: engine.give_back(channel, sequences))
    if intake.error:
        raise Refused(intake.error)


def _check_target(request: pb.QueuesDownstreamRequest) -> None:
    if not request.ReQueueChannel:
        raise Refused("the channel to requeue to is missing")


def _checked_range(transaction: Transaction, request: pb.QueuesDownstreamRequest) -> tuple[list[int], int | None]:
    if not request.SequenceRange:
        raise Refused("the list of Sequences is empty")
    return transaction.known(list(request.SequenceRange))


def _end_range(transaction: Transaction, unknown: int | None) -> None:
    """An unknown Sequence is an error and leaves the transaction open; else it ends with its last message."""
    if unknown is not None:
        raise Refused(f"the transaction does not hold Sequence {unknown}")
    if not transaction.accepted:
        transaction.close()

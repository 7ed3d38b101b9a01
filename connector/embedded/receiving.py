"""The two unary calls that read a queue: ReceiveQueueMessages (and peek) and AckAllQueueMessages.

Owns their waiting and counting.  Both join the queue's group like any Get does, so they take from what others would
get.  Rule: KubeMQ as measured; its receivers of one queue exclude each other (``whole_waits``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded import rules
from connector.embedded.core import Core
from connector.embedded.engine import Member
from connector.embedded.records import RECEIVE_MESSAGES, Record, messages_field

_PURGE_ITEMS = 1024
_DEFAULT_WAIT_S = 1


class _Arrivals:
    """What a member was handed and nobody has looked at yet."""

    def __init__(self) -> None:
        self._sequences: list[int] = []
        self._some = asyncio.Event()

    def on_messages(self, sequences: Sequence[int]) -> None:
        """The member's callback."""
        self._sequences.extend(sequences)
        self._some.set()

    def take(self, limit: int) -> list[int]:
        """The oldest arrivals not yet taken, at most ``limit``."""
        taken, self._sequences = self._sequences[:limit], self._sequences[limit:]
        if not self._sequences:
            self._some.clear()
        return taken

    async def wait_until(self, deadline: float) -> bool:
        """Wait for the next arrival; False when the deadline has passed."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._some.wait()
        except TimeoutError:
            return False
        return True


class Receiver:
    """Serves both calls."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    async def receive(self, request: pb.ReceiveQueueMessagesRequest) -> bytes:
        """A serialized ReceiveQueueMessagesResponse."""
        answer = pb.ReceiveQueueMessagesResponse(RequestID=request.RequestID, IsPeak=request.IsPeak)
        answer.Error = rules.receive_problem(request)
        if answer.Error:
            answer.IsError = True
            return answer.SerializeToString()
        shown: dict[int, Record] = {}
        async with self._turn(request.Channel):
            answer.MessagesExpired = await self._collect(request, shown)
        answer.MessagesReceived = len(shown)
        return b"".join([answer.SerializeToString(), *messages_field(RECEIVE_MESSAGES, shown.items())])

    async def _collect(self, request: pb.ReceiveQueueMessagesRequest, shown: dict[int, Record]) -> int:
        """Fill ``shown``; returns how many had expired."""
        core, wanted, expired_count = self._core, request.MaxNumberOfMessages, 0
        deadline = asyncio.get_running_loop().time() + (request.WaitTimeSeconds or _DEFAULT_WAIT_S)
        one_by_one = core.quirks.parks and not request.IsPeak
        arrivals = _Arrivals()
        _, channel = core.catalog.queue(request.Channel)
        member = core.engine.join(channel, 1 if one_by_one else wanted, arrivals.on_messages)
        try:
            while len(shown) < wanted:
                sequences = arrivals.take(wanted - len(shown))
                if sequences:
                    expired_count += await self._look_at(member, sequences, shown, keep=request.IsPeak)
                elif (shown and not core.quirks.whole_waits) or not await arrivals.wait_until(deadline):
                    break
        finally:
            core.engine.leave(member)
        return expired_count

    async def _look_at(self, member: Member, sequences: list[int], shown: dict[int, Record], *, keep: bool) -> int:
        """Show what has not expired; acknowledge it unless it is kept.  Returns how many had expired."""
        records = await self._core.records(member.channel, sequences)
        now_ns = time.time_ns()
        expired = [sequence for sequence, record in records.items() if 0 < record.expires_at_ns < now_ns]
        for sequence in expired:
            del records[sequence]
        shown.update(records)
        settled = expired if keep else sequences
        if settled:
            self._core.engine.settle(member, settled)
        return len(expired)

    async def acknowledge_all(self, request: pb.AckAllQueueMessagesRequest) -> pb.AckAllQueueMessagesResponse:
        """Read and drop everything; with the quirk also what is published while it runs."""
        answer = pb.AckAllQueueMessagesResponse(RequestID=request.RequestID)
        answer.Error = rules.reader_problem(request.ClientID, request.Channel) or rules.wait_problem(
            request.WaitTimeSeconds
        )
        if answer.Error:
            answer.IsError = True
            return answer
        async with self._turn(request.Channel):
            answer.AffectedMessages = await self._purge(request)
        return answer

    async def _purge(self, request: pb.AckAllQueueMessagesRequest) -> int:
        core, affected = self._core, 0
        deadline = asyncio.get_running_loop().time() + (request.WaitTimeSeconds or _DEFAULT_WAIT_S)
        _, channel = core.catalog.queue(request.Channel)
        last, finished = channel.last_sequence, False
        while not finished:
            arrivals = _Arrivals()
            member = core.engine.join(channel, _PURGE_ITEMS, arrivals.on_messages)
            try:
                while True:
                    while sequences := arrivals.take(_PURGE_ITEMS):
                        core.engine.settle(member, sequences)
                        affected += len(sequences)
                        await asyncio.sleep(0)
                    if not core.quirks.whole_waits or not await arrivals.wait_until(deadline):
                        break
            finally:
                core.engine.leave(member)
            finished = core.quirks.whole_waits or (not channel.returned and channel.last_sent >= last)
        return affected

    @asynccontextmanager
    async def _turn(self, channel: str) -> AsyncIterator[None]:
        """With the quirk, one receiver of a queue at a time."""
        if not self._core.quirks.whole_waits:
            yield
            return
        lock, users = self._turns.get(channel, (asyncio.Lock(), 0))
        self._turns[channel] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            _, users = self._turns[channel]
            if users == 1:
                del self._turns[channel]
            else:
                self._turns[channel] = lock, users - 1

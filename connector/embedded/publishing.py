"""Taking messages in: checks, the record that is stored, the results that are answered.

Owns the way from a request's ``QueueMessage`` list to one commit and back to one ``SendQueueMessageResult`` each, for
publishes, requeued copies, dead letters and delayed messages alike.  A result is built when its message is durable.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Sequence

from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded import rules
from connector.embedded.catalog import Catalog
from connector.embedded.records import Record, queue_record, sent_result
from connector.embedded.store import Commit, Store

_NS_PER_S = 1_000_000_000


def _forgotten(_due_ns: int, _delay_id: int) -> None:
    """Nobody waits for delayed messages yet."""


def _nothing() -> None:
    """Nobody needs to know."""


class Intake:
    """One request's messages on their way into the store: ``add`` each, ``save`` once, then ``results``."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._now_ns = time.time_ns()
        self._appends: dict[str, list[Record]] = {}
        self._delays: list[tuple[int, int, bytes]] = []
        self._deletes: list[tuple[int, Sequence[int]]] = []
        self._undelays: list[int] = []
        # per message: (message id, expires, delayed to) of what is to be stored, or the error
        self._slots: list[tuple[str, int, int] | pb.SendQueueMessageResult] = []
        self.error = ""
        self.has_errors = False
        self.size_bytes = 0

    def add(self, message: pb.QueueMessage) -> str:
        """Check and take one message; "" or KubeMQ's error, which is its result too."""
        if not message.MessageID:
            message.MessageID = secrets.token_urlsafe(16)
        problem = self._publisher.problem(message)
        if problem:
            self.has_errors |= not problem.startswith("Error ")
            self._slots.append(pb.SendQueueMessageResult(MessageID=message.MessageID, IsError=True, Error=problem))
            return problem
        delay_s = message.Policy.DelaySeconds if message.HasField("Policy") else 0
        if delay_s:
            self._add_delayed(message, delay_s)
            return ""
        channel = message.Channel
        record = queue_record(message, self._now_ns)
        self._slots.append((message.MessageID, record.expires_at_ns, 0))
        self.add_record(channel, record)
        return ""

    def add_record(self, channel: str, record: Record) -> None:
        """Take a record made elsewhere; it has no result."""
        self.size_bytes += len(record.data)
        records = self._appends.get(channel)
        if records is None:
            self._appends[channel] = [record]
        else:
            records.append(record)

    def add_channel(self, channel: str) -> None:
        """Take a channel without a message, so that it is written."""
        self._appends.setdefault(channel, [])

    def settle_with_it(self, channel_id: int, sequences: Sequence[int]) -> None:
        """Delete these in the same transaction."""
        self._deletes.append((channel_id, sequences))

    def end_delay_with_it(self, delay_id: int) -> None:
        """Delete this delayed message in the same transaction."""
        self._undelays.append(delay_id)

    async def save(self, on_refused: Callable[[], object] = _nothing) -> bool:
        """Wait until all that was taken is durable; False with ``error`` set when nothing is.

        ``on_refused`` is called in that case even if the waiting request has been cancelled meanwhile.
        """
        await self.submit(on_refused)
        return not self.error

    def submit(self, on_refused: Callable[[], object] = _nothing) -> asyncio.Future[None]:
        """Begin to store all that was taken; done when it is durable or ``error`` is set."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not (self._appends or self._delays or self._deletes or self._undelays):
            stored.set_result(None)
            return stored
        commit = Commit()
        commit.done = lambda: self._on_written(commit, stored, on_refused)
        queue = self._publisher.catalog.queue
        commit.appends = [(queue(channel)[0], records) for channel, records in self._appends.items()]
        commit.delays, commit.deletes, commit.undelays = self._delays, list(self._deletes), self._undelays
        self._publisher.store.submit(commit)
        return stored

    def _on_written(self, commit: Commit, stored: asyncio.Future[None], on_refused: Callable[[], object]) -> None:
        """In the event loop, whether or not the request still lives."""
        if commit.error:
            self.error = commit.error
            self.has_errors = True
            on_refused()
        else:
            for delay_id, due_ns, _ in commit.delays:
                self._publisher.on_delayed(due_ns, delay_id)
        if not stored.done():
            stored.set_result(None)

    def results(self) -> list[bytes]:
        """One serialized result per message added, in order."""
        now_ns = time.time_ns()
        return [self._result(slot, now_ns) for slot in self._slots]

    def _result(self, slot: tuple[str, int, int] | pb.SendQueueMessageResult, now_ns: int) -> bytes:
        if isinstance(slot, pb.SendQueueMessageResult):
            return slot.SerializeToString()
        if self.error:
            return pb.SendQueueMessageResult(MessageID=slot[0], IsError=True, Error=self.error).SerializeToString()
        message_id, expires_at_ns, delayed_to_ns = slot
        return sent_result(message_id, now_ns, expires_at_ns, delayed_to_ns)

    def _add_delayed(self, message: pb.QueueMessage, delay_s: int) -> None:
        due_ns = self._now_ns + delay_s * _NS_PER_S
        expiration_s = message.Policy.ExpirationSeconds
        expires_at_ns = due_ns + expiration_s * _NS_PER_S if expiration_s else 0
        message.Policy.DelaySeconds = 0
        self._delays.append((self._publisher.next_delay_id(), due_ns, message.SerializeToString()))
        self._slots.append((message.MessageID, expires_at_ns, due_ns))


class Publisher:
    """Checks that need state, and what every intake shares."""

    def __init__(self, catalog: Catalog, store: Store, first_delay_id: int) -> None:
        self.catalog = catalog
        self.store = store
        self._delay_ids = itertools.count(first_delay_id)
        self.on_delayed: Callable[[int, int], object] = _forgotten

    def intake(self) -> Intake:
        """A new, empty intake."""
        return Intake(self)

    def next_delay_id(self) -> int:
        """The next id of a delayed message."""
        return next(self._delay_ids)

    def problem(self, message: pb.QueueMessage) -> str:
        """Why a message cannot be taken; "" when it can."""
        if not message.ClientID:
            return rules.NO_CLIENT_ID
        channel = message.Channel
        if channel not in self.catalog.queues:
            problem = rules.queue_name_problem(channel)
            if problem:
                return problem
        if not message.Metadata and not message.Body:
            return rules.EMPTY_MESSAGE
        if message.HasField("Policy"):
            problem = rules.policy_problem(message.Policy)
            if problem:
                return problem
        return "" if channel in self.catalog.queues else rules.stored_name_problem(channel)

    async def publish(self, messages: Iterable[pb.QueueMessage]) -> tuple[list[bytes], bool]:
        """Store a request's messages: the serialized results, and KubeMQ's HaveErrors.

        KubeMQ counts as errors there what its store refused (a failed write, some names), not what its checks did.
        """
        intake = self.intake()
        for message in messages:
            intake.add(message)
        await intake.save()
        return intake.results(), intake.has_errors

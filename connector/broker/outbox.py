"""What was accepted and is to be stored: one outbox per writer lane.

Owns the order of what goes to KubeMQ: a queue always uses the same lane, a lane sends one batch at a time, so a
queue's messages are stored in the order in which they were accepted (PU-08).  Knows no gRPC: the writer
(``runtime/queue_writer.py``) takes batches and reports each result with ``on_results`` or ``on_unknown``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from connector.broker.backlog import Backlog
    from connector.broker.message import Message
    from connector.broker.ports import Outgoing, Receipt
    from connector.broker.queue import StoredQueue

#: One request carries at most this many messages and bytes, as ``Submission.cost`` counts them.
BATCH_COUNT = 1024
BATCH_BYTES = 4_000_000
#: A larger batch takes so long to store that nobody asks for it before it is: at most some 10 ms.
COMING_BYTES = 1_000_000
#: What a message costs beside its body and header, for the byte counts.
OVERHEAD_BYTES = 256
#: What a header takes, in its own bytes: as JSON 1 to 2.5 times them, 6 times when all of it are control characters.
HEADER_FACTOR = 2


class Submission:
    """One copy to be stored for one queue; ``receipt`` is told under ``token`` what became of it.

    ``cost`` is what it takes of the marks, in bytes.
    """

    __slots__ = ("cost", "kubemq_channel", "message", "queue", "receipt", "token")
    is_late = False

    def __init__(self, queue: StoredQueue, message: Message, receipt: Receipt, token: int) -> None:
        self.queue = queue
        self.message = message
        self.cost = len(message.body) + HEADER_FACTOR * len(message.header) + OVERHEAD_BYTES
        self.kubemq_channel = queue.kubemq_channel
        self.receipt = receipt
        self.token = token


class LateSubmission(Submission):
    """It was published while its queue was being deleted: it has no route, if that succeeds."""

    __slots__ = ()
    is_late = True


class Outbox:
    """A lane's waiting submissions; ``wake`` is called when it turns from empty to non-empty."""

    __slots__ = ("_aside", "_entries", "_wake", "bugs", "size_bytes")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._entries: deque[Submission] = deque()
        self._aside: dict[StoredQueue, deque[Submission]] = {}
        self._wake = wake
        self.bugs: list[Exception] = []  # of receipts that ``take`` has told
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def aside_count(self) -> int:
        """What waits because its queue is held."""
        return sum([len(entries) for entries in self._aside.values()]) if self._aside else 0

    @property
    def held_queues(self) -> list[StoredQueue]:
        """For which queues something waits because they are held."""
        return list(self._aside)

    def take_held(self, queue: StoredQueue) -> list[Submission]:
        """What waits for a held queue, in order: it is not going to be stored."""
        batch = list(self._aside.pop(queue, ()))
        self.size_bytes -= sum(submission.cost for submission in batch)
        return batch

    def waiting_of(self, queue: StoredQueue) -> int:
        """What of this queue has not been taken yet."""
        return len(self._aside.get(queue, ())) + sum(entry.queue is queue for entry in self._entries)

    def release(self, queue: StoredQueue) -> None:
        """The queue is not held any more: what waits for it goes to its present channel, in its order."""
        entries = self._entries
        was_empty = not entries
        entries.extendleft(reversed(self._aside.pop(queue, deque())))
        for entry in entries:
            if entry.queue is queue:
                entry.kubemq_channel = queue.kubemq_channel
        if was_empty and entries:
            self._wake()

    def append(self, submission: Submission) -> None:
        """Accept one copy."""
        entries = self._entries
        if not entries:
            self._wake()
        entries.append(submission)
        self.size_bytes += submission.cost

    def keep(self, batch: list[Submission]) -> None:
        """The batch was not sent at all: it waits, before everything else, for its queues' present channels."""
        for submission in batch:
            submission.kubemq_channel = submission.queue.kubemq_channel
        self.put_back(batch)

    def put_back(self, batch: list[Submission]) -> None:
        """The batch is to be sent again, before everything else, in its order."""
        self._entries.extendleft(reversed(batch))
        self.size_bytes += sum([submission.cost for submission in batch])

    def take(self) -> list[Submission]:
        """The next batch in order, without held queues; copies for deleted queues are answered here (PU-17)."""
        entries = self._entries
        batch: list[Submission] = []
        size = 0
        while entries and len(batch) < BATCH_COUNT and size < BATCH_BYTES:
            submission = entries[0]
            cost = submission.cost
            if batch and size + cost > BATCH_BYTES:
                break
            entries.popleft()
            if submission.queue.is_held:
                self._aside.setdefault(submission.queue, deque()).append(submission)
                continue
            self.size_bytes -= cost
            if submission.queue.is_deleted:
                self._drop(submission)
                continue
            size += cost
            batch.append(submission)
        return batch

    def _drop(self, submission: Submission) -> None:
        """Its queue is gone: done with."""
        try:
            submission.queue.on_dropped()
            if submission.is_late:
                submission.receipt.on_unrouted(submission.token, submission.message)
            else:
                submission.receipt.on_stored(submission.token)
            submission.receipt.flush()
        except Exception as bug:  # noqa: BLE001 # the rest of the batch is to be sent all the same
            self.bugs.append(bug)


def announce(batch: Sequence[Submission]) -> list[Backlog]:
    """The batch goes to KubeMQ now: readers with somebody waiting may ask for it.  Returns what ``end_coming`` wants.

    Not where it takes so long to store that a Get would wait for it noticeably.
    """
    if sum([submission.cost for submission in batch]) > COMING_BYTES:
        return []
    queues: dict[StoredQueue, int] = {}
    for submission in batch:
        queue = submission.queue
        queues[queue] = queues.get(queue, 0) + 1
    coming = [queue.on_coming(count) for queue, count in queues.items()]
    return [counts for counts in coming if counts is not None]


def end_coming(coming: Iterable[Backlog]) -> None:
    """The batch has been answered, or is lost."""
    for counts in coming:
        counts.coming_count = 0


def on_results(batch: list[Submission], errors: list[str]) -> None:
    """KubeMQ has answered: tell queues and receipts, in order; ``errors`` has "" for what is stored.

    A receipt that fails takes none of the others along: raises an ExceptionGroup when all were told.
    """
    receipts = {}
    bugs: list[Exception] = []
    for submission, error in zip(batch, errors, strict=True):
        receipt = submission.receipt
        receipts[id(receipt)] = receipt
        try:
            if error:
                submission.queue.on_refused()
                receipt.on_refused(submission.token, error)
            else:
                submission.queue.on_stored(submission.message)
                receipt.on_stored(submission.token)
        except Exception as bug:  # noqa: BLE001 # each is raised below
            bugs.append(bug)
    _flush(receipts.values(), bugs)


def _flush(receipts: Iterable[Receipt], bugs: list[Exception]) -> None:
    """The batch is over for all of these; raises what went wrong in it."""
    for receipt in receipts:
        try:
            receipt.flush()
        except Exception as bug:  # noqa: BLE001 # raised below
            bugs.append(bug)
    if bugs:
        raise ExceptionGroup("results could not be told", bugs)


def on_unknown(outbox: Outbox, batch: list[Submission], reason: str) -> None:
    """The link broke under the batch: nack what is confirmed, send the rest again with the same MessageIDs.

    A confirm may not be overtaken by a silent retry; for publishes without confirms a second copy is dropped by the
    reader when it meets the MessageID again.
    """
    again = [submission for submission in batch if submission.receipt.retry]
    watch_repeated(again)
    for submission in again:
        submission.message.redelivered = True  # a reader that starts anew cannot know the first copy
    outbox.put_back(again)
    unknown = [submission for submission in batch if not submission.receipt.retry]
    for queue, message_ids in _ids_by_queue(unknown).items():
        queue.note_unknown(message_ids)
    on_results(unknown, [reason] * len(unknown))


def watch_repeated(batch: Sequence[Outgoing]) -> None:
    """The batch is sent a second time under the same MessageIDs: the reader drops second copies it meets."""
    for queue, message_ids in _ids_by_queue(cast("Sequence[Submission]", batch)).items():
        queue.watch_repeated(message_ids)


def _ids_by_queue(batch: Sequence[Submission]) -> dict[StoredQueue, list[str]]:
    message_ids: dict[StoredQueue, list[str]] = {}
    for submission in batch:
        message_ids.setdefault(submission.queue, []).append(submission.message.message_id)
    return message_ids

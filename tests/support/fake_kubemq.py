"""KubeMQ in the process: queues, streams, lanes and the topology log with the real server's awkward behaviour.

Owns what a server would keep and the faults a test injects.  Must not know leases or queues.  Source: kubemq.md and
the server's public source (``queue_downstream.go``).  Deterministic: nothing here is random, and time passes only
where the test lets it: every request has a *pause* before the server has seen it and one before its answer arrives.

- A stream is served serially.  Acks and closes are silent; with ``is_lazy`` they wait on their way until the next
  request that is answered (or until the test lets the server catch up), and die with the stream.
- A Get waits for what a lane has under way; with fewer messages than asked for all the same it is answered at once, but
  counted; what comes later is parked in its transaction.  A partial AckRange pulls further messages into the
  transaction, unseen.
- AckRange of everything seen closes the transaction (not while something is parked in it unseen, as ``hides_parked``
  says); one unknown Sequence ends it with an error, which is told with the next answer.
- A cancelled stream gives everything back at once, or soon, where the server ``is_slow``; a broken one may linger until
  the server notices.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from connector.broker.message import Message
from connector.broker.ports import Answer, ChannelInfo, Outgoing, Rejected, ServerInfo, StoreError, TooMuch, Unavailable
from mapping.names import reported_name

Pause = Callable[[str], Awaitable[None]]


async def no_pause(_point: str) -> None:
    """Let the loop run once, as a real request would."""
    await asyncio.sleep(0)


class Stored:
    """One stored message, and when; ``expired``: a native one whose time is over, which the next Get drops."""

    __slots__ = ("at", "expired", "message")

    def __init__(self, message: Message, at: float = 0.0) -> None:
        self.message = message
        self.at = at
        self.expired = False

    def read(self) -> Message:
        """A fresh copy, as every Get brings one."""
        m = self.message
        return Message(
            m.exchange, m.routing_key, m.header, m.body, m.message_id, m.sequence, m.kubemq_channel, m.redelivered,
            m.delivery_count,
        )  # fmt: skip


class FakeTransaction:
    """One subscription of the queue's group: what was answered and is unacknowledged, and what is parked unseen."""

    def __init__(self, transaction_id: str, channel: FakeChannel, capacity: int) -> None:
        self.id = transaction_id
        self.channel = channel
        self.capacity = capacity
        self.unacked: dict[int, str] = {}
        self.parked: dict[int, None] = {}
        self.is_open = True
        self.is_late = False  #: takes only what is to be given out when another one closes

    @property
    def spare(self) -> int:
        """How many more messages the server would push into it."""
        return self.capacity - len(self.unacked) - len(self.parked)

    def close(self) -> None:
        """Everything unacknowledged is back in its place."""
        if self.is_open:
            self.is_open = False
            self.channel.open.remove(self)
            self.channel.fill(at_close=True)


class FakeChannel:
    """One queue channel: Sequences from 1, what is stored, and who holds what."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last_sequence = 0
        self.last_handed = 0
        self.stored: dict[int, Stored] = {}
        self.acked: list[Stored] = []
        self.open: list[FakeTransaction] = []
        self.get_count = self.short_count = 0
        self.hidden_gets = 0  #: so many Gets find nothing yet, though it is counted
        self._began_with = 0
        self.out_of_turn = 0  #: the next Get begins with what comes after so many, if enough is there

    def append(self, message: Message, at: float = 0.0) -> int:
        """Store a copy at the tail; returns its Sequence."""
        self.last_sequence += 1
        copy = Stored(message).read()
        copy.sequence = self.last_sequence
        copy.kubemq_channel = self.name
        self.stored[copy.sequence] = Stored(copy, at)
        self.fill()
        return copy.sequence

    def available(self) -> list[int]:
        """Sequences that a Get could have, ascending."""
        taken = {s for transaction in self.open for pile in (transaction.unacked, transaction.parked) for s in pile}
        return [sequence for sequence in sorted(self.stored) if sequence not in taken]

    def fill(self, *, at_close: bool = False) -> None:
        """Push what is available into open subscriptions with room, unseen."""
        for transaction in self.open:
            if transaction.spare <= 0 or (transaction.is_late and not at_close):
                continue
            for sequence in self.available()[: transaction.spare]:
                transaction.parked[sequence] = None
                self.last_handed = max(self.last_handed, sequence)

    def get(self, transaction: FakeTransaction) -> list[Message]:
        """Hand out what a new transaction asked for."""
        self.get_count += 1
        messages = []
        hidden, self.hidden_gets = self.hidden_gets > 0, max(0, self.hidden_gets - 1)
        there = [] if hidden else self.available()
        skipped, self.out_of_turn = min(self.out_of_turn, max(0, len(there) - transaction.capacity)), 0
        if skipped:  # never twice the same, nor after the second that a short answer takes
            is_short = any(self.stored[sequence].expired for sequence in there[skipped:][: transaction.capacity])
            skipped *= there[skipped] != self._began_with and not is_short
            self._began_with = there[skipped]
        for sequence in there[skipped:][: transaction.capacity]:
            self.last_handed = max(self.last_handed, sequence)
            stored = self.stored[sequence]
            if stored.expired:
                del self.stored[sequence]
                continue
            transaction.unacked[sequence] = stored.message.message_id
            messages.append(stored.read())
        if len(messages) < transaction.capacity:
            self.short_count += 1
        self.open.append(transaction)
        if not hidden:
            self.fill()
        return messages

    def acknowledge(self, sequence: int) -> None:
        """The message is done with (it may have left before)."""
        stored = self.stored.pop(sequence, None)
        if stored is not None:
            self.acked.append(stored)

    def remove(self, sequence: int) -> None:
        """Retention or somebody else takes the message; a transaction that has it does not notice."""
        self.stored.pop(sequence, None)
        for transaction in self.open:
            transaction.parked.pop(sequence, None)

    def forget_acks(self, count: int) -> list[Message]:
        """A crashed server forgets its last acknowledgements: these are stored again."""
        forgotten = self.acked[len(self.acked) - count :] if count else []
        del self.acked[len(self.acked) - len(forgotten) :]
        for stored in forgotten:
            self.stored[stored.message.sequence] = stored
        return [stored.message for stored in forgotten]

    def start_over(self) -> None:
        """The channel was deleted and made anew: nothing is in it, Sequences start again."""
        for transaction in self.open:
            transaction.is_open = False
        self.open = []
        self.stored = {}
        self.acked = []
        self.last_sequence = self.last_handed = 0

    def info(self) -> ChannelInfo:
        """Its row of QueuesInfo."""
        return ChannelInfo(
            reported_name(self.name), len(self.stored), 1, self.last_sequence, self.last_handed, len(self.open) or 1
        )


class FakeStream:
    """``ports.QueueStream``."""

    def __init__(self, store: FakeKubeMQ) -> None:
        self._store = store
        self._transactions: dict[str, FakeTransaction] = {}
        self._waiting: deque[tuple[int, str, list[int] | None]] = deque()
        self._failed: list[int] = []
        self._last_token = 0
        self.is_gone = False

    # ------------------------------------------------------------------ what the client asks

    async def get(self, kubemq_channel: str, max_items: int) -> Answer:
        """See ``ports``."""
        await self._sent("get sent")
        store = self._store
        if store.get_error:
            error, store.get_error = store.get_error, ""
            return Answer("", [], error, self._take_failed())
        store.last_transaction += 1
        channel = store.channel(kubemq_channel)
        while len(channel.available()) < max_items and store.is_storing(kubemq_channel):
            await store.pause("get waits")
            self._check()
        transaction = FakeTransaction(f"t{store.last_transaction}", channel, max_items)
        self._transactions[transaction.id] = transaction
        messages = channel.get(transaction)
        size = sum(len(message.body) for message in messages)
        store.largest_answer_bytes = max(store.largest_answer_bytes, min(size, store.limit_bytes))
        if size > store.limit_bytes:
            store.too_much_count += 1
            self._drop()
            raise TooMuch(f"larger than max ({size} vs. {store.limit_bytes})")
        oldest_at = channel.stored[messages[0].sequence].at if messages else 0.0
        await self._answered("get answered")
        return Answer(transaction.id, messages, "", self._take_failed(), oldest_at)

    async def ack_range(self, transaction_id: str, sequences: list[int]) -> int:
        """See ``ports``."""
        assert sequences == sorted(set(sequences)), "ascending, each once"
        return await self._tell("ack written", transaction_id, list(sequences))

    async def close_transaction(self, transaction_id: str) -> None:
        """See ``ports``."""
        await self._tell("close written", transaction_id, None)

    async def barrier(self) -> Sequence[int]:
        """See ``ports``."""
        await self._sent("barrier sent")
        await self._answered("barrier answered")
        self._store.barrier_count += 1
        return self._take_failed()

    def cancel(self) -> None:
        """See ``ports``; requests on their way are lost."""
        self._drop()

    # ------------------------------------------------------------------ the server's side

    @property
    def has_unserved(self) -> bool:
        """True while silent requests are on their way."""
        return bool(self._waiting)

    def catch_up(self) -> None:
        """Serve every silent request that was written."""
        while self._waiting and not self.is_gone:
            token, transaction_id, sequences = self._waiting.popleft()
            transaction = self._transactions.get(transaction_id)
            if sequences is None:
                if transaction is not None:
                    transaction.close()
            elif transaction is None or not transaction.is_open or not self._acknowledge(transaction, sequences):
                self._failed.append(token)

    def _acknowledge(self, transaction: FakeTransaction, sequences: list[int]) -> bool:
        for sequence in sequences:
            if transaction.unacked.pop(sequence, None) is None:
                return False
            transaction.channel.acknowledge(sequence)
        if not transaction.unacked and not (self._store.hides_parked and transaction.parked):
            transaction.close()
        else:
            transaction.channel.fill()
        return True

    def lose(self, lingers: bool = False) -> None:
        """The link is gone; the server returns everything at once, or when it ``notices``."""
        if lingers and not self.is_gone:
            self.is_gone = True
            self._waiting.clear()
            self._store.streams.remove(self)
            self._store.lingering.append(self)
        else:
            self._drop()

    def notice(self) -> None:
        """The server sees that the link is gone."""
        for transaction in self._transactions.values():
            transaction.close()

    def forget(self, transactions: Sequence[FakeTransaction]) -> None:
        """These outlive the stream."""
        self._transactions = {k: v for k, v in self._transactions.items() if v not in transactions}

    # ------------------------------------------------------------------ inside

    async def _tell(self, point: str, transaction_id: str, sequences: list[int] | None) -> int:
        self._check()
        self._last_token += 1
        token = self._last_token
        self._waiting.append((token, transaction_id, sequences))
        if not self._store.is_lazy:
            self.catch_up()
        await self._store.pause(point)
        self._check()
        return token

    async def _sent(self, point: str) -> None:
        self._check()
        await self._store.pause(point)
        self._check()
        self.catch_up()

    async def _answered(self, point: str) -> None:
        await self._store.pause(point)
        self._check()

    def _take_failed(self) -> list[int]:
        failed, self._failed = self._failed, []
        return failed

    def _check(self) -> None:
        if self.is_gone or not self._store.is_up:
            self._drop()
            raise Unavailable("the stream is gone")

    def _drop(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self._waiting.clear()
            self._store.streams.remove(self)
            if self._store.is_slow:
                self._store.closing.append(self)
            else:
                self.notice()


class FakeLane:
    """``ports.StoreLane``; ``refuse`` of the store may refuse a message, ``lose`` makes results unknown."""

    def __init__(self, store: FakeKubeMQ) -> None:
        self._store = store
        self._under_way: set[str] = set()
        self.is_gone = False

    async def send(self, batch: Sequence[Outgoing]) -> list[str]:
        """See ``ports``."""
        self._check()
        self._under_way = {outgoing.kubemq_channel for outgoing in batch}
        try:
            await self._store.pause("store sent")
            self._check()
            results = self._keep(batch)
        finally:
            self._under_way = set()
        await self._store.pause("store answered")
        self._check()
        return results

    def is_storing(self, kubemq_channel: str) -> bool:
        """Whether something for this channel is on its way."""
        return kubemq_channel in self._under_way and not self.is_gone

    def _keep(self, batch: Sequence[Outgoing]) -> list[str]:
        if self._store.send_error:
            error, self._store.send_error = self._store.send_error, ""
            raise Rejected(error)
        self._store.batch_sizes.append(len(batch))
        results = []
        for outgoing in batch:
            error = self._store.refuse(outgoing)
            if not error:
                self._store.channel(outgoing.kubemq_channel).append(outgoing.message, self._store.now)
            results.append(error)
        return results

    def lose(self) -> None:
        """The link is gone: the result of what is under way is unknown."""
        self.is_gone = True

    def cancel(self) -> None:
        """See ``ports``."""
        self.is_gone = True

    def _check(self) -> None:
        if self.is_gone or not self._store.is_up:
            self.is_gone = True
            raise Unavailable("the lane is gone")


class FakeKubeMQ:
    """``ports.QueueStore``; everything a test wants to know or break is an attribute."""

    def __init__(
        self, pause: Pause = no_pause, *, is_lazy: bool = False, hides_parked: bool = False, is_slow: bool = False
    ) -> None:
        self.pause = pause
        self.is_lazy = is_lazy
        self.is_slow = is_slow
        self.hides_parked = hides_parked
        self.is_up = True
        self.limit_bytes = 100_000_000
        self.start_time = 1
        self.now = 0  #: what its clock says; 0 when it does not tell
        self.zombies: list[FakeTransaction] = []
        self.get_error = self.send_error = ""
        self.refuse: Callable[[Outgoing], str] = lambda _outgoing: ""
        self.channels: dict[str, FakeChannel] = {}
        self.streams: list[FakeStream] = []
        self.lingering: list[FakeStream] = []
        self.closing: list[FakeStream] = []
        self.lanes: list[FakeLane] = []
        self.batch_sizes: list[int] = []
        self.last_transaction = 0
        self.stream_count = self.snapshot_count = self.barrier_count = self.too_much_count = 0
        self.largest_answer_bytes = 0
        self._natives = 0

    # ------------------------------------------------------------------ ports.QueueStore

    def open_stream(self) -> FakeStream:
        """See ``ports``."""
        self.stream_count += 1
        stream = FakeStream(self)
        self.streams.append(stream)
        return stream

    def open_lane(self) -> FakeLane:
        """See ``ports``."""
        lane = FakeLane(self)
        self.lanes.append(lane)
        return lane

    async def snapshot(self) -> list[ChannelInfo]:
        """See ``ports``."""
        await self.pause("count sent")
        self._check()
        self.snapshot_count += 1
        rows = self.rows()
        await self.pause("count answered")
        self._check()
        return rows

    @property
    def server(self) -> ServerInfo:
        """What a Ping says."""
        return ServerInfo("fake", "v0", self.start_time, self.now)

    async def ping(self) -> ServerInfo:
        """See ``ports``."""
        await self.pause("ping")
        self._check()
        return self.server

    def _check(self) -> None:
        if not self.is_up:
            raise Unavailable("no KubeMQ")

    # ------------------------------------------------------------------ what a test does

    def channel(self, name: str) -> FakeChannel:
        """The channel of this name; it appears at first use."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = FakeChannel(name)
        return channel

    def is_storing(self, kubemq_channel: str) -> bool:
        """Whether something for this channel is on its way: a Get that lacks it waits."""
        return any(lane.is_storing(kubemq_channel) for lane in self.lanes)

    def rows(self) -> list[ChannelInfo]:
        """QueuesInfo as it is now; a channel without a message so far is unknown."""
        return [channel.info() for channel in self.channels.values() if channel.last_sequence]

    def publish_native(self, name: str, body: bytes) -> int:
        """A native client stores a message; returns its Sequence."""
        self._natives += 1
        return self.channel(name).append(Message("", name, b"\0\0", body, f"native-{self._natives}"))

    def transaction(self, transaction_id: str) -> FakeTransaction | None:
        """An open transaction by its id."""
        every = (transaction for channel in self.channels.values() for transaction in channel.open)
        return next((transaction for transaction in every if transaction.id == transaction_id), None)

    def break_links(self) -> None:
        """Every stream and lane is lost; what is unacknowledged is back."""
        for stream in list(self.streams):
            stream.lose()
        self.take_back()
        for lane in self.lanes:
            lane.lose()

    def crash(self, *, withholds: bool) -> None:
        """The server dies by SIGKILL and is back: with ``withholds`` its own dead subscriptions are members still."""
        self.start_time += 1
        if withholds:
            for channel in self.channels.values():
                self.zombies += channel.open
                for stream in self.streams:
                    stream.forget(channel.open)
        self.break_links()

    def rescue(self) -> None:
        """An operator has the dead subscriptions dropped."""
        zombies, self.zombies = self.zombies, []
        for transaction in zombies:
            transaction.close()

    def take_back(self) -> None:
        """The server has come to close what was open on streams that are gone."""
        closing, self.closing = self.closing, []
        for stream in closing:
            stream.notice()

    def notice(self) -> None:
        """The server sees all half-open links."""
        self.take_back()
        lingering, self.lingering = self.lingering, []
        for stream in lingering:
            stream.notice()

    @property
    def short_count(self) -> int:
        """Gets that asked for more than there was."""
        return sum(channel.short_count for channel in self.channels.values())


class FakeTopologyLog:
    """``ports.TopologyLog``: a list of events; followers get what is there, the marker, then what is appended."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.error: StoreError | None = None
        self.follow_count = 0
        self._generation = 0
        self._changed = asyncio.Event()

    async def append(self, event: bytes, start: int = 0) -> None:
        """See ``ports``; ``error`` set by a test is raised once."""
        await asyncio.sleep(0)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.events.append(event)
        self._changed.set()

    def lose(self) -> None:
        """Every follower's link breaks."""
        self._generation += 1
        self._changed.set()

    async def follow(self) -> AsyncIterator[tuple[int, bytes]]:
        """See ``ports``."""
        self.follow_count += 1
        generation, at, existing, is_marked = self._generation, 0, len(self.events), False
        while True:
            if at == existing and not is_marked:
                is_marked = True
                yield 0, b""
            elif at < len(self.events):
                at += 1
                yield at, self.events[at - 1]
            else:
                self._changed.clear()
                await self._changed.wait()
            if generation != self._generation:
                raise Unavailable("the topology link is gone")

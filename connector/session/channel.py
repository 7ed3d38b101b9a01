"""One channel: its state, its place in line, and which handler takes which method.

Owns the channel's life (PC-09, PC-10), the table from (state, method) to handler, the order of events behind a slow
operation (PC-16), and what a close waits for (PU-02, PU-07).  The handlers by AMQP class are in ``publish.py``,
``consume.py``, ``declare.py`` and ``tx.py``; the ledgers count.  Must not know sockets or how frames are cut.

A channel that waits for the broker keeps what arrives meanwhile and goes on in order; other channels do not notice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from pamqp import commands

from connector.amqp import access
from connector.amqp.errors import AmqpError
from connector.amqp.frames import encode_ack, encode_method, encode_nack
from connector.amqp.methods import build
from connector.amqp.reply_codes import ReplyCode
from connector.session import consume, declare, publish, tx
from connector.session.ack_timeout import AckTimeout
from connector.session.confirms import OVERHEAD_BYTES, PublishLedger
from connector.session.prefetch import Prefetch
from connector.session.unacked import Unacked

if TYPE_CHECKING:
    from pamqp.base import Frame

    from connector.broker.message import Message
    from connector.session.connection import Connection
    from connector.session.ports import VirtualHost

#: Class and method id.
MethodIds: TypeAlias = tuple[int, int]
#: handler, its method, its arguments, and what they weigh
Event: TypeAlias = tuple[Callable[..., None], MethodIds, tuple[Any, ...], int]

_PUBLISH_IDS: MethodIds = (60, 40)

#: What a method takes decoded, in its own bytes: a table of small fields 8 to 20 times them, of texts alone once.
DECODED_FACTOR = 10


class State(Enum):
    """A channel's life from channel.open-ok on."""

    OPEN = "in use"
    CLOSING = "the client closed it; its publishes are still being stored"
    FAILED = "we close it, or have; everything but close and close-ok is discarded"
    GONE = "its connection is over"


class Wait:
    """A slow operation under way: the broker calls it with the result.

    ``orphan`` gets a result that comes when the channel has no more use for it.  ``size`` is what it keeps of its
    method.
    """

    __slots__ = ("_channel", "_orphan", "_reply", "expires_at", "method_ids", "size", "takes_long")

    def __init__(
        self,
        channel: Channel,
        reply: Callable[[Any], None],
        orphan: Callable[[Any], None] | None,
        expires_at: float | None,
        *,
        takes_long: bool = False,
    ) -> None:
        self._channel = channel
        self.expires_at = expires_at
        self.takes_long = takes_long
        self._reply = reply
        self._orphan = orphan
        self.method_ids = channel.connection.method_ids
        self.size = 0

    def __call__(self, result: object) -> None:
        """Take the result, or the exception that ended the operation."""
        self._channel.on_result(self, result)

    def finish(self, result: object) -> None:
        """Answer the client; raises the exception that the operation ended with."""
        if isinstance(result, Exception):
            raise result
        self._reply(result)

    def drop(self, result: object) -> None:
        """Nobody waits for the result any more."""
        if self._orphan is not None and not isinstance(result, Exception):
            self._orphan(result)


class Channel:
    """``is_ready`` says that an event may be handled at once: open, nothing slow under way, nobody in line."""

    __slots__ = (
        "_client_closes",
        "_close",
        "_close_sent",
        "_earlier",
        "_events",
        "_finished",
        "_is_running",
        "_offers",
        "_state",
        "_waiting",
        "ack_timeout",
        "checked_header",
        "connection",
        "consumers",
        "counters",
        "is_ready",
        "last_queue",
        "number",
        "output",
        "prefetch",
        "prefetch_count",
        "publishes",
        "replies",
        "tx",
        "unacked",
        "vhost",
    )

    def __init__(self, connection: Connection, number: int, vhost: VirtualHost) -> None:
        self.connection = connection
        self.number = number
        self.vhost = vhost
        self.output = connection.output
        self.counters = connection.counters
        self.unacked = Unacked()
        self.publishes = PublishLedger(self, connection.in_flight, connection.counters, confirming=False)
        self.tx: tx.Transaction | None = None
        self.consumers: dict[str, consume.Consumer] = {}
        self.replies: consume.Consumer | None = None  # the one that direct replies go to
        self.prefetch_count = 0  # of each consumer made from now on
        self.prefetch = Prefetch(0)  # of all consumers together
        self._offers = 0
        self.ack_timeout = AckTimeout(connection.policy.consumer_timeout_s)
        self.last_queue = ""  # the one declared last, what an empty queue name means (QU-02)
        self.checked_header = b""  # the last content header found good, unless it was long
        self.is_ready = True
        self._state = State.OPEN
        self._earlier: PublishLedger | None = None  # what was published before confirm.select
        self._waiting: Wait | None = None
        self._events: deque[Event] = deque()
        self._is_running = False
        self._close: Frame | None = None  # our channel.close
        self._close_sent = False
        self._client_closes = False  # the client's close crossed ours
        self._finished: Callable[[], None] | None = None  # the client's connection.close waits for us

    @property
    def state(self) -> State:
        """Where the channel stands."""
        return self._state

    # ------------------------------------------------------------------ events in order

    def postpone(self, handler: Callable[..., None], args: tuple[Any, ...], size: int) -> None:
        """Keep an event until those before it are done; dropped when the channel is not open."""
        if self._state is State.OPEN:
            size += OVERHEAD_BYTES
            self._events.append((handler, self.connection.method_ids, args, size))
            self.connection.queued.add(size)

    def on_method(self, method: Frame, size: int) -> None:
        """Handle a method that came as so many bytes, or put it in line."""
        size *= DECODED_FACTOR
        if self.is_ready or self._state is not State.OPEN:
            handle_method(self, method)
            self._charge(size)
        else:
            self.postpone(handle_method, (method,), size)

    def _charge(self, size: int) -> None:
        """What a slow operation was begun with is kept until its end: it counts with what waits behind it."""
        if self._waiting is not None:
            self._waiting.size = size
            self.connection.queued.add(size)

    def _end_charge(self) -> None:
        if self._waiting is not None:
            self.connection.queued.remove(self._waiting.size)
            self._waiting.size = 0

    def wait(
        self,
        reply: Callable[[Any], None],
        orphan: Callable[[Any], None] | None = None,
        *,
        is_bounded: bool = True,
        takes_long: bool = False,
    ) -> Wait:
        """Begin a slow operation: hand the result to the broker as its ``done``; events wait until it is called.

        Unless it is unbounded, it ends with 541 at the deadline; what ``takes_long`` (emptying a queue takes as long as
        it takes) only when KubeMQ has not answered for so long.
        """
        expires_at = self.connection.now() + self.connection.policy.wait_deadline_s if is_bounded else None
        self._waiting = wait = Wait(self, reply, orphan, expires_at, takes_long=takes_long)
        self.is_ready = False
        return wait

    def check_wait(self, now: float, *, is_cut_off: bool) -> None:
        """End the connection when a slow operation has had no result for too long; KubeMQ may be away."""
        wait = self._waiting
        if wait is not None and wait.takes_long and not is_cut_off:
            wait.expires_at = now + self.connection.policy.wait_deadline_s
        if wait is not None and wait.expires_at is not None and now >= wait.expires_at:
            self._end_charge()
            self._waiting = None
            error = AmqpError(ReplyCode.INTERNAL_ERROR, "KubeMQ did not answer in time", *wait.method_ids)
            self.connection.on_failure(error, self)

    def on_result(self, wait: Wait, result: object) -> None:
        """The slow-path runner: answer, then go on with what was put in line."""
        if wait is not self._waiting:
            wait.drop(result)
            return
        self._end_charge()
        self._waiting = None
        self.connection.method_ids = wait.method_ids
        try:
            if self._state is State.OPEN:
                wait.finish(result)
            else:
                wait.drop(result)
            self._run_events()
        except Exception as error:  # noqa: BLE001 # the boundary of the slow path (style.md, Errors 2)
            self._drop_events(keep_publishes=False)
            self.connection.on_failure(error, self)

    def _run_events(self) -> None:
        if self._is_running:
            return  # a result that came at once: the loop below goes on
        self._is_running = True
        connection = self.connection
        try:
            events = self._events
            while events and self._waiting is None:
                handler, connection.method_ids, args, size = events.popleft()
                connection.queued.remove(size)
                handler(self, *args)
                self._charge(size)
        finally:
            self._is_running = False
        self.is_ready = self._state is State.OPEN and self._waiting is None

    def _drop_events(self, *, keep_publishes: bool) -> None:
        events = list(self._events)
        self._events.clear()
        for event in events:
            if keep_publishes and event[0] is publish.on_basic_publish:
                self._events.append(event)
            else:
                self.connection.queued.remove(event[3])

    # ------------------------------------------------------------------ what the handlers use

    def reply(self, method: Frame) -> None:
        """Write a method."""
        self.output.put(encode_method(self.number, method))

    def queue_name(self, name: str) -> str:
        """An empty name means the queue declared last; raises 404 when there is none."""
        if name:
            return name
        if not self.last_queue:
            raise AmqpError(ReplyCode.NOT_FOUND, "no previously declared queue")
        return self.last_queue

    def _all_consumers(self) -> list[consume.Consumer]:
        """Those of queues, and the one for replies."""
        return [*self.consumers.values(), *([] if self.replies is None else [self.replies])]

    def offer_credit(self) -> None:
        """The queues of all consumers look again; each is the first in turn, as what there is may not do for all."""
        queues = list({consumer.queue: None for consumer in self._all_consumers()})
        self._offers += 1
        first = self._offers % len(queues) if queues else 0
        for queue in (*queues[first:], *queues[:first]):
            queue.credit_changed()

    def check_acks(self, now: float) -> None:
        """Close the channel when a delivery has waited too long for its acknowledgement (CO-35)."""
        timeout_s = self.ack_timeout.look(now, self.unacked)
        if not timeout_s or self._state is not State.OPEN or self.connection.reading.reasons:
            return  # what is not read may be an acknowledgement
        reason = (
            f"delivery acknowledgement on channel {self.number} timed out. "
            f"Timeout value used: {timeout_s * 1000:.0f} ms. "
            "This timeout value can be configured, see consumers doc guide to learn more"
        )
        self.connection.method_ids = (0, 0)
        self.connection.on_failure(AmqpError(ReplyCode.PRECONDITION_FAILED, reason), self)

    def select_confirms(self) -> None:
        """From now on publishes are numbered and confirmed; a second time changes nothing (PU-05)."""
        if not self.publishes.confirming:
            self._earlier = self.publishes
            self.publishes = PublishLedger(self, self.connection.in_flight, self.counters, confirming=True)

    # ------------------------------------------------------------------ the ledger's owner

    def on_confirms_ready(self) -> None:
        """Acks or nacks wait: they are written with the connection's next flush."""
        if self._state is not State.GONE:
            self.connection.on_confirms_ready(self)

    def on_publish_lost(self, reason: str) -> None:
        """A publish without confirms was not stored: the only way to say so is to end the connection (Errors 3)."""
        if self._state is not State.GONE:
            error = AmqpError(ReplyCode.INTERNAL_ERROR, f"a message could not be stored: {reason}", *_PUBLISH_IDS)
            self.connection.on_failure(error, self)

    def on_unrouted(self, message: Message, *, mandatory: bool) -> None:
        """Nobody was there any more: the message goes back to a client that wants it and can still be told."""
        can_be_told = self._state is not State.GONE and not self._close_sent
        bits = publish.MANDATORY if mandatory and can_be_told else 0
        publish.drop(self, message.exchange, message.routing_key, bits, message.header, message.body)

    def write_confirms(self) -> None:
        """Write what is known of the publishes so far."""
        put, number = self.output.put, self.number
        for publish_seqno, multiple, is_ack in self.publishes.take_confirms():
            encode = encode_ack if is_ack else encode_nack
            put(encode(number, publish_seqno, multiple))

    @property
    def publishing_count(self) -> int:
        """Publishes without a result."""
        return sum(map(len, self._ledgers()))

    @property
    def unfinished_count(self) -> int:
        """Deliveries without a decision, and what an open transaction keeps."""
        return len(self.unacked) + (self.tx.unfinished_count if self.tx is not None else 0)

    def _ledgers(self) -> list[PublishLedger]:
        ledgers = [self.publishes]
        if self._earlier is not None:
            ledgers.append(self._earlier)
        if self.tx is not None:
            ledgers.append(self.tx.ledger)
        return ledgers

    def _when_settled(self, callback: Callable[[], None]) -> None:
        """Call back when all publishes so far have their results."""
        for ledger in self._ledgers()[1:]:
            callback = partial(ledger.when_settled, callback)
        self.publishes.when_settled(callback)

    # ------------------------------------------------------------------ closing

    def _release(self) -> None:
        """Let go of the consumers, then of what they had (CO-17)."""
        consumers, self.consumers = self._all_consumers(), {}
        for consumer in consumers:
            consumer.queue.remove_consumer(consumer)
        if self.tx is not None:
            self.tx.roll_back()
        consume.requeue(self, self.unacked.take_all())

    def finish_events(self, finished: Callable[[], None]) -> None:
        """The client closes the connection: end this channel after what it has sent, then call ``finished``."""
        self._finished = finished
        if self.is_ready or self._state is not State.OPEN:
            self._end_in_turn()
        else:
            self.postpone(Channel._end_in_turn, (), 0)

    def _end_in_turn(self) -> None:
        if self._state is State.OPEN:
            self._leave(State.CLOSING)
        self._tell_finished()

    def _tell_finished(self) -> None:
        """Whoever waits for the end of this channel learns of it when all publishes have their results (PU-07)."""
        finished, self._finished = self._finished, None
        if finished is not None:
            self._when_settled(finished)

    def close_by_client(self) -> None:
        """Let go of everything; close-ok follows when all publishes have their results (PU-07)."""
        self._leave(State.CLOSING)
        self._when_settled(self._answer_close)
        self._tell_finished()

    def fail(self, error: AmqpError) -> None:
        """Close the open channel for an error; confirms of earlier publishes go first (PU-02)."""
        self._close = build(
            commands.Channel.Close,
            reply_code=int(error.code),
            reply_text=error.reply_text,
            class_id=error.class_id,
            method_id=error.method_id,
        )
        self._leave(State.FAILED)
        if self.publishes.confirming:
            self.publishes.when_settled(self._send_close)
        else:
            self._send_close()
        self._tell_finished()

    def abandon(self) -> None:
        """The connection is over: let go of everything.

        Publishes that arrived whole and wait behind a slow operation are handed over when it ends (PU-07).
        """
        self._state = State.GONE
        self.is_ready = False
        self._end_charge()
        self._drop_events(keep_publishes=self._waiting is not None)
        self._release()

    def _leave(self, state: State) -> None:
        """Go from OPEN to a state in which nothing but the close matters, and let go of everything."""
        self._state = state
        self.is_ready = False
        self._end_charge()
        self._waiting = None
        self._drop_events(keep_publishes=False)
        self.connection.reader.discard_channel(self.number)
        self._release()

    def _send_close(self) -> None:
        if self._state is not State.FAILED or self._close is None:
            return
        self.write_confirms()
        self.reply(self._close)
        self._close_sent = True
        if self._client_closes:
            self.reply(build(commands.Channel.CloseOk))

    def _answer_close(self) -> None:
        """The client's close is done: its number is free again."""
        if self._state is State.CLOSING:
            self.write_confirms()
            self.reply(build(commands.Channel.CloseOk))
            self.connection.forget(self)

    def on_crossing_close(self) -> None:
        """The client's close met ours on the way."""
        if self._close_sent:
            self.reply(build(commands.Channel.CloseOk))
        else:
            self._client_closes = True

    def on_close_ok(self) -> None:
        """The client has seen our close: its number is free again."""
        if self._close_sent:
            self.connection.forget(self)


# ---------------------------------------------------------------------------- channel and confirm class
def on_channel_close(channel: Channel, method: commands.Channel.Close) -> None:
    """Close after all that was published before is stored."""
    channel.close_by_client()


def on_channel_flow(channel: Channel, method: commands.Channel.Flow) -> None:
    """``active=true`` is what is anyway; stopping is refused as RabbitMQ 3.10 does (PC-18)."""
    if not method.active:
        raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "active=false")
    channel.reply(commands.Channel.FlowOk(active=True))


def on_confirm_select(channel: Channel, method: commands.Confirm.Select) -> None:
    """Switch the channel to confirms."""
    if channel.tx is not None:
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    channel.select_confirms()
    if not method.nowait:
        channel.reply(commands.Confirm.SelectOk())


def on_second_open(channel: Channel, method: commands.Channel.Open) -> None:
    """A channel is opened once (PC-09)."""
    raise AmqpError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")


def on_access_request(channel: Channel, method: access.Request) -> None:
    """Old clients ask before they do anything; nobody looks at the ticket (PC-22)."""
    channel.reply(build(access.RequestOk, ticket=access.TICKET))


def _crossing_close(channel: Channel, method: Frame) -> None:
    channel.on_crossing_close()


def _close_ok(channel: Channel, method: Frame) -> None:
    channel.on_close_ok()


Handler: TypeAlias = Callable[[Channel, Any], None]

_HANDLERS: dict[tuple[State, type[Frame]], Handler] = {
    (State.OPEN, commands.Channel.Open): on_second_open,
    (State.OPEN, commands.Channel.Close): on_channel_close,
    (State.OPEN, commands.Channel.Flow): on_channel_flow,
    (State.OPEN, access.Request): on_access_request,
    (State.OPEN, commands.Exchange.Declare): declare.on_exchange_declare,
    (State.OPEN, commands.Exchange.Delete): declare.on_exchange_delete,
    (State.OPEN, commands.Exchange.Bind): declare.on_exchange_bind,
    (State.OPEN, commands.Exchange.Unbind): declare.on_exchange_unbind,
    (State.OPEN, commands.Queue.Declare): declare.on_queue_declare,
    (State.OPEN, commands.Queue.Bind): declare.on_queue_bind,
    (State.OPEN, commands.Queue.Unbind): declare.on_queue_unbind,
    (State.OPEN, commands.Queue.Purge): declare.on_queue_purge,
    (State.OPEN, commands.Queue.Delete): declare.on_queue_delete,
    (State.OPEN, commands.Basic.Qos): consume.on_basic_qos,
    (State.OPEN, commands.Basic.Consume): consume.on_basic_consume,
    (State.OPEN, commands.Basic.Cancel): consume.on_basic_cancel,
    (State.OPEN, commands.Basic.RecoverAsync): consume.on_basic_recover_async,
    (State.OPEN, commands.Basic.Recover): consume.on_basic_recover,
    (State.OPEN, commands.Confirm.Select): on_confirm_select,
    (State.OPEN, commands.Tx.Select): tx.on_tx_select,
    (State.OPEN, commands.Tx.Commit): tx.on_tx_commit,
    (State.OPEN, commands.Tx.Rollback): tx.on_tx_rollback,
    (State.FAILED, commands.Channel.Close): _crossing_close,
    (State.FAILED, commands.Channel.CloseOk): _close_ok,
}


def handle_method(channel: Channel, method: Frame) -> None:
    """Take one method by the table; what an open channel does not know is 503, a closing one ignores it."""
    handler = _HANDLERS.get((channel.state, type(method)))
    if handler is not None:
        handler(channel, method)
    elif channel.state is State.OPEN:
        raise AmqpError(ReplyCode.COMMAND_INVALID, "unimplemented method")

"""Consuming and settling: qos, consume, cancel, get, ack, nack, reject, recover.

Owns the consumer as its queue sees it, and the single path on which a delivery ends (CO-13): every entry leaves the
unacked ledger here and is settled or requeued once.  Must not know where messages come from or go back to.
"""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING, cast

from pamqp import commands

from connector.amqp.errors import AmqpError
from connector.amqp.frames import GET_EMPTY, DeliverEncoder, encode_get_ok, header_frame_bytes
from connector.amqp.header_edits import with_number
from connector.amqp.methods import build
from connector.amqp.reply_codes import ReplyCode
from connector.broker.arguments import ConsumerArguments, check_consumer
from connector.broker.replies import REPLY_TO
from connector.session.prefetch import Prefetch
from connector.session.verdict import Verdict

if TYPE_CHECKING:
    from connector.amqp.wire import Table
    from connector.broker.message import Message
    from connector.session.channel import Channel
    from connector.session.ports import Queue
    from connector.session.unacked import Entry

#: The header that says how often a message has come back (CO-37); not there at the first delivery.
DELIVERY_COUNT = "x-delivery-count"


class Consumer:
    """Implements ``broker.ports.Consumer``."""

    __slots__ = (
        "_channel",
        "_counters",
        "_encode",
        "_frame_max",
        "_output",
        "_shared",
        "_unacked",
        "exclusive",
        "no_ack",
        "prefetch",
        "priority",
        "queue",
        "tag",
        "timeout_s",
    )

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        arguments: ConsumerArguments,
    ) -> None:
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = arguments.priority
        self.timeout_s = arguments.timeout_s
        self.prefetch = Prefetch(0 if no_ack else channel.prefetch_count)  # no_ack knows no limit (CO-29)
        self._shared = Prefetch(0) if no_ack else channel.prefetch
        self._channel = channel
        self._encode = DeliverEncoder(channel.number, tag).encode
        self._frame_max = channel.connection.frame_max
        self._output = channel.output
        self._unacked = channel.unacked
        self._counters = channel.counters

    @property
    def held_count(self) -> int:
        """Deliveries that the client has not decided about."""
        return self.prefetch.used

    def free_credit(self) -> int:
        """How many more messages may be delivered now: none while the socket is full (PC-17)."""
        if not self._output.takes_deliveries:
            return 0
        room = self.prefetch.room()
        if not self._shared.limit:
            return room
        left = self._shared.room()
        return left if left < room else room

    def deliver(self, message: Message) -> None:
        """Write basic.deliver; the entry exists before the frame is written."""
        counters = self._counters
        if self.no_ack:
            tag = self._unacked.skip()
            counters.delivered_no_ack += 1
        else:
            self.prefetch.used += 1
            self._shared.used += 1
            tag = self._unacked.add((self.queue, message, self))
            counters.delivered += 1
        redelivered = message.redelivered
        header = message.header
        if redelivered:
            counters.redelivered += 1
            if message.delivery_count:
                header = _counted(message, self._frame_max)
        self._output.put(
            self._encode(
                tag,
                redelivered,
                message.exchange,
                message.routing_key,
                header,
                message.body,
                self._frame_max,
            )
        )

    def on_queue_gone(self) -> None:
        """Forget the consumer; a client that can take it is told (CO-26)."""
        channel = self._channel
        if channel.consumers.pop(self.tag, None) is not None and channel.connection.info.cancel_notify:
            channel.reply(build(commands.Basic.Cancel, consumer_tag=self.tag, nowait=True))


# --------------------------------------------------------------------------------------------- settling
def on_basic_ack(channel: Channel, delivery_tag: int, multiple: bool) -> None:
    """Settle one delivery, or all up to this one (CO-14)."""
    if channel.tx is not None:
        channel.tx.decide(Verdict.ACKNOWLEDGED, delivery_tag, multiple=multiple)
        return
    if multiple:
        acknowledge(channel, channel.unacked.take_up_to(delivery_tag))
        return
    queue, message, consumer = channel.unacked.take(delivery_tag)
    channel.counters.acknowledged += 1
    if consumer is not None:
        shared = channel.prefetch
        if shared.limit and shared.is_full():
            channel.offer_credit()
        consumer.prefetch.used -= 1
        shared.used -= 1
    queue.settle(message)


def on_basic_nack(channel: Channel, delivery_tag: int, multiple: bool, requeue_them: bool) -> None:
    """Refuse one delivery, or all up to this one: back to the queue in ascending order (CO-15), or for good."""
    if channel.tx is not None:
        channel.tx.decide(Verdict.REQUEUED if requeue_them else Verdict.REJECTED, delivery_tag, multiple=multiple)
        return
    unacked = channel.unacked
    entries = unacked.take_up_to(delivery_tag) if multiple else [unacked.take(delivery_tag)]
    if requeue_them:
        requeue(channel, entries)
    else:
        reject(channel, entries)


def on_basic_reject(channel: Channel, delivery_tag: int, requeue_it: bool) -> None:
    """Refuse one delivery."""
    on_basic_nack(channel, delivery_tag, multiple=False, requeue_them=requeue_it)


def acknowledge(channel: Channel, entries: list[Entry]) -> None:
    """These deliveries are done with."""
    channel.counters.acknowledged += len(entries)
    _settle(channel, entries)


def reject(channel: Channel, entries: list[Entry]) -> None:
    """These deliveries are refused for good."""
    channel.counters.rejected += len(entries)
    _settle(channel, entries)


def _settle(channel: Channel, entries: list[Entry]) -> None:
    _release(channel, entries)
    for queue, message, _ in entries:
        queue.settle(message)


def _release(channel: Channel, entries: list[Entry]) -> None:
    """The consumers that had these have room again."""
    shared = channel.prefetch
    if shared.is_full():
        channel.offer_credit()
    for _, _, consumer in entries:
        if consumer is not None:
            consumer.prefetch.used -= 1
            shared.used -= 1


def requeue(channel: Channel, entries: list[Entry]) -> None:
    """These deliveries go back, each queue's in ascending order (CO-15, CO-17)."""
    _release(channel, entries)
    by_queue: dict[Queue, list[Message]] = {}
    for queue, message, _ in entries:
        by_queue.setdefault(queue, []).append(message)
    channel.counters.requeued += len(entries)
    for queue, messages in by_queue.items():
        queue.requeue(messages)


def on_basic_recover_async(channel: Channel, method: commands.Basic.RecoverAsync) -> None:
    """Requeue all that is unacked; without an answer (CO-36)."""
    _recover(channel, method.requeue)


def on_basic_recover(channel: Channel, method: commands.Basic.Recover) -> None:
    """Requeue all that is unacked."""
    _recover(channel, method.requeue)
    channel.reply(commands.Basic.RecoverOk())


def _recover(channel: Channel, requeue_them: bool) -> None:
    if not requeue_them:
        raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
    requeue(channel, channel.unacked.take_all())


# --------------------------------------------------------------------------------------------- consuming
def on_basic_qos(channel: Channel, method: commands.Basic.Qos) -> None:
    """Limit the consumers made from now on, each for itself (CO-19), or all consumers of the channel together (CO-20).

    The two limits are independent: both hold.
    """
    if method.prefetch_size:
        raise AmqpError(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.prefetch.limit = method.prefetch_count or 0
        channel.offer_credit()
    else:
        channel.prefetch_count = method.prefetch_count or 0
    channel.reply(commands.Basic.QosOk())


def on_basic_consume(channel: Channel, method: commands.Basic.Consume) -> None:
    """Attach a consumer; its first delivery follows consume-ok."""
    tag = method.consumer_tag
    is_for_replies = method.queue == REPLY_TO
    name = channel.queue_name(method.queue)  # RabbitMQ misses the queue declared last before it looks at the tag
    if tag in channel.consumers:  # the one for replies is not among them
        raise AmqpError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if is_for_replies:
        queue, arguments = _reply_queue(channel, method), ConsumerArguments()
    else:
        queue = channel.vhost.find_queue(name, channel.connection)
        arguments = check_consumer(cast("Table", method.arguments), queue.label)
    consumer = Consumer(
        channel,
        queue,
        tag or _server_tag(),
        no_ack=bool(method.no_ack),
        exclusive=bool(method.exclusive),
        arguments=arguments,
    )
    if queue.needs_admission(consumer):
        wait = channel.wait(lambda _: _attach(channel, method, consumer), lambda _: queue.decline())
        queue.admit(consumer, wait)
    else:
        _attach(channel, method, consumer)


def _attach(channel: Channel, method: commands.Basic.Consume, consumer: Consumer) -> None:
    queue = consumer.queue
    if not (channel.connection.is_draining and queue.is_stored):
        queue.add_consumer(consumer)
    if method.queue == REPLY_TO:
        channel.replies = consumer
    else:
        channel.consumers[consumer.tag] = consumer
        channel.ack_timeout.expect(consumer.timeout_s, queue)
    if not method.nowait:
        channel.reply(build(commands.Basic.ConsumeOk, consumer_tag=consumer.tag))


def _reply_queue(channel: Channel, method: commands.Basic.Consume) -> Queue:
    """A new address for direct replies; one per channel, and nothing to acknowledge (EX-14)."""
    if not method.no_ack:
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.replies is not None:
        raise AmqpError(ReplyCode.PRECONDITION_FAILED, "reply consumer already set")
    return channel.vhost.replies.open()


def _server_tag() -> str:
    """``amq.ctag-`` and 22 random characters, as RabbitMQ makes them (CO-27)."""
    return "amq.ctag-" + base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()


def on_basic_cancel(channel: Channel, method: commands.Basic.Cancel) -> None:
    """Detach a consumer; what it has stays with the client; an unknown tag is fine (CO-25).

    The consumer for replies goes first, should another have its tag: RabbitMQ allows that.
    """
    tag = cast("str", method.consumer_tag)
    consumer = channel.replies
    if consumer is not None and consumer.tag == tag:
        channel.replies = None
    else:
        consumer = channel.consumers.pop(tag, None)
    if consumer is not None:
        consumer.queue.remove_consumer(consumer)
    if not method.nowait:
        channel.reply(build(commands.Basic.CancelOk, consumer_tag=tag))


def cancel_consumers(channel: Channel) -> None:
    """The connector stops: consumers of stored queues are detached, and told where the client can take it (HA-08).

    Queues in memory end with their client anyway: until then replies still reach it.
    """
    for consumer in list(channel.consumers.values()):
        if consumer.queue.is_stored:
            consumer.queue.remove_consumer(consumer)
            consumer.on_queue_gone()


# --------------------------------------------------------------------------------------------- basic.get
def on_basic_get(channel: Channel, name: str, no_ack: bool) -> None:
    """Take one message on the same ledger as a consumer's (CO-07); the channel waits for it.

    A client that does not read what it has got already gets no more meanwhile (PC-17).
    """
    if channel.output.is_unread:
        _get_later(channel, name, no_ack=no_ack)
        return
    queue = channel.vhost.find_queue(channel.queue_name(name), channel.connection)

    def reply(result: tuple[Message, int] | None) -> None:
        if result is None:
            channel.counters.get_empty += 1
            channel.output.put(GET_EMPTY(channel.number))
        elif channel.output.is_unread:  # by now: other channels have got much
            queue.give_back(result[0])
            _get_later(channel, name, no_ack=no_ack)
        else:
            _send(channel, queue, *result, no_ack=no_ack)

    def orphan(result: tuple[Message, int] | None) -> None:
        if result is not None:
            queue.give_back(result[0])

    queue.get(channel.wait(reply, orphan))


def _get_later(channel: Channel, name: str, *, no_ack: bool) -> None:
    """When the client has read; what is behind it in the channel waits as well."""
    channel.output.when_read(channel.wait(lambda _: on_basic_get(channel, name, no_ack), is_bounded=False))


def _counted(message: Message, frame_max: int) -> bytes:
    """The header with the count of deliveries, where it fits into one frame with that; 0 for no limit.

    A client may end its connection over a larger frame, and would for ever: the message comes back then.
    """
    header = with_number(message.header, DELIVERY_COUNT, message.delivery_count)
    return header if not frame_max or header_frame_bytes(header) <= frame_max else message.header


def _send(channel: Channel, queue: Queue, message: Message, ready_count: int, *, no_ack: bool) -> None:
    counters = channel.counters
    if no_ack:
        counters.got_no_ack += 1
        tag = channel.unacked.skip()
        queue.settle(message)
    else:
        counters.got += 1
        channel.ack_timeout.expect(None, queue)
        tag = channel.unacked.add((queue, message, None))
    header = message.header
    if message.redelivered:
        counters.redelivered += 1
        if message.delivery_count:
            header = _counted(message, channel.connection.frame_max)
    channel.output.put(
        encode_get_ok(
            channel.number,
            tag,
            message.redelivered,
            message.exchange,
            message.routing_key,
            ready_count,
            header,
            message.body,
            channel.connection.frame_max,
        )
    )

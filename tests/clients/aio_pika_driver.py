"""The scenarios' words in aio-pika, on an event loop that runs while something is asked of its connection."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import aio_pika
import aiormq.exceptions
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage, AbstractQueue
from pamqp import commands
from yarl import URL

from tests.clients.driver import ChannelClosed, Consumer, Declared, Delivery, LoginRefused, Returned

T = TypeVar("T")

_CODES: dict[type[BaseException], int] = {
    aiormq.exceptions.ChannelAccessRefused: 403,
    aiormq.exceptions.ChannelNotFoundEntity: 404,
    aiormq.exceptions.ChannelLockedResource: 405,
    aiormq.exceptions.ChannelPreconditionFailed: 406,
}
_STEP_S = 0.01


class AioPikaChannel:
    """See ``driver.Channel``."""

    def __init__(self, connection: AioPikaConnection, channel: AbstractChannel) -> None:
        self._run = connection.run
        self._connection = connection
        self._channel = channel
        self._underlay = self._run(channel.get_underlay_channel())
        self._messages: dict[int, AbstractIncomingMessage] = {}
        self._consumers: dict[str, tuple[Consumer, AbstractQueue]] = {}
        self._closed_by: BaseException | None = None
        channel.close_callbacks.add(self._on_close)
        self._underlay.on_consumer_cancel_callbacks.add(self._on_cancel)

    def declare_queue(
        self, name: str = "", *, passive: bool = False, durable: bool = False, exclusive: bool = False,
        auto_delete: bool = False, arguments: dict[str, Any] | None = None,
    ) -> Declared:  # fmt: skip
        queue = self._run(
            self._channel.declare_queue(
                name or None, passive=passive, durable=durable, exclusive=exclusive, auto_delete=auto_delete,
                arguments=arguments,
            )
        )  # fmt: skip
        result = queue.declaration_result
        assert result.message_count is not None
        assert result.consumer_count is not None
        return Declared(queue.name, result.message_count, result.consumer_count)

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return _count(self._run(self._queue(name).delete(if_unused=if_unused, if_empty=if_empty)))

    def purge_queue(self, name: str) -> int:
        return _count(self._run(self._queue(name).purge()))

    def declare_exchange(
        self, name: str, type: str = "direct", *, passive: bool = False, durable: bool = False
    ) -> None:
        self._run(self._channel.declare_exchange(name, type, passive=passive, durable=durable))

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        self._run(self._channel.exchange_delete(name, if_unused=if_unused))

    def bind_queue(self, queue: str, exchange: str, routing_key: str) -> None:
        self._run(self._queue(queue).bind(exchange, routing_key))

    def unbind_queue(self, queue: str, exchange: str, routing_key: str) -> None:
        self._run(self._queue(queue).unbind(exchange, routing_key))

    def publish(
        self, exchange: str, routing_key: str, body: bytes, *, mandatory: bool = False, **properties: Any
    ) -> None:
        message = aio_pika.Message(body, **properties)
        self._run(self._exchange(exchange).publish(message, routing_key, mandatory=mandatory))

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        message = self._run(self._queue(queue).get(no_ack=no_ack, fail=False))
        return None if message is None else self._keep(message)

    def qos(self, prefetch_count: int) -> None:
        self._run(self._channel.set_qos(prefetch_count))

    def consume(self, queue: str, *, no_ack: bool = False, exclusive: bool = False) -> Consumer:
        consumer = Consumer("")

        async def on_message(message: AbstractIncomingMessage) -> None:
            consumer.deliveries.append(self._keep(message))

        of = self._queue(queue)
        consumer.tag = self._run(of.consume(on_message, no_ack=no_ack, exclusive=exclusive))
        self._consumers[consumer.tag] = consumer, of
        return consumer

    def cancel(self, consumer: Consumer) -> None:
        self._run(self._consumers[consumer.tag][1].cancel(consumer.tag))

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        message = self._messages.get(tag)
        self._run(message.ack(multiple) if message else self._underlay.basic_ack(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        message = self._messages.get(tag)
        self._run(message.nack(multiple, requeue) if message else self._underlay.basic_nack(tag, multiple, requeue))

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self._run(self._messages[tag].reject(requeue))

    def recover(self) -> None:
        self._run(self._underlay.basic_recover(requeue=True))

    def close(self) -> None:
        self._run(self._channel.close())

    def wait_closed(self) -> ChannelClosed:
        self._connection.pump(lambda: self._closed_by is not None)
        assert self._closed_by is not None
        return _as_closed(self._closed_by)

    def _queue(self, name: str) -> AbstractQueue:
        return self._run(self._channel.get_queue(name, ensure=False))

    def _exchange(self, name: str) -> AbstractExchange:
        return self._run(self._channel.get_exchange(name, ensure=False)) if name else self._channel.default_exchange

    def _keep(self, message: AbstractIncomingMessage) -> Delivery:
        assert message.delivery_tag is not None
        self._messages[message.delivery_tag] = message
        return Delivery(
            message.body, message.delivery_tag, bool(message.redelivered), message.exchange or "",
            message.routing_key or "", _plain(message), message.message_count,
        )  # fmt: skip

    def _on_close(self, _channel: object, error: BaseException | None) -> None:
        self._closed_by = error

    def _on_cancel(self, frame: commands.Basic.Cancel) -> None:
        assert frame.consumer_tag is not None
        self._consumers[frame.consumer_tag][0].is_cancelled = True


class AioPikaConnection:
    """See ``driver.Connection``."""

    def __init__(self, url: URL) -> None:
        self._runner = asyncio.Runner()
        self._is_over = False
        try:
            self._connection: AbstractConnection = self.run(aio_pika.connect(url, timeout=15))
        except BaseException:
            self._runner.close()
            raise

    @property
    def is_open(self) -> bool:
        return not self._connection.is_closed

    def run(self, action: Awaitable[T]) -> T:
        """Run the loop until this is done."""
        with _translated():
            return self._runner.run(_result_of(action))

    def channel(self, *, confirms: bool = True) -> AioPikaChannel:
        return AioPikaChannel(self, self.run(self._open_channel(confirms)))

    def pump(self, until: Callable[[], object], limit_s: float = 10.0) -> None:
        self.run(self._until(until, limit_s))

    def pump_for(self, duration_s: float) -> None:
        self.run(asyncio.sleep(duration_s))

    def close(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        try:
            self.run(self._connection.close())
        finally:
            self._runner.close()

    async def _open_channel(self, confirms: bool) -> AbstractChannel:
        channel = self._connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        await channel.initialize()
        return channel

    @staticmethod
    async def _until(condition: Callable[[], object], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"did not come true within {limit_s:g} s"
            await asyncio.sleep(_STEP_S)


class AioPikaClient:
    """See ``driver.Client``."""

    name = "aio-pika"

    def connect(self, url: str, vhost: str | None = None) -> AioPikaConnection:
        target = URL(url) if vhost is None else URL(url).with_path("/" + vhost)
        return AioPikaConnection(target)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except aiormq.exceptions.ProbableAuthenticationError as error:
        raise LoginRefused(str(error)) from error
    except aiormq.exceptions.PublishError as error:
        returned = error.message
        assert returned is not None
        assert isinstance(returned.delivery, commands.Basic.Return)
        assert returned.delivery.reply_code is not None
        properties = returned.header.properties
        raise Returned(returned.delivery.reply_code, returned.body, dict(properties)) from error
    except aiormq.exceptions.ChannelClosed as error:
        raise _as_closed(error) from error


async def _result_of(action: Awaitable[T]) -> T:
    return await action


def _as_closed(error: BaseException) -> ChannelClosed:
    code = _CODES.get(type(error))
    return ChannelClosed(error.args[0], error.args[1]) if code is None else ChannelClosed(code, error.args[0])


def _count(answer: Any) -> int:
    return int(answer.message_count)


def _plain(message: AbstractIncomingMessage) -> dict[str, Any]:
    names = (
        "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
        "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
    )  # fmt: skip
    return {name: getattr(message, name) for name in names}

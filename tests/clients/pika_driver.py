"""The scenarios' words in pika, as users of its BlockingConnection write them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions

from tests.clients.driver import ChannelClosed, Consumer, Declared, Delivery, LoginRefused, Returned

_PROPERTIES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip


class PikaChannel:
    """See ``driver.Channel``."""

    def __init__(self, connection: PikaConnection, channel: Any) -> None:
        self._connection = connection
        self._channel = channel
        self._consumers: dict[str, Consumer] = {}
        channel.add_on_cancel_callback(self._on_cancel)

    def declare_queue(
        self, name: str = "", *, passive: bool = False, durable: bool = False, exclusive: bool = False,
        auto_delete: bool = False, arguments: dict[str, Any] | None = None,
    ) -> Declared:  # fmt: skip
        with _translated():
            method = self._channel.queue_declare(
                name,
                passive=passive,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments,
            ).method
        return Declared(method.queue, method.message_count, method.consumer_count)

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        with _translated():
            return self._channel.queue_delete(name, if_unused=if_unused, if_empty=if_empty).method.message_count

    def purge_queue(self, name: str) -> int:
        with _translated():
            return self._channel.queue_purge(name).method.message_count

    def declare_exchange(
        self, name: str, type: str = "direct", *, passive: bool = False, durable: bool = False
    ) -> None:
        with _translated():
            self._channel.exchange_declare(name, type, passive=passive, durable=durable)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        with _translated():
            self._channel.exchange_delete(name, if_unused=if_unused)

    def bind_queue(self, queue: str, exchange: str, routing_key: str) -> None:
        with _translated():
            self._channel.queue_bind(queue, exchange, routing_key)

    def unbind_queue(self, queue: str, exchange: str, routing_key: str) -> None:
        with _translated():
            self._channel.queue_unbind(queue, exchange, routing_key)

    def publish(
        self, exchange: str, routing_key: str, body: bytes, *, mandatory: bool = False, **properties: Any
    ) -> None:
        with _translated():
            self._channel.basic_publish(
                exchange, routing_key, body, pika.BasicProperties(**properties), mandatory=mandatory
            )

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        with _translated():
            method, properties, body = self._channel.basic_get(queue, auto_ack=no_ack)
        return None if method is None else _delivery(method, properties, body)

    def qos(self, prefetch_count: int) -> None:
        with _translated():
            self._channel.basic_qos(prefetch_count=prefetch_count)

    def consume(self, queue: str, *, no_ack: bool = False, exclusive: bool = False) -> Consumer:
        consumer = Consumer("")

        def on_message(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
            consumer.deliveries.append(_delivery(method, properties, body))

        with _translated():
            consumer.tag = self._channel.basic_consume(queue, on_message, auto_ack=no_ack, exclusive=exclusive)
        self._consumers[consumer.tag] = consumer
        return consumer

    def cancel(self, consumer: Consumer) -> None:
        with _translated():
            self._channel.basic_cancel(consumer.tag)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        with _translated():
            self._channel.basic_ack(tag, multiple=multiple)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        with _translated():
            self._channel.basic_nack(tag, multiple=multiple, requeue=requeue)

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        with _translated():
            self._channel.basic_reject(tag, requeue=requeue)

    def recover(self) -> None:
        with _translated():
            self._channel.basic_recover(requeue=True)

    def close(self) -> None:
        with _translated():
            self._channel.close()

    def wait_closed(self) -> ChannelClosed:
        self._connection.pump(lambda: self._channel.is_closed)
        reason = self._channel._closing_reason
        assert isinstance(reason, pika.exceptions.ChannelClosedByBroker)
        return ChannelClosed(reason.reply_code, reason.reply_text)

    def _on_cancel(self, frame: Any) -> None:
        self._consumers[frame.method.consumer_tag].is_cancelled = True


class PikaConnection:
    """See ``driver.Connection``."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def is_open(self) -> bool:
        return bool(self._connection.is_open)

    def channel(self, *, confirms: bool = True) -> PikaChannel:
        channel = self._connection.channel()
        if confirms:
            channel.confirm_delivery()
        return PikaChannel(self, channel)

    def pump(self, until: Callable[[], object], limit_s: float = 10.0) -> None:
        deadline = time.monotonic() + limit_s
        while not until():
            assert time.monotonic() < deadline, f"did not come true within {limit_s:g} s"
            self._connection.process_data_events(0.05)

    def pump_for(self, duration_s: float) -> None:
        self._connection.sleep(duration_s)

    def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()


class PikaClient:
    """See ``driver.Client``."""

    name = "pika"

    def connect(self, url: str, vhost: str | None = None) -> PikaConnection:
        parameters = pika.URLParameters(url)
        if vhost is not None:
            parameters.virtual_host = vhost
        parameters.blocked_connection_timeout = 15
        try:
            return PikaConnection(pika.BlockingConnection(parameters))
        except pika.exceptions.ProbableAuthenticationError as error:
            raise LoginRefused(str(error)) from error


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except pika.exceptions.ChannelClosedByBroker as error:
        raise ChannelClosed(error.reply_code, error.reply_text) from error
    except pika.exceptions.UnroutableError as error:
        message = error.messages[0]
        raise Returned(message.method.reply_code, message.body, _plain(message.properties)) from error


def _delivery(method: Any, properties: Any, body: bytes) -> Delivery:
    return Delivery(
        body, method.delivery_tag, method.redelivered, method.exchange, method.routing_key, _plain(properties),
        getattr(method, "message_count", None),
    )  # fmt: skip


def _plain(properties: Any) -> dict[str, Any]:
    return {name: getattr(properties, name) for name in _PROPERTIES}

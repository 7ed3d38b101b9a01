"""What one client library has and the other has not, as its users write it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import aio_pika
import aiormq.exceptions
import pika
import pytest

from tests.clients.conftest import Target

COUNT = 20


@pytest.fixture
def queue(target: Target) -> Iterator[str]:
    """A durable queue, deleted at the end."""
    name = f"feature-{uuid.uuid4().hex[:12]}"
    with pika.BlockingConnection(pika.URLParameters(target.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True)
        yield name
        channel.queue_delete(name)


def fill(url: str, queue: str) -> list[bytes]:
    bodies = [b"%d" % number for number in range(COUNT)]
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    return bodies


def test_pika_s_consume_generator_and_its_inactivity_timeout(target: Target, queue: str) -> None:
    bodies = fill(target.url, queue)
    got = []
    with pika.BlockingConnection(pika.URLParameters(target.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=4)
        for method, _, body in channel.consume(queue, inactivity_timeout=0.5):
            if method is None:
                break
            got.append(body)
            channel.basic_ack(method.delivery_tag)
        assert channel.cancel() == 0
    assert got == bodies


def test_pika_s_cancel_gives_back_what_it_has_read_ahead(target: Target, queue: str) -> None:
    bodies = fill(target.url, queue)
    with pika.BlockingConnection(pika.URLParameters(target.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=5)
        messages = channel.consume(queue, inactivity_timeout=5)
        method, _, body = next(messages)
        assert body == bodies[0]
        connection.sleep(0.2)  # the others arrive
        channel.basic_ack(method.delivery_tag)
        channel.cancel()
        rest = []
        while (answer := channel.basic_get(queue, auto_ack=True))[0] is not None:
            rest.append((int(answer[2]), answer[0].redelivered))
        assert sorted(number for number, _ in rest) == list(range(1, COUNT))
        assert {number for number, is_redelivered in rest if is_redelivered} >= {1, 2, 3, 4}


async def test_aio_pika_s_queue_iterator(target: Target, queue: str) -> None:
    bodies = fill(target.url, queue)
    got = []
    async with await aio_pika.connect(target.url) as connection:
        channel = await connection.channel()
        await channel.set_qos(3)
        async with (await channel.get_queue(queue)).iterator() as messages:
            async for message in messages:
                async with message.process():
                    got.append(message.body)
                if len(got) == COUNT:
                    break
    assert got == bodies


async def test_aio_pika_s_process_requeues_what_failed(target: Target, queue: str) -> None:
    fill(target.url, queue)
    failed: set[bytes] = set()
    done = []
    async with await aio_pika.connect(target.url) as connection:
        channel = await connection.channel()
        await channel.set_qos(1)
        async with (await channel.get_queue(queue)).iterator() as messages:
            async for message in messages:
                try:
                    async with message.process(requeue=True):
                        if message.body in (b"3", b"7") and message.body not in failed:
                            failed.add(message.body)
                            raise ArithmeticError("cannot")
                        done.append((message.body, message.redelivered))
                except ArithmeticError:
                    pass
                if len(done) == COUNT:
                    break
    assert sorted(int(body) for body, _ in done) == list(range(COUNT))
    assert [body for body, is_redelivered in done if is_redelivered] == [b"3", b"7"]
    if target.requeue == "tail":
        assert [body for body, _ in done[-2:]] == [b"3", b"7"]


async def test_aio_pika_s_robust_channel_comes_back_after_an_error(target: Target, queue: str) -> None:
    fill(target.url, queue)
    async with await aio_pika.connect_robust(target.url) as connection:
        channel = await connection.channel()
        with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):
            await channel.get_queue(queue + "-missing", ensure=True)
        await channel.reopen()
        message = await (await channel.get_queue(queue, ensure=False)).get()
        assert message is not None
        assert message.body == b"0"
        await message.ack()


async def test_aio_pika_publishes_in_parallel(target: Target, queue: str) -> None:
    async with await aio_pika.connect(target.url) as connection:
        channel = await connection.channel()
        await asyncio.gather(
            *(channel.default_exchange.publish(aio_pika.Message(b"%d" % n), queue, mandatory=True) for n in range(500))
        )
        declared = await channel.declare_queue(queue, passive=True)
        assert declared.declaration_result.message_count == 500
        await declared.purge()

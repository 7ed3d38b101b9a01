"""Answers questions: takes a number from the queue `fibonacci` and sends back that Fibonacci number.

    python server.py

Plain pika, no word of it about KubeMQ: the same program runs on RabbitMQ. Where the broker is stands in
KUBEMQ_AMQP_URL.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pika
import pika.exceptions

URL = os.environ.get("KUBEMQ_AMQP_URL", "amqp://guest:guest@localhost:5672/")


def fibonacci(number: int) -> int:
    low, high = 0, 1
    for _ in range(number):
        low, high = high, low + high
    return low


def on_question(channel: Any, method: Any, properties: Any, body: bytes) -> None:
    try:
        answer = str(fibonacci(int(body)))
    except ValueError:
        answer = "not a number"
    print(f"fibonacci of {body.decode(errors='replace')}: {answer}", flush=True)

    # The client says where the answer goes, and by which mark it will know it again.
    channel.basic_publish(
        exchange="",
        routing_key=properties.reply_to,
        body=answer.encode(),
        properties=pika.BasicProperties(correlation_id=properties.correlation_id),
    )
    # Acknowledged after the answer: if this server dies before, another one gets the question.
    channel.basic_ack(method.delivery_tag)


def main() -> None:
    connection = pika.BlockingConnection(pika.URLParameters(URL))
    channel = connection.channel()
    channel.queue_declare("fibonacci")

    # One question at a time, so that several servers share them evenly.
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("fibonacci", on_question)

    print("waiting for questions, Ctrl-C ends", flush=True)
    try:
        channel.start_consuming()
    except KeyboardInterrupt:
        connection.close()
    except pika.exceptions.AMQPConnectionError as error:
        sys.exit(f"the broker is gone: {error!r}")


if __name__ == "__main__":
    main()

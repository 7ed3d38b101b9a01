"""Shows the events whose routing key matches one of the patterns.

    python receive_events.py PATTERN...     such as: 'order.*.created' '*.eu.#'

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


def on_event(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
    print(f"{method.routing_key}: {body.decode()}", flush=True)


def main() -> None:
    patterns = sys.argv[1:]
    if not patterns:
        sys.exit(__doc__)

    connection = pika.BlockingConnection(pika.URLParameters(URL))
    channel = connection.channel()
    channel.exchange_declare("events", exchange_type="topic")
    queue = channel.queue_declare("", exclusive=True).method.queue

    # In a pattern, * stands for exactly one word and # for any number of them, none included.
    for pattern in patterns:
        channel.queue_bind(queue, "events", routing_key=pattern)

    channel.basic_consume(queue, on_event, auto_ack=True)
    print(f"listening to {', '.join(patterns)}, Ctrl-C ends", flush=True)
    try:
        channel.start_consuming()
    except KeyboardInterrupt:
        connection.close()
    except pika.exceptions.AMQPConnectionError as error:
        sys.exit(f"the broker is gone: {error!r}")


if __name__ == "__main__":
    main()

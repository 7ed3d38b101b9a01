"""Hears everything that is published to `news` from now on; run as many as you like, each hears all of it.

    python subscriber.py [NAME]

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

NAME = sys.argv[1] if len(sys.argv) > 1 else f"subscriber {os.getpid()}"


def on_news(_channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
    print(f"{NAME}: {body.decode()}", flush=True)


def main() -> None:
    connection = pika.BlockingConnection(pika.URLParameters(URL))
    channel = connection.channel()
    channel.exchange_declare("news", exchange_type="fanout")

    # A queue of one's own: the broker makes up its name, and drops it when this connection ends.
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "news")

    # Nothing to acknowledge: what a dead subscriber has missed is gone with its queue anyway.
    channel.basic_consume(queue, on_news, auto_ack=True)

    print(f"{NAME}: listening, Ctrl-C ends", flush=True)
    try:
        channel.start_consuming()
    except KeyboardInterrupt:
        connection.close()
    except pika.exceptions.AMQPConnectionError as error:
        sys.exit(f"{NAME}: the broker is gone: {error!r}")


if __name__ == "__main__":
    main()

"""Sends one event to the topic exchange `events`; its routing key says what it is about, word by word.

    python emit_event.py KEY TEXT...        such as: order.eu.created "order 17"

Plain pika, no word of it about KubeMQ: the same program runs on RabbitMQ. Where the broker is stands in
KUBEMQ_AMQP_URL.
"""

from __future__ import annotations

import os
import sys

import pika

URL = os.environ.get("KUBEMQ_AMQP_URL", "amqp://guest:guest@localhost:5672/")


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    key, text = sys.argv[1], " ".join(sys.argv[2:])

    connection = pika.BlockingConnection(pika.URLParameters(URL))
    channel = connection.channel()
    channel.exchange_declare("events", exchange_type="topic")
    channel.confirm_delivery()
    channel.basic_publish(exchange="events", routing_key=key, body=text.encode())
    print(f"sent {key}: {text}", flush=True)
    connection.close()


if __name__ == "__main__":
    main()

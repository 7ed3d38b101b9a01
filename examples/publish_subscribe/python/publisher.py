"""Tells everybody who listens: publishes news to the fanout exchange `news`.

    python publisher.py [HOW_MANY]

Plain pika, no word of it about KubeMQ: the same program runs on RabbitMQ. Where the broker is stands in
KUBEMQ_AMQP_URL.
"""

from __future__ import annotations

import os
import sys

import pika

URL = os.environ.get("KUBEMQ_AMQP_URL", "amqp://guest:guest@localhost:5672/")


def main() -> None:
    how_many = int(sys.argv[1]) if len(sys.argv) > 1 else 5

    connection = pika.BlockingConnection(pika.URLParameters(URL))
    channel = connection.channel()

    # A fanout exchange gives a copy of every message to every queue bound to it. It keeps nothing: with nobody bound,
    # a message is gone.
    channel.exchange_declare("news", exchange_type="fanout")
    channel.confirm_delivery()

    for number in range(1, how_many + 1):
        # The routing key means nothing to a fanout exchange.
        channel.basic_publish(exchange="news", routing_key="", body=f"news {number}".encode())
        print(f"published news {number}", flush=True)

    connection.close()


if __name__ == "__main__":
    main()

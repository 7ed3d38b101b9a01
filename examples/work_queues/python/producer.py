"""Puts tasks into the queue `tasks`.

    python producer.py [HOW_MANY]

Plain pika, no word of it about KubeMQ: the same program runs on RabbitMQ. Where the broker is stands in
KUBEMQ_AMQP_URL.
"""

from __future__ import annotations

import os
import sys

import pika
import pika.exceptions

URL = os.environ.get("KUBEMQ_AMQP_URL", "amqp://guest:guest@localhost:5672/")


def main() -> int:
    how_many = int(sys.argv[1]) if len(sys.argv) > 1 else 10

    connection = pika.BlockingConnection(pika.URLParameters(URL))
    channel = connection.channel()

    # Durable: the queue outlives the broker's restart. Declaring it again, here and in the worker, does no harm.
    channel.queue_declare("tasks", durable=True)

    # Confirms: from here on basic_publish returns when the message is stored, and raises when it could not be.
    channel.confirm_delivery()

    for number in range(1, how_many + 1):
        task = f"task {number}"
        try:
            channel.basic_publish(
                exchange="",
                routing_key="tasks",
                body=task.encode(),
                properties=pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent, content_type="text/plain"),
                mandatory=True,
            )
        except (pika.exceptions.UnroutableError, pika.exceptions.NackError):
            print(f"{task}: not stored, send it again", file=sys.stderr)
            return 1
        print(f"sent {task}", flush=True)

    connection.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

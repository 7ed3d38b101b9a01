"""Shows the log lines of the given severities.

    python receive_logs.py SEVERITY...

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


def on_line(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
    print(f"{method.routing_key}: {body.decode()}", flush=True)


def main() -> None:
    severities = sys.argv[1:]
    if not severities:
        sys.exit(__doc__)

    connection = pika.BlockingConnection(pika.URLParameters(URL))
    channel = connection.channel()
    channel.exchange_declare("logs", exchange_type="direct")
    queue = channel.queue_declare("", exclusive=True).method.queue

    # One binding for each severity; the same line comes once, however many bindings lead to this queue.
    for severity in severities:
        channel.queue_bind(queue, "logs", routing_key=severity)

    channel.basic_consume(queue, on_line, auto_ack=True)
    print(f"listening to {', '.join(severities)}, Ctrl-C ends", flush=True)
    try:
        channel.start_consuming()
    except KeyboardInterrupt:
        connection.close()
    except pika.exceptions.AMQPConnectionError as error:
        sys.exit(f"the broker is gone: {error!r}")


if __name__ == "__main__":
    main()

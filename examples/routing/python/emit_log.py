"""Sends one log line to the direct exchange `logs`, with its severity as the routing key.

    python emit_log.py SEVERITY TEXT...

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
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    severity, text = sys.argv[1], " ".join(sys.argv[2:])

    connection = pika.BlockingConnection(pika.URLParameters(URL))
    channel = connection.channel()

    # A direct exchange gives a message to the queues bound with exactly its routing key.
    channel.exchange_declare("logs", exchange_type="direct")
    channel.confirm_delivery()

    try:
        # Mandatory: a line that no queue is bound for comes back instead of getting lost unnoticed.
        channel.basic_publish(exchange="logs", routing_key=severity, body=text.encode(), mandatory=True)
        print(f"sent {severity}: {text}", flush=True)
        code = 0
    except pika.exceptions.UnroutableError:
        print(f"nobody listens to {severity}", file=sys.stderr)
        code = 1

    connection.close()
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Does the tasks of the queue `tasks`; run as many workers as you like, they share the work.

    python worker.py [NAME]

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
SECONDS_PER_TASK = float(os.environ.get("SECONDS_PER_TASK", "0.5"))

NAME = sys.argv[1] if len(sys.argv) > 1 else f"worker {os.getpid()}"


def on_task(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
    task = body.decode()
    # Redelivered: somebody had this task before and did not acknowledge it. It may be half done.
    again = " (redelivered)" if method.redelivered else ""
    print(f"{NAME}: started {task}{again}", flush=True)

    channel.connection.sleep(SECONDS_PER_TASK)  # the work; connection.sleep keeps the heartbeats going

    # Only now is the task done. A worker that dies before this line loses nothing: its tasks go to the others.
    channel.basic_ack(method.delivery_tag)
    print(f"{NAME}: finished {task}", flush=True)


def main() -> None:
    connection = pika.BlockingConnection(pika.URLParameters(URL))
    channel = connection.channel()
    channel.queue_declare("tasks", durable=True)

    # Prefetch: at most this many unacknowledged tasks at a time, so that no worker hoards what others could do.
    channel.basic_qos(prefetch_count=3)
    channel.basic_consume("tasks", on_task)

    print(f"{NAME}: waiting for tasks, Ctrl-C ends", flush=True)
    try:
        channel.start_consuming()
    except KeyboardInterrupt:
        connection.close()
    except pika.exceptions.AMQPConnectionError as error:
        sys.exit(f"{NAME}: the broker is gone: {error!r}")


if __name__ == "__main__":
    main()

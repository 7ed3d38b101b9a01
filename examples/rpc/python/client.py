"""Asks for Fibonacci numbers, one after the other, and waits for each answer.

    python client.py [--direct] NUMBER...

The answers come to a queue of this client's own; with --direct they come without a queue, by direct reply-to.

Plain pika, no word of it about KubeMQ: the same program runs on RabbitMQ. Where the broker is stands in
KUBEMQ_AMQP_URL.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from typing import Any

import pika
import pika.exceptions

URL = os.environ.get("KUBEMQ_AMQP_URL", "amqp://guest:guest@localhost:5672/")
SECONDS_TO_WAIT = 10.0

# A name, not a queue: consuming from it makes the broker hand answers straight to this channel.
DIRECT = "amq.rabbitmq.reply-to"


class Client:
    """One connection, for one question at a time."""

    def __init__(self, *, is_direct: bool) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(URL))
        self._channel = self._connection.channel()
        self._answers: dict[str, str] = {}
        self._reply_to = DIRECT if is_direct else self._channel.queue_declare("", exclusive=True).method.queue
        self._channel.basic_consume(self._reply_to, self._on_answer, auto_ack=True)

    def ask(self, number: str) -> str:
        """Return the answer; raises TimeoutError when none comes."""
        mark = str(uuid.uuid4())
        self._channel.basic_publish(
            exchange="",
            routing_key="fibonacci",
            body=number.encode(),
            properties=pika.BasicProperties(reply_to=self._reply_to, correlation_id=mark),
        )
        deadline = time.monotonic() + SECONDS_TO_WAIT
        while mark not in self._answers:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._connection.process_data_events(time_limit=left)
        return self._answers.pop(mark)

    def close(self) -> None:
        """End the connection; the queue for the answers goes with it."""
        self._connection.close()

    def _on_answer(self, _channel: Any, _method: Any, properties: Any, body: bytes) -> None:
        self._answers[properties.correlation_id] = body.decode()


def main() -> int:
    arguments = sys.argv[1:]
    is_direct = "--direct" in arguments
    numbers = [argument for argument in arguments if argument != "--direct"]
    if not numbers:
        sys.exit(__doc__)

    client = Client(is_direct=is_direct)
    try:
        for number in numbers:
            print(f"fibonacci of {number} is {client.ask(number)}", flush=True)
    except TimeoutError:
        print("no answer: is a server running?", file=sys.stderr)
        return 1
    finally:
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

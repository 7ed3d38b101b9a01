"""A publisher of its own process, to be killed once it says that all is sent: ``CLIENT URL QUEUE COUNT``."""

from __future__ import annotations

import sys
import threading

from tests.clients.conftest import CLIENTS


def main() -> None:
    """Publish without confirms, say so, and wait for the end."""
    client, url, queue, count = sys.argv[1:]
    channel = CLIENTS[client].connect(url).channel(confirms=False)
    for number in range(int(count)):
        channel.publish("", queue, b"%d" % number, delivery_mode=2)
    sys.stdout.write("all sent\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()

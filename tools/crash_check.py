"""Kill and restart everything by hand, with many messages, and check that nothing is lost, doubled or out of order.

Owns the checks that are too big for the test suite (there they run with fewer messages, ``tests/crash``).  A real
KubeMQ is stopped and started by commands that the caller gives; without them its own end is not checked.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support import traffic
from tests.support.server import ConnectorProcess, is_gone
from tests.support.traffic import Received, numbered
from tests.support.waiting import wait_until

LIMIT_S = 120.0
RESTART_LIMIT_S = 60.0


class Checks:
    """The checks, each on a queue of its own; prints a line for each as it is done."""

    def __init__(self, connector: ConnectorProcess, options: argparse.Namespace) -> None:
        self._connector = connector
        self._options = options
        self.failed = 0

    def run(self) -> None:
        """All that apply."""
        connector = self._connector
        for how in (signal.SIGTERM, signal.SIGKILL):
            self._survive(f"{how.name} of the connector", lambda how=how: connector.restart(how))  # type: ignore[misc]
            if connector.is_embedded:
                self._survive(
                    f"{how.name} of the embedded server",
                    lambda how=how: self._end_embedded(how),  # type: ignore[misc]
                )
        if self._options.kubemq_stop and self._options.kubemq_start:
            self._survive("stop and start of the KubeMQ server", self._restart_kubemq)
            self._survive("the same, and the connector killed meanwhile", self._restart_both, may_flag=True)
        self._held_come_first()

    def _survive(self, title: str, crash: Callable[[], object], *, may_flag: bool = False) -> None:
        """Confirmed messages, no consumer, a crash: all are there, in order, once, unflagged.

        ``may_flag``: when both were restarted nobody knows what was handed out.
        """
        url, count = self._connector.url, self._options.count
        queue = f"crash-check-{uuid.uuid4().hex[:12]}"
        traffic.declare(url, queue)
        traffic.publish_confirmed(url, queue, numbered(count))
        started = time.monotonic()
        crash()
        back_s = time.monotonic() - started
        received = traffic.drain(url, queue, count, LIMIT_S)
        expected = [Received(body, False) for body in numbered(count)]
        is_good = received == expected
        if may_flag:
            is_good = traffic.bodies_of(received) == traffic.bodies_of(expected)
        self._report(title, is_good, f"{_difference(received, expected)}; back after {back_s:.1f} s")
        traffic.delete(url, queue)

    def _held_come_first(self) -> None:
        """A connector killed with unacknowledged messages: these come first, flagged, the others after them."""
        connector, held, count = self._connector, self._options.held, self._options.count
        queue = f"crash-check-{uuid.uuid4().hex[:12]}"
        traffic.declare(connector.url, queue)
        traffic.publish_confirmed(connector.url, queue, numbered(count))
        with traffic.channel_of(connector.url) as channel:
            traffic.collect(channel, queue, held, prefetch=held)
            connector.restart(signal.SIGKILL)
        received = traffic.drain(connector.url, queue, count, LIMIT_S)
        expected = [Received(body, number < held) for number, body in enumerate(numbered(count))]
        self._report(
            f"SIGKILL of the connector with {held} held", received == expected, _difference(received, expected)
        )
        traffic.delete(connector.url, queue)

    def _end_embedded(self, how: signal.Signals) -> None:
        connector = self._connector
        pid = connector.embedded_pid
        os.kill(pid, how)
        wait_until(lambda: is_gone(pid) and connector.embedded_pid != pid, RESTART_LIMIT_S)
        connector.wait_ready(RESTART_LIMIT_S)

    def _restart_kubemq(self) -> None:
        for command in (self._options.kubemq_stop, self._options.kubemq_start):
            subprocess.run(shlex.split(command), check=True, stdout=subprocess.DEVNULL)
        self._connector.wait_ready(RESTART_LIMIT_S)

    def _restart_both(self) -> None:
        subprocess.run(shlex.split(self._options.kubemq_stop), check=True, stdout=subprocess.DEVNULL)
        self._connector.kill()
        subprocess.run(shlex.split(self._options.kubemq_start), check=True, stdout=subprocess.DEVNULL)
        self._connector.start()

    def _report(self, title: str, is_good: bool, detail: str) -> None:
        self.failed += not is_good
        sys.stdout.write(f"{'ok  ' if is_good else 'FAIL'} {title}: {detail}\n")
        sys.stdout.flush()


def _difference(received: Sequence[Received], expected: Sequence[Received]) -> str:
    """What is wrong, in counts."""
    bodies = traffic.bodies_of(received)
    wanted = traffic.bodies_of(expected)
    flags = sum(one.is_redelivered for one in received)
    return (
        f"{len(bodies)} received, {len(set(wanted) - set(bodies))} lost, {len(bodies) - len(set(bodies))} doubled, "
        f"{'in order' if bodies == wanted else 'OUT OF ORDER'}, {flags} redelivered"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when a check failed."""
    parser = argparse.ArgumentParser(description="Kill and restart everything, with many messages.")
    parser.add_argument("--count", type=int, default=10_000, help="messages (default %(default)s)")
    parser.add_argument("--held", type=int, default=100, help="unacknowledged ones (default %(default)s)")
    parser.add_argument("--kubemq-address", default="", metavar="HOST:PORT", help="use this KubeMQ server")
    parser.add_argument("--kubemq-stop", metavar="COMMAND", help="stops the KubeMQ server and returns when it is gone")
    parser.add_argument("--kubemq-start", metavar="COMMAND", help="starts it on the same data, returns when it answers")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="kubemq-amqp-crash-") as folder,
        ConnectorProcess(Path(folder), options.kubemq_address) as connector,
    ):
        checks = Checks(connector, options)
        try:
            checks.run()
        except BaseException:
            sys.stdout.write(connector.log_tail() + "\n")
            raise
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())

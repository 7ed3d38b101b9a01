"""Run the work-queue example with a worker killed in the middle, and tell what happened; behind ``make demo``.

Owns the story and its promises; the programs are ``examples/work_queues/python``, unchanged.  Ends with 1 when a
promise is broken: every task is done once, what the killed worker held comes back at the tail of the queue with
redelivered=true, nothing is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pika
import pika.exceptions

from mapping.names import kubemq_channel
from tests.support.server import ROOT, ConnectorProcess, NotReady

PROGRAMS = ROOT / "examples" / "work_queues" / "python"
QUEUE = "tasks"
SURVIVOR, VICTIM = "Anna", "Bert"
SECONDS_PER_TASK = 0.25
#: The victim is killed at the start of this task of its.
FATAL_TASK = 3
LIMIT_S = 30.0

_LINE = re.compile(r"(?P<who>\w+): (?P<what>started|finished) (?P<task>task \d+)(?P<again> \(redelivered\))?")


class Broken(Exception):
    """The demo cannot go on; the text says why."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a worker said: it has started or finished a task."""

    who: str
    what: str
    task: str
    is_redelivered: bool


class Story:
    """What the workers have said so far, in the order it was heard."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._news = threading.Condition()

    def add(self, line: str) -> None:
        """Take a worker's line; lines of another kind are no steps."""
        if match := _LINE.fullmatch(line):
            step = Step(match["who"], match["what"], match["task"], match["again"] is not None)
            with self._news:
                self._steps.append(step)
                self._news.notify_all()

    def steps(self, who: str, what: str) -> list[Step]:
        """What one worker has started, or finished."""
        with self._news:
            return [step for step in self._steps if (step.who, step.what) == (who, what)]

    def tasks(self, who: str, what: str) -> list[str]:
        """The tasks one worker has started, or finished."""
        return [step.task for step in self.steps(who, what)]

    def wait(self, who: str, what: str, count: int) -> None:
        """Wait until a worker has said so this often; raises Broken when it does not."""
        self._wait(lambda: len([s for s in self._steps if (s.who, s.what) == (who, what)]) >= count)

    def wait_finished(self, tasks: set[str]) -> None:
        """Wait until all these are finished, by whomever; raises Broken when they are not."""
        self._wait(lambda: {s.task for s in self._steps if s.what == "finished"} >= tasks)

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._news:
            if not self._news.wait_for(condition, LIMIT_S):
                raise Broken(f"nothing more happens; {len(self._steps)} steps so far, the last: {self._steps[-1:]}")


def say(text: str = "") -> None:
    """Print at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def listed(tasks: Sequence[str]) -> str:
    """``task 3, task 4 and task 9``."""
    return " and ".join(filter(None, (", ".join(tasks[:-1]), *tasks[-1:]))) or "none"


def program(name: str, argument: str, url: str) -> subprocess.Popen[str]:
    """Start one of the example's programs."""
    environment = {**os.environ, "KUBEMQ_AMQP_URL": url, "SECONDS_PER_TASK": str(SECONDS_PER_TASK)}
    command = [sys.executable, str(PROGRAMS / name), argument]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def produce(url: str, count: int) -> None:
    """Run the producer to its end; raises Broken when it fails."""
    with program("producer.py", str(count), url) as producer:
        output, _ = producer.communicate(timeout=LIMIT_S)
    if producer.returncode or output.count("sent task") != count:
        raise Broken(f"the producer ended with {producer.returncode}: {output}")


@contextlib.contextmanager
def worker(name: str, url: str, story: Story) -> Iterator[subprocess.Popen[str]]:
    """Run a worker, its words going to the story and to the screen."""
    with program("worker.py", name, url) as process:

        def listen() -> None:
            for line in process.stdout or ():
                say("  " + line.rstrip())
                story.add(line.rstrip())

        listener = threading.Thread(target=listen, name=f"listen to {name}")
        listener.start()
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)  # what Ctrl-C does
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
            listener.join()


def left_in_queue(url: str) -> int:
    """Delete the queue, and return how many messages it still had."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        return int(connection.channel().queue_delete(QUEUE).method.message_count)
    finally:
        connection.close()


def run_workers(url: str, count: int, story: Story) -> None:
    """Two workers, one of them killed in the middle of a task, until everything is done."""
    with worker(VICTIM, url, story) as victim:
        story.wait(VICTIM, "started", 1)
        with worker(SURVIVOR, url, story):
            story.wait(VICTIM, "started", FATAL_TASK)
            victim.kill()
            victim.wait()
            say(f"  *** {VICTIM} is killed (SIGKILL) in the middle of {story.tasks(VICTIM, 'started')[-1]} ***")
            story.wait_finished({f"task {number}" for number in range(1, count + 1)})
            story.wait(SURVIVOR, "finished", len(story.tasks(SURVIVOR, "started")))


def judge(story: Story, count: int, left: int) -> list[tuple[str, bool]]:
    """Tell what happened, and return each promise with whether it was kept."""
    everything = {f"task {number}" for number in range(1, count + 1)}
    finished = {who: story.tasks(who, "finished") for who in (SURVIVOR, VICTIM)}
    begun = [task for task in story.tasks(VICTIM, "started") if task not in finished[VICTIM]]
    received = story.steps(SURVIVOR, "started")
    back = [step.task for step in received if step.is_redelivered]
    fresh = [step.task for step in received if not step.is_redelivered]
    say()
    say("What happened")
    say(f"  {VICTIM} finished {listed(finished[VICTIM])}, and was killed while it worked at {listed(begun)}.")
    say(f"  It held {len(back)} unacknowledged tasks, begun or still waiting for it: {listed(back)}.")
    say(f"  {SURVIVOR} received {len(fresh)} tasks for the first time, {listed(fresh[:1])} to {listed(fresh[-1:])}.")
    say(
        f"  After those, from the tail of the queue, came {listed(back)}, marked redelivered=true; {SURVIVOR} did them."
    )
    say()
    done = finished[SURVIVOR] + finished[VICTIM]
    return [
        (f"all {count} tasks were done", set(done) == everything),
        ("no finished task was done again", len(done) == len(set(done))),
        (f"what {VICTIM} was working at came back", bool(begun) and set(begun) <= set(back)),
        (f"only what {VICTIM} held came back", not set(back) & set(finished[VICTIM]) and len(back) <= len(fresh)),
        ("it came at the tail of the queue: after every other task", [step.is_redelivered for step in received]
            == [False] * len(fresh) + [True] * len(back)),
        ("everything else came in the order it was sent", fresh == sorted(fresh, key=lambda task: int(task[5:]))),
        ("nothing is left in the queue", left == 0),
    ]  # fmt: skip


def demonstrate(connector: ConnectorProcess, vhost: str, count: int) -> bool:
    """The whole demo on a running connector; returns whether every promise was kept."""
    url = connector.url_of(vhost)
    where = "its embedded server" if connector.is_embedded else f"the KubeMQ server at {connector.kubemq_address}"
    say(f"The connector runs with {where}; its URL is {url}")
    say(f"The queue `{QUEUE}` is the KubeMQ channel {kubemq_channel(vhost, QUEUE)}")
    say()
    say(f"producer.py sends {count} tasks, each confirmed.")
    produce(url, count)
    say(f"Two workers, {SURVIVOR} and {VICTIM}, do them.")
    story = Story()
    run_workers(url, count, story)
    promises = judge(story, count, left_in_queue(url))
    for promise, is_kept in promises:
        say(f"  {'yes' if is_kept else 'NO '}  {promise}")
    return all(is_kept for _promise, is_kept in promises)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when everything was as promised, else 1."""
    parser = argparse.ArgumentParser(description="The work-queue example, with a worker killed in the middle.")
    parser.add_argument("--kubemq-address", default="", metavar="HOST:PORT", help="use this KubeMQ server")
    parser.add_argument("--tasks", type=int, default=24, metavar="N", help="how many tasks (default %(default)s)")
    options = parser.parse_args(arguments)
    # On a server that others use, too: a vhost of our own, so that no queue called `tasks` is touched.
    vhost = f"demo-{uuid.uuid4().hex[:8]}" if options.kubemq_address else "/"
    flags = ["--vhosts", vhost] if options.kubemq_address else []
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="kubemq-amqp-demo-") as folder:
            say("Starting the connector ...")
            with ConnectorProcess(Path(folder), options.kubemq_address, flags) as connector:
                is_kept = demonstrate(connector, vhost, options.tasks)
    except (Broken, NotReady, pika.exceptions.AMQPError) as error:
        say(f"The demo failed: {error!r}")
        return 1
    say()
    say(f"{'Everything was as promised' if is_kept else 'NOT everything was as promised'} "
        f"({time.monotonic() - started:.0f} s).")  # fmt: skip
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())

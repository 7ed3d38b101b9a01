"""``python -m connector.embedded``: the embedded server as a process.

Owns the command line, the line ``listening <port>`` (with ``--parent-pipe`` also ``unusable <reason>``), and the end:
SIGTERM, or with ``--parent-pipe`` the end of the pipe on standard input, so that the server never outlives the
connector that started it.  Exit codes: 0 ended, 1 cannot start (the reason is on standard error, or in that line).
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from connector.embedded import quirks
from connector.embedded.core import Core
from connector.embedded.folder import FolderLock
from connector.embedded.schema import Unusable
from connector.embedded.server import Server

_LOCK_WAIT_S = 5.0
_PR_SET_PDEATHSIG = 1
_END_AT_LATEST_S = 20.0
# Threads must not hold the interpreter for long: the commits of the writer thread wait for it several times each.
_SWITCH_INTERVAL_S = 0.0002


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until it is told to end; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s embedded: %(message)s", level=logging.INFO)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        lock = FolderLock(options.data_dir, options.lock_wait)
        try:
            chosen = quirks.ON if options.quirks == "on" else quirks.OFF
            core = Core(options.data_dir, chosen, has_afterlife=options.afterlife)
            _run(_serve(core, options))
        finally:
            lock.release()
    except Unusable as problem:
        if options.parent_pipe:  # it says so in its own log
            sys.stdout.write(f"unusable {problem}\n")
        else:
            sys.stderr.write(f"embedded server: {problem}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m connector.embedded", description="A small KubeMQ on SQLite.")
    parser.add_argument("--data-dir", type=Path, required=True, help="where messages are kept; one server at a time")
    parser.add_argument("--port", type=int, default=0, help="gRPC port; 0 chooses one")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--quirks", choices=("on", "off"), default="off", help="reproduce KubeMQ's awkward behaviours")
    parser.add_argument("--afterlife", action="store_true", help="when killed, withhold messages as KubeMQ does")
    parser.add_argument("--parent-pipe", action="store_true", help="end when standard input ends")
    parser.add_argument(
        "--lock-wait", type=float, default=_LOCK_WAIT_S, metavar="SECONDS", help="wait for the data folder to be free"
    )
    return parser


async def _serve(core: Core, options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    if options.parent_pipe:
        _die_with_parent()
        # Ctrl-C reaches the whole process group: our parent decides, and first finishes what it has to store.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _watch_parent(lambda: loop.call_soon_threadsafe(ended.set))
    else:
        loop.add_signal_handler(signal.SIGINT, ended.set)
    server = Server(core)
    port = await server.start(options.host, options.port)
    sys.stdout.write(f"listening {port}\n")
    sys.stdout.flush()
    await ended.wait()
    _end_at_latest(_END_AT_LATEST_S)
    await server.stop()


def _watch_parent(on_end: Callable[[], object]) -> None:
    """Call ``on_end``, from another thread, when standard input ends."""

    def watch() -> None:
        try:
            while os.read(0, 4096):
                pass
        except OSError:
            pass
        on_end()

    threading.Thread(target=watch, name="parent pipe", daemon=True).start()


def _die_with_parent() -> None:
    """Let the kernel kill us with our parent: a process that hangs cannot see its pipe end (Linux only)."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, OSError):
        return


def _end_at_latest(after_s: float) -> None:
    """A disk that hangs must not keep the folder from a successor: what is answered is on disk already."""
    timer = threading.Timer(after_s, os._exit, (0,))
    timer.daemon = True
    timer.start()


def _run(main_task: Coroutine[Any, Any, None]) -> None:
    """Run in uvloop where it is installed, else in asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main_task)
    else:
        uvloop.run(main_task)


if __name__ == "__main__":
    sys.exit(main())

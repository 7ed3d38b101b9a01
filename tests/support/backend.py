"""A KubeMQ server of its own for several connectors: the embedded one with KubeMQ's quirks, or the one given.

Owns the process; ``address`` is where it listens.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.server import ROOT


@contextmanager
def kubemq_server(folder: Path) -> Iterator[str]:
    """KUBEMQ_ADDRESS where that is set, else an embedded server with its data in ``folder``."""
    if given := os.environ.get("KUBEMQ_ADDRESS"):
        yield given
        return
    command = [sys.executable, "-m", "connector.embedded", "--data-dir", str(folder), "--quirks", "on"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            assert words[:1] == [b"listening"], words
            yield f"127.0.0.1:{int(words[1])}"
        finally:
            process.terminate()

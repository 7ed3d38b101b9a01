"""Settings that turn out to be unusable here: one clear line, and exit code 2 as for those that cannot be read."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from connector.embedded.folder import FolderLock
from tests.support.server import ROOT


def serve(*flags: str) -> tuple[int, str]:
    """Try to serve; the exit code, and the error that was told."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONNECTORS_AMQP_")}
    command = [sys.executable, "-m", "connector", "serve", "--log-format", "json", "--ops-port", "0", *flags]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    errors = [line["error"] for line in lines if line["message"] == "cannot serve"]
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, errors[0] if errors else done.stderr


def test_a_data_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert serve("--port", "0", "--data-dir", str(tmp_path / "file")) == (
        2,
        f"the data folder {tmp_path / 'file'} cannot be had: it is no folder",
    )


def test_a_data_folder_that_is_in_use(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, 0)
    code, error = serve("--port", "0", "--data-dir", str(tmp_path))
    lock.release()
    assert code == 2
    assert "in use" in error


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, error = serve("--port", str(port), "--data-dir", str(tmp_path))
    assert code == 2
    assert error.startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert "in use" in error


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--vhosts", "a,,b"), "kubemq-amqp: --vhosts: 'a,,b' has an empty entry\n"),
        (("--host", ""), "kubemq-amqp: --host: '' is empty\n"),
        (("--kubemq-address", "a:1,b"), "kubemq-amqp: --kubemq-address: 'a:1,b' is not HOST:PORT\n"),
    ],
)
def test_what_cannot_be_read(flags: tuple[str, ...], error: str) -> None:
    assert serve(*flags) == (2, error)

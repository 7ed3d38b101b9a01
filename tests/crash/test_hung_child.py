"""A child that hangs when the connector dies must not stand in its successor's way."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.server import ConnectorProcess, is_gone
from tests.support.waiting import wait_until


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process die with its parent")
@pytest.mark.skipif("KUBEMQ_ADDRESS" in os.environ, reason="about the embedded server")
def test_a_stopped_child_of_a_killed_connector_does_not_block_the_next(tmp_path: Path) -> None:
    with ConnectorProcess(tmp_path) as connector:
        child = connector.embedded_pid
        os.kill(child, signal.SIGSTOP)
        connector.kill()
        wait_until(lambda: is_gone(child))
        connector.start()
        assert connector.embedded_pid != child

"""gRPC's switch: set before its core starts, known to the library that is installed, and the operator's to change."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from connector.backend.kubemq.grpc_settings import EXPERIMENTS, VARIABLE

_LOOK = f"""
import asyncio, os
from connector.backend.kubemq import KubeMQClient
import grpc.aio

async def main():
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        channel.get_state(try_to_connect=True)

asyncio.run(main())
print(os.environ["{VARIABLE}"])
"""


@pytest.mark.parametrize("given", ["", "event_engine_client"])
def test_the_switch(given: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if given:
        environment[VARIABLE] = given
    made = subprocess.run(
        [sys.executable, "-c", _LOOK], env=environment, check=True, capture_output=True, text=True, timeout=15
    )
    assert made.stdout.strip() == (given or EXPERIMENTS)
    assert made.stderr == ""  # where the library names an experiment that it does not know

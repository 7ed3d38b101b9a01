"""The generated classes are loaded without the SDK, and are the SDK's own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from connector.backend.kubemq import stubs

SCRIPT = """
import sys
from connector.backend.kubemq.stubs import kubemq_pb2 as ours
assert "kubemq" not in sys.modules
from kubemq.grpc import kubemq_pb2 as theirs
assert ours.QueueMessage is theirs.QueueMessage
assert ours.QueuesUpstreamRequest(Messages=[theirs.QueueMessage(Body=b"x")]).Messages[0].Body == b"x"
"""


def test_the_sdk_is_not_imported_and_may_be_later() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)


def test_the_service_is_found() -> None:
    assert stubs.SERVICE == "/kubemq.kubemq/"


def test_what_is_not_there_is_said_so() -> None:
    with pytest.raises(ModuleNotFoundError):
        stubs._load_alone("no_such_package.grpc.kubemq_pb2")
    with pytest.raises(ModuleNotFoundError):
        stubs._load_alone("google.protobuf.no_such_module")

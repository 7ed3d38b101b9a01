"""QueuesInfo: names as KubeMQ mangles them, and its own little protobuf messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.embedded.info import QueuesInfoRequest, QueuesInfoResponse, queues_info, reported_name
from connector.embedded.quirks import ON
from tests.unit.embedded.test_engine import World


@given(st.text("_QUES.ab"), st.text("xyz", min_size=1), st.text("_QUES.ab"))
def test_the_cut_leaves_the_middle_and_is_final(head: str, middle: str, tail: str) -> None:
    name = reported_name(f"{head}{middle}{tail}")
    assert middle in name
    assert reported_name(name) == name


def test_bytes_on_the_wire_are_kubemqs() -> None:
    request = QueuesInfoRequest(RequestID="r", QueueName="q")
    assert request.SerializeToString() == b"\x0a\x01r\x12\x01q"
    world = World(ON)
    world.publish(3)
    world.join(1)
    response = queues_info(world.engine, QueuesInfoRequest(RequestID="r"))
    row = b"\x0a\x01q\x10\x03\x18\x03\x20\x01\x28\x03\x30\x03\x38\x01\x40\x03\x48\x01"
    info = b"\x08\x01\x10\x03\x18\x01\x20\x03" + b"\x2a" + bytes([len(row)]) + row
    assert response.SerializeToString() == b"\x0a\x01r\x12" + bytes([len(info)]) + info
    assert QueuesInfoResponse.FromString(response.SerializeToString()) == response


def test_a_queue_with_neither_messages_nor_readers_is_not_listed() -> None:
    world = World(ON)
    assert queues_info(world.engine, QueuesInfoRequest()).Info.TotalQueue == 0

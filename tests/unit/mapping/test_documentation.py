"""docs/mapping.md says what the code does: its names, its example and its sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mapping import names
from mapping.envelope import decode, encode

PAGE = (Path(__file__).parents[3] / "docs" / "mapping.md").read_text(encoding="utf-8")
CODE = r"`([^`]+)`"


def test_the_tables_of_names() -> None:
    whole = re.findall(rf"^\| {CODE} \| {CODE} \| {CODE} \|$", PAGE, re.MULTILINE)
    assert len(whole) >= 5
    for vhost, queue, channel in whole:
        assert names.kubemq_channel(vhost, queue) == channel
    escapes = re.findall(rf"^\| [^|]+ \| [^|]+ \| {CODE} \| {CODE} \|$", PAGE, re.MULTILINE)
    assert len(escapes) >= 6
    for queue, part in escapes:
        assert names.kubemq_channel("/", queue) == f"amqp.default.{part}"


def test_the_limits() -> None:
    assert f"at most {names.MAX_CHANNEL_BYTES} bytes" in PAGE
    assert names.vhost_and_queue(names.kubemq_channel("/", "q" * 215)) is not None
    assert names.vhost_and_queue(names.kubemq_channel("/", "q" * 216)) is None
    assert names.vhost_label("v" * 80) == "v" * 80
    assert names.vhost_label("v" * 81) != "v" * 81


@pytest.mark.parametrize("metadata", re.findall(r'^(?:Metadata=\')?(\{"v".*\})', PAGE, re.MULTILINE))
def test_the_envelopes_are_as_we_write_them(metadata: str) -> None:
    envelope = decode(metadata)
    assert envelope is not None
    assert encode(envelope.exchange, envelope.routing_key, envelope.header) == metadata


def test_the_typed_values_are_as_we_write_them() -> None:
    table = PAGE[PAGE.index("| JSON | AMQP type |") : PAGE.index("Text that is not UTF-8")]
    values = [value for cell in re.split(r"[|\n]", table) for value in re.findall(CODE, cell) if len(value) > 1]
    assert len(values) >= 20
    for value in values:
        metadata = '{"v":1,"x":"","k":"q","h":{"value":' + value + "}}"
        json.loads(metadata)
        envelope = decode(metadata)
        assert envelope is not None
        assert encode("", "q", envelope.header) == metadata

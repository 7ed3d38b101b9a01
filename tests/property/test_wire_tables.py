"""Field tables and content headers: nothing is lost, and pamqp agrees."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands, decode, encode
from pamqp import header as pamqp_header

from connector.amqp import header, wire
from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode
from connector.amqp.wire import Table
from tests.support import tables

_T = TypeVar("_T")


@given(tables.tables)
def test_what_is_written_is_read_back(table: Table) -> None:
    data = wire.write_table(table)
    read, end = wire.read_table(b"!" + data + b"?", 1)
    assert end == len(data) + 1
    assert list(read) == list(table)
    assert repr(read) == repr(table)  # NaN equals NaN in text only
    assert wire.write_table(read) == data
    assert wire.check_table(data, 0, len(data)) == len(data)


def outcome_of(read: Callable[[], _T]) -> _T | AmqpError:
    """What a call returns, or the AmqpError it raises."""
    try:
        return read()
    except AmqpError as error:
        return error


@given(st.binary(max_size=60) | tables.table_bytes)
def test_checking_and_reading_agree_on_any_bytes(content: bytes) -> None:
    for data in (content, struct.pack(">I", len(content)) + content):
        read = outcome_of(lambda data=data: wire.read_table(data, 0))  # type: ignore[misc]
        checked = outcome_of(lambda data=data: wire.check_table(data, 0, len(data)))  # type: ignore[misc]
        if isinstance(read, AmqpError):
            assert isinstance(checked, AmqpError)
            assert read.code is checked.code is ReplyCode.SYNTAX_ERROR
        else:
            assert checked == read[1]


@given(tables.table_bytes, st.integers(0, 255), st.integers(0, 10_000))
def test_a_changed_byte_raises_nothing_but_a_syntax_error(data: bytes, value: int, place: int) -> None:
    place %= len(data)
    broken = data[:place] + bytes((value,)) + data[place + 1 :]
    read = outcome_of(lambda: wire.read_table(broken, 0))
    if isinstance(read, AmqpError):
        assert read.code is ReplyCode.SYNTAX_ERROR
    else:
        assert read[1] <= len(broken)
        wire.write_table(read[0])


@given(tables.pamqp_tables)
def test_tables_that_pamqp_wrote(values: dict[str, object]) -> None:
    data = encode.field_table(values)  # type: ignore[arg-type]
    table, end = wire.read_table(data, 0)
    assert end == len(data)
    assert wire.write_table(table) == data
    assert tables.as_pamqp(table) == values


@given(tables.tables_for_pamqp)
def test_tables_that_pamqp_reads(table: Table) -> None:
    data = wire.write_table(table)
    size, values = decode.field_table(data)
    assert size == len(data)
    assert repr(values) == repr(tables.as_pamqp(table))


@given(tables.properties, st.none() | tables.tables)
def test_headers_show_what_they_were_built_of(properties: dict[str, object], table: Table | None) -> None:
    raw = header.build(properties, table)
    parsed = header.parse(raw)
    assert parsed.properties() == properties
    assert (parsed.headers_at is None) == (table is None)
    assert repr(parsed.headers()) == repr(table or {})
    assert header.build(parsed.properties(), None if table is None else parsed.headers()) == raw


@given(st.binary(max_size=60))
@example(b"\x20\x00\x00\x00\x00\x00")
def test_any_bytes_are_a_header_or_a_syntax_error(raw: bytes) -> None:
    parsed = outcome_of(lambda: header.parse(raw))
    if isinstance(parsed, AmqpError):
        assert (parsed.code, parsed.class_id, parsed.method_id) == (ReplyCode.SYNTAX_ERROR, 60, 40)
    else:
        rebuilt = header.build(parsed.properties(), None if parsed.headers_at is None else parsed.headers())
        assert len(rebuilt) <= len(raw)


_TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "content_type": _TEXT,
            "content_encoding": _TEXT,
            "delivery_mode": st.sampled_from([1, 2]),
            "priority": st.integers(0, 255),
            "correlation_id": _TEXT,
            "reply_to": _TEXT,
            "expiration": _TEXT,
            "message_id": _TEXT,
            "message_type": _TEXT,
            "user_id": _TEXT,
            "app_id": _TEXT,
        },
    ),
    st.none() | tables.pamqp_tables,
)
def test_headers_that_pamqp_wrote_and_reads(values: dict[str, object], table: dict[str, object] | None) -> None:
    properties = commands.Basic.Properties(headers=table, **values)  # type: ignore[arg-type]
    raw = properties.marshal()
    parsed = header.parse(raw)
    ours: dict[str, object] = {
        {"message_type": "type"}.get(name, name): value.encode() if isinstance(value, str) else value
        for name, value in values.items()
    }
    assert parsed.properties() == ours
    assert (parsed.headers_at is None) == (table is None)
    assert tables.as_pamqp(parsed.headers()) == (table or {})
    built = header.build(ours, None if table is None else parsed.headers())
    assert built == raw
    read = pamqp_header.ContentHeader()
    read.unmarshal(struct.pack(">HHQ", 60, 0, 0) + built)
    assert read.properties == properties

from __future__ import annotations

import decimal
import math
import struct

import pytest

from connector.amqp import wire
from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode
from connector.amqp.wire import Field


def table_bytes(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def entry(key: bytes, value: bytes) -> bytes:
    return bytes((len(key),)) + key + value


#: type octet and value -> what it is read as; the values are at the edges of their width
VALUES: list[tuple[bytes, Field]] = [
    (b"t\x01", ("t", True)),
    (b"t\x00", ("t", False)),
    (b"b\x80", ("b", -128)),
    (b"B\xff", ("B", 255)),
    (b"s\x80\x00", ("s", -32768)),
    (b"u\xff\xff", ("u", 65535)),
    (b"I\x80\x00\x00\x00", ("I", -(2**31))),
    (b"i\xff\xff\xff\xff", ("i", 2**32 - 1)),
    (b"l\x80" + bytes(7), ("l", -(2**63))),
    (b"L\xff\xff\xff\xff\xff\xff\xff\xff", ("L", -1)),
    (b"f\x3f\xc0\x00\x00", ("f", 1.5)),
    (b"d\xbf\xf8\x00\x00\x00\x00\x00\x00", ("d", -1.5)),
    (b"D\x02\xff\xff\xff\xff", ("D", (2, 2**32 - 1))),
    (b"S\x00\x00\x00\x02\xff\x00", ("S", b"\xff\x00")),
    (b"x\x00\x00\x00\x01x", ("x", b"x")),
    (b"A\x00\x00\x00\x03Vt\x01", ("A", [("V", None), ("t", True)])),
    (b"F\x00\x00\x00\x03\x01aV", ("F", {"a": ("V", None)})),
    (b"T\xff\xff\xff\xff\xff\xff\xff\xff", ("T", 2**64 - 1)),
    (b"V", ("V", None)),
]


@pytest.mark.parametrize(("raw", "field"), VALUES)
def test_each_type_is_read_checked_and_written_with_its_width(raw: bytes, field: Field) -> None:
    data = b"??" + table_bytes(entry(b"key", raw)) + b"!"
    assert wire.read_table(data, 2) == ({"key": field}, len(data) - 1)
    assert wire.check_table(data, 2, len(data)) == len(data) - 1
    assert wire.write_table({"key": field}) == data[2:-1]


def test_every_type_of_rabbitmq_is_covered() -> None:
    assert {field[0] for _, field in VALUES} == set("tbBsuIilLfdDSxAFTV")


@pytest.mark.parametrize("raw", [raw for raw, _ in VALUES])
def test_a_value_cut_short_anywhere_is_a_syntax_error(raw: bytes) -> None:
    for length in range(len(raw)):
        for data in (
            table_bytes(entry(b"key", raw[:length])),
            table_bytes(entry(b"outer", b"F" + table_bytes(entry(b"key", raw[:length])))),
            table_bytes(entry(b"outer", b"A" + table_bytes(raw[:length]))),
        ):
            if data.endswith((b"A\x00\x00\x00\x00", b"A" + table_bytes(raw[:length]))) and not length:
                continue  # an empty array
            assert_malformed(data)


def assert_malformed(data: bytes, text: str = "malformed field table") -> None:
    for read in (lambda: wire.read_table(data, 0), lambda: wire.check_table(data, 0, len(data))):
        with pytest.raises(AmqpError, match=text) as caught:
            read()
        assert caught.value.code is ReplyCode.SYNTAX_ERROR


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00\x00",
        b"\x00\x00\x00\x01",
        table_bytes(b"\x00"),
        table_bytes(b"\x05abc"),
        table_bytes(b"\x01aZ\x00\x00"),
        table_bytes(b"\x01aS\x00\x00\xff\xff" + b"x"),
        table_bytes(b"\x01aF\x00\x00\x00\x02\x01a"),
        table_bytes(b"\x01aA\x00\x00\x00\x09V"),
        table_bytes(b"\x01aS\x00\x00"),
        table_bytes(b"\x01aA\x00\x00\x00\x02I\x00"),
    ],
)
def test_broken_tables_are_syntax_errors(data: bytes) -> None:
    assert_malformed(data)


def test_a_table_must_end_where_its_frame_ends() -> None:
    data = table_bytes(entry(b"a", b"V"))
    assert wire.check_table(data, 0, len(data)) == len(data)
    with pytest.raises(AmqpError):
        wire.check_table(data, 0, len(data) - 1)
    with pytest.raises(AmqpError):
        wire.check_table(data, 0, 3)


def nested(depth: int, kind: bytes) -> bytes:
    data = b""
    for _ in range(depth - 1):
        data = kind + table_bytes(data)
        if kind == b"F":
            data = entry(b"k", data)
    return table_bytes(entry(b"k", data) if data and kind == b"A" else data)


@pytest.mark.parametrize("kind", [b"A", b"F"])
def test_nesting_is_bounded(kind: bytes) -> None:
    deepest = nested(wire.MAX_DEPTH, kind)
    table, _ = wire.read_table(deepest, 0)
    assert wire.write_table(table) == deepest
    assert wire.check_table(deepest, 0, len(deepest)) == len(deepest)
    assert_malformed(nested(wire.MAX_DEPTH + 1, kind), "nested too deep")
    assert_malformed(nested(20_000, kind), "nested too deep")


def test_of_equal_keys_the_last_wins_and_order_is_kept() -> None:
    data = table_bytes(entry(b"b", b"B\x01") + entry(b"a", b"B\x02") + entry(b"b", b"B\x03"))
    table, _ = wire.read_table(data, 0)
    assert list(table.items()) == [("b", ("B", 3)), ("a", ("B", 2))]


def test_keys_that_are_not_utf8_come_back_unchanged() -> None:
    data = table_bytes(entry(b"\xff\x80", b"V"))
    assert wire.write_table(wire.read_table(data, 0)[0]) == data


@pytest.mark.parametrize("raw", [b"\x7f\xc0\x00\x00", b"\x7f\x80\x00\x01", b"\xff\xa0\x00\x07", b"\x7f\x80\x00\x00"])
def test_a_float_keeps_its_four_bytes_even_as_signalling_nan(raw: bytes) -> None:
    data = table_bytes(entry(b"k", b"f" + raw))
    table, _ = wire.read_table(data, 0)
    assert isinstance(table["k"][1], float)
    assert math.isnan(table["k"][1]) or math.isinf(table["k"][1])
    assert wire.write_table(table) == data


@pytest.mark.parametrize("raw", [b"\x7f\xf0\x00\x00\x00\x00\x00\x01", b"\xff\xf8\x00\x00\x00\x00\x00\x07"])
def test_a_double_keeps_its_eight_bytes(raw: bytes) -> None:
    data = table_bytes(entry(b"k", b"d" + raw))
    assert wire.write_table(wire.read_table(data, 0)[0]) == data


@pytest.mark.parametrize(
    "field",
    [
        ("b", 128),
        ("I", 2**31),
        ("I", "one"),
        ("T", -1),
        ("f", 1e300),
        ("f", "x"),
        ("D", (256, 0)),
        ("D", 5),
        ("S", "text"),
        ("S", 5),
        ("F", {"k" * 256: ("V", None)}),
        ("F", 3),
        ("A", 3),
        ("Z", 0),
    ],
)
def test_what_does_not_fit_its_type_is_a_value_error(field: Field) -> None:
    with pytest.raises(ValueError):
        wire.write_table({"k": field})


def test_a_table_that_holds_itself_is_a_value_error() -> None:
    table: wire.Table = {}
    table["self"] = ("F", table)
    with pytest.raises(ValueError):
        wire.write_table(table)


def test_short_strings() -> None:
    assert wire.write_shortstr("grün") == b"\x05gr\xc3\xbcn"
    assert wire.write_shortstr(b"\xff") == b"\x01\xff"
    assert wire.read_shortstr(b"?\x05gr\xc3\xbcn!", 1) == ("grün", 7)
    text, end = wire.read_shortstr(b"\x02\xff\xfe", 0)
    assert end == 3
    assert wire.write_shortstr(text) == b"\x02\xff\xfe"
    assert len(wire.write_shortstr("x" * 255)) == 256
    with pytest.raises(ValueError):
        wire.write_shortstr("ü" * 128)
    for broken in (b"", b"\x05abc"):
        with pytest.raises(AmqpError) as caught:
            wire.read_shortstr(broken, 0)
        assert caught.value.code is ReplyCode.SYNTAX_ERROR


def test_a_table_of_plain_values_and_back() -> None:
    values: dict[str, object] = {
        "bool": True,
        "small": -(2**31),
        "large": 2**31,
        "float": 0.5,
        "text": "grün",
        "bytes": b"\xff",
        "none": None,
        "table": {"nested": [1, "two", {}]},
    }
    table = wire.table_from_python(values)
    assert {key: field[0] for key, field in table.items()} == {
        "bool": "t",
        "small": "I",
        "large": "l",
        "float": "d",
        "text": "S",
        "bytes": "x",
        "none": "V",
        "table": "F",
    }
    assert wire.table_to_python(wire.read_table(wire.write_table(table), 0)[0]) == values


def test_plain_values_of_types_python_does_not_write() -> None:
    plain = wire.table_to_python({"d": ("D", (2, 1234)), "s": ("S", b"\xff"), "t": ("T", 5)})
    assert plain == {"d": decimal.Decimal("12.34"), "s": b"\xff", "t": 5}


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, object(), {"k": 1 + 2j}])
def test_other_python_values_have_no_type(value: object) -> None:
    with pytest.raises(ValueError):
        wire.table_from_python({"k": value})

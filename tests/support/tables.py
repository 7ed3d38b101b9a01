"""Hypothesis strategies for field tables, content headers and what pamqp makes of them."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from typing import Any, cast

from hypothesis import strategies as st

from connector.amqp import header, wire
from connector.amqp.wire import Field, Table

_RANGES = {
    "b": (-(2**7), 2**7 - 1),
    "B": (0, 2**8 - 1),
    "s": (-(2**15), 2**15 - 1),
    "u": (0, 2**16 - 1),
    "I": (-(2**31), 2**31 - 1),
    "i": (0, 2**32 - 1),
    "l": (-(2**63), 2**63 - 1),
    "L": (-(2**63), 2**63 - 1),
}

#: Short strings, also such as are no UTF-8.
short_bytes = st.binary(max_size=20) | st.binary(min_size=250, max_size=255)
keys = (short_bytes | st.text(max_size=10).map(str.encode)).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
_text_keys = st.text(st.characters(codec="utf-8"), max_size=10)


def _number(letter: str) -> st.SearchStrategy[Field]:
    return st.tuples(st.just(letter), st.integers(*_RANGES[letter]))


def _float_of(raw: bytes) -> Field:
    table, _ = wire.read_table(b"\x00\x00\x00\x07\x01kf" + raw, 0)
    return table["k"]


def _plain_fields(timestamps: st.SearchStrategy[int], unscaled_max: int) -> st.SearchStrategy[Field]:
    return st.one_of(
        st.tuples(st.just("t"), st.booleans()),
        *(_number(letter) for letter in _RANGES),
        st.binary(min_size=4, max_size=4).map(_float_of),
        st.tuples(st.just("d"), st.floats()),
        st.tuples(st.just("D"), st.tuples(st.integers(0, 255), st.integers(0, unscaled_max))),
        st.tuples(st.just("S"), st.binary(max_size=20) | st.text(max_size=20).map(str.encode)),
        st.tuples(st.just("x"), st.binary(max_size=20)),
        st.tuples(st.just("T"), timestamps),
        st.just(("V", None)),
    )


def _fields(
    names: st.SearchStrategy[str], timestamps: st.SearchStrategy[int], unscaled_max: int = 2**32 - 1
) -> st.SearchStrategy[Field]:
    def nested(inner: st.SearchStrategy[Field]) -> st.SearchStrategy[Field]:
        arrays: st.SearchStrategy[Field] = st.tuples(st.just("A"), st.lists(inner, max_size=4))
        dictionaries: st.SearchStrategy[Field] = st.tuples(st.just("F"), st.dictionaries(names, inner, max_size=4))
        return arrays | dictionaries

    return st.recursive(_plain_fields(timestamps, unscaled_max), nested, max_leaves=20)


_timestamps = st.integers(0, 2**64 - 1)
_pamqp_timestamps = st.integers(0, 2**32 - 1)

fields = _fields(keys, _timestamps)

#: Tables of every type, in every depth a test can afford, with values that equal only themselves (NaN) too.
tables: st.SearchStrategy[Table] = st.dictionaries(keys, fields, max_size=6)

#: The same with the keys and times that pamqp can read, and without the decimals that it takes for negative.
tables_for_pamqp: st.SearchStrategy[Table] = st.dictionaries(
    _text_keys, _fields(_text_keys, _pamqp_timestamps, 2**31 - 1), max_size=6
)

#: The bytes of such tables, also with keys that come twice, as only bytes can have them.
table_bytes = st.lists(st.dictionaries(keys, fields, max_size=3), min_size=1, max_size=3).map(
    lambda parts: _joined([wire.write_table(part)[4:] for part in parts])
)


def _joined(parts: list[bytes]) -> bytes:
    content = b"".join(parts)
    return struct.pack(">I", len(content)) + content


properties = st.fixed_dictionaries(
    {},
    optional={
        "content_type": short_bytes,
        "content_encoding": short_bytes,
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "correlation_id": short_bytes,
        "reply_to": short_bytes,
        "expiration": short_bytes,
        "message_id": short_bytes,
        "timestamp": _timestamps,
        "type": short_bytes,
        "user_id": short_bytes,
        "app_id": short_bytes,
        "cluster_id": short_bytes,
    },
)

#: Raw content headers: any properties, any table; now and then the unused flag.
headers = st.builds(
    lambda values, table, odd: _with_odd_flag(header.build(values, table), odd),
    properties,
    st.none() | tables,
    st.sampled_from([False, False, False, True]),
)


def _with_odd_flag(raw: bytes, odd: bool) -> bytes:
    return bytes((raw[0], raw[1] | 2)) + raw[2:] if odd else raw


#: Plain values as pamqp writes them, with no loss on the way.
pamqp_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(width=32, allow_nan=False),
        st.text(st.characters(codec="utf-8"), max_size=20),
        st.binary(max_size=20).map(bytearray),
        _pamqp_timestamps.map(lambda s: dt.datetime.fromtimestamp(s, tz=dt.UTC)),
        st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 20)).map(lambda d: decimal.Decimal(d[0]).scaleb(-d[1])),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text_keys, inner, max_size=4),
    max_leaves=20,
)
pamqp_tables = st.dictionaries(_text_keys, pamqp_values, max_size=6)


def as_pamqp(table: Table) -> dict[str, Any]:
    """A table as pamqp would decode it."""
    return {key: _field_as_pamqp(field) for key, field in table.items()}


def _field_as_pamqp(field: Field) -> Any:
    letter, value = field
    match letter:
        case "F":
            return as_pamqp(cast("Table", value))
        case "A":
            return [_field_as_pamqp(item) for item in cast("list[Field]", value)]
        case "S":
            raw = cast("bytes", value)
            try:
                return raw.decode("utf-8")
            except UnicodeDecodeError:
                return raw
        case "x":
            return bytearray(cast("bytes", value))
        case "D":
            scale, unscaled = cast("tuple[int, int]", value)
            return decimal.Decimal(unscaled) * (decimal.Decimal(10) ** -scale)
        case "T":
            return dt.datetime.fromtimestamp(cast("int", value), tz=dt.UTC)
        case _:
            return value

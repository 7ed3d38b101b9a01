"""Short strings and field tables that keep the width of every value.

Owns the reading, checking and writing of field tables as RabbitMQ reads them (its errata page and
``rabbit_binary_parser``): the type letter stays beside each value, so that a table read here and written again is the
same table.  Must not know methods, frames or what a table is for.

Types: ``t`` bool, ``b B`` octet, ``s u`` 16 bit, ``I i`` 32 bit, ``l L`` signed 64 bit, ``f d`` float, ``D`` decimal as
(scale, unsigned value), ``S`` long string and ``x`` byte array as bytes, ``A`` array as a list of fields, ``F`` table,
``T`` timestamp in seconds, ``V`` void as None.  Lower-case ``b s I l`` are signed, ``B u i`` unsigned.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias, cast

from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode

#: (type letter, value)
Field: TypeAlias = tuple[str, object]
Table: TypeAlias = dict[str, Field]

#: How deep tables and arrays may lie in one another; deeper is refused, as the readers here recurse.
MAX_DEPTH = 64

SHORTSTR_MAX_BYTES = 255

_ULONG = struct.Struct(">I")
_FLOAT = struct.Struct(">f")
_DECIMAL = struct.Struct(">BI")

#: letter -> layout of the types whose value is one number
_NUMBERS = {
    "b": struct.Struct(">b"),
    "B": struct.Struct(">B"),
    "s": struct.Struct(">h"),
    "u": struct.Struct(">H"),
    "I": struct.Struct(">i"),
    "i": struct.Struct(">I"),
    "l": struct.Struct(">q"),
    "L": struct.Struct(">q"),
    "d": struct.Struct(">d"),
    "T": struct.Struct(">Q"),
}

#: type octet -> (letter, unpack_from, size)
_UNPACK: dict[int, tuple[str, Callable[[bytes, int], tuple[Any, ...]], int]] = {
    ord(letter): (letter, layout.unpack_from, layout.size) for letter, layout in _NUMBERS.items()
}

_T, _S, _X, _F, _A, _V, _FLOAT32, _D = (ord(letter) for letter in "tSxFAVfD")

#: type octet -> size of the value; below zero: not of fixed size, or no type at all
_LONGSTR, _NESTED, _UNKNOWN = -1, -2, -3
_SIZES = [_UNKNOWN] * 256
for _letter, _layout in _NUMBERS.items():
    _SIZES[ord(_letter)] = _layout.size
_SIZES[_T], _SIZES[_FLOAT32], _SIZES[_D], _SIZES[_V] = 1, 4, 5, 0
_SIZES[_S] = _SIZES[_X] = _LONGSTR
_SIZES[_F] = _SIZES[_A] = _NESTED


class ExactFloat(float):
    """A NaN of type ``f``: Python keeps 64-bit floats and would quiet a signalling NaN, so its four bytes stay here."""

    __slots__ = ("raw",)

    raw: bytes

    def __new__(cls, value: float, raw: bytes) -> Self:
        """Make the NaN ``value`` that is written as ``raw``."""
        self = super().__new__(cls, value)
        self.raw = raw
        return self


def _malformed(what: str) -> AmqpError:
    return AmqpError(ReplyCode.SYNTAX_ERROR, f"malformed field table: {what}")


# ------------------------------------------------------------------------------------------------- short strings
def read_shortstr(data: bytes, offset: int) -> tuple[str, int]:
    """Read a short string; bytes that are not UTF-8 become surrogates, so that they can be written back.

    Returns (text, offset behind it); raises AmqpError SYNTAX_ERROR when the data end first.
    """
    if offset >= len(data):
        raise AmqpError(ReplyCode.SYNTAX_ERROR, "short string beyond the end of the data")
    start = offset + 1
    end = start + data[offset]
    if end > len(data):
        raise AmqpError(ReplyCode.SYNTAX_ERROR, "short string beyond the end of the data")
    return data[start:end].decode("utf-8", "surrogateescape"), end


def write_shortstr(text: str | bytes) -> bytes:
    """Encode a short string; raises ValueError above 255 bytes."""
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if len(raw) > SHORTSTR_MAX_BYTES:
        raise ValueError(f"{len(raw)} bytes do not fit a short string")
    return bytes((len(raw),)) + raw


# ------------------------------------------------------------------------------------------------------- reading
def read_table(data: bytes, offset: int) -> tuple[Table, int]:
    """Read the table (with its length) at ``offset``; of equal keys the last wins.

    Returns (table, offset behind it); raises AmqpError SYNTAX_ERROR when malformed.
    """
    start, end = _bounds(data, offset, len(data))
    return _read_fields(data, start, end, 1), end


def _bounds(data: bytes, offset: int, limit: int) -> tuple[int, int]:
    """Where the content of a long string, table or array lies whose length is at ``offset``."""
    start = offset + 4
    if start > limit:
        raise _malformed("no room for a length")
    end: int = start + _ULONG.unpack_from(data, offset)[0]
    if end > limit:
        raise _malformed("a value is longer than what holds it")
    return start, end


def _read_fields(data: bytes, position: int, end: int, depth: int) -> Table:
    if depth > MAX_DEPTH:
        raise _malformed("nested too deep")
    table: Table = {}
    while position < end:
        start = position + 1
        position = start + data[position]
        if position >= end:
            raise _malformed("a key without a value")
        key = data[start:position].decode("utf-8", "surrogateescape")
        table[key], position = _read_field(data, position, end, depth)
    return table


def _read_array(data: bytes, position: int, end: int, depth: int) -> list[Field]:
    if depth > MAX_DEPTH:
        raise _malformed("nested too deep")
    items = []
    while position < end:
        item, position = _read_field(data, position, end, depth)
        items.append(item)
    return items


def _read_field(data: bytes, position: int, end: int, depth: int) -> tuple[Field, int]:
    """Read one typed value; ``position`` is at its type octet and below ``end``."""
    kind = data[position]
    position += 1
    size = _SIZES[kind]
    if size >= 0:
        behind = position + size
        if behind > end:
            raise _malformed("a value is cut off")
        number = _UNPACK.get(kind)
        if number is not None:
            return (number[0], number[1](data, position)[0]), behind
        if kind == _T:
            return ("t", data[position] != 0), behind
        if kind == _V:
            return ("V", None), behind
        if kind == _D:
            return ("D", _DECIMAL.unpack_from(data, position)), behind
        return ("f", _read_float(data, position)), behind
    if size == _UNKNOWN:
        raise _malformed(f"unknown type octet {kind}")
    position, behind = _bounds(data, position, end)
    if kind == _S:
        return ("S", data[position:behind]), behind
    if kind == _F:
        return ("F", _read_fields(data, position, behind, depth + 1)), behind
    if kind == _A:
        return ("A", _read_array(data, position, behind, depth + 1)), behind
    return ("x", data[position:behind]), behind


def _read_float(data: bytes, position: int) -> float:
    value: float = _FLOAT.unpack_from(data, position)[0]
    return value if value == value else ExactFloat(value, data[position : position + 4])  # noqa: PLR0124 - is it NaN?


def check_table(data: bytes, offset: int, end: int) -> int:
    """Check the table at ``offset``, which must end at or before ``end``, without reading its values.

    Returns the offset behind it; raises AmqpError SYNTAX_ERROR exactly when ``read_table`` would.
    """
    start, behind = _bounds(data, offset, min(end, len(data)))
    _check_fields(data, start, behind, 1, has_keys=True)
    return behind


def _check_fields(data: bytes, position: int, end: int, depth: int, *, has_keys: bool) -> None:
    if depth > MAX_DEPTH:
        raise _malformed("nested too deep")
    while position < end:
        if has_keys:
            position += 1 + data[position]
            if position >= end:
                raise _malformed("a key without a value")
        kind = data[position]
        size = _SIZES[kind]
        if size >= 0:
            position += 1 + size
        elif size == _UNKNOWN:
            raise _malformed(f"unknown type octet {kind}")
        else:
            if position + 5 > end:
                raise _malformed("no room for a length")
            start = position + 5
            position = start + _ULONG.unpack_from(data, position + 1)[0]
            if size == _NESTED:
                if position > end:
                    raise _malformed("a value is longer than what holds it")
                _check_fields(data, start, position, depth + 1, has_keys=kind == _F)
    if position != end:
        raise _malformed("a value is cut off")


# ------------------------------------------------------------------------------------------------------- writing
def write_table(table: Mapping[str, Field]) -> bytes:
    """Encode a table with its 4-byte length; raises ValueError when a value does not fit its type letter."""
    out: list[bytes] = []
    try:
        _write_fields(table, out)
        body = b"".join(out)
    except (struct.error, AttributeError, OverflowError, RecursionError, TypeError) as error:
        raise ValueError(f"not a field table: {error}") from error
    return _ULONG.pack(len(body)) + body


def _write_fields(table: Mapping[str, Field], out: list[bytes]) -> None:
    for key, field in table.items():
        out.append(write_shortstr(key))
        _write_field(field, out)


def _write_field(field: Field, out: list[bytes]) -> None:
    letter, value = field
    number = _NUMBERS.get(letter)
    if number is not None:
        out.append(letter.encode() + number.pack(value))
    elif letter in {"S", "x"}:
        raw = cast("bytes", value)
        out.append(letter.encode() + _ULONG.pack(len(raw)))
        out.append(raw)
    elif letter in {"F", "A"}:
        inner: list[bytes] = []
        if letter == "F":
            _write_fields(cast("Table", value), inner)
        else:
            for item in cast("list[Field]", value):
                _write_field(item, inner)
        body = b"".join(inner)
        out.append(letter.encode() + _ULONG.pack(len(body)))
        out.append(body)
    elif letter == "t":
        out.append(b"t\x01" if value else b"t\x00")
    elif letter == "f":
        out.append(b"f" + (value.raw if isinstance(value, ExactFloat) else _FLOAT.pack(value)))
    elif letter == "D":
        scale, unscaled = cast("tuple[int, int]", value)
        out.append(b"D" + _DECIMAL.pack(scale, unscaled))
    elif letter == "V":
        out.append(b"V")
    else:
        raise ValueError(f"unknown type letter {letter!r}")


# ------------------------------------------------------------------------------------------------- plain values
def is_table(data: bytes) -> bool:
    """Whether these bytes are one table and nothing else."""
    try:
        return check_table(data, 0, len(data)) == len(data)
    except AmqpError:
        return False


def table_from_python(values: Mapping[str, object]) -> Table:
    """Make a table of plain values: bool t, int I or l, float d, str S, bytes x, dict F, list or tuple A, None V.

    An int that only a timestamp has room for is one.
    Raises ValueError for any other type and for an int of more than 64 bits.
    """
    return {key: _field_from_python(value) for key, value in values.items()}


def _field_from_python(value: object) -> Field:
    match value:
        case None:
            return ("V", None)
        case bool():
            return ("t", value)
        case int() if -(2**31) <= value < 2**31:
            return ("I", value)
        case int() if -(2**63) <= value < 2**63:
            return ("l", value)
        case int() if 0 <= value < 2**64:
            return ("T", value)
        case float():
            return ("d", value)
        case str():
            return ("S", value.encode("utf-8", "surrogateescape"))
        case bytes():
            return ("x", value)
        case dict():
            return ("F", table_from_python(value))
        case list() | tuple():
            return ("A", [_field_from_python(item) for item in value])
        case _:
            raise ValueError(f"no field type for {value!r}")


def table_to_python(table: Mapping[str, Field]) -> dict[str, object]:
    """Turn a table into plain values: long strings become str where they are UTF-8, decimals decimal.Decimal."""
    return {key: _field_to_python(field) for key, field in table.items()}


def _field_to_python(field: Field) -> object:
    letter, value = field
    match letter:
        case "S":
            raw = cast("bytes", value)
            try:
                return raw.decode("utf-8")
            except UnicodeDecodeError:
                return raw
        case "F":
            return table_to_python(cast("Table", value))
        case "A":
            return [_field_to_python(item) for item in cast("list[Field]", value)]
        case "D":
            scale, unscaled = cast("tuple[int, int]", value)
            return decimal.Decimal((0, tuple(map(int, str(unscaled))), -scale))
        case _:
            return value

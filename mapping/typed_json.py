"""Field tables as JSON that a person can read and a program can turn back into the same table.

Owns which values stand plain in JSON and which need a type marker; the bytes of a table are ``connector.amqp.wire``'s
business, the envelope around it ``envelope.py``'s.  Rule (features PC-13, KI-04): the types that pika, Java and .NET
send for text, bool, 32-bit and large integers, double, list, map and null are plain; all else is an object with one
member named by the type letter.  Public description: ``docs/mapping.md``.

    plain JSON              AMQP                    marked             AMQP
    "text"                  S, valid UTF-8          {"S": "base64"}    S, other bytes
    12                      I, or l beyond 32 bits  {"l": 12}          any integer type: b B s u I i l L, T
    1.5                     d                       {"f": 1.5}         f
    true                    t                       {"d": "hex"}       d or f that is no finite number
    null                    V                       {"D": "3.14"}      D
    [...]                   A                       {"x": "base64"}    x
    {...}                   F                       {"F": {...}}       F that would look like a marker
"""

from __future__ import annotations

import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring as quoted
from math import isfinite
from typing import Any

from connector.amqp.wire import MAX_DEPTH, ExactFloat, Field, Table

_INT32_MIN, _INT32_END = -(2**31), 2**31
_FLOATS = {"f": struct.Struct(">f"), "d": struct.Struct(">d")}


# ------------------------------------------------------------------------------------------------------- writing
def table_text(table: Mapping[str, tuple[str, Any]]) -> str:
    """Return a table as a JSON object; text that is not UTF-8 appears as surrogates (see ``envelope``)."""
    members = []
    for key, (letter, value) in table.items():
        if letter == "S":
            text = bytes_text(value)
        elif letter == "I":
            text = str(value)
        else:
            text = _field_text(letter, value)
        members.append(quoted(key) + ":" + text)
    return "{" + ",".join(members) + "}"


def bytes_text(raw: bytes) -> str:
    """Return bytes as a JSON string where they are UTF-8, else as the marker ``S``."""
    try:
        return quoted(raw.decode())
    except UnicodeDecodeError:
        return _base64_text("S", raw)


def _field_text(letter: str, value: Any) -> str:
    writer = _WRITERS.get(letter)
    return writer(value) if writer is not None else '{"' + letter + '":' + str(value) + "}"


def _base64_text(letter: str, raw: bytes) -> str:
    return '{"' + letter + '":"' + b2a_base64(raw, newline=False).decode() + '"}'


def _long_text(value: int) -> str:
    return '{"l":' + str(value) + "}" if _INT32_MIN <= value < _INT32_END else str(value)


def _double_text(value: float) -> str:
    return repr(value) if isfinite(value) else '{"d":"' + _FLOATS["d"].pack(value).hex() + '"}'


def _float_text(value: float) -> str:
    if isfinite(value):
        return '{"f":' + repr(value) + "}"
    raw = value.raw if isinstance(value, ExactFloat) else _FLOATS["f"].pack(value)
    return '{"f":"' + raw.hex() + '"}'


def _decimal_text(value: tuple[int, int]) -> str:
    scale, unscaled = value
    digits = str(unscaled).rjust(scale + 1, "0")
    return '{"D":"' + (digits[:-scale] + "." + digits[-scale:] if scale else digits) + '"}'


def _nested_text(table: Table) -> str:
    text = table_text(table)
    if len(table) == 1:
        (key,) = table
        if len(key) == 1 and key.isascii() and key.isalpha():
            return '{"F":' + text + "}"
    return text


_WRITERS: dict[str, Callable[[Any], str]] = {
    "S": bytes_text,
    "I": str,
    "t": lambda value: "true" if value else "false",
    "l": _long_text,
    "d": _double_text,
    "f": _float_text,
    "D": _decimal_text,
    "x": lambda value: _base64_text("x", value),
    "V": lambda _: "null",
    "A": lambda items: "[" + ",".join([_field_text(*item) for item in items]) + "]",
    "F": _nested_text,
}


# ------------------------------------------------------------------------------------------------------- reading
def table_of(members: dict[str, Any], depth: int = 1) -> Table:
    """Return the table in a JSON object, as ``json`` parses it.

    Raises ValueError for what is no field; that a number fits its type is checked by ``wire.write_table``.
    """
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    return {
        key: ("S", value.encode()) if type(value) is str else field_of(value, depth) for key, value in members.items()
    }


def field_of(value: Any, depth: int = 1) -> Field:
    """Return the field in one JSON value; raises ValueError (see ``table_of``)."""
    return _READERS[type(value)](value, depth)


def bytes_of(value: Any) -> bytes:
    """Return the bytes in a JSON string or in the marker ``S``; raises ValueError for anything else."""
    if type(value) is str:
        return value.encode()
    if type(value) is dict and value.keys() == {"S"}:
        return _base64(value["S"])
    raise ValueError(f"not a string: {type(value).__name__}")


def _of_int(value: int, _: int) -> Field:
    return ("I" if _INT32_MIN <= value < _INT32_END else "l", value)


def _of_list(items: list[Any], depth: int) -> Field:
    if depth >= MAX_DEPTH:
        raise ValueError("nested too deep")
    return ("A", [field_of(item, depth + 1) for item in items])


def _of_object(members: dict[str, Any], depth: int) -> Field:
    if len(members) == 1:
        ((letter, value),) = members.items()
        reader = _MARKED.get(letter)
        if reader is not None:
            return (letter, reader(value, depth))
    return ("F", table_of(members, depth + 1))


_READERS: dict[type, Callable[[Any, int], Field]] = {
    str: lambda value, _: ("S", value.encode()),
    int: _of_int,
    bool: lambda value, _: ("t", value),
    float: lambda value, _: ("d", value),
    type(None): lambda value, _: ("V", value),
    list: _of_list,
    dict: _of_object,
}


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"a {kind.__name__} is expected, not {type(value).__name__}")
    return value


def _base64(value: Any) -> bytes:
    return a2b_base64(_expect(value, str).encode(), strict_mode=True)


def _floating(value: Any, letter: str) -> float:
    if type(value) is not str:
        return float(value if type(value) is int else _expect(value, float))
    raw = bytes.fromhex(value)
    layout = _FLOATS[letter]
    if len(raw) != layout.size:
        raise ValueError(f"{len(raw)} bytes are no {letter}")
    number: float = layout.unpack(raw)[0]
    return ExactFloat(number, raw) if letter == "f" and not isfinite(number) else number


def _decimal(value: Any) -> tuple[int, int]:
    whole, _, fraction = _expect(value, str).partition(".")
    digits = whole + fraction
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{value!r} is no decimal")
    return len(fraction), int(digits)


_MARKED: dict[str, Callable[[Any, int], object]] = {
    **dict.fromkeys("bBsuIilLT", lambda value, _: _expect(value, int)),
    "t": lambda value, _: _expect(value, bool),
    "V": lambda value, _: _expect(value, type(None)),
    "f": lambda value, _: _floating(value, "f"),
    "d": lambda value, _: _floating(value, "d"),
    "D": lambda value, _: _decimal(value),
    "S": lambda value, _: _base64(value),
    "x": lambda value, _: _base64(value),
    "A": lambda value, depth: _of_list(_expect(value, list), depth)[1],
    "F": lambda value, depth: table_of(_expect(value, dict), depth + 1),
}

"""All methods but the hot ones: pamqp's command classes, read and written with our own field tables.

Owns the way from a method frame's payload to a ``pamqp.base.Frame`` and back.  Which methods exist, with which fields
of which type, is pamqp's metadata alone (``access.py`` adds two in the same form).  pamqp's own marshalling is not
used: it loses the width of table values, and its constructors refuse names that RabbitMQ takes (anything beyond
``[a-zA-Z0-9-_.:@#,/+ ]``), hence ``build``.  Must not know channels or what a method does.

After ``decode`` tables (``arguments``, ``client_properties``) are ``wire.Table``, long strings (``response``) are
bytes, short strings are str.  ``encode`` takes a Table where the field is a table, str or bytes where it is a string.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar, cast

from pamqp import base, commands

from connector.amqp import access
from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode
from connector.amqp.wire import read_table, write_shortstr, write_table

_INDEX = struct.Struct(">I")

#: method index (class id << 16 | method id) -> pamqp's class
METHODS: dict[int, type[base.Frame]] = commands.INDEX_MAPPING | {
    method.index: method for method in (access.Request, access.RequestOk)
}

_NUMBERS = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
    "timestamp": struct.Struct(">Q"),
}

_DEFAULTS: dict[str, object] = {"bit": False, "shortstr": "", "longstr": b""}

_M = TypeVar("_M", bound=base.Frame)

#: (type, names): one field, or up to eight bits that share an octet
_Step = tuple[str, tuple[str, ...]]


def _layout(method: type[base.Frame]) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    for name in method.attributes():
        kind = method.amqp_type(name)
        if kind == "bit" and steps and steps[-1][0] == "bit" and len(steps[-1][1]) < 8:
            steps[-1] = ("bit", (*steps[-1][1], name))
        else:
            steps.append((kind, (name,)))
    return tuple(steps)


_LAYOUTS: dict[int, tuple[_Step, ...]] = {index: _layout(method) for index, method in METHODS.items()}


def build(method: type[_M], **fields: object) -> _M:
    """Make a method of any names and values; a field not given is 0, false, empty.

    pamqp's constructors check names against the characters of AMQP's grammar, which RabbitMQ does not enforce.
    """
    made = method.__new__(method)
    for kind, names in _LAYOUTS[method.index]:
        for name in names:
            default = {} if kind == "table" else _DEFAULTS.get(kind, 0)
            setattr(made, name, fields.pop(name, default))
    if fields:
        raise TypeError(f"{method.name} has no field {', '.join(fields)}")
    return made


# ------------------------------------------------------------------------------------------------------ decoding
def decode(payload: bytes) -> base.Frame:
    """Decode a method frame's payload.

    Raises AmqpError: FRAME_ERROR for missing or extra bytes and for short strings that are not UTF-8 (as RabbitMQ),
    SYNTAX_ERROR for a malformed table, COMMAND_INVALID for a method that does not exist.
    """
    if len(payload) < _INDEX.size:
        raise AmqpError(ReplyCode.FRAME_ERROR, f"method frame of {len(payload)} octets")
    index: int = _INDEX.unpack_from(payload)[0]
    kind = METHODS.get(index)
    if kind is None:
        raise unknown_method(index)
    method = kind.__new__(kind)
    try:
        position = _decode_fields(method, payload)
    except (struct.error, IndexError):
        position = -1
    except UnicodeDecodeError:
        raise _error(ReplyCode.FRAME_ERROR, "Malformed UTF-8 in shortstr", index) from None
    except AmqpError as error:
        raise _error(error.code, error.reason, index) from None
    if position != len(payload):
        raise _error(ReplyCode.FRAME_ERROR, f"cannot decode the arguments of {kind.name.lower()}", index)
    return method


def _error(code: ReplyCode, reason: str, index: int) -> AmqpError:
    return AmqpError(code, reason, index >> 16, index & 0xFFFF)


def unknown_method(index: int) -> AmqpError:
    """The error for a class and method that do not exist (PC-23)."""
    return _error(ReplyCode.COMMAND_INVALID, f"unknown method {index >> 16}.{index & 0xFFFF}", index)


def _decode_fields(method: base.Frame, payload: bytes) -> int:
    """Set all fields; returns the offset behind the last (beyond the payload when that was cut off)."""
    position = _INDEX.size
    for kind, names in _LAYOUTS[method.index]:
        if kind == "bit":
            bits = payload[position]
            position += 1
            for name in names:
                setattr(method, name, bits & 1 == 1)
                bits >>= 1
        else:
            value, position = _READERS[kind](payload, position)
            setattr(method, names[0], value)
    return position


def _read_shortstr(payload: bytes, position: int) -> tuple[object, int]:
    start = position + 1
    position = start + payload[position]
    return payload[start:position].decode("utf-8"), position


def _read_longstr(payload: bytes, position: int) -> tuple[object, int]:
    start = position + 4
    position = start + _INDEX.unpack_from(payload, position)[0]
    return payload[start:position], position


def _number_reader(layout: struct.Struct) -> Callable[[bytes, int], tuple[object, int]]:
    def read(payload: bytes, position: int) -> tuple[object, int]:
        return layout.unpack_from(payload, position)[0], position + layout.size

    return read


_READERS: dict[str, Callable[[bytes, int], tuple[object, int]]] = {
    "shortstr": _read_shortstr,
    "longstr": _read_longstr,
    "table": read_table,
    **{kind: _number_reader(layout) for kind, layout in _NUMBERS.items()},
}


# ------------------------------------------------------------------------------------------------------ encoding
def encode(method: base.Frame) -> bytes:
    """Encode a method as the payload of a method frame; raises ValueError when a value does not fit its field."""
    parts = [_INDEX.pack(method.index)]
    for kind, names in _LAYOUTS[method.index]:
        if kind == "bit":
            parts.append(bytes((sum(1 << place for place, name in enumerate(names) if getattr(method, name)),)))
        else:
            parts.append(_encode_field(kind, getattr(method, names[0])))
    return b"".join(parts)


def _encode_field(kind: str, value: Any) -> bytes:
    if kind == "shortstr":
        return write_shortstr(value or "")
    if kind == "longstr":
        raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else cast("bytes", value or b"")
        return _INDEX.pack(len(raw)) + raw
    if kind == "table":
        return write_table(value or {})
    try:
        return _NUMBERS[kind].pack(value or 0)
    except struct.error as error:
        raise ValueError(f"{value!r} is no {kind}") from error

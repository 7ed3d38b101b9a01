"""The content header, kept as the raw bytes the publisher sent.

Owns the layout of basic's fourteen properties (AMQP 0-9-1, section 4.2.6.1 and the class's field list): everywhere else
"header" means the bytes from the property flags on.  They pass through untouched; ``parse`` shows the properties one
may need on the way.  Must not know queues, exchanges or what a property is used for.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import cast

from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode
from connector.amqp.wire import Field, Table, check_table, read_table, write_shortstr, write_table

#: class and method an invalid header is reported with: it belongs to a basic.publish
_BASIC_PUBLISH = (60, 40)

_CACHE_COUNT = 1024
#: A longer header is not remembered by itself.
CACHED_MAX_BYTES = 1024

_FLAGS = struct.Struct(">H")
_TIMESTAMP = struct.Struct(">Q")

#: The property flags' lowest bit announces another word of flags; basic has no use for one.
_CONTINUED = 1

_SHORTSTR, _TABLE, _OCTET, _TIME = range(4)

#: (property, kind) in the order of the flags, highest bit first
_PROPERTIES = (
    ("content_type", _SHORTSTR),
    ("content_encoding", _SHORTSTR),
    ("headers", _TABLE),
    ("delivery_mode", _OCTET),
    ("priority", _OCTET),
    ("correlation_id", _SHORTSTR),
    ("reply_to", _SHORTSTR),
    ("expiration", _SHORTSTR),
    ("message_id", _SHORTSTR),
    ("timestamp", _TIME),
    ("type", _SHORTSTR),
    ("user_id", _SHORTSTR),
    ("app_id", _SHORTSTR),
    ("cluster_id", _SHORTSTR),
)
_PROPERTY_NAMES = frozenset(name for name, _ in _PROPERTIES)

#: A header without any property.
EMPTY = b"\x00\x00"


class ContentHeader:
    """A parsed header: ``raw``, and every property or None where it is absent.

    Strings are bytes as they came; ``headers_at`` is the slice of ``raw`` that holds the headers table with its length.
    """

    __slots__ = (
        "app_id",
        "cluster_id",
        "content_encoding",
        "content_type",
        "correlation_id",
        "delivery_mode",
        "expiration",
        "headers_at",
        "message_id",
        "priority",
        "raw",
        "reply_to",
        "timestamp",
        "type",
        "user_id",
    )

    def __init__(
        self,
        raw: bytes,
        content_type: bytes | None,
        content_encoding: bytes | None,
        headers_at: slice | None,
        delivery_mode: int | None,
        priority: int | None,
        correlation_id: bytes | None,
        reply_to: bytes | None,
        expiration: bytes | None,
        message_id: bytes | None,
        timestamp: int | None,
        type: bytes | None,
        user_id: bytes | None,
        app_id: bytes | None,
        cluster_id: bytes | None,
    ) -> None:
        self.raw = raw
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.headers_at = headers_at
        self.delivery_mode = delivery_mode
        self.priority = priority
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.expiration = expiration
        self.message_id = message_id
        self.timestamp = timestamp
        self.type = type
        self.user_id = user_id
        self.app_id = app_id
        self.cluster_id = cluster_id

    def headers(self) -> Table:
        """Read the headers table, a fresh one at each call; empty when the property is absent."""
        at = self.headers_at
        return {} if at is None else read_table(self.raw, at.start)[0]

    def properties(self) -> dict[str, object]:
        """All present properties but ``headers``, by name, as ``build`` takes them."""
        found = {name: getattr(self, name) for name, kind in _PROPERTIES if kind != _TABLE}
        return {name: value for name, value in found.items() if value is not None}


def _malformed(what: str) -> AmqpError:
    return AmqpError(ReplyCode.SYNTAX_ERROR, f"malformed content header: {what}", *_BASIC_PUBLISH)


_cache: dict[bytes, ContentHeader] = {}
#: property flags -> the (position in _PROPERTIES, kind) of those present
_plans: dict[int, tuple[tuple[int, int], ...]] = {}


def parse(header: bytes) -> ContentHeader:
    """Check a header as a whole, the table included, and show its properties.

    The result is shared between equal headers: treat it as read-only.  Raises AmqpError SYNTAX_ERROR.
    """
    known = _cache.get(header)
    if known is not None:
        return known
    try:
        parsed = _parse(header)
    except (IndexError, struct.error):
        raise _malformed("cut off") from None
    if len(header) <= CACHED_MAX_BYTES:
        if len(_cache) >= _CACHE_COUNT:
            _cache.clear()
        _cache[header] = parsed
    return parsed


def _parse(header: bytes) -> ContentHeader:
    flags = (header[0] << 8) | header[1]
    plan = _plans.get(flags)
    if plan is None:
        plan = _plan(flags)
    values: list[bytes | int | slice | None] = [None] * 14
    position = 2
    for index, kind in plan:
        if kind == _SHORTSTR:
            start = position + 1
            position = start + header[position]
            values[index] = header[start:position]
        elif kind == _OCTET:
            values[index] = header[position]
            position += 1
        elif kind == _TIME:
            values[index] = _TIMESTAMP.unpack_from(header, position)[0]
            position += 8
        else:
            start = position
            position = _checked_table(header, position)
            values[index] = slice(start, position)
    if position != len(header):
        raise _malformed("not as long as its properties")
    return ContentHeader(header, *values)  # type: ignore[arg-type] # each kind puts the right type at its index


def _plan(flags: int) -> tuple[tuple[int, int], ...]:
    """Which properties these flags announce; the unused second-lowest bit is ignored, as RabbitMQ does."""
    if flags & _CONTINUED:
        raise _malformed("more than one word of property flags")
    plan = tuple((index, kind) for index, (_, kind) in enumerate(_PROPERTIES) if flags & (0x8000 >> index))
    _plans[flags] = plan
    return plan


def _checked_table(header: bytes, position: int) -> int:
    try:
        return check_table(header, position, len(header))
    except AmqpError as error:
        raise AmqpError(error.code, error.reason, *_BASIC_PUBLISH) from None


def build(properties: Mapping[str, object], headers: Mapping[str, Field] | None = None) -> bytes:
    """Make header bytes of properties by name (None: absent) and of the headers table (None: absent).

    Strings are bytes or str, at most 255 bytes; timestamp is in seconds.  Raises ValueError for what does not fit and
    for an unknown property.
    """
    unknown = properties.keys() - _PROPERTY_NAMES
    if unknown or "headers" in properties:
        raise ValueError(f"no such property: {', '.join(sorted(unknown)) or 'headers (a table of its own)'}")
    flags = 0
    parts = [b""]
    for index, (name, kind) in enumerate(_PROPERTIES):
        value = headers if kind == _TABLE else properties.get(name)
        if value is None:
            continue
        flags |= 0x8000 >> index
        parts.append(_encode(kind, value))
    parts[0] = _FLAGS.pack(flags)
    return b"".join(parts)


def _encode(kind: int, value: object) -> bytes:
    if kind == _SHORTSTR:
        return write_shortstr(cast("bytes | str", value))
    if kind == _TABLE:
        return write_table(cast("Mapping[str, Field]", value))
    number = cast("int", value)
    try:
        return bytes((number,)) if kind == _OCTET else _TIMESTAMP.pack(number)
    except struct.error as error:
        raise ValueError(f"not a timestamp: {value!r}") from error

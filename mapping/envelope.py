"""The envelope: what AMQP knows of a message beside its body, as compact JSON in the Metadata of a KubeMQ message.

Owns the JSON's members and versions; knows nothing of channels, queues or KubeMQ's other fields.  Rule (design section
6, features KI-02, KI-04): the header comes back byte for byte, whatever it was, and a native consumer can read it.
Public description: ``docs/mapping.md``.

    v   version, 1                            p    properties by their AMQP names, but headers
    x   exchange                              h    the headers table, see typed_json.py
    k   routing key                           raw  base64 of the header, where p and h would not give the same bytes
    r   true: delivered before                n    failed deliveries so far
    t   first publish, ms since the epoch     e    deadline, ms since the epoch

Absent p, h, r, n, t, e: no property, no headers, false, 0.  A repeated (exchange, routing key, header) is one look-up.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from json.encoder import encode_basestring as quoted
from typing import Any, NoReturn

from connector.amqp import header as content_header
from connector.amqp.header import AmqpError, ContentHeader  # type: ignore[attr-defined] # what parse raises
from connector.amqp.wire import SHORTSTR_MAX_BYTES, Table, read_table, write_table
from mapping.typed_json import bytes_of, bytes_text, field_of, table_of, table_text

VERSION = 1

_CACHE_COUNT = 1024
_CACHED_HEADER_MAX_BYTES = 1024
_CACHED_TEXT_MAX_CHARS = 4096
_FOREIGN_TEXT_MAX_CHARS = 65_536
_NUMBER_END = 2**63

_PROPERTIES = (
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNUSED_FLAG = 0x02  # of the flags' low octet: ignored by all, but it is one of the header's bits


class Envelope:
    """What an envelope says; shared between equal envelopes, so read-only.

    ``text_bytes`` is the size of the Metadata it was read from: JSON may take many times what the header does.
    """

    __slots__ = (
        "deadline_ms",
        "delivery_count",
        "exchange",
        "header",
        "published_ms",
        "redelivered",
        "routing_key",
        "text_bytes",
    )

    def __init__(
        self,
        exchange: str,
        routing_key: str,
        header: bytes,
        redelivered: bool = False,
        delivery_count: int = 0,
        published_ms: int = 0,
        deadline_ms: int = 0,
        text_bytes: int = 0,
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.header = header
        self.redelivered = redelivered
        self.delivery_count = delivery_count
        self.published_ms = published_ms
        self.deadline_ms = deadline_ms
        self.text_bytes = text_bytes


# ------------------------------------------------------------------------------------------------------- writing
_encoded: dict[tuple[str, str, bytes], str] = {}
_tables: dict[bytes, tuple[str, bool]] = {}
#: property flags -> what ``_plan`` returns
_plans: dict[bytes, tuple[tuple[str, str], ...]] = {}


def encode(
    exchange: str,
    routing_key: str,
    header: bytes,
    redelivered: bool = False,
    delivery_count: int = 0,
    published_ms: int = 0,
    deadline_ms: int = 0,
) -> str:
    """Return the Metadata of a message: valid Unicode, never empty.

    ``header`` is what ``connector.amqp.header.parse`` accepts; of anything else no property survives.  Times are in ms
    since the epoch, 0 for none.
    """
    known = _encoded.get((exchange, routing_key, header))
    if known is None:
        known = _text(exchange, routing_key, header)
        if len(header) <= _CACHED_HEADER_MAX_BYTES:
            if len(_encoded) >= _CACHE_COUNT:
                _encoded.clear()
            _encoded[exchange, routing_key, header] = known
    if redelivered or delivery_count or published_ms or deadline_ms:
        return known[:-1] + _state_text(redelivered, delivery_count, published_ms, deadline_ms)
    return known


def flagged(metadata: str) -> str:
    """Return our Metadata with redelivered set, everything else as it is; foreign Metadata unchanged."""
    known = decode(metadata)
    if known is None or known.redelivered:
        return metadata
    return encode(
        known.exchange,
        known.routing_key,
        known.header,
        True,
        known.delivery_count,
        known.published_ms,
        known.deadline_ms,
    )


def _text(exchange: str, routing_key: str, header: bytes) -> str:
    parts = ['{"v":1,"x":', quoted(exchange), ',"k":', quoted(routing_key)]
    try:
        parsed = content_header.parse(header)
    except AmqpError:
        parts.append(_raw_text(header))
        return _well_formed("".join(parts))
    plan = _plans.get(header[:2]) or _plan(parsed)
    for label, name in plan:
        value = getattr(parsed, name)
        parts += (label, str(value) if type(value) is int else bytes_text(value))
    if plan:
        parts.append("}")
    is_exact = not header[1] & _UNUSED_FLAG
    if parsed.headers_at is not None:
        table, same = _table_text(header[parsed.headers_at])
        parts += (',"h":', table)
        is_exact = is_exact and same
    parts.append("}" if is_exact else _raw_text(header))
    return _well_formed("".join(parts))


def _plan(parsed: ContentHeader) -> tuple[tuple[str, str], ...]:
    """Return the properties a header has as (text in front of the value, name), and remember it by its flags."""
    found = [name for name in _PROPERTIES if getattr(parsed, name) is not None]
    plan = tuple((f',"{name}":' if at else f',"p":{{"{name}":', name) for at, name in enumerate(found))
    if len(_plans) >= _CACHE_COUNT:
        _plans.clear()
    _plans[parsed.raw[:2]] = plan
    return plan


def _table_text(raw: bytes) -> tuple[str, bool]:
    """Return the JSON of a headers table, and whether it gives the same bytes again."""
    known = _tables.get(raw)
    if known is None:
        table, _ = read_table(raw, 0)
        known = table_text(table), _gives(table, raw)
        if len(raw) <= _CACHED_HEADER_MAX_BYTES:
            if len(_tables) >= _CACHE_COUNT:
                _tables.clear()
            _tables[raw] = known
    return known


def _gives(table: Mapping[str, tuple[str, Any]], raw: bytes) -> bool:
    """Tell whether writing a table that was read from ``raw`` gives ``raw`` again.

    It does not after duplicate keys, and for a bool that is neither 0 nor 1.  Where all is text and 32-bit integers, an
    equal length says that no key came twice (0.4 us instead of 2.1 for three headers).
    """
    size = 4
    for key, (letter, value) in table.items():
        if letter == "S" and key.isascii():
            size += len(key) + len(value) + 6
        elif letter == "I" and key.isascii():
            size += len(key) + 6
        else:
            return write_table(table) == raw
    return size == len(raw)


def _raw_text(header: bytes) -> str:
    return ',"raw":"' + b2a_base64(header, newline=False).decode() + '"}'


def _well_formed(text: str) -> str:
    """Write surrogates, which stand for bytes of a name that is not UTF-8, as JSON escapes: gRPC carries only UTF-8."""
    if text.isascii():
        return text
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _state_text(redelivered: bool, delivery_count: int, published_ms: int, deadline_ms: int) -> str:
    text = ',"r":true' if redelivered else ""
    if delivery_count:
        text += ',"n":' + str(delivery_count)
    if published_ms:
        text += ',"t":' + str(published_ms)
    if deadline_ms:
        text += ',"e":' + str(deadline_ms)
    return text + "}"


# ------------------------------------------------------------------------------------------------------- reading
def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_raw_decode = json.JSONDecoder(parse_constant=_no_constant).raw_decode
_UNREAD = Envelope("", "", b"")
_NO_PROPERTIES: dict[str, object] = {}
_decoded: dict[str, Envelope | None] = {}


def decode(metadata: str) -> Envelope | None:
    """Return the envelope in a Metadata, or None when it is none: the message is a native one.  Never raises.

    Of an envelope that another version or another program wrote, what can be understood is kept.
    """
    known = _decoded.get(metadata, _UNREAD)
    if known is _UNREAD:
        known = _read(metadata)
        if len(metadata) <= _CACHED_TEXT_MAX_CHARS:
            if len(_decoded) >= _CACHE_COUNT:
                _decoded.clear()
            _decoded[metadata] = known
    return known


def _read(metadata: str) -> Envelope | None:
    if not metadata.startswith('{"v":') and (metadata[:1] != "{" or len(metadata) > _FOREIGN_TEXT_MAX_CHARS):
        return None
    try:
        document, end = _raw_decode(metadata)
    except (ValueError, RecursionError):
        return None
    version, exchange, routing_key = document.get("v"), document.get("x"), document.get("k")
    if type(version) is not int or version < VERSION or not _is_name(exchange) or not _is_name(routing_key):
        return None
    if end != len(metadata) and metadata[end:].strip():
        return None
    header = _header(document)
    text_bytes = len(metadata) if metadata.isascii() else len(metadata.encode("utf-8", "surrogatepass"))
    if "r" not in document and "n" not in document and "t" not in document and "e" not in document:
        return Envelope(exchange, routing_key, header, text_bytes=text_bytes)
    return Envelope(
        exchange,
        routing_key,
        header,
        document.get("r") is True,
        _number(document.get("n")),
        _number(document.get("t")),
        _number(document.get("e")),
        text_bytes,
    )


def _is_name(value: Any) -> bool:
    """Tell whether a value is text that fits an AMQP short string."""
    if type(value) is not str or len(value) > SHORTSTR_MAX_BYTES:
        return False
    if value.isascii():
        return True
    try:
        return len(value.encode("utf-8", "surrogateescape")) <= SHORTSTR_MAX_BYTES
    except UnicodeEncodeError:
        return False


def _number(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _NUMBER_END else 0


def _header(document: dict[str, Any]) -> bytes:
    raw = document.get("raw")
    if raw is not None:
        try:
            return content_header.parse(a2b_base64(raw.encode(), strict_mode=True)).raw
        except (AttributeError, ValueError, AmqpError):
            pass  # not a header: the readable form may still be one
    properties, headers = document.get("p", _NO_PROPERTIES), document.get("h")
    try:
        return content_header.build(properties, None if headers is None else table_of(headers))
    except (AttributeError, OverflowError, TypeError, ValueError):
        return _lenient_header(properties, headers)


def _lenient_header(properties: Any, headers: Any) -> bytes:
    """Make a header of those properties and headers that can be understood, each on its own."""
    values: dict[str, object] = {}
    for name, value in properties.items() if isinstance(properties, dict) else ():
        try:
            candidate = value if type(value) is int else bytes_of(value)
            content_header.build({name: candidate})
        except (OverflowError, TypeError, ValueError):
            continue
        values[name] = candidate
    if not isinstance(headers, dict):
        return content_header.build(values)
    table: Table = {}
    for key, value in headers.items():
        try:
            field = field_of(value)
            write_table({key: field})
        except (OverflowError, TypeError, ValueError):
            continue
        table[key] = field
    return content_header.build(values, table)

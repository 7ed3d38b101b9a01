"""Changes to a content header on its way, made in its bytes: everything else in it stays as the publisher wrote it.

Owns where in the bytes a property stands.  Must not know why something is changed.  Layout: ``header.py``.
"""

from __future__ import annotations

from connector.amqp.header import ContentHeader, parse
from connector.amqp.wire import Field, write_shortstr, write_table

_HEADERS_FLAG = 0x20  # in the first octet
_CACHE_COUNT = 1024
_CACHED_MAX_BYTES = 1024

_cache: dict[tuple[bytes, str, int], bytes] = {}


def with_number(header: bytes, name: str, number: int) -> bytes:
    """Return a valid header with this entry in its headers table, as a long; the results of small ones are kept."""
    key = (header, name, number)
    known = _cache.get(key)
    if known is None:
        known = _with_entry(parse(header), name, ("l", number))
        if len(header) <= _CACHED_MAX_BYTES:
            if len(_cache) >= _CACHE_COUNT:
                _cache.clear()
            _cache[key] = known
    return known


def _with_entry(header: ContentHeader, name: str, value: Field) -> bytes:
    raw, at = header.raw, header.headers_at
    if at is None:
        start = 2 + _size(header.content_type) + _size(header.content_encoding)
        return bytes((raw[0] | _HEADERS_FLAG,)) + raw[1:start] + write_table({name: value}) + raw[start:]
    table = header.headers()
    if name in table:
        return raw[: at.start] + write_table(table | {name: value}) + raw[at.stop :]
    entries = raw[at.start + 4 : at.stop] + write_table({name: value})[4:]
    return raw[: at.start] + len(entries).to_bytes(4, "big") + entries + raw[at.stop :]


def with_reply_to(header: ContentHeader, address: str) -> bytes:
    """Return the header, which has a reply_to, with another one (at most 255 bytes)."""
    raw, at = header.raw, header.headers_at
    start = 2 + _size(header.content_type) + _size(header.content_encoding)
    if at is not None:
        start = at.stop
    start += (header.delivery_mode is not None) + (header.priority is not None) + _size(header.correlation_id)
    return raw[:start] + write_shortstr(address) + raw[start + _size(header.reply_to) :]


def _size(text: bytes | None) -> int:
    return 0 if text is None else 1 + len(text)

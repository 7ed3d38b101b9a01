"""A native KubeMQ message seen from AMQP: its Tags, MessageID, Metadata and time as a content header.

Owns what stands where in that header; knows nothing of envelopes (``envelope.decode`` has said that there is none) or
of where the message goes.  Rule (features KI-03): Tags are text headers, delivered with exchange "" and the queue name
as key.  Native Metadata may be huge, and a client may refuse a header frame above its frame_max: the header is bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from connector.amqp import header as content_header
from connector.amqp.wire import SHORTSTR_MAX_BYTES, Table

METADATA_HEADER = "x-kubemq-metadata"
"""Holds the message's Metadata where that is not empty."""

TRUNCATED_HEADER = "x-kubemq-truncated"
"""True on a message of which a Tag or the end of the Metadata was left out."""

HEADERS_MAX_BYTES = 65_536

_FIELD_BYTES = 6  # a key's length, the type letter, the value's length
_HASH_DIGITS = 40
_NS_PER_S = 1_000_000_000


def native_header(tags: Mapping[str, str], message_id: str, metadata: str, timestamp_ns: int) -> bytes:
    """Return the AMQP header of a message without an envelope; ``timestamp_ns`` is KubeMQ's, 0 where unknown.

    Headers: Tags as long strings in the order of their names, then the Metadata; properties: ``message_id`` and
    ``timestamp`` (seconds).  Names over 255 bytes are cut and end in ``~`` and a hash; above HEADERS_MAX_BYTES Tags
    that do not fit and the end of the Metadata are left out.
    """
    table: Table = {}
    room_bytes = HEADERS_MAX_BYTES
    is_truncated = False
    for tag in sorted(tags):
        key, value = _shortened(tag), _utf8(tags[tag])
        cost_bytes = len(_utf8(key)) + len(value) + _FIELD_BYTES
        if cost_bytes > room_bytes:
            is_truncated = True
            continue
        room_bytes -= cost_bytes
        table[key] = ("S", value)
    if metadata:
        raw = _utf8(metadata)
        kept_bytes = max(0, room_bytes - len(METADATA_HEADER) - _FIELD_BYTES)
        if len(raw) > kept_bytes:
            is_truncated = True
            raw = raw[:kept_bytes].decode("utf-8", "ignore").encode()
        table[METADATA_HEADER] = ("S", raw)
    if is_truncated:
        table[TRUNCATED_HEADER] = ("t", True)
    properties: dict[str, object] = {}
    if message_id:
        properties["message_id"] = _shortened(message_id)
    if timestamp_ns >= _NS_PER_S:
        properties["timestamp"] = timestamp_ns // _NS_PER_S
    return content_header.build(properties, table or None)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _shortened(text: str) -> str:
    """Return a text as it is, or a readable head and a hash where it does not fit a short string."""
    raw = _utf8(text)
    if len(raw) <= SHORTSTR_MAX_BYTES:
        return raw.decode()
    head = raw[: SHORTSTR_MAX_BYTES - _HASH_DIGITS - 1].decode("utf-8", "ignore")
    return f"{head}~{hashlib.sha256(raw).hexdigest()[:_HASH_DIGITS]}"

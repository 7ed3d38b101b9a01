"""Names: which KubeMQ channel holds an AMQP queue, and back.

Owns ``amqp.<vhost>.<queue>``, its escapes and its reserved parts; knows nothing of topology or of what exists.  Rules:
KubeMQ refuses an empty name, a space, ``*``, ``>``, ``/``, a dot at either end and ``..`` (measured, and the server's
public source); the store makes a folder ``_QUEUES_.<channel>`` of it, so about 240 bytes pass; KubeMQ's own AMQP
connectors also refuse ``:`` and ``;``, so these are escaped too and every channel is reachable from there.
AMQP allows 255 bytes of any kind (features QU-11, KI-01, SE-06).  The rule may never change: it names stored data.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

TOPOLOGY_CHANNEL = "amqp.~topology"
"""Events Store channel of the declarations; '~' at the start of a part is reserved, so no vhost is called so."""
TOPOLOGY_START = "amqp-start"
"""Tag of its events: the Sequence from which on the log is enough, as a snapshot comes after it."""


def peer_channel(replica: str) -> str:
    """Events channel on which one connector is told something, or all of them with ""."""
    return f"amqp.~peer.{replica}" if replica else "amqp.~peers"


MAX_CHANNEL_BYTES = 240
"""The longest channel ever produced, in bytes of UTF-8."""

MAX_GENERATION = 999_999_999

DEFAULT_VHOST = "/"
"""What the vhost part ``default`` reads back as; ``/``, the empty name and ``default`` are one vhost."""

_PREFIX = "amqp."
_DEFAULT_LABEL = "default"
_MAX_VHOST_BYTES = 80
_GENERATION_BYTES = len("~g999999999.")
_HASH_DIGITS = 40  # 160 bits of SHA-256: nobody finds a second name for another's channel
_TRIMMED = "_QUES."  # the set of characters the server cuts (strings.Trim of "_QUEUES_.")

_REFUSED = re.compile(r"[\x00-\x20\x7f%*/:;>\\\udc80-\udcff]")
_REFUSED_IN_VHOST = re.compile(r"[\x00-\x20\x7f%*/:;>\\.\udc80-\udcff]")
_REFUSED_DOT = re.compile(r"\A\.|(?<=\.)\.|\.\Z")
_ESCAPE = re.compile(rb"%([0-9a-f]{2})")
_CHANNEL = re.compile(r"amqp\.([^.]+)\.(?:~g([1-9][0-9]{0,8})\.)?(.+)", re.DOTALL)


def vhost_label(vhost: str) -> str:
    """Return the part of a channel's name that stands for a vhost.

    ``/`` and the empty name are ``default``; dots are always escaped, as the first dot ends the part.
    Raises UnicodeEncodeError for a surrogate that stands for no byte (such a name cannot come from the wire).
    """
    if vhost in ("", DEFAULT_VHOST):
        return _DEFAULT_LABEL
    return _fitted(_reserve(_REFUSED_IN_VHOST.sub(_escaped, _normal(vhost))), vhost, _MAX_VHOST_BYTES)


@lru_cache(maxsize=8192)
def kubemq_channel(vhost: str, queue: str, generation: int = 0) -> str:
    """Return the KubeMQ channel of a queue: ``amqp.<vhost>.<queue>``, or ``amqp.<vhost>.~g<n>.<queue>``.

    Two different (vhost, queue, generation) never share a channel; an empty queue name is ``%``.  Raises ValueError
    for a generation outside 0..MAX_GENERATION and UnicodeEncodeError as ``vhost_label`` does.
    """
    if not 0 <= generation <= MAX_GENERATION:
        raise ValueError(f"generation {generation} is outside 0..{MAX_GENERATION}")
    label = vhost_label(vhost)
    room = MAX_CHANNEL_BYTES - len(_PREFIX) - len(label.encode()) - 1 - _GENERATION_BYTES
    part = _REFUSED_DOT.sub("%2e", _REFUSED.sub(_escaped, _normal(queue)))
    part = _fitted(_reserve(part), queue, room) or "%"
    return f"{_PREFIX}{label}.~g{generation}.{part}" if generation else f"{_PREFIX}{label}.{part}"


@lru_cache(maxsize=8192)
def vhost_and_queue(kubemq_channel_name: str) -> tuple[str, str, int] | None:
    """Return (vhost, queue, generation) of a channel, or None when no name reads back from it.

    None: not ours, reserved, hashed (too long to be kept whole), or a spelling that ``kubemq_channel`` never makes,
    such as ``amqp.default.a%2Eb``.  So whatever is returned leads to exactly this channel (SE-06).
    """
    match = _CHANNEL.fullmatch(kubemq_channel_name)
    if match is None:
        return None
    label, digits, part = match.groups()
    generation = int(digits) if digits else 0
    vhost = DEFAULT_VHOST if label == _DEFAULT_LABEL else _unescaped(label)
    queue = "" if part == "%" else _unescaped(part)
    return (vhost, queue, generation) if kubemq_channel(vhost, queue, generation) == kubemq_channel_name else None


def reported_name(kubemq_channel_name: str) -> str:
    """Return the name under which QueuesInfo reports a channel: without ``_QUES.`` characters at its ends.

    Two channels may be reported under one name (``orders`` and ``orders_``); ``amqp.`` protects the front of ours.
    """
    return kubemq_channel_name.strip(_TRIMMED)


def _normal(name: str) -> str:
    """Return the one spelling of a name's bytes: text where they are UTF-8, surrogates (PEP 383) elsewhere."""
    if name.isascii():
        return name
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _escaped(match: re.Match[str]) -> str:
    return f"%{ord(match[0]) & 0xFF:02x}"


def _unescaped(part: str) -> str:
    raw = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), part.encode("utf-8", "surrogatepass"))
    return raw.decode("utf-8", "surrogateescape")


def _reserve(part: str) -> str:
    """Escape a leading '~', the mark of all that is not a plain name."""
    return "%7e" + part[1:] if part.startswith("~") else part


def _fitted(part: str, name: str, room_bytes: int) -> str:
    """Return the part, or ``~h<head>-<hash of the name>`` when it needs more than ``room_bytes``.

    The hash stands last: its digits are none of those that QueuesInfo trims.
    """
    raw = part.encode()
    if len(raw) <= room_bytes:
        return part
    head = raw[: room_bytes - _HASH_DIGITS - len("~h-")].decode("utf-8", "ignore")
    if "%" in head[-2:]:
        head = head[: head.rindex("%")]
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:_HASH_DIGITS]
    return f"~h{head}-{digest}"

"""The kinds of values a setting can have: each turns text, or a TOML value, into the value used inside.

Owns the parsing and its complaints; a complaint is a ``ValueError`` whose text follows the value ("is not a whole
number") and never repeats it, so a secret cannot leak through one.  Must not know which settings exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote

_SIZE = re.compile(r"(\d+)\s*(|B|KiB|MiB|GiB)")
_SIZE_UNITS = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_SWITCH = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_ADDRESS = re.compile(r"(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_HIGHEST_PORT = 65535
_NO_USERS = "is not a list of user:password, separated by commas"


def whole(value: object) -> int:
    """Return a whole number; raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,18}", value.strip()):
        return int(value)
    raise ValueError("is not a whole number")


def size(value: object) -> int:
    """Return bytes, from a number or from text as ``16 MiB``; raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("is not a size: write bytes, or a number with KiB, MiB or GiB")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def size_text(count: int) -> str:
    """Return bytes as one would write them in a setting: ``16MiB``."""
    for unit in ("GiB", "MiB", "KiB"):
        if count and count % _SIZE_UNITS[unit] == 0:
            return f"{count // _SIZE_UNITS[unit]}{unit}"
    return str(count)


def seconds(value: object) -> float:
    """Return seconds; raises ValueError."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            result = float(value)
        except ValueError:
            result = -1.0
        if 0 <= result < float("inf"):
            return result
    raise ValueError("is not a number of seconds")


def switch(value: object) -> bool:
    """Return true or false; raises ValueError."""
    word = str(value).strip().lower()
    if not isinstance(value, bool | str) or word not in _SWITCH:
        raise ValueError("is neither true nor false")
    return _SWITCH[word]


def text(value: object) -> str:
    """Return text without the blanks around it, possibly empty; raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("is not text")
    return value.strip()


def filled(value: object) -> str:
    """Return text that is not empty; raises ValueError."""
    result = text(value)
    if not result:
        raise ValueError("is empty")
    return result


def path(value: object) -> Path:
    """Return a path, with ``~`` resolved; raises ValueError."""
    return Path(filled(value)).expanduser()


def address(value: object) -> str:
    """Return ``host:port`` or ``[ipv6]:port``, or empty text; raises ValueError."""
    result = text(value)
    match = _ADDRESS.fullmatch(result)
    if result and (match is None or not 0 < int(match[1]) <= _HIGHEST_PORT):
        raise ValueError("is not HOST:PORT")
    return result


def addresses(value: object) -> tuple[str, ...]:
    """Return addresses, from a list or from text with commas; raises ValueError."""
    return tuple(address(item) for item in names(value))


def version(value: object) -> str:
    """Return a version of three numbers, as clients compare it (PC-02); raises ValueError."""
    result = text(value)
    if not _VERSION.fullmatch(result):
        raise ValueError("is not a version of three numbers, as 3.12.0")
    return result


def names(value: object) -> tuple[str, ...]:
    """Return names, from a list or from text with commas; raises ValueError."""
    items = value
    if isinstance(value, str):
        text_of_all = value.strip().removesuffix(",")
        items = text_of_all.split(",") if text_of_all else []
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError("is not a list of names, separated by commas")
    if not all(item.strip() for item in items):
        raise ValueError("has an empty entry")
    return tuple(item.strip() for item in items)


def users(value: object) -> dict[str, str]:
    """Return passwords by user, from a table or from ``user:password,...``; raises ValueError.

    In the text form a comma, colon or per cent sign inside a name or password is written ``%2C``, ``%3A``, ``%25``.
    """
    if isinstance(value, str):
        result = dict(_user(item) for item in value.split(",") if item.strip())
    elif isinstance(value, Mapping) and all(isinstance(part, str) for pair in value.items() for part in pair):
        result = dict(value)
    else:
        raise ValueError(_NO_USERS)
    if not result or "" in result:
        raise ValueError("has no user, or one without a name")
    return result


def _user(item: str) -> tuple[str, str]:
    name, colon, password = item.strip().partition(":")
    if not colon:
        raise ValueError(_NO_USERS)
    return unquote(name), unquote(password)


def one_of(*words: str) -> Callable[[object], str]:
    """Return the parser of a choice; raises ValueError for any other word."""

    def parse(value: object) -> str:
        word = text(value).lower()
        if word not in words:
            raise ValueError("is none of " + ", ".join(words))
        return word

    return parse

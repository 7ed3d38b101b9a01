"""The kinds of values: what each takes, and that a complaint never repeats the value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from connector import config_values as kind


@pytest.mark.parametrize(
    ("parse", "given", "value"),
    [
        (kind.whole, 7, 7),
        (kind.whole, " 7 ", 7),
        (kind.whole, "-7", -7),
        (kind.size, 7, 7),
        (kind.size, "7", 7),
        (kind.size, "7B", 7),
        (kind.size, "2 KiB", 2048),
        (kind.size, "16MiB", 16 * 1024**2),
        (kind.size, "1GiB", 1024**3),
        (kind.seconds, 7, 7.0),
        (kind.seconds, "0.5", 0.5),
        (kind.switch, True, True),
        (kind.switch, "Yes", True),
        (kind.switch, "off", False),
        (kind.text, " a ", "a"),
        (kind.text, "", ""),
        (kind.filled, " a ", "a"),
        (kind.path, "/a/b", Path("/a/b")),
        (kind.address, "", ""),
        (kind.address, "kubemq:50000", "kubemq:50000"),
        (kind.address, "[::1]:50000", "[::1]:50000"),
        (kind.version, "3.12.0", "3.12.0"),
        (kind.names, "a, b,", ("a", "b")),
        (kind.names, ["a", "b"], ("a", "b")),
        (kind.names, "", ()),
        (kind.addresses, "a:1, b:2", ("a:1", "b:2")),
        (kind.addresses, "", ()),
        (kind.users, "a:b", {"a": "b"}),
        (kind.users, "a:b:c , d%3Ae:f%2Cg%25", {"a": "b:c", "d:e": "f,g%"}),
        (kind.users, {"a": "b"}, {"a": "b"}),
        (kind.one_of("a", "b"), "B", "b"),
    ],
)
def test_takes(parse: Callable[[object], object], given: object, value: object) -> None:
    assert parse(given) == value


@pytest.mark.parametrize(
    ("parse", "given", "complaint"),
    [
        (kind.whole, "12qq", "is not a whole number"),
        (kind.whole, "1.0", "is not a whole number"),
        (kind.whole, True, "is not a whole number"),
        (kind.whole, 1.0, "is not a whole number"),
        (kind.whole, "9" * 5000, "is not a whole number"),
        (kind.size, "12qq", "is not a size: write bytes, or a number with KiB, MiB or GiB"),
        (kind.size, "-1", "is not a size: write bytes, or a number with KiB, MiB or GiB"),
        (kind.size, True, "is not a size: write bytes, or a number with KiB, MiB or GiB"),
        (kind.seconds, "12qq", "is not a number of seconds"),
        (kind.seconds, "nan", "is not a number of seconds"),
        (kind.seconds, "inf", "is not a number of seconds"),
        (kind.seconds, "-1", "is not a number of seconds"),
        (kind.seconds, False, "is not a number of seconds"),
        (kind.switch, "12qq", "is neither true nor false"),
        (kind.switch, 1, "is neither true nor false"),
        (kind.text, 12, "is not text"),
        (kind.filled, " ", "is empty"),
        (kind.path, "", "is empty"),
        (kind.address, "12qq", "is not HOST:PORT"),
        (kind.address, "http://a:1", "is not HOST:PORT"),
        (kind.address, "a:65536", "is not HOST:PORT"),
        (kind.address, "a:0", "is not HOST:PORT"),
        (kind.address, "::1:50000", "is not HOST:PORT"),
        (kind.version, "12qq", "is not a version of three numbers, as 3.12.0"),
        (kind.names, "a,,b", "has an empty entry"),
        (kind.names, ["a", " "], "has an empty entry"),
        (kind.addresses, "a:1,b", "is not HOST:PORT"),
        (kind.names, 12, "is not a list of names, separated by commas"),
        (kind.names, [12], "is not a list of names, separated by commas"),
        (kind.users, "12qq", "is not a list of user:password, separated by commas"),
        (kind.users, 12, "is not a list of user:password, separated by commas"),
        (kind.users, {"a": 12}, "is not a list of user:password, separated by commas"),
        (kind.users, "", "has no user, or one without a name"),
        (kind.users, ":12qq", "has no user, or one without a name"),
        (kind.one_of("a", "b"), "12qq", "is none of a, b"),
    ],
)
def test_refuses(parse: Callable[[object], object], given: object, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(given)
    assert str(caught.value) == complaint


@pytest.mark.parametrize("text", ["0", "7", "1023", "1KiB", "1025", "16MiB", "3GiB"])
def test_sizes_are_written_as_they_are_read(text: str) -> None:
    assert kind.size_text(kind.size(text)) == text

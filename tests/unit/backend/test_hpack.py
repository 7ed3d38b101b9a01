"""Header blocks: RFC 7541's own examples, what we write, and what is broken."""

from __future__ import annotations

import pytest

from connector.backend.kubemq import hpack

#: RFC 7541, C.2.1, C.2.2, C.2.3: literals of every kind, not Huffman coded.
LITERALS = [
    ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", b"custom-key", b"custom-header"),
    ("100870617373776f726406736563726574", b"password", b"secret"),
]
#: RFC 7541, C.4 and C.6: Huffman coded texts.
TEXTS = [
    ("f1e3c2e5f23a6ba0ab90f4ff", b"www.example.com"),
    ("a8eb10649cbf", b"no-cache"),
    ("25a849e95ba97d7f", b"custom-key"),
    ("25a849e95bb8e8b4bf", b"custom-value"),
    ("d07abe941054d444a8200595040b8166e082a62d1bff", b"Mon, 21 Oct 2013 20:13:21 GMT"),
    ("94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
     b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "name", "value"), LITERALS)
def test_literals(block: str, name: bytes, value: bytes) -> None:
    assert hpack.decode(bytes.fromhex(block)) == [(name, value)]


@pytest.mark.parametrize(("coded", "plain"), TEXTS)
def test_huffman(coded: str, plain: bytes) -> None:
    text = bytes.fromhex(coded)
    block = b"\x00\x01a" + bytes((0x80 | len(text),)) + text
    assert hpack.decode(block) == [(b"a", plain)]


def test_what_the_static_table_says() -> None:
    assert hpack.decode(b"\x88\x8c\x5f\x01x") == [(b":status", b"200"), (b":status", b"400"), (b"content-type", b"x")]
    assert hpack.decode(b"\xbd") == [(b"", b"")]  # an entry that no answer of gRPC has


def test_the_size_of_the_table_that_is_not_there() -> None:
    assert hpack.decode(b"\x20\x3f\xe1\x1f\x88") == [(b":status", b"200")]


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 256, 20_000])
def test_what_is_written_is_read(size: int) -> None:
    headers = [(b"x" * max(1, size), b"y" * size), (b"a", b"b")]
    assert hpack.decode(hpack.encode(headers)) == headers


@pytest.mark.parametrize(
    "block",
    [
        "be",  # the first entry of a dynamic table
        "80",  # entry 0
        "0001",  # a name that is not there
        "000161",  # a value that is not there
        "00016105",  # a value that ends too early
        "3fffffffffff7f",  # an endless number
        "00016181ff",  # more than a byte of padding would be
        "0001618118",  # padding of zeros
        "00016184ffffffff",  # the end of a text in its middle
    ],
)
def test_what_is_broken_is_refused(block: str) -> None:
    with pytest.raises(hpack.HpackError):
        hpack.decode(bytes.fromhex(block))

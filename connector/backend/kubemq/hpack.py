"""HPACK (RFC 7541), as much of it as a gRPC client needs: plain literals out, every representation in.

Owns both directions and Huffman decoding.  There is no dynamic table: we announce a size of 0, so a peer may not refer
to one.  Of the static table only what a gRPC answer uses has values here; other entries of it are skipped by name "".
"""

from __future__ import annotations

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

_STATIC_COUNT = 61
_STATUSES = (b"200", b"204", b"206", b"304", b"400", b"404", b"500")
_STATIC: dict[int, tuple[bytes, bytes]] = {8 + at: (b":status", value) for at, value in enumerate(_STATUSES)} | {
    31: (b"content-type", b"")
}
_SHORT = 127

#: Lengths of the codes of all bytes and of the end of a string, as letters: A is 5 bits.
_LENGTHS = (
    "ISXXXXXXXTZXXZXXXXXXXXZXXXXXXXXXBFFHIBDGFFDGDBBBAAABBBBBBBCDKBHFIBCCCCCCCCCCCCCCCCCCCC"
    "CCDCDIOIJBKABABABBBACCBBBABCBAABCCCCCKGJIXPRPPRRRSRSSSSSTSTTRSTSSSSQRSRSSTRQPRRSSQSRRT"
    "QRSSQQRQSRSSPRRRSRRSVVPORSRUVVVWWVTUOQVWWVWTQQVVXWWWPTPQRQQSRRUUTTVSVWVVWWWWWXWWWWWVZ"
)
_END_OF_STRING = 256


class HpackError(Exception):
    """The block is broken, or refers to what we did not allow."""


def _codes() -> dict[tuple[int, int], int]:
    """(bits, code) to symbol; the codes are canonical: by length, then by symbol."""
    codes: dict[tuple[int, int], int] = {}
    code = before = 0
    for bits, symbol in sorted((ord(letter) - ord("A") + 5, symbol) for symbol, letter in enumerate(_LENGTHS)):
        code <<= bits - before
        before = bits
        codes[bits, code] = symbol
        code += 1
    return codes


_SYMBOLS = _codes()


def encode(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a header block: each header as a literal that nobody remembers."""
    block = bytearray()
    for name, value in headers:
        block.append(0)
        for text in (name, value):
            block += _number(len(text))
            block += text
    return bytes(block)


def decode(block: bytes) -> Headers:
    """Return the headers of a block, in order.  Raises HpackError."""
    headers: Headers = []
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _read_number(block, at, 7)
                headers.append(_entry(index))
            elif first & 0xE0 == 0x20:  # the size of a table we do not have
                _, at = _read_number(block, at, 5)
            else:
                index, at = _read_number(block, at, 6 if first & 0x40 else 4)
                if index:
                    name = _entry(index)[0]
                else:
                    name, at = _read_text(block, at)
                value, at = _read_text(block, at)
                headers.append((name, value))
    except IndexError:
        raise HpackError("the block ends too early") from None
    return headers


def _entry(index: int) -> tuple[bytes, bytes]:
    if not 0 < index <= _STATIC_COUNT:
        raise HpackError(f"entry {index} of a table of {_STATIC_COUNT}")
    return _STATIC.get(index, (b"", b""))


def _number(value: int) -> bytes:
    """A length with a prefix of seven bits, the eighth clear: not Huffman coded."""
    if value < _SHORT:
        return bytes((value,))
    parts = bytearray((_SHORT,))
    value -= _SHORT
    while value > _SHORT:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _read_number(block: bytes, at: int, prefix_bits: int) -> tuple[int, int]:
    full = (1 << prefix_bits) - 1
    value = block[at] & full
    at += 1
    if value < full:
        return value, at
    shift = 0
    while True:
        more = block[at]
        at += 1
        value += (more & 0x7F) << shift
        shift += 7
        if not more & 0x80:
            return value, at
        if shift > 28:
            raise HpackError("a number is too large")


def _read_text(block: bytes, at: int) -> tuple[bytes, int]:
    is_huffman = block[at] & 0x80
    size, at = _read_number(block, at, 7)
    if at + size > len(block):
        raise HpackError("a text ends beyond the block")
    text = block[at : at + size]
    return (_plain(text) if is_huffman else text), at + size


def _plain(text: bytes) -> bytes:
    """Decode Huffman; what is left at the end are up to seven bits of ones."""
    plain = bytearray()
    code = bits = 0
    for byte in text:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            bits += 1
            symbol = _SYMBOLS.get((bits, code))
            if symbol is None:
                continue
            if symbol == _END_OF_STRING:
                raise HpackError("an end in the middle of a text")
            plain.append(symbol)
            code = bits = 0
    if bits > 7 or code != (1 << bits) - 1:
        raise HpackError("a text ends in the middle of a code")
    return bytes(plain)

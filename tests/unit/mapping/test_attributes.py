"""Native messages: Tags, MessageID, Metadata and time as an AMQP header, and how large that may get."""

from __future__ import annotations

from connector.amqp import header as content_header
from mapping.attributes import HEADERS_MAX_BYTES, native_header


def test_tags_metadata_id_and_time() -> None:
    header = native_header({"b": "2", "a": "größe"}, "id-1", "hello", 1_700_000_000_999_999_999)
    parsed = content_header.parse(header)
    assert list(parsed.headers().items()) == [
        ("a", ("S", "größe".encode())),
        ("b", ("S", b"2")),
        ("x-kubemq-metadata", ("S", b"hello")),
    ]
    assert parsed.properties() == {"message_id": b"id-1", "timestamp": 1_700_000_000}


def test_nothing_gives_an_empty_header() -> None:
    assert native_header({}, "", "", 0) == content_header.EMPTY
    assert native_header({}, "", "", -5) == content_header.EMPTY


def test_the_metadata_wins_over_a_tag_of_its_name() -> None:
    header = native_header({"x-kubemq-metadata": "tag"}, "", "metadata", 0)
    assert content_header.parse(header).headers() == {"x-kubemq-metadata": ("S", b"metadata")}
    header = native_header({"x-kubemq-metadata": "tag"}, "", "", 0)
    assert content_header.parse(header).headers() == {"x-kubemq-metadata": ("S", b"tag")}


def test_long_ids_and_tag_names_are_cut_and_stay_apart() -> None:
    names = ["é" * 200 + end for end in "ab"]
    parsed = [content_header.parse(native_header({name: "v"}, name, "", 0)) for name in names]
    ids = [each.message_id for each in parsed]
    assert ids[0] != ids[1]
    for each in parsed:
        (key,) = each.headers()
        assert each.message_id is not None
        assert key.encode() == each.message_id
        assert len(each.message_id) <= 255
        assert each.message_id.decode().startswith("é" * 107 + "~")


def test_a_name_of_255_bytes_is_kept() -> None:
    assert content_header.parse(native_header({}, "m" * 255, "", 0)).message_id == b"m" * 255


def test_huge_metadata_and_tags_are_cut_and_marked() -> None:
    tags = {"a": "small", "b": "x" * HEADERS_MAX_BYTES, "c": "y" * 60_000}
    headers = content_header.parse(native_header(tags, "", "é" * 1_000_000, 0)).headers()
    assert list(headers) == ["a", "c", "x-kubemq-metadata", "x-kubemq-truncated"]
    assert headers["x-kubemq-truncated"] == ("t", True)
    raw = headers["x-kubemq-metadata"][1]
    assert isinstance(raw, bytes)
    assert raw.decode() == "é" * (len(raw) // 2)
    full = content_header.parse(native_header({"b": "x" * (HEADERS_MAX_BYTES - 7)}, "", "metadata", 0)).headers()
    assert full["x-kubemq-metadata"] == ("S", b"")


def test_what_fits_is_not_marked() -> None:
    metadata = "m" * (HEADERS_MAX_BYTES - len("x-kubemq-metadata") - 6)
    headers = content_header.parse(native_header({}, "", metadata, 0)).headers()
    assert headers == {"x-kubemq-metadata": ("S", metadata.encode())}
    assert "x-kubemq-truncated" in content_header.parse(native_header({}, "", metadata + "m", 0)).headers()

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connector.amqp import header, wire
from connector.amqp.header_edits import with_number, with_reply_to

TEXT = st.binary(max_size=20)
PROPERTIES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "content_type": TEXT,
        "content_encoding": TEXT,
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "correlation_id": TEXT,
        "reply_to": TEXT,
        "expiration": TEXT,
        "message_id": TEXT,
        "timestamp": st.integers(0, 2**64 - 1),
        "type": TEXT,
        "user_id": TEXT,
        "app_id": TEXT,
        "cluster_id": TEXT,
    },
)
VALUES = st.one_of(
    st.tuples(st.just("l"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("S"), TEXT),
    st.tuples(st.just("V"), st.none()),
)
TABLES = st.dictionaries(st.sampled_from(["a", "n", "x-delivery-count", "long " * 20]), VALUES, max_size=4)


@given(PROPERTIES, st.none() | TABLES, st.sampled_from(["x-delivery-count", "n"]), st.integers(0, 2**40))
def test_a_number_is_added_or_replaced_and_nothing_else_changes(
    properties: dict[str, object], headers: wire.Table | None, name: str, number: int
) -> None:
    raw = header.build(properties, headers)
    changed = header.parse(with_number(raw, name, number))
    assert changed.properties() == properties
    assert changed.headers() == (headers or {}) | {name: ("l", number)}
    assert list(changed.headers()) == list((headers or {}) | {name: None})
    assert with_number(raw, name, number) == changed.raw


@given(PROPERTIES, st.none() | TABLES, TEXT)
def test_only_the_reply_address_changes(
    properties: dict[str, object], headers: wire.Table | None, address: bytes
) -> None:
    properties |= {"reply_to": b"before"}
    text = address.decode("utf-8", "surrogateescape")
    changed = with_reply_to(header.parse(header.build(properties, headers)), text)
    assert changed == header.build(properties | {"reply_to": address}, headers)


def test_what_cannot_be_written_the_same_again_stays() -> None:
    twice = b"\x01aV\x01at\x02"
    raw = b"\x20\x00" + len(twice).to_bytes(4, "big") + twice
    entry = wire.write_table({"n": ("l", 1)})[4:]
    assert with_number(raw, "n", 1) == b"\x20\x00" + (len(twice) + len(entry)).to_bytes(4, "big") + twice + entry


def test_what_is_kept_is_bounded() -> None:
    for number in range(3000):
        with_number(header.EMPTY, "n", number)
    big = header.build({}, {"big": ("S", bytes(2000))})
    assert header.parse(with_number(big, "n", 5)).headers()["n"] == ("l", 5)

"""QueuesInfo's own message types, byte for byte as a server writes them."""

from __future__ import annotations

from connector.backend.kubemq.queues_info import QueuesInfoRequest, QueuesInfoResponse, channel_infos


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def test_an_answer_is_read() -> None:
    row = block(1, b"amqp.default.tasks") + b"".join(
        varint(field << 3) + varint(1000 * field) for field in range(2, 10)
    )
    info = b"\x08\x02" + block(5, row) + block(5, block(1, b"other"))
    response = QueuesInfoResponse.FromString(block(1, b"q") + block(2, info))

    first, second = channel_infos(response)

    assert (first.name, first.first_sequence, first.last_sequence) == ("amqp.default.tasks", 4000, 5000)
    assert (first.delivered, first.waiting, first.subscribers) == (7000, 8000, 9000)
    assert (second.name, second.waiting) == ("other", 0)


def test_the_request_asks_for_all() -> None:
    assert QueuesInfoRequest(RequestID="q").SerializeToString() == block(1, b"q")


def test_an_empty_answer_is_no_rows() -> None:
    assert channel_infos(QueuesInfoResponse()) == []


def test_less_than_nothing_is_nothing() -> None:
    minus_one = (1 << 64) - 1
    info = block(5, block(1, b"q") + varint(8 << 3) + varint(minus_one))
    (row,) = channel_infos(QueuesInfoResponse.FromString(block(2, info)))
    assert row.waiting == 0

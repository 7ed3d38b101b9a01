"""The differential test's own parts: drawing, shrinking, what is levelled."""

from __future__ import annotations

from tools.differential.known import KNOWN, normal
from tools.differential.operations import Operation, draw, read_line, shrink
from tools.differential.side import View


def test_a_seed_gives_the_same_sequence_and_another_one_another() -> None:
    assert draw(1, 30) == draw(1, 30)
    assert draw(1, 30) != draw(2, 30)
    assert len({operation.kind for seed in range(40) for operation in draw(seed, 30)}) > 15


def test_a_sequence_can_be_written_down_and_read_again() -> None:
    operations = [operation for seed in range(40) for operation in draw(seed, 30)]
    assert [read_line(operation.line()) for operation in operations] == operations


def test_shrinking_keeps_what_fails() -> None:
    operations = [Operation("publish", 0, {"number": number}) for number in range(40)]
    tried: list[int] = []

    def fails(some: list[Operation]) -> bool:
        tried.append(len(some))
        return {7, 31} <= {operation.fields["number"] for operation in some}

    assert [operation.fields["number"] for operation in shrink(operations, fails)] == [7, 31]
    assert len(tried) <= 60


def test_the_delivery_count_and_one_letter_are_levelled() -> None:
    ours = View((), {}, {"0/c/q": [["m", ["{}", "[('k', ('L', 1)), ('x-delivery-count', ('l', 2))]"]]]}, {})
    theirs = View((), {}, {"0/c/q": [["m", ["{}", "[('k', ('l', 1))]"]]]}, {})
    assert normal(ours) == normal(theirs)
    first = View((), {}, {"0/c/q": [["m", ["{}", "[('x-delivery-count', ('l', 2)), ('y', ('I', 3))]"]]]}, {})
    assert normal(first).deliveries == {"0/c/q": [["m", ["{}", "[('y', ('I', 3))]"]]]}


def test_an_unknown_exchange_type_is_a_known_difference() -> None:
    operation = Operation("declare_exchange", 0, {"type": "odd"})
    ours, theirs = View(("channel.close", 406, "x"), {}, {}, {}), View(("connection.close", 503, "x"), {}, {}, {})
    assert [known.name for known in KNOWN if known.applies(operation, ours, theirs)] == ["unknown exchange type"]
    assert not any(known.applies(operation, theirs, ours) for known in KNOWN)


def test_what_comes_once_more_while_a_connection_ends_is_a_known_difference() -> None:
    operation = Operation("consume", 1, {"tag": "c0"})
    closed, there = ("connection.close", 530, "x"), {"2/c1/q": [["m1"]]}
    ours, theirs = (
        View(closed, {}, there, {"q": (9, 0)}),
        View(closed, {}, {"0/c2/q": [["m0"]], **there}, {"q": (9, 0)}),
    )
    assert [known.name for known in KNOWN if known.applies(operation, ours, theirs)] == ["last deliveries"]
    for other in (theirs, View(closed, {}, {}, {"q": (9, 0)}), View(closed, {}, there, {"q": (8, 0)})):
        assert not any(known.applies(operation, other, theirs) for known in KNOWN)
    assert not any(known.applies(operation, ours, View(closed, {}, there, {"q": (9, 0)})) for known in KNOWN)

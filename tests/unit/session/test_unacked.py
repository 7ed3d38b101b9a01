"""The unacked ledger by itself: tags, multiple, and what is unknown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode
from connector.session.unacked import Unacked


def entry(name: object) -> Any:
    return ("queue", name, None)


def ledger(count: int) -> Unacked:
    unacked = Unacked()
    for number in range(1, count + 1):
        assert unacked.add(entry(number)) == number
    return unacked


def names(entries: list[Any]) -> list[object]:
    return [item[1] for item in entries]


def unknown(tag: int) -> Any:
    return pytest.raises(AmqpError, match=f"^PRECONDITION_FAILED - unknown delivery tag {tag}$")


def test_tags_count_from_one_and_are_shared_with_what_nobody_settles() -> None:
    unacked = Unacked()
    assert [unacked.add(entry("a")), unacked.skip(), unacked.add(entry("b"))] == [1, 2, 3]
    assert len(unacked) == 2
    assert unacked.last_tag == 3


def test_an_entry_is_taken_once() -> None:
    unacked = ledger(3)
    assert unacked.take(2) == entry(2)
    with unknown(2):
        unacked.take(2)
    assert len(unacked) == 2


@pytest.mark.parametrize("tag", [0, 4, 77, 2**64 - 1])
def test_a_tag_that_is_not_there_is_unknown(tag: int) -> None:
    unacked = ledger(3)
    with unknown(tag) as raised:
        unacked.take(tag)
    assert raised.value.code is ReplyCode.PRECONDITION_FAILED
    assert not raised.value.is_hard


def test_a_tag_without_settlement_is_unknown() -> None:
    unacked = Unacked()
    tag = unacked.skip()
    with unknown(tag):
        unacked.take(tag)


def test_up_to_a_tag_takes_the_lower_ones_in_ascending_order() -> None:
    unacked = ledger(5)
    unacked.take(2)
    assert names(unacked.take_up_to(4)) == [1, 3, 4]
    assert names(unacked.take_all()) == [5]


def test_up_to_zero_takes_all_also_when_there_are_none() -> None:
    unacked = ledger(3)
    assert names(unacked.take_up_to(0)) == [1, 2, 3]
    assert unacked.take_up_to(0) == []


@pytest.mark.parametrize("tag", [2, 4, 100])
def test_up_to_a_tag_that_is_not_outstanding_takes_nothing(tag: int) -> None:
    unacked = ledger(3)
    unacked.take(2)
    with unknown(tag):
        unacked.take_up_to(tag)
    assert len(unacked) == 2


def test_tags_are_not_reused_after_everything_was_taken() -> None:
    unacked = ledger(2)
    assert names(unacked.take_all()) == [1, 2]
    assert unacked.take_all() == []
    assert unacked.add(entry("next")) == 3
    assert names(unacked.take_up_to(3)) == ["next"]


@given(st.lists(st.tuples(st.sampled_from(["add", "skip", "take", "up_to", "all"]), st.integers(0, 30))))
def test_it_agrees_with_a_plain_list(steps: list[tuple[str, int]]) -> None:
    unacked, model, last = Unacked(), list[int](), 0
    for step, tag in steps:
        if step == "add":
            last += 1
            model.append(last)
            assert unacked.add(entry(last)) == last
        elif step == "skip":
            last += 1
            assert unacked.skip() == last
        elif step == "all" or (step == "up_to" and tag == 0):
            assert names(unacked.take_all()) == model
            model = []
        elif tag not in model:
            with unknown(tag):
                unacked.take(tag) if step == "take" else unacked.take_up_to(tag)
        elif step == "take":
            assert unacked.take(tag) == entry(tag)
            model.remove(tag)
        else:
            assert names(unacked.take_up_to(tag)) == [known for known in model if known <= tag]
            model = [known for known in model if known > tag]
        assert len(unacked) == len(model)


def test_what_was_taken_under_its_tag_may_be_put_back() -> None:
    unacked = ledger(6)
    one = unacked.take_tagged(2, multiple=False)
    several = unacked.take_tagged(4, multiple=True)
    assert (one, list(several)) == ({2: entry(2)}, [1, 3, 4])
    with unknown(3):
        unacked.take_tagged(3, multiple=True)
    with unknown(2):
        unacked.take_tagged(2, multiple=False)
    unacked.take_up_to(5)
    unacked.restore(several | one)
    unacked.restore({})
    assert [tag for tag, _ in unacked] == [1, 2, 3, 4, 6]
    assert names(unacked.take_up_to(3)) == [1, 2, 3]
    assert list(unacked.take_tagged(0, multiple=True)) == [4, 6]
    assert unacked.take_tagged(0, multiple=True) == {}

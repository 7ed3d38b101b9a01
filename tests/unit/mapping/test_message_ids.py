"""KubeMQ MessageIDs: their form, and that none comes twice."""

from __future__ import annotations

import pytest

from mapping.message_ids import MessageIds, is_ours


def test_ids_are_unique_and_ours() -> None:
    one, other = MessageIds("0123456789ab"), MessageIds("ba9876543210")
    made = [ids.next() for _ in range(1000) for ids in (one, other)]
    assert made[0] == "~0123456789ab.1"
    assert len(set(made)) == len(made)
    assert all(map(is_ours, made))


@pytest.mark.parametrize(
    "foreign",
    ["", "~", "1", "0123456789ab.1", "~0123456789ab.", "~0123456789AB.1", "~0123456789ab.1x", "~0123456789ab.1\n"],
)
def test_what_others_call_their_messages_is_not_ours(foreign: str) -> None:
    assert not is_ours(foreign)


@pytest.mark.parametrize("replica", ["", "abc", "0123456789AB", "0123456789abc", "0123456789a."])
def test_a_replica_id_of_another_form_is_refused(replica: str) -> None:
    with pytest.raises(ValueError, match="12 lower-case hex digits"):
        MessageIds(replica)

"""Acknowledgements on their way, and those who wait until they have arrived."""

from __future__ import annotations

import pytest

from connector.broker.message import Message
from connector.broker.proofs import Proofs


@pytest.fixture
def proofs() -> Proofs:
    return Proofs()


@pytest.fixture
def told() -> list[str]:
    return []


def batch(*sequences: int) -> dict[int, Message]:
    return {sequence: Message("", "q", b"\0\0", b"", f"id{sequence}", sequence) for sequence in sequences}


def send(proofs: Proofs, token: int, *sequences: int) -> None:
    proofs.gather((), is_complete=True)
    proofs.add(token, batch(*sequences), 5.0)


def test_nothing_given_is_proven(proofs: Proofs, told: list[str]) -> None:
    proofs.wait(lambda: told.append("x"), is_settled=False)
    assert told == ["x"]
    assert not proofs.has_waiters


def test_what_is_sent_is_proven_by_the_next_answer(proofs: Proofs, told: list[str]) -> None:
    send(proofs, 1, 7)
    assert proofs.sent_at == 5.0
    proofs.wait(lambda: told.append("x"), is_settled=False)
    proofs.release(is_settled=False)
    assert told == []
    assert proofs.has_waiters
    arrived, refused = proofs.resolve(())
    assert (len(arrived), refused) == (1, [])
    proofs.release(is_settled=True)  # something new is settled: not theirs
    assert told == ["x"]


def test_what_is_settled_is_proven_after_it_was_sent(proofs: Proofs, told: list[str]) -> None:
    proofs.wait(lambda: told.append("x"), is_settled=True)
    proofs.release(is_settled=True)
    send(proofs, 1, 7)
    proofs.release(is_settled=False)
    assert told == []
    proofs.resolve(())
    proofs.release(is_settled=False)
    assert told == ["x"]


def test_settled_while_a_request_is_written_belongs_to_the_next(proofs: Proofs, told: list[str]) -> None:
    proofs.gather((), is_complete=True)
    proofs.wait(lambda: told.append("x"), is_settled=True)
    proofs.add(1, batch(7), 5.0)
    proofs.resolve(())
    proofs.release(is_settled=True)
    assert told == []
    send(proofs, 2, 8)
    proofs.resolve(())
    proofs.release(is_settled=False)
    assert told == ["x"]


def test_what_cannot_be_sent_yet_keeps_everybody_waiting(proofs: Proofs, told: list[str]) -> None:
    proofs.wait(lambda: told.append("x"), is_settled=True)
    proofs.gather((), is_complete=False)
    proofs.add(1, batch(7), 5.0)
    proofs.resolve(())
    proofs.release(is_settled=True)
    assert told == []


def test_a_refused_batch_comes_back(proofs: Proofs, told: list[str]) -> None:
    send(proofs, 1, 7)
    send(proofs, 2, 8, 9)
    proofs.wait(lambda: told.append("x"), is_settled=False)
    arrived, refused = proofs.resolve([2])
    assert [list(found) for found in arrived] == [[7]]
    assert [list(found) for found in refused] == [[8, 9]]
    proofs.postpone()
    proofs.release(is_settled=True)
    assert told == []
    send(proofs, 3, 8, 9)
    proofs.resolve(())
    proofs.release(is_settled=False)
    assert told == ["x"]


def test_a_lost_stream_brings_everything_back(proofs: Proofs, told: list[str]) -> None:
    send(proofs, 1, 7)
    proofs.wait(lambda: told.append("x"), is_settled=False)
    assert [list(found) for found in proofs.take_back()] == [[7]]
    assert proofs.sent == []
    proofs.release(is_settled=True)
    assert told == []
    proofs.release(is_settled=False)  # all of it has left the queue
    assert told == ["x"]


def test_what_was_on_its_way_when_the_stream_was_lost_may_have_arrived(proofs: Proofs) -> None:
    send(proofs, 1, 7, 8)
    proofs.resolve(())
    send(proofs, 2, 9)
    proofs.gather([10], is_complete=True)  # perhaps written
    assert proofs.unsure == set()
    proofs.take_back()
    assert proofs.unsure == {9, 10}
    proofs.take_back()
    assert proofs.unsure == {9, 10}

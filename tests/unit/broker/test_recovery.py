"""What moves leave behind: a channel that is empty is looked at no more, and the log knows it."""

from __future__ import annotations

import pytest

from connector.broker.backlog import NEVER
from connector.broker.generations import Left, queue_moved, queue_moving, queue_retired
from connector.broker.message import Message
from connector.broker.move import Move
from connector.broker.ports import Unavailable
from connector.broker.recovery import RETIRED_RETRY_S
from connector.broker.topology import VERSION, encode_event
from tests.support.broker_model import BrokerModel, Consumer


@pytest.fixture
def model() -> BrokerModel:
    """The log does not answer, and an older channel of the queue has become empty."""
    first = BrokerModel()
    first.declare("q", durable=True)
    for event in (queue_moving("default", "q", 0, 1, "retention"), queue_moved("default", "q", 0, 1, Left())):
        first.log.append(encode_event({"v": VERSION, "id": f"other.{len(first.log)}", "member": "other", **event}))
    message = Message("", "q", b"\0\0", b"1")
    message.message_id = "one"
    first.store.channel("amqp.default.~g1.q").append(message)
    model = BrokerModel(first)
    assert _generations(model) == [0, 1, 2]
    model.hold_log = True
    assert model.consume("q", Consumer(no_ack=True)).bodies == [b"1"]
    model.settle(5)
    assert model.told == ["queue.retired"]
    return model


def _generations(model: BrokerModel) -> list[int]:
    return model.stored_queue("q").record.generations.order


def test_what_the_log_did_not_take_is_told_again(model: BrokerModel) -> None:
    for _ in range(2):
        model.refuse_log(Unavailable("no link"))
        model.settle(2 * RETIRED_RETRY_S)
        assert model.told == ["queue.retired"]
    model.hold_log = False
    model.settle()
    assert _generations(model) == [0, 2]
    assert _generations(BrokerModel(model)) == [0, 2]


def test_what_has_come_back_all_the_same_is_not_told_again(model: BrokerModel) -> None:
    model.refuse_log(Unavailable("no link"))
    model.apply_foreign(queue_retired("default", "q", 1))
    model.settle(2 * RETIRED_RETRY_S)
    assert model.told == []


def test_of_a_deleted_queue_nothing_is_told_again(model: BrokerModel) -> None:
    model.refuse_log(Unavailable("no link"))
    model.start(model.vhost.delete_queue, "q", None, False, False)
    model.answer_log()
    model.settle(2 * RETIRED_RETRY_S)
    assert model.told == ["queue.drained"]


def test_what_a_restarted_server_may_have_handed_out_is_flagged_whoever_comes_and_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was restarted between two lives: it does not know all it had handed out, however often that is looked at."""
    first = BrokerModel()
    first.store.now = 1
    first.broker.recovery.on_server(first.store.server)
    first.declare("q", durable=True)
    first.settle()
    for body in (b"1", b"2"):
        message = Message("", "q", b"\0\0", body)
        message.message_id = f"of another life {body.decode()}"
        first.store.channel("amqp.default.q").append(message)
    first.store.start_time += 1
    model = BrokerModel(first, count_is_late=True)
    lease = model.stored_queue("q").lease
    assert lease.counts.known_at == NEVER
    model.broker.recovery.check_server()
    monkeypatch.setattr(model, "wake_reader", lambda _queue: None)
    model.broker.on_snapshot(model.broker.begin_snapshot(), model.store.rows())
    assert lease.redelivered_upto == 2


def test_a_move_remembers_what_an_earlier_one_found_gone(model: BrokerModel) -> None:
    source = model.stored_queue("q").current
    source.lease.left.note(Left(3, [1, 2], gone=1))
    event = model.broker.recovery.moved_event(Move(source, source, "withheld"), 3, 1)
    assert (event["copied"], event["gone"]) == ([1, 2], 2)

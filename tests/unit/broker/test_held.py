"""Two connectors and a queue that is on its way out, or in doubt: what waits, and that it goes on."""

from __future__ import annotations

import pytest

from connector.broker.ports import Unavailable
from connector.broker.requests import QueueDeclare
from tests.support.broker_model import Consumer, Publisher
from tests.support.replica_model import Pair


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("what", ["get", "delete"])
def test_a_queue_on_its_way_out_is_there_for_others_and_what_would_end_with_it_waits(what: str, is_taken: bool) -> None:
    pair = Pair()
    pair.a.start(pair.a.vhost.declare_queue, QueueDeclare("q", durable=True), None)
    pair.run()
    pair.a.hold_log = True
    deleted = pair.a.start(pair.a.vhost.delete_queue, "q", None, False, False)
    pair.run(0.5)
    found = pair.b.start(pair.b.vhost.declare_queue, QueueDeclare("q", passive=True), None)
    if what == "get":
        answer = pair.b.start(pair.b.vhost.queues["q"].get)
    else:
        answer = pair.b.start(pair.b.vhost.delete_queue, "q", None, False, False)
    pair.run(0.5)
    assert found.value.name == "q"
    assert not answer.is_there
    if not is_taken:
        pair.a.refuse_log(Unavailable("no link"))
    pair.a.hold_log = False
    pair.run(4)
    assert (deleted.value == 0) is is_taken
    if what == "delete":
        assert answer.value == 0
    elif is_taken:
        assert answer.error[0] == "NotFound"
    else:
        assert answer.value is None
    assert pair.b.vhost.queues.keys() == ({"q"} if what == "get" and not is_taken else set())


def test_a_queue_that_was_lost_while_it_was_in_doubt_is_published_to_again() -> None:
    """Whoever reads it now examines it: nobody here would ever say that it may go on."""
    pair = Pair()
    pair.a.start(pair.a.vhost.declare_queue, QueueDeclare("q", durable=True), None)
    pair.run()
    queue = pair.a.stored_queue("q")
    pair.a.is_hung = queue.lease.is_doubtful = True
    pair.a.broker.recovery.look(queue.current)
    assert queue.is_held
    pair.b.vhost.queues["q"].add_consumer(Consumer())
    pair.run(8)  # it is taken for dead, and its queue goes to the other
    pair.a.is_hung = False
    pair.run(2)
    assert not queue.is_owned
    receipt = Publisher()
    pair.a.publish("", "q", b"1", receipt=receipt)
    assert receipt.stored == [1]

"""Exchanges, bindings and routing as clients see them; every text is what RabbitMQ 3.10 says after ``NAME - ``."""

from __future__ import annotations

import pytest

from connector.broker import vhost as vhost_module
from connector.broker.errors import AccessRefused, NotFound
from connector.broker.exchanges.binding import BindingKey
from connector.broker.ports import Unavailable
from connector.broker.topology import binding_event, name_event
from tests.support.broker_model import BrokerModel, Publisher

DEFAULT = ("AccessRefused", "operation not permitted on the default exchange")


@pytest.fixture
def model() -> BrokerModel:
    return BrokerModel()


# --------------------------------------------------------------------------------------------------- declare
def test_declare_twice_and_passive(model: BrokerModel) -> None:
    assert model.declare_exchange("x", durable=True).value is None
    assert model.declare_exchange("x", durable=True).value is None
    assert model.declare_exchange("x", "", passive=True).value is None
    assert model.declare_exchange("nope", passive=True).error == ("NotFound", "no exchange 'nope' in vhost '/'")


@pytest.mark.parametrize("name", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"])
def test_the_predeclared_ones_are_there(model: BrokerModel, name: str) -> None:
    kind = {"amq.match": "headers"}.get(name, name.removeprefix("amq."))
    assert model.declare_exchange(name, passive=True).value is None
    assert model.declare_exchange(name, kind, durable=True).value is None
    assert model.declare_exchange(name, kind).error == (
        "Inequivalent",
        f"inequivalent arg 'durable' for exchange '{name}' in vhost '/': received 'false' but current is 'true'",
    )
    text = f"deletion of system exchange '{name}' in vhost '/' not allowed"
    assert model.call(model.vhost.delete_exchange, name, False).error == ("AccessRefused", text)


def test_the_reserved_prefix(model: BrokerModel) -> None:
    text = "exchange name 'amq.x' contains reserved prefix 'amq.*'"
    assert model.declare_exchange("amq.x").error == ("AccessRefused", text)
    text = "deletion of system exchange 'amq.x' in vhost '/' not allowed"
    assert model.call(model.vhost.delete_exchange, "amq.x", False).error == ("AccessRefused", text)


def test_the_default_exchange_is_nobodys(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    assert model.declare_exchange("").error == DEFAULT
    assert model.declare_exchange("", passive=True).error == DEFAULT
    assert model.call(model.vhost.delete_exchange, "", False).error == DEFAULT
    assert model.bind("q", "").error == DEFAULT
    assert model.unbind("q", "").error == DEFAULT


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"durable": True}, "inequivalent arg 'durable' for {}: received 'true' but current is 'false'"),
        ({"auto_delete": True}, "inequivalent arg 'auto_delete' for {}: received 'true' but current is 'false'"),
        ({"internal": True}, "inequivalent arg 'internal' for {}: received 'true' but current is 'false'"),
        ({"type": "fanout"}, "inequivalent arg 'type' for {}: received 'fanout' but current is 'direct'"),
        (
            {"arguments": {"alternate-exchange": ("S", b"foo")}},
            (
                "inequivalent arg 'alternate-exchange' for {}: "
                "received the value 'foo' of type 'longstr' but current is none"
            ),
        ),
        ({"type": "x-foo"}, "unknown exchange type 'x-foo'"),
        (
            {"arguments": {"alternate-exchange": ("V", None)}},
            (
                "inequivalent arg 'alternate-exchange' for {}: "
                "received the value 'undefined' of type 'void' but current is none"
            ),
        ),
        (
            {"arguments": {"alternate-exchange": ("I", 5)}},
            (
                "inequivalent arg 'alternate-exchange' for {}: "
                "received the value '5' of type 'signedint' but current is none"
            ),
        ),
    ],
)
def test_a_different_redeclaration(model: BrokerModel, flags: dict[str, str], text: str) -> None:
    model.declare_exchange("x")
    assert model.declare_exchange("x", **flags).error == ("Inequivalent", text.format("exchange 'x' in vhost '/'"))


def test_an_alternate_exchange_that_is_no_name(model: BrokerModel) -> None:
    text = "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    declared = model.declare_exchange("x", arguments={"alternate-exchange": ("I", 5)})
    assert declared.error == ("Inequivalent", text)


def test_an_unknown_type(model: BrokerModel) -> None:
    assert model.declare_exchange("x", "x-foo").error == ("Inequivalent", "unknown exchange type 'x-foo'")


def test_the_log_refuses(model: BrokerModel) -> None:
    model.hold_log = True
    declared, bound = model.declare_exchange("x"), model.bind("q", "amq.direct")
    model.refuse_log(Unavailable("no link"))
    assert declared.error == ("Unavailable", "no link")
    assert bound.error[0] == "NotFound"


# ---------------------------------------------------------------------------------------------------- delete
def test_delete(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.declare_exchange("x")
    model.bind("q", "x")
    delete = model.vhost.delete_exchange
    in_use = ("Inequivalent", "exchange 'x' in vhost '/' in use")
    assert model.call(delete, "x", True).error == in_use
    assert model.call(delete, "x", False).value is None
    assert model.call(delete, "x", False).value is None
    assert model.call(delete, "x", True).value is None
    with pytest.raises(NotFound, match="no exchange 'x' in vhost '/'"):
        model.publish("x", "k", b"1")
    model.declare_exchange("x")
    assert model.publish("x", "k", b"1") == 0  # its bindings went with it


def test_delete_if_unused_when_it_is_bound_meanwhile(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.declare_exchange("x")
    model.hold_log = True
    bound = model.bind("q", "x")
    deleted = model.call(model.vhost.delete_exchange, "x", True)
    model.answer_log()
    model.settle()
    assert bound.value is None
    assert deleted.error == ("Inequivalent", "exchange 'x' in vhost '/' in use")


def test_delete_if_unused_when_it_is_deleted_meanwhile(model: BrokerModel) -> None:
    model.declare_exchange("x")
    model.hold_log = True
    one = model.call(model.vhost.delete_exchange, "x", False)
    two = model.call(model.vhost.delete_exchange, "x", True)
    model.answer_log()
    assert one.value is two.value is None


def test_the_log_does_not_take_a_deletion(model: BrokerModel) -> None:
    model.declare_exchange("x")
    model.hold_log = True
    answers = [model.call(model.vhost.delete_exchange, "x", if_unused) for if_unused in (True, False)]
    model.refuse_log(Unavailable("no link"))
    assert [answer.error for answer in answers] == [("Unavailable", "no link")] * 2
    assert "x" in model.vhost.exchanges


# --------------------------------------------------------------------------------------------------- binding
@pytest.mark.parametrize("flags", [{"durable": True}, {"auto_delete": True}])
def test_bind_and_unbind(model: BrokerModel, flags: dict[str, bool]) -> None:
    model.declare("q", **flags)
    model.declare_exchange("x")
    assert model.bind("q", "x", "a").value is None
    assert model.bind("q", "x", "a").value is None
    assert model.bind("q", "x", "b").value is None
    assert [model.publish("x", key, b"1") for key in "abc"] == [1, 1, 0]
    assert model.unbind("q", "x", "a").value is None
    assert model.unbind("q", "x", "a").value is None
    assert [model.publish("x", key, b"1") for key in "abc"] == [0, 1, 0]


def test_what_is_missing(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.declare_exchange("x")
    no_exchange = ("NotFound", "no exchange 'nope' in vhost '/'")
    assert model.bind("nope", "x").error == ("NotFound", "no queue 'nope' in vhost '/'")
    assert model.bind("q", "nope").error == no_exchange
    assert model.bind("nope", "nope").error == no_exchange
    assert model.unbind("nope", "x").value is None
    assert model.unbind("q", "nope").value is None


def test_identity_includes_the_arguments(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    for arguments in ({}, {"a": ("I", 1)}):
        assert model.call(model.vhost.bind_queue, "q", "amq.direct", "k", arguments, None).value is None
    assert model.publish("amq.direct", "k", b"1") == 1  # one copy, however many bindings
    assert model.unbind("q", "amq.direct").value is None
    assert model.publish("amq.direct", "k", b"1") == 1
    assert model.call(model.vhost.unbind_queue, "q", "amq.direct", "k", {"a": ("I", 1)}, None).value is None
    assert model.publish("amq.direct", "k", b"1") == 0


@pytest.mark.parametrize("gone", ["queue", "exchange"])
def test_what_is_bound_goes_before_the_binding_comes(model: BrokerModel, gone: str) -> None:
    """Nobody is told bind-ok for a binding that does not exist."""
    model.declare("q", durable=True)
    model.declare_exchange("x")
    model.hold_log = True
    bound = model.bind("q", "x")
    name = {"queue": "q", "exchange": "x"}[gone]
    model.apply_foreign(name_event(f"{gone}.deleted", "default", name))
    model.answer_log()
    model.settle()
    assert bound.error == ("NotFound", f"no {gone} '{name}' in vhost '/'")


def test_another_replica_binds_the_same(model: BrokerModel) -> None:
    model.declare("q", durable=True)
    model.hold_log = True
    bound = model.bind("q", "amq.direct")
    key = BindingKey("amq.direct", "q", "k", b"\0\0\0\0")
    model.apply_foreign(binding_event("queue.bound", "default", key))
    model.answer_log()
    assert bound.value is None


def test_a_deleted_queue_takes_its_bindings_along(model: BrokerModel) -> None:
    for flags in ({"durable": True}, {"auto_delete": True}):
        model.declare("q", **flags)
        model.bind("q", "amq.direct")
        model.delete("q")
        model.declare("q", **flags)
        assert model.publish("amq.direct", "k", b"1") == 0
        model.delete("q")


# ----------------------------------------------------------------------------------------------- auto-delete
@pytest.mark.parametrize("flags", [{"durable": True}, {"auto_delete": True}])
@pytest.mark.parametrize("how", ["unbind", "delete"])
def test_an_auto_delete_exchange_goes_with_its_last_binding(
    model: BrokerModel, flags: dict[str, bool], how: str
) -> None:
    model.declare_exchange("x", auto_delete=True)
    model.declare("q", **flags)
    model.declare("other", durable=True)
    assert "x" in model.vhost.exchanges  # never before it had one
    model.bind("q", "x")
    model.bind("other", "x")
    model.delete("other")
    assert "x" in model.vhost.exchanges
    if how == "unbind":
        model.unbind("q", "x")
    else:
        model.delete("q")
    assert "x" not in model.vhost.exchanges


def test_an_auto_delete_exchange_that_is_bound_again_meanwhile_stays(model: BrokerModel) -> None:
    model.declare_exchange("x", auto_delete=True)
    model.declare("q", durable=True)
    model.bind("q", "x")
    model.hold_log = True
    model.unbind("q", "x")
    bound = model.bind("q", "x", "other")  # on its way before the exchange is found unused
    model.answer_log()
    model.settle()
    assert bound.value is None
    assert model.publish("x", "other", b"1") == 1


def test_deleting_an_auto_delete_exchange_deletes_it_once(model: BrokerModel) -> None:
    """An event that comes later would hit what is declared under the name again."""
    model.declare_exchange("x", auto_delete=True)
    model.declare("q", durable=True)
    model.bind("q", "x")
    events = len(model.log)
    model.call(model.vhost.delete_exchange, "x", False)
    assert len(model.log) == events + 1


# ------------------------------------------------------------------------------------------------ publishing
def test_the_default_exchange_routes_by_queue_name(model: BrokerModel) -> None:
    assert model.publish("", "q", b"1") == 0
    model.declare("q", durable=True)
    assert model.publish("", "q", b"1") == 1
    model.delete("q")
    assert model.publish("", "q", b"1") == 0


def test_publishing_to_what_is_missing_or_internal(model: BrokerModel) -> None:
    with pytest.raises(NotFound, match=r"^no exchange 'nope' in vhost '/'$"):
        model.publish("nope", "k", b"1")
    model.declare_exchange("x", internal=True)
    with pytest.raises(AccessRefused, match=r"^cannot publish to internal exchange 'x' in vhost '/'$"):
        model.publish("x", "k", b"1")


def test_every_copy_has_its_own_receipt(model: BrokerModel) -> None:
    for name in "abc":
        model.declare(name, durable=name != "c", auto_delete=name == "c")
        model.bind(name, "amq.direct")
    receipt = Publisher()
    assert model.publish("amq.direct", "k", b"1", receipt=receipt) == 3
    assert receipt.stored == [1, 1, 1]
    assert model.stored("a") == model.stored("b") == [b"1"]
    ids = {stored.message.message_id for channel in model.store.channels.values() for stored in channel.stored.values()}
    assert len(ids) == 2


def test_the_route_cache_does_not_grow_for_ever(model: BrokerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vhost_module, "ROUTES_MAX", 3)
    model.declare("q", durable=True)
    for number in range(10):
        model.publish("", f"nope{number}", b"1")
        assert len(model.vhost._routes) <= 3
    assert model.publish("", "q", b"1") == 1


def test_a_named_vhost_is_named_in_texts() -> None:
    model = BrokerModel(vhosts=("/", "Other.one"))
    with pytest.raises(NotFound, match=r"^no queue 'q' in vhost 'Other\.one'$"):
        model.broker.virtual_host("Other.one").find_queue("q", None)

"""How each kind of operation is performed on one side.

Owns the methods that are sent and what of their answers is told.  Must not know the other side.  An action returns its
answer, or nothing for what has none; a close of the channel or connection shows by itself.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from pamqp import commands

from connector.amqp.encoders import encode_method
from connector.amqp.header import build as build_header
from connector.amqp.methods import build

if TYPE_CHECKING:
    from tools.differential.side import Action, Side, Slot

Answer = tuple[Any, ...]
_QUEUE_FLAGS = ("passive", "durable", "exclusive", "auto_delete")
_EXCHANGE_FLAGS = ("passive", "durable", "auto_delete", "internal")
_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
#: A channel that nobody opens.
_UNOPENED = 77


def _ask(side: Side, slot: Slot, method: Any) -> Answer:
    if getattr(method, "nowait", False):
        _tell(side, slot, method)
        return ("nowait",)
    answer = side.client(slot).call(slot.channel_no, method)
    return (answer.name,) if answer is not None else ()


def _tell(side: Side, slot: Slot, method: Any) -> None:
    """Send what has no answer; what it causes shows at the next one."""
    side.client(slot).send(slot.channel_no, method)
    side.synchronise()


# ---------------------------------------------------------------------------- declarations
def declare_queue(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
    """Declare; what is declared is counted from now on."""
    flags = {name: fields.get(name, False) for name in (*_QUEUE_FLAGS, "nowait")}
    arguments, name = side.table(fields["arguments"]), side.name(fields["name"])
    method = build(commands.Queue.Declare, queue=name, arguments=arguments, **flags)
    if name and not name.startswith("amq."):
        side.queue_names.add(name)
    if method.nowait:
        slot.last_queue = fields["name"] or slot.last_queue
        _tell(side, slot, method)
        if slot.channel.error is None and not side.client(slot).is_over:
            _on_queue(side, slot, fields["name"], fields)
        return ("nowait",)
    answer = side.client(slot).call(slot.channel_no, method)
    if answer is None:
        return ()
    if answer.queue.startswith("amq.gen-") and answer.queue not in side.generated:
        side.generated.append(answer.queue)
    slot.last_queue = side.symbol(answer.queue)
    if slot.last_queue.startswith("reply"):
        return answer.name, slot.last_queue, answer.message_count, answer.consumer_count
    _on_queue(side, slot, slot.last_queue, fields)
    counts = (answer.message_count, answer.consumer_count) if slot.last_queue in side.alive else ()
    return answer.name, slot.last_queue, *counts


def _on_queue(side: Side, slot: Slot, symbol: str, fields: dict[str, Any]) -> None:
    is_new = symbol not in side.alive
    if symbol.startswith(("q", "gen")) and symbol != "qq":
        side.alive.setdefault(symbol, slot.connection)
    if is_new and not fields.get("passive"):
        side.has_single_active.discard(symbol)
        if fields["arguments"].get("x-single-active-consumer") == ["t", True]:
            side.has_single_active.add(symbol)


def declare_exchange(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
    """Declare an exchange."""
    flags = {name: fields.get(name, False) for name in (*_EXCHANGE_FLAGS, "nowait")}
    names = {"exchange": side.name(fields["name"]), "exchange_type": fields["type"]}
    arguments = side.table(fields["arguments"])
    if names["exchange"] and not names["exchange"].startswith("amq."):
        side.exchange_names.add(names["exchange"])
    return _ask(side, slot, build(commands.Exchange.Declare, arguments=arguments, **names, **flags))


def _binding(kind: Any) -> Action:
    def perform(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
        names: dict[str, Any] = (
            {"queue": side.name(fields["queue"]), "exchange": side.name(fields["exchange"])}
            if "queue" in fields
            else {"destination": side.name(fields["destination"]), "source": side.name(fields["exchange"])}
        )
        if kind is not commands.Queue.Unbind:
            names["nowait"] = fields.get("nowait", False)
        arguments = side.table(fields["arguments"])
        return _ask(side, slot, build(kind, routing_key=side.key(fields["key"]), arguments=arguments, **names))

    return perform


def _with_count(side: Side, slot: Slot, method: Any) -> Answer:
    if method.nowait:
        return _ask(side, slot, method)
    answer = side.client(slot).call(slot.channel_no, method)
    return (answer.name, answer.message_count) if answer else ()


def delete_queue(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
    """Delete a queue."""
    flags = {name: fields.get(name, False) for name in ("if_unused", "if_empty", "nowait")}
    answer = _with_count(side, slot, build(commands.Queue.Delete, queue=side.name(fields["name"]), **flags))
    return answer[:1] if fields["name"] == "qq" else answer


def delete_exchange(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
    """Delete an exchange."""
    flags = {name: fields.get(name, False) for name in ("if_unused", "nowait")}
    return _ask(side, slot, build(commands.Exchange.Delete, exchange=side.name(fields["name"]), **flags))


def purge(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
    """Purge a queue."""
    nowait = fields.get("nowait", False)
    return _with_count(side, slot, build(commands.Queue.Purge, queue=side.name(fields["name"]), nowait=nowait))


# ---------------------------------------------------------------------------- messages
def publish(side: Side, slot: Slot, fields: dict[str, Any]) -> None:
    """Publish, and wait for the confirm where there is one."""
    is_default = not fields["exchange"]
    method = build(
        commands.Basic.Publish,
        exchange=side.name(fields["exchange"]),
        routing_key=side.name(fields["key"]) if is_default else side.key(fields["key"]),
        mandatory=fields["mandatory"],
    )
    headers = side.table(fields["headers"])
    properties = dict(fields["properties"])
    if properties.get("reply_to", "").startswith("reply"):
        properties["reply_to"] = side.name(properties["reply_to"])
    _publish_all(side, slot, method, build_header(properties, headers or None), [fields["body"]])


def burst(side: Side, slot: Slot, fields: dict[str, Any]) -> None:
    """Publish several messages at once."""
    name = side.name(fields["exchange"])
    key = side.key(fields["key"]) if name else side.name(fields["key"])
    method = build(commands.Basic.Publish, exchange=name, routing_key=key)
    bodies = [f"{fields['body']}.{number}" for number in range(fields["count"])]
    _publish_all(side, slot, method, build_header({}), bodies)


def _publish_all(side: Side, slot: Slot, method: Any, header: bytes, bodies: list[str]) -> None:
    client = side.client(slot)
    for body in bodies:
        client.publish(slot.channel_no, method, header, body.encode())
    if slot.has_confirms and not slot.is_tx:
        slot.published += len(bodies)
        client.await_confirms(slot.channel_no, slot.published)
    else:
        side.synchronise()


def get(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
    """Get a message."""
    method = build(commands.Basic.Get, queue=side.name(fields["name"]), no_ack=fields["no_ack"])
    got = side.client(slot).ask(slot.channel_no, method)
    if got is None:
        return ()
    kind: type = type(got.method)
    if kind is not commands.Basic.GetOk:
        return (kind.__name__,)
    body = got.body.decode()
    if not fields["no_ack"]:
        slot.held[fields["name"] or slot.last_queue, body] = got.method.delivery_tag
        slot.has_got = True
    content = [body, got.method.exchange, got.method.routing_key, got.method.redelivered, got.method.message_count]
    return got.method.name, side.symbol(str(content)), side.header(got.header)


def consume(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
    """Begin to consume."""
    tag, queue = fields["tag"], fields["name"] or slot.last_queue
    known = (tag, queue, fields["no_ack"])
    if tag:
        slot.consumers.setdefault(tag, known)  # a delivery may overtake us otherwise
    method = build(
        commands.Basic.Consume,
        queue=side.name(fields["name"]), consumer_tag=tag, no_ack=fields["no_ack"],
        exclusive=fields["exclusive"], no_local=fields.get("no_local", False),
        nowait=fields.get("nowait", False), arguments=side.table(fields["arguments"]),
    )  # fmt: skip
    if method.nowait:
        return _ask(side, slot, method)
    answer = side.client(slot).call(slot.channel_no, method)
    if answer is None:
        return ()
    slot.consumers[answer.consumer_tag] = known
    return answer.name, tag


def cancel(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
    """End a consumer."""
    nowait = fields.get("nowait", False)
    answer = _ask(side, slot, build(commands.Basic.Cancel, consumer_tag=fields["tag"], nowait=nowait))
    side.gather()
    slot.consumers.pop(fields["tag"], None)  # the tag is free for another queue
    return answer


def settle(side: Side, slot: Slot, fields: dict[str, Any]) -> None:
    """Settle a message that both sides hold."""
    tag = slot.held[fields["key"]]
    is_multiple = fields["multiple"] and fields["how"] != "reject"
    _forget(slot, lambda held: held == tag or (is_multiple and held < tag))
    _settle_tag(side, slot, fields["how"], tag, fields["requeue"], is_multiple)


def settle_unknown(side: Side, slot: Slot, fields: dict[str, Any]) -> None:
    """Settle what may not be there, or all."""
    if not fields["tag"]:
        _forget(slot, lambda _: True)
    _settle_tag(side, slot, fields["how"], fields["tag"], True, fields["multiple"])


def _forget(slot: Slot, is_settled: Any) -> None:
    for key, tag in list(slot.held.items()):
        if is_settled(tag):
            del slot.held[key]
            if slot.is_tx:
                slot.uncommitted[key] = tag


def _settle_tag(side: Side, slot: Slot, how: str, tag: int, requeue: bool, multiple: bool) -> None:
    fields: dict[str, Any] = {"delivery_tag": tag}
    if how != "reject":
        fields["multiple"] = multiple
    if how != "ack":
        fields["requeue"] = requeue
    _tell(side, slot, build(getattr(commands.Basic, how.title()), **fields))


def recover(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
    """Give everything back."""
    slot.held = {}
    if fields.get("is_async"):
        _tell(side, slot, build(commands.Basic.RecoverAsync, requeue=fields["requeue"]))
        return ("async",)
    return _ask(side, slot, build(commands.Basic.Recover, requeue=fields["requeue"]))


def qos(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
    """Limit what may be held; once there is a limit over the channel, only that is changed."""
    slot.is_global |= fields.get("is_global", False)
    method = build(
        commands.Basic.Qos, prefetch_count=fields["count"], prefetch_size=fields["size"], global_=slot.is_global
    )
    return _ask(side, slot, method)


def _tx(kind: Any) -> Action:
    def perform(side: Side, slot: Slot, _fields: dict[str, Any]) -> Answer:
        answer = _ask(side, slot, build(kind))
        if kind is commands.Tx.Select:
            slot.is_tx = bool(answer)
        elif kind is commands.Tx.Rollback:
            slot.held = dict(sorted({**slot.held, **slot.uncommitted}.items(), key=lambda item: item[1]))
        if kind is not commands.Tx.Select:
            slot.uncommitted = {}
        return answer

    return perform


def confirm_select(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
    """Ask for confirms where there are some, or on a channel with transactions: the others shall have none."""
    if not (slot.has_confirms or slot.is_tx):
        return ("left out",)
    return _ask(side, slot, build(commands.Confirm.Select, nowait=fields["nowait"]))


def close_channel(side: Side, slot: Slot, _fields: dict[str, Any]) -> Answer:
    """Close the channel and open it again."""
    answer = _ask(side, slot, build(commands.Channel.Close, reply_code=200))
    if not side.client(slot).is_over:
        side.gather()
        side.open(slot)
    return answer


def close_connection(side: Side, slot: Slot, _fields: dict[str, Any]) -> Answer:
    """Close the connection."""
    side.client(slot).close()
    return ("closed",)


# ---------------------------------------------------------------------------- what clients should not do
def _frame(kind: int, number: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, number, len(payload)) + payload + end


def _raw(what: str, side: Side, slot: Slot) -> bytes:
    """Frames that are not what the protocol wants."""
    number = slot.channel_no
    content = struct.pack(">HHQ", 60, 0, 1) + build_header({})
    method = encode_method(number, build(commands.Basic.Publish, routing_key=side.name("q0")))
    deliver = encode_method(number, build(commands.Basic.Deliver, consumer_tag="c", delivery_tag=1))
    return {
        "deliver": deliver + _frame(_HEADER, number, content) + _frame(_BODY, number, b"x"),
        "no_header": method + _frame(_BODY, number, b"x"),
        "method_in_content": method + encode_method(number, build(commands.Basic.Recover, requeue=True)),
        "no_method": _frame(_HEADER, number, content),
        "body_alone": _frame(_BODY, number, b"x"),
        "long_body": method + _frame(_HEADER, number, content) + _frame(_BODY, number, b"xx"),
        "other_class": method + _frame(_HEADER, number, struct.pack(">HHQ", 50, 0, 1) + build_header({})),
        "bad_end": _frame(_METHOD, number, b"\0\x3c\0\x6e\1", b"\xcd"),
        "no_such_method": _frame(_METHOD, number, b"\0\x3c\0\xfa"),
        "short_method": _frame(_METHOD, number, b"\0\x3c\0\x14\0"),
        "odd_frame_kind": _frame(7, number, b""),
        "heartbeat_on_channel": _frame(_HEARTBEAT, number, b""),
    }[what]


_ODD_METHODS: dict[str, Any] = {
    "secure": lambda: build(commands.Connection.Secure, challenge=b""),
    "second_open": lambda: build(commands.Channel.Open),
    "get_empty": lambda: build(commands.Basic.GetEmpty),
    "qos_ok": lambda: build(commands.Basic.QosOk),
    "cancel_ok": lambda: build(commands.Basic.CancelOk, consumer_tag="c"),
    "flow_ok": lambda: build(commands.Channel.FlowOk, active=True),
    "stop": lambda: build(commands.Channel.Flow, active=False),
    "go": lambda: build(commands.Channel.Flow, active=True),
}


def odd(side: Side, slot: Slot, fields: dict[str, Any]) -> Answer:
    """Something that most clients never do."""
    what, client = fields["what"], side.client(slot)
    if what == "immediate":
        method = build(commands.Basic.Publish, routing_key=side.name("q0"), immediate=True)
        client.publish(slot.channel_no, method, build_header({}), b"")
        side.synchronise()
        return ()
    if what == "unopened":
        client.send(_UNOPENED, build(commands.Basic.Recover, requeue=True))
    elif what in _ODD_METHODS:
        client.send(slot.channel_no, _ODD_METHODS[what]())
    else:
        client.send_raw(_raw(what, side, slot))
    if what == "go":
        answer = client.answer(slot.channel_no)
        return (answer.method.name,) if answer is not None else ()
    side.synchronise()
    return ("lost",) if client.is_over else ("taken",)


ACTIONS: dict[str, Action] = {
    "declare_queue": declare_queue,
    "declare_exchange": declare_exchange,
    "bind_queue": _binding(commands.Queue.Bind),
    "unbind_queue": _binding(commands.Queue.Unbind),
    "bind_exchange": _binding(commands.Exchange.Bind),
    "unbind_exchange": _binding(commands.Exchange.Unbind),
    "delete_queue": delete_queue,
    "delete_exchange": delete_exchange,
    "purge": purge,
    "publish": publish,
    "burst": burst,
    "get": get,
    "consume": consume,
    "cancel": cancel,
    "settle": settle,
    "settle_unknown": settle_unknown,
    "recover": recover,
    "qos": qos,
    "tx_select": _tx(commands.Tx.Select),
    "tx_commit": _tx(commands.Tx.Commit),
    "tx_rollback": _tx(commands.Tx.Rollback),
    "confirm_select": confirm_select,
    "close_channel": close_channel,
    "close_connection": close_connection,
    "odd": odd,
}

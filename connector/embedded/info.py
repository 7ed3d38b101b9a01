"""QueuesInfo: the counts of all queues, as KubeMQ reports them.

Owns the messages of this call (PyPI's stub does not know it) and the mangling of names: KubeMQ cuts every character of
the set ``_QUES.`` off both ends, so ``ORDERS`` is reported as ``ORDER`` and must be asked for as such.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from connector.embedded.engine import Engine, QueueChannel

_MANGLED = "_QUES."


def _message(file: descriptor_pb2.FileDescriptorProto, name: str, fields: list[tuple[str, int, str]]) -> None:
    """Declare a message; a field's type is ``string``, ``int32``, ``int64``, a message, or ``*message`` repeated."""
    message = file.message_type.add(name=name)
    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {"string": kinds.TYPE_STRING, "int32": kinds.TYPE_INT32, "int64": kinds.TYPE_INT64}
    for field_name, number, kind in fields:
        field = message.field.add(name=field_name, number=number, label=kinds.LABEL_OPTIONAL)
        if kind in scalars:
            field.type = scalars[kind]
        else:
            field.type = kinds.TYPE_MESSAGE
            field.type_name = f".kubemq.{kind.removeprefix('*')}"
            if kind.startswith("*"):
                field.label = kinds.LABEL_REPEATED


def _declare() -> tuple[Any, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="queues_info.proto", package="kubemq", syntax="proto3")
    _message(file, "QueuesInfoRequest", [("RequestID", 1, "string"), ("QueueName", 2, "string")])
    _message(
        file,
        "QueueInfo",
        [("Name", 1, "string")]
        + [
            (name, number, "int64")
            for number, name in enumerate(
                ("Messages", "Bytes", "FirstSequence", "LastSequence", "Sent", "Delivered", "Waiting", "Subscribers"), 2
            )
        ],
    )
    _message(
        file,
        "QueuesInfo",
        [
            ("TotalQueue", 1, "int32"),
            ("Sent", 2, "int64"),
            ("Delivered", 3, "int64"),
            ("Waiting", 4, "int64"),
            ("Queues", 5, "*QueueInfo"),
        ],
    )
    _message(file, "QueuesInfoResponse", [("RefRequestID", 1, "string"), ("Info", 2, "QueuesInfo")])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call]
    request = pool.FindMessageTypeByName("kubemq.QueuesInfoRequest")  # type: ignore[no-untyped-call]
    response = pool.FindMessageTypeByName("kubemq.QueuesInfoResponse")  # type: ignore[no-untyped-call]
    return message_factory.GetMessageClass(request), message_factory.GetMessageClass(response)


#: Protobuf classes; their fields are listed in ``_declare``.
QueuesInfoRequest, QueuesInfoResponse = _declare()


def reported_name(name: str) -> str:
    """A channel's name as QueuesInfo says it."""
    return name.strip(_MANGLED)


def queues_info(engine: Engine, request: Any) -> Any:
    """Answer a QueuesInfoRequest: all queues, or those whose reported names are listed (``;`` between)."""
    response = QueuesInfoResponse(RefRequestID=request.RequestID)
    info = response.Info
    wanted = set(request.QueueName.split(";")) if request.QueueName else None
    for channel in engine.channels.values():
        if not channel.last_sequence and not channel.was_read:
            continue
        name = reported_name(channel.name)
        if wanted is None or name in wanted:
            _add(info, name, channel)
    info.TotalQueue = len(info.Queues)
    return response


def _add(info: Any, name: str, channel: QueueChannel) -> None:
    """One row.  KubeMQ counts what its log still holds; here every log begins at 1, as nothing expires from it."""
    first, last = min(1, channel.last_sequence), channel.last_sequence
    sent, delivered, waiting = last - first + 1, channel.delivered(), channel.waiting()
    info.Queues.add(
        Name=name,
        Messages=last,
        Bytes=channel.stored_bytes,
        FirstSequence=first,
        LastSequence=last,
        Sent=sent,
        Delivered=delivered,
        Waiting=waiting,
        Subscribers=channel.subscribers(),
    )
    info.Sent += sent
    info.Delivered += delivered
    info.Waiting += waiting

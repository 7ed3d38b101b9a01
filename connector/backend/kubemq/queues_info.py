"""QueuesInfo: the counts of all queues in one call, which the published stubs lack.

Owns the message types of the call (field numbers from the server's public protocol file and its answers) and their
reading into ``ChannelInfo``.  The types live in a descriptor pool of their own, so that stubs which learn the call one
day do not clash with them; protobuf's parser reads thousands of rows in milliseconds.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from connector.broker.ports import ChannelInfo

_PACKAGE = "kubemq"
_TEXT, _INT32, _INT64 = (
    FieldDescriptorProto.TYPE_STRING,
    FieldDescriptorProto.TYPE_INT32,
    FieldDescriptorProto.TYPE_INT64,
)

#: Message: its fields in the order of their numbers, from 1; a type that is a name is a message, repeated with ``*``.
_MESSAGES: dict[str, tuple[tuple[str, int | str], ...]] = {
    "QueuesInfoRequest": (("RequestID", _TEXT), ("QueueName", _TEXT)),
    "QueuesInfoResponse": (("RefRequestID", _TEXT), ("Info", "QueuesInfo")),
    "QueuesInfo": (
        ("TotalQueue", _INT32),
        ("Sent", _INT64),
        ("Delivered", _INT64),
        ("Waiting", _INT64),
        ("Queues", "QueueInfo*"),
    ),
    "QueueInfo": (
        ("Name", _TEXT),
        ("Messages", _INT64),
        ("Bytes", _INT64),
        ("FirstSequence", _INT64),
        ("LastSequence", _INT64),
        ("Sent", _INT64),
        ("Delivered", _INT64),
        ("Waiting", _INT64),
        ("Subscribers", _INT64),
    ),
}


def _describe(name: str, fields: tuple[tuple[str, int | str], ...]) -> DescriptorProto:
    message = DescriptorProto(name=name)
    for number, (field_name, kind) in enumerate(fields, start=1):
        field = message.field.add(name=field_name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        if isinstance(kind, int):
            field.type = kind  # type: ignore[assignment]
            continue
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind.rstrip('*')}"
        if kind.endswith("*"):
            field.label = FieldDescriptorProto.LABEL_REPEATED
    return message


def _classes() -> tuple[Any, Any]:
    file = FileDescriptorProto(name="kubemq_queues_info.proto", package=_PACKAGE, syntax="proto3")
    file.message_type.extend(_describe(name, fields) for name, fields in _MESSAGES.items())
    pool = DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call]
    request, response = (
        GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))  # type: ignore[no-untyped-call]
        for name in ("QueuesInfoRequest", "QueuesInfoResponse")
    )
    return request, response


QueuesInfoRequest, QueuesInfoResponse = _classes()


def channel_infos(response: Any) -> list[ChannelInfo]:
    """Return the rows of an answer; names are as KubeMQ reports them, trimmed (``mapping.names.reported_name``).

    What waits is sometimes -1 (seen after minutes of acknowledgements while others come in): then it is nothing.
    """
    return [
        ChannelInfo(row.Name, max(0, row.Waiting), row.FirstSequence, row.LastSequence, row.Delivered, row.Subscribers)
        for row in response.Info.Queues
    ]

"""The stored message, and the wire bytes an answer is made of.

Owns ``Record`` and the few protobuf fields written by hand: a queue message is kept as the bytes of KubeMQ's
``QueueMessage``, and its Attributes are appended when it is handed out (a repeated message field is merged, so later
values win).  Knows no queue and no store.
"""

from __future__ import annotations

from collections.abc import Iterable

from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded.rules import MAX_RECEIVE_COUNT

#: Field numbers of the repeated ``Messages`` in the two answers that carry queue messages.
DOWNSTREAM_MESSAGES = 4
RECEIVE_MESSAGES = 2

_NS_PER_S = 1_000_000_000
# QueueMessage.Policy (8) with MaxReceiveCount (3): what KubeMQ writes into a message without a policy.
_DEFAULT_POLICY = pb.QueueMessage(Policy=pb.QueueMessagePolicy(MaxReceiveCount=MAX_RECEIVE_COUNT)).SerializeToString()


class Record:
    """One stored message or event.

    ``data`` is a serialized ``QueueMessage`` (or ``EventReceive``) without what changes at delivery.
    ``receive_count`` counts earlier failed deliveries, ``expires_at_ns`` is 0 for never.
    """

    __slots__ = ("data", "expires_at_ns", "receive_count", "timestamp_ns")

    def __init__(self, data: bytes, timestamp_ns: int, receive_count: int = 0, expires_at_ns: int = 0) -> None:
        self.data = data
        self.timestamp_ns = timestamp_ns
        self.receive_count = receive_count
        self.expires_at_ns = expires_at_ns

    def message(self) -> pb.QueueMessage:
        """The queue message, parsed; without Timestamp, Sequence and ReceiveCount."""
        return pb.QueueMessage.FromString(self.data)


def varint(number: int) -> bytes:
    """Protobuf's base 128 varint; ``number`` is not negative."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def queue_record(message: pb.QueueMessage, now_ns: int) -> Record:
    """A checked message as it is stored; its Attributes and the gaps in its policy are ours to fill.

    A delay must be taken off the policy before (see ``delays``).
    """
    if message.HasField("Attributes"):
        message.ClearField("Attributes")
    if not message.HasField("Policy"):
        return Record(message.SerializeToString() + _DEFAULT_POLICY, now_ns)
    policy = message.Policy
    if not policy.MaxReceiveCount:
        policy.MaxReceiveCount = MAX_RECEIVE_COUNT
    expires_at_ns = 0
    if policy.ExpirationSeconds:
        expires_at_ns = message.Attributes.ExpirationAt = now_ns + policy.ExpirationSeconds * _NS_PER_S
    return Record(message.SerializeToString(), now_ns, 0, expires_at_ns)


def dead_letter(message: pb.QueueMessage, expires_at_ns: int, now_ns: int) -> Record:
    """The copy of a message that reached its receive limit, for its MaxReceiveQueue: without a policy of its own."""
    copy = pb.QueueMessage()
    copy.CopyFrom(message)
    copy.Policy.CopyFrom(pb.QueueMessagePolicy())
    copy.Attributes.CopyFrom(
        pb.QueueMessageAttributes(ReRouted=True, ReRoutedFromQueue=message.Channel, ExpirationAt=expires_at_ns)
    )
    copy.Channel = message.Policy.MaxReceiveQueue
    return Record(copy.SerializeToString(), now_ns, 0, expires_at_ns)


def messages_field(field_number: int, messages: Iterable[tuple[int, Record]]) -> list[bytes]:
    """The wire parts of a repeated ``Messages`` field: ``(sequence, record)`` each, in the given order."""
    tag = bytes((field_number << 3 | 2,))
    parts: list[bytes] = []
    stamp_ns, stamp = -1, b""
    for sequence, record in messages:
        if record.timestamp_ns != stamp_ns:
            stamp_ns = record.timestamp_ns
            stamp = b"\x08" + varint(stamp_ns) + b"\x10"
        # Attributes (7): Timestamp (1), Sequence (2), ReceiveCount (4); always shorter than 128 bytes
        attributes = stamp + varint(sequence) + b"\x20" + varint(record.receive_count + 1)
        tail = bytes((0x3A, len(attributes))) + attributes
        parts += (tag, varint(len(record.data) + len(tail)), record.data, tail)
    return parts


def sent_result(message_id: str, now_ns: int, expires_at_ns: int = 0, delayed_to_ns: int = 0) -> bytes:
    """A serialized ``SendQueueMessageResult`` of a stored message."""
    name = message_id.encode()
    result = b"\x0a" + varint(len(name)) + name + b"\x10" + varint(now_ns)
    if expires_at_ns:
        result += b"\x18" + varint(expires_at_ns)
    if delayed_to_ns:
        result += b"\x20" + varint(delayed_to_ns)
    return result

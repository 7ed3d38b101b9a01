"""Wire bytes written by hand are what protobuf would write, or merge to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded.records import (
    DOWNSTREAM_MESSAGES,
    RECEIVE_MESSAGES,
    Record,
    dead_letter,
    messages_field,
    queue_record,
    sent_result,
    varint,
)

NOW_NS = 1_800_000_000_123_456_789

messages = st.builds(
    pb.QueueMessage,
    MessageID=st.text(max_size=300),
    ClientID=st.text(min_size=1, max_size=5),
    Channel=st.text(min_size=1, max_size=200),
    Metadata=st.text(max_size=50),
    Body=st.binary(max_size=300),
    Tags=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    Policy=st.none()
    | st.builds(
        pb.QueueMessagePolicy,
        ExpirationSeconds=st.integers(0, 43200),
        MaxReceiveCount=st.integers(0, 1024),
        MaxReceiveQueue=st.sampled_from(["", "dead"]),
    ),
    Attributes=st.none() | st.builds(pb.QueueMessageAttributes, Sequence=st.just(9), ExpirationAt=st.just(9)),
)


@given(st.integers(0, 2**63 - 1))
def test_varints(number: int) -> None:
    expected = pb.QueueMessageAttributes(Timestamp=number).SerializeToString()[1:]
    assert varint(number) == (expected or b"\x00")


@given(st.lists(st.tuples(messages, st.integers(1, 2**40 - 1), st.integers(0, 2000)), max_size=5))
def test_an_answer_parses_to_the_messages_with_their_attributes(
    sent: list[tuple[pb.QueueMessage, int, int]],
) -> None:
    rows = []
    for original, sequence, receive_count in sent:
        copy = pb.QueueMessage()
        copy.CopyFrom(original)
        stored = queue_record(copy, NOW_NS)
        rows.append((sequence, Record(stored.data, NOW_NS, receive_count, stored.expires_at_ns)))
    down = pb.QueuesDownstreamResponse.FromString(b"".join(messages_field(DOWNSTREAM_MESSAGES, rows)))
    received = pb.ReceiveQueueMessagesResponse.FromString(b"".join(messages_field(RECEIVE_MESSAGES, rows)))
    assert list(down.Messages) == list(received.Messages)
    for got, (original, sequence, receive_count) in zip(down.Messages, sent, strict=True):
        assert (got.MessageID, got.Channel, got.Metadata) == (original.MessageID, original.Channel, original.Metadata)
        assert (got.Body, got.Tags) == (original.Body, original.Tags)
        expiration_s = original.Policy.ExpirationSeconds
        assert got.Attributes == pb.QueueMessageAttributes(
            Timestamp=NOW_NS,
            Sequence=sequence,
            ReceiveCount=receive_count + 1,
            ExpirationAt=NOW_NS + expiration_s * 10**9 if expiration_s else 0,
        )
        assert got.Policy.MaxReceiveCount == (original.Policy.MaxReceiveCount or 1024)
        assert got.Policy.MaxReceiveQueue == original.Policy.MaxReceiveQueue


@given(st.text(max_size=300), st.integers(1, 2**62), st.integers(0, 2**62), st.integers(0, 2**62))
def test_results(message_id: str, now_ns: int, expires_ns: int, delayed_ns: int) -> None:
    expected = pb.SendQueueMessageResult(
        MessageID=message_id, SentAt=now_ns, ExpirationAt=expires_ns, DelayedTo=delayed_ns
    )
    assert pb.SendQueueMessageResult.FromString(sent_result(message_id, now_ns, expires_ns, delayed_ns)) == expected


def test_a_dead_letter_names_where_it_comes_from_and_has_no_policy() -> None:
    policy = pb.QueueMessagePolicy(MaxReceiveCount=3, MaxReceiveQueue="dead", ExpirationSeconds=9)
    original = pb.QueueMessage(MessageID="m", Channel="q", Body=b"x", Policy=policy)
    copy = dead_letter(original, 77, NOW_NS)
    message = copy.message()
    assert (message.MessageID, message.Channel, message.Body) == ("m", "dead", b"x")
    assert message.Policy == pb.QueueMessagePolicy()
    assert (message.Attributes.ReRouted, message.Attributes.ReRoutedFromQueue) == (True, "q")
    assert (copy.expires_at_ns, message.Attributes.ExpirationAt, copy.receive_count) == (77, 77, 0)
    assert original.Channel == "q"

"""Names for any (vhost, queue) within AMQP's 255 bytes: one-to-one, reversible, and never what KubeMQ refuses."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from mapping import names


def as_name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


AWKWARD = st.sampled_from([*"./%~*>:; \t\\aZ_-0QUES\0\x7fé数", "..", "~g1.", "%2e", "%2E", "default", "~h", "\udce9"])
PIECES = st.lists(AWKWARD, max_size=60).map("".join)
RAW = st.binary(max_size=255).map(as_name)
TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
LONG = st.builds(lambda piece, times: piece * times, AWKWARD, st.integers(0, 255))
NAMES = st.one_of(PIECES, RAW, TEXT, LONG).map(lambda name: as_name(name.encode("utf-8", "surrogateescape")[:255]))
PLAIN = st.from_regex(
    r"[A-Za-z0-9_@#$!&+=,-][A-Za-z0-9_@#$!&+=,~-]{0,50}(\.[A-Za-z0-9_@~-]{1,40}){0,4}", fullmatch=True
)
GENERATIONS = st.one_of(st.just(0), st.integers(0, 20), st.integers(0, names.MAX_GENERATION))


def is_refused(channel: str) -> bool:
    """What a KubeMQ server, its file store or gRPC refuses (kubemq's validation, broker's IsChannelNameValid)."""
    return (
        re.search(r"[\x00-\x20\x7f*>/\\:;]", channel) is not None
        or not all(channel.split("."))
        or len(channel.encode()) > 240  # raises for what gRPC cannot carry
    )


def canonical(vhost: str) -> str:
    return "/" if vhost in {"", "default"} else vhost


@given(NAMES, NAMES, GENERATIONS)
def test_kubemq_takes_every_name(vhost: str, queue: str, generation: int) -> None:
    channel = names.kubemq_channel(vhost, queue, generation)
    assert not is_refused(channel)
    assert channel.startswith("amqp.")
    assert channel != names.TOPOLOGY_CHANNEL
    assert not channel.startswith(("amqp.~topology", "amqp.~peer"))


@given(NAMES, NAMES, GENERATIONS)
def test_a_channel_reads_back_unless_it_is_hashed(vhost: str, queue: str, generation: int) -> None:
    channel = names.kubemq_channel(vhost, queue, generation)
    back = names.vhost_and_queue(channel)
    hashed = re.fullmatch(r"amqp\.(~h.*-[0-9a-f]{40}|[^~].*\.~h.*-[0-9a-f]{40}|~h[^.]*\..*)", channel, re.DOTALL)
    assert (back is None) == (hashed is not None)
    if back is not None:
        assert back == (canonical(vhost), queue, generation)


@given(NAMES, NAMES, GENERATIONS, NAMES, NAMES, GENERATIONS)
@example("a.b", "c", 0, "a", "b.c", 0)
@example("/", "a.b", 0, "/", "a%2Eb", 0)
@example("/", "~g1.q", 0, "/", "q", 1)
@example("a", "", 0, "a", "%", 0)
def test_no_two_queues_share_a_channel(v1: str, q1: str, g1: int, v2: str, q2: str, g2: int) -> None:
    same = (canonical(v1), q1, g1) == (canonical(v2), q2, g2)
    assert (names.kubemq_channel(v1, q1, g1) == names.kubemq_channel(v2, q2, g2)) == same


@given(st.data(), NAMES, NAMES)
def test_near_names_do_not_share_a_channel(data: st.DataObject, vhost: str, queue: str) -> None:
    """Neighbours: one character changed, escaped by hand, or moved between vhost and queue."""
    at = data.draw(st.integers(0, len(queue)))
    other = data.draw(
        st.sampled_from(
            [
                (vhost, queue[:at] + "." + queue[at:]),
                (vhost, queue[:at] + "%2e" + queue[at + 1 :]),
                (vhost + "." + queue[:at], queue[at:]),
                (vhost, names.kubemq_channel(vhost, queue).removeprefix(f"amqp.{names.vhost_label(vhost)}.")),
                (names.vhost_label(vhost), queue),
            ]
        )
    )
    same = (canonical(other[0]), other[1]) == (canonical(vhost), queue)
    assert (names.kubemq_channel(*other) == names.kubemq_channel(vhost, queue)) == same


@given(NAMES, NAMES, NAMES)
def test_vhosts_never_share_a_prefix(vhost: str, other: str, queue: str) -> None:
    inside = names.kubemq_channel(vhost, queue).startswith(f"amqp.{names.vhost_label(other)}.")
    assert inside == (canonical(vhost) == canonical(other))


@given(PLAIN)
def test_plain_names_stay_as_they_are(queue: str) -> None:
    assert names.kubemq_channel("/", queue[:215].rstrip(".")) == "amqp.default." + queue[:215].rstrip(".")


@given(st.text(max_size=80) | st.text(max_size=40).map("amqp.default.".__add__))
def test_any_channel_reads_back_to_itself_or_not_at_all(channel: str) -> None:
    back = names.vhost_and_queue(channel)
    assert back is None or names.kubemq_channel(*back) == channel


@given(NAMES, NAMES)
def test_reported_name_cuts_at_the_end_only(vhost: str, queue: str) -> None:
    channel = names.kubemq_channel(vhost, queue)
    reported = names.reported_name(channel)
    assert channel.startswith(reported)
    assert set(channel[len(reported) :]) <= set("_QUES.")
    assert names.reported_name(reported) == reported

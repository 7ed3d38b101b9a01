"""Names: the documented examples, the escapes, the reserved parts and what QueuesInfo makes of a name."""

from __future__ import annotations

import pytest

from mapping import names

SURROGATE = b"caf\xe9".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("vhost", "queue", "channel"),
    [
        ("/", "tasks", "amqp.default.tasks"),
        ("", "tasks", "amqp.default.tasks"),
        ("default", "tasks", "amqp.default.tasks"),
        ("Default", "tasks", "amqp.Default.tasks"),
        ("/", "orders.eu.new", "amqp.default.orders.eu.new"),
        ("/", "celery@w1.celery.pidbox", "amqp.default.celery@w1.celery.pidbox"),
        ("/", "amq.gen-JzTY20BRgKO-HjmUJj0wLg", "amqp.default.amq.gen-JzTY20BRgKO-HjmUJj0wLg"),
        ("/", "größe-数", "amqp.default.größe-数"),
        ("/", "Ns:Type", "amqp.default.Ns%3aType"),
        ("/", "a;b", "amqp.default.a%3bb"),
        ("/", "q.", "amqp.default.q%2e"),
        ("/", ".q", "amqp.default.%2eq"),
        ("/", "a..b", "amqp.default.a.%2eb"),
        ("/", "...", "amqp.default.%2e%2e%2e"),
        ("/", "a b", "amqp.default.a%20b"),
        ("/", "a%2Eb", "amqp.default.a%252Eb"),
        ("/", "a/b\\c*>", "amqp.default.a%2fb%5cc%2a%3e"),
        ("/", "tab\tnul\0del\x7f", "amqp.default.tab%09nul%00del%7f"),
        ("/", "~topology", "amqp.default.%7etopology"),
        ("/", "a~b", "amqp.default.a~b"),
        ("/", SURROGATE, "amqp.default.caf%e9"),
        ("/", "", "amqp.default.%"),
        ("a.b", "c", "amqp.a%2eb.c"),
        ("a", "b.c", "amqp.a.b.c"),
        ("/prod", "q", "amqp.%2fprod.q"),
        ("~topology", "q", "amqp.%7etopology.q"),
    ],
)
def test_channel_of_a_queue_and_back(vhost: str, queue: str, channel: str) -> None:
    assert names.kubemq_channel(vhost, queue) == channel
    assert names.vhost_and_queue(channel) == ("/" if vhost in {"", "default"} else vhost, queue, 0)


def test_generations_stand_in_the_reserved_part() -> None:
    assert names.kubemq_channel("/", "tasks", 1) == "amqp.default.~g1.tasks"
    assert names.vhost_and_queue("amqp.default.~g12.a.b") == ("/", "a.b", 12)
    assert names.kubemq_channel("/", "~g1.tasks") == "amqp.default.%7eg1.tasks"
    longest = names.kubemq_channel("v" * 255, "q" * 255, names.MAX_GENERATION)
    assert len(longest) <= names.MAX_CHANNEL_BYTES


@pytest.mark.parametrize("generation", [-1, names.MAX_GENERATION + 1])
def test_a_generation_out_of_range_is_refused(generation: int) -> None:
    with pytest.raises(ValueError, match="generation"):
        names.kubemq_channel("/", "q", generation)


@pytest.mark.parametrize(
    "channel",
    [
        "",
        "tasks",
        "amqp",
        "amqp.default",
        "amqp.default.",
        "AMQP.default.tasks",
        names.TOPOLOGY_CHANNEL,
        "amqp.~peer.0123456789ab",
        "amqp.default.~g0.q",
        "amqp.default.~g01.q",
        "amqp.default.~x",
        "amqp.default.a%2Eb",
        "amqp.default.a%2eb",
        "amqp.default.a%zz",
        "amqp.default.a b",
        "amqp.default.a%c3%a9",
        "amqp.default.\udce9",
        "amqp.default." + chr(0xD800),
        "amqp.%64efault.q",
        "amqp./.q",
    ],
)
def test_what_no_queue_maps_to_does_not_read_back(channel: str) -> None:
    assert names.vhost_and_queue(channel) is None


def test_long_names_keep_a_readable_head_and_a_hash() -> None:
    first, second = "invoices-" + "x" * 240, "invoices-" + "x" * 239 + "y"
    channels = {names.kubemq_channel("/", first), names.kubemq_channel("/", second)}
    assert len(channels) == 2
    for channel in channels:
        assert channel.startswith("amqp.default.~hinvoices-xxx")
        assert len(channel.encode()) <= names.MAX_CHANNEL_BYTES
        assert names.vhost_and_queue(channel) is None
        assert names.reported_name(channel) == channel


def test_a_name_of_215_bytes_is_kept_whole() -> None:
    assert names.kubemq_channel("/", "q" * 215) == "amqp.default." + "q" * 215
    assert names.kubemq_channel("/", "q" * 216).startswith("amqp.default.~hqqq")


@pytest.mark.parametrize(
    "queue", [" " * 255, "é" * 127 + "x", "x" + "é" * 127, "." * 255, "a" + " " * 254, "ab" + " " * 253]
)
def test_the_head_is_cut_between_characters_and_escapes(queue: str) -> None:
    channel = names.kubemq_channel("/", queue)
    head = channel.removeprefix("amqp.default.~h")[:-41]
    assert not names._ESCAPE.sub(b"", head.encode()).count(b"%")
    assert len(channel.encode()) <= names.MAX_CHANNEL_BYTES


def test_long_vhosts_are_hashed_apart_from_their_queues() -> None:
    vhost = "tenant." * 30
    label = names.vhost_label(vhost)
    assert label.startswith("~htenant%2etenant")
    assert "." not in label
    assert names.kubemq_channel(vhost, "q") == f"amqp.{label}.q"
    assert names.vhost_label(vhost + "x") != label


def test_other_spellings_of_the_same_bytes_are_the_same_name() -> None:
    assert names.kubemq_channel("/", "\udcc3\udca9") == names.kubemq_channel("/", "é")


def test_a_surrogate_that_stands_for_no_byte_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        names.kubemq_channel("/", "\ud800")


@pytest.mark.parametrize(
    ("channel", "reported"),
    [
        ("amqp.default.ORDERS", "amqp.default.ORDER"),
        ("amqp.default.tasks_", "amqp.default.tasks"),
        ("amqp.default.QUEUES", "amqp.default"),
        ("amqp.default.tasks", "amqp.default.tasks"),
        ("ORDERS", "ORDER"),
        ("QUEUES", ""),
        ("SENSORS", "NSOR"),
    ],
)
def test_reported_name_is_what_queues_info_says(channel: str, reported: str) -> None:
    assert names.reported_name(channel) == reported

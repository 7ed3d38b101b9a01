"""The settings: one dataclass, from which flags, environment, file keys and the documentation follow.

Owns what may be set, its default, unit and bounds (OP-19); ``config_sources`` reads the values.  Names are those of
KubeMQ's own AMQP connector where it has one for the thing.  Must not know any other part of the project: ``app`` hands
the values on.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connector import config_values as kind
from connector.version import VERSION

PREFIX = "CONNECTORS_AMQP_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: ``name`` is the key in a file, and gives the flag and the environment variable.

    ``minimum`` and ``maximum`` bound numbers, both ends allowed.  ``shown_default`` is what the documentation says
    where the default depends on the machine.
    """

    field: str
    name: str
    help: str
    parse: Callable[[object], Any]
    minimum: float | None
    maximum: float | None
    secret: bool
    shown_default: str

    @property
    def flag(self) -> str:
        """The command line's name; empty for a secret, which everybody could read in the list of processes."""
        return "" if self.secret else "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment's name."""
        return PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        """The default as one would write it; empty where it is empty."""
        return self.shown_default or self.written(getattr(Config(), self.field))

    def written(self, value: Any) -> str:
        """Return a value as one would write it in the environment."""
        if self.parse is kind.size:
            return kind.size_text(value)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return ",".join(value)
        return f"{value:g}" if isinstance(value, float) else str(value)

    def read(self, value: object) -> Any:
        """Parse one value and check its bounds; raises ValueError with a text that follows the value."""
        result = self.parse(value)
        if self.minimum is not None and result < self.minimum:
            raise ValueError(f"is below {self._bound(self.minimum)}")
        if self.maximum is not None and result > self.maximum:
            raise ValueError(f"is above {self._bound(self.maximum)}")
        return result

    def _bound(self, bound: float) -> str:
        return kind.size_text(int(bound)) if self.parse is kind.size else f"{bound:.15g}"


def _setting(
    default: object,
    help: str,
    parse: Callable[[object], Any],
    *,
    name: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
    shown_default: str = "",
) -> Any:
    """Declare a field of Config together with its row; a callable ``default`` is called for each Config."""
    metadata = {
        "name": name,
        "help": help,
        "parse": parse,
        "minimum": minimum,
        "maximum": maximum,
        "secret": secret,
        "shown_default": shown_default,
    }
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _data_dir() -> Path:
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    if base.is_absolute():
        return base / "kubemq-amqp"
    try:
        return Path.home() / ".local" / "share" / "kubemq-amqp"
    except RuntimeError:  # a user without a home, as in a container
        return Path("kubemq-amqp-data").absolute()


_PORT: dict[str, Any] = {"minimum": 0, "maximum": 65535}


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in force; units stand in the names (``_s`` seconds, ``_bytes``, ``_count``).

    Every high mark has a low one at half of it: what stops at the high mark goes on at the low one.
    """

    enable: bool = _setting(True, "Whether `serve` serves at all; false makes it end at once.", kind.switch)
    host: str = _setting(
        "127.0.0.1",
        "Address to listen on for AMQP clients. 0.0.0.0 (or ::) takes clients from other machines.",
        kind.filled,
    )
    port: int = _setting(5672, "Port for AMQP clients; 0 takes any free one.", kind.whole, **_PORT)
    heartbeat_s: int = _setting(
        60,
        "Heartbeat interval offered to clients, in seconds; a client's own wish wins; 0 offers none.",
        kind.whole,
        name="heartbeat_seconds",
        minimum=0,
        maximum=65535,
    )
    frame_max_bytes: int = _setting(
        131072,
        "Largest frame, in bytes, offered to clients.",
        kind.size,
        name="frame_max",
        minimum=4096,
        maximum=16 * 1024**2,
    )
    channel_max: int = _setting(
        2047, "Most channels of one connection, offered to clients.", kind.whole, minimum=1, maximum=65535
    )
    max_connections: int = _setting(
        1000, "Most client connections at a time; more are refused.", kind.whole, minimum=1, maximum=1_000_000
    )
    max_body_bytes: int = _setting(
        16 * 1024**2,
        "Largest message body, in bytes; a larger one closes its channel. KubeMQ takes at most 99 MiB.",
        kind.size,
        name="max_body_size",
        minimum=1024,
        maximum=99 * 1024**2,
    )
    handshake_timeout_s: float = _setting(
        10.0,
        "Seconds a client has from connecting to an open connection.",
        kind.seconds,
        name="handshake_timeout_seconds",
        minimum=0.1,
        maximum=600,
    )
    users: dict[str, str] = _setting(
        lambda: {"guest": "guest"},
        "Who may log in: `user:password`, separated by commas; in a file a table. "
        "A comma, colon or per cent sign inside is written %2C, %3A, %25.",
        kind.users,
        secret=True,
        shown_default="guest:guest",
    )
    loopback_users: tuple[str, ...] = _setting(
        ("guest",), "Users that may log in from this machine only, separated by commas.", kind.names
    )
    advertise_product: str = _setting(
        "KubeMQ AMQP",
        "Product name told to clients. Some (kombu) behave differently for RabbitMQ.",
        kind.filled,
    )
    advertise_version: str = _setting(
        VERSION, "Version told to clients, three numbers; some compare it with RabbitMQ's.", kind.version
    )

    kubemq_address: tuple[str, ...] = _setting(
        (),
        "KubeMQ server's gRPC address, HOST:PORT, or those of the nodes of one cluster, separated by commas: one is "
        "used, and when it fails another. Empty starts the embedded server.",
        kind.addresses,
    )
    kubemq_auth_token: str = _setting(
        "", "Token for KubeMQ's authentication; needs `kubemq_address`.", kind.text, secret=True
    )
    data_dir: Path = _setting(
        _data_dir,
        "Folder of the embedded server's data; not used with `kubemq_address`.",
        kind.path,
        shown_default="$XDG_DATA_HOME/kubemq-amqp, else ~/.local/share/kubemq-amqp",
    )
    requeue: str = _setting(
        "tail",
        "Where a requeued message goes: `tail` of its queue, or `original`, its old place (RabbitMQ's way).",
        kind.one_of("tail", "original"),
    )
    deliver_when: str = _setting(
        "read",
        "When a message goes to a consumer: when it was `read` back from KubeMQ, or already when it is `stored`: "
        "faster, but a native consumer that joins the queue may get a few messages as well.",
        kind.one_of("read", "stored"),
    )
    vhosts: tuple[str, ...] = _setting(
        (), "Virtual hosts beside the default one (`/`), separated by commas.", kind.names
    )
    definitions_file: str = _setting(
        "",
        "File of definitions (RabbitMQ's JSON format) applied at start: what it has and is missing is declared.",
        kind.text,
    )
    get_batch_size: int = _setting(
        32,
        "Messages that a basic.get on a queue without consumers reads ahead; what nobody takes goes back at once.",
        kind.whole,
        minimum=1,
        maximum=1024,
    )
    writer_lanes: int = _setting(
        4,
        "Streams that store messages in KubeMQ; one queue always uses the same.",
        kind.whole,
        minimum=1,
        maximum=64,
    )
    store_retention_s: float = _setting(
        86400.0,
        "Seconds after which the KubeMQ server deletes messages, read or not (Store.MaxRetention): a queue moves to "
        "a new channel before its oldest message is that old. 0: it keeps them. Not used with the embedded server.",
        kind.seconds,
        name="store_retention_seconds",
        minimum=0,
        maximum=10 * 365 * 86400,
    )
    member_timeout_s: float = _setting(
        6.0,
        "Seconds after which the connectors on one KubeMQ take one that is not heard for dead, and read its queues. "
        "Equal on all of them.",
        kind.seconds,
        name="member_timeout_seconds",
        minimum=1,
        maximum=600,
    )
    member_name: str = _setting(
        "",
        "Name of this connector among those on one KubeMQ, the same after each restart and used by no other (in "
        "Kubernetes the pod's name): its start ends the wait for its predecessor. Empty: `member_timeout_seconds` "
        "after a crash, unless both are processes of one host.",
        kind.text,
    )
    publish_deadline_s: float = _setting(
        30.0,
        "Seconds a published message may wait for KubeMQ before it is nacked (without confirms: 541). One that was "
        "sent and is not answered is nacked after 10 s, whatever this is; what waits behind it, not before 5 s.",
        kind.seconds,
        name="publish_deadline_seconds",
        minimum=0.1,
        maximum=3600,
    )
    declare_deadline_s: float = _setting(
        10.0,
        "Seconds a method that waits for KubeMQ (declare, delete, purge, get) may take before 541. "
        "Emptying a queue (purge, delete) may take longer: only the time in which KubeMQ does not answer counts.",
        kind.seconds,
        name="declare_deadline_seconds",
        minimum=0.1,
        maximum=3600,
    )
    consumer_timeout_s: float = _setting(
        1800.0,
        "Seconds a client may take to acknowledge a delivery before its channel is closed; 0 for no limit. "
        "Queues and consumers can have their own (`x-consumer-timeout`).",
        kind.seconds,
        name="consumer_timeout_seconds",
        minimum=0,
        maximum=366 * 86400,
    )
    drain_ack_s: float = _setting(
        10.0,
        "Seconds that SIGTERM leaves clients for acknowledging what they hold, their consumers cancelled, before "
        "they are closed; 0 does not wait.",
        kind.seconds,
        name="drain_ack_seconds",
        minimum=0,
        maximum=86400,
    )
    drain_deadline_s: float = _setting(
        10.0,
        "Seconds that SIGTERM leaves, after that, for storing and acknowledging what is under way, and for confirms.",
        kind.seconds,
        name="drain_deadline_seconds",
        minimum=0,
        maximum=3600,
    )

    outbox_high_bytes: int = _setting(
        64 * 1024**2,
        "Bytes waiting to be stored in KubeMQ, headers twice (as JSON they are larger), all queues together, at which "
        "publishers are blocked.",
        kind.size,
        minimum=64 * 1024,
        maximum=64 * 1024**3,
    )
    outbox_high_count: int = _setting(
        50_000,
        "Messages waiting to be stored in KubeMQ, all queues together, at which publishers are blocked.",
        kind.whole,
        minimum=1,
        maximum=100_000_000,
    )
    in_flight_high_bytes: int = _setting(
        16 * 1024**2,
        "Bytes that one client has published and that are not stored yet, at which reading from it stops.",
        kind.size,
        minimum=64 * 1024,
        maximum=1024**3,
    )
    output_high_bytes: int = _setting(
        1024**2,
        "Bytes waiting to be sent to one client at which deliveries to it stop.",
        kind.size,
        minimum=4096,
        maximum=1024**3,
    )
    held_high_bytes: int = _setting(
        512 * 1024**2,
        "Bytes of messages delivered or read ahead and not acknowledged, all queues together, at which a queue is read "
        "one message at a time, and not at all while its clients hold some.",
        kind.size,
        minimum=1024**2,
        maximum=64 * 1024**3,
    )
    unread_high_bytes: int = _setting(
        16 * 1024**2,
        "Bytes of replies sent to one client that does not read them, at which its requests are not read either, and "
        "what it has asked for with basic.get waits.",
        kind.size,
        minimum=4096,
        maximum=1024**3,
    )
    queued_high_bytes: int = _setting(
        4 * 1024**2,
        "Bytes from one client that wait behind a slow method of their channel, and of the slow methods themselves, at "
        "which reading from it stops. Methods count tenfold: that is what tables take once decoded.",
        kind.size,
        minimum=4096,
        maximum=1024**3,
    )
    tx_max_size: int = _setting(
        64 * 1024**2,
        "Bytes that one client may publish in open transactions; more is refused (406), as only a commit makes room.",
        kind.size,
        minimum=64 * 1024,
        maximum=1024**3,
    )
    client_bodies_size: int = _setting(
        128 * 1024**2,
        "What the messages, headers and bodies, that one client has begun on its channels and not finished may add up "
        "to; a further one is refused (311). One alone is always taken.",
        kind.size,
        minimum=64 * 1024,
        maximum=64 * 1024**3,
    )
    partial_high_bytes: int = _setting(
        256 * 1024**2,
        "Bytes of messages that have arrived in part, of all clients together, at which those clients are read in "
        "turn, each until its messages are whole. Who then sends nothing is closed (506).",
        kind.size,
        minimum=1024**2,
        maximum=64 * 1024**3,
    )
    memory_queues_high_bytes: int = _setting(
        256 * 1024**2,
        "Bytes in the queues kept in memory (exclusive, server-named, auto-delete), all together, "
        "at which publishers are blocked; half as much again, and what is published to them is refused.",
        kind.size,
        minimum=1024**2,
        maximum=64 * 1024**3,
    )

    ops_host: str = _setting("127.0.0.1", "Address to listen on for /healthz, /readyz, /metrics and /api.", kind.filled)
    ops_port: int = _setting(
        15672, "Port for /healthz, /readyz, /metrics and /api; 0 takes any free one.", kind.whole, **_PORT
    )
    log_level: str = _setting(
        "info", "debug, info, warning or error.", kind.one_of("debug", "info", "warning", "error")
    )
    log_format: str = _setting(
        "auto",
        "text, json, or auto: text on a terminal, else JSON.",
        kind.one_of("auto", "text", "json"),
    )


def _rows() -> tuple[Setting, ...]:
    return tuple(
        Setting(field=row.name, **{**row.metadata, "name": row.metadata["name"] or row.name})
        for row in dataclasses.fields(Config)
    )


SETTINGS: tuple[Setting, ...] = _rows()

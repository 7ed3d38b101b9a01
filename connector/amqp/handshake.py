"""From the protocol header to connection.open, as a transition table (PC-01 to PC-07, PC-21, SE-01).

Owns the order of the handshake, protocol versions, the SASL mechanisms PLAIN and AMQPLAIN, and the negotiation of the
limits; codes and texts are RabbitMQ 3.10's, which however only drops the socket after some of them.  Must not know
sockets, clocks, where users come from or which vhosts exist: the policy's callables answer that.

How a connection uses it::

    handshake = Handshake(policy)
    reader = FrameReader(handler, opened=False)
    verdict, rest = handshake.feed_protocol_header(data)    # until it is not MORE
    # REFUSED: write PROTOCOL_HEADER and close the socket.  ACCEPTED: write handshake.start(), then reader.feed(rest)
    for reply in handshake.on_method(method):               # each method on channel 0 while not handshake.is_done
        write(encode_method(0, reply))
    # when is_open: reader.frame_max = handshake.frame_max (also right after tune-ok: ``frame_max`` is then set)

``on_method`` raises AmqpError: answer with connection.close (its code and ids), call ``reader.discard_all()``, and
close the socket once close-ok has come or a short time has passed.  AuthenticationRefused with ``is_silent``: close
the socket without a word, after a delay.  Time limits (10 s to connection.open) are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, TypeAlias, cast

from pamqp import base
from pamqp.commands import Connection

from connector.amqp import methods
from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode
from connector.amqp.wire import Field, Table, read_table, table_from_python

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
#: 0-9-1, and 0-9's own header, which RabbitMQ takes for the same
_ACCEPTED_HEADERS = frozenset({PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"})
_MAGIC = b"AMQP"

#: AMQP 0-9-1, section 4.2.3: no peer may ask for smaller frames.
FRAME_MIN_BYTES = 4096
LOCALES = b"en_US"

#: What RabbitMQ's server-properties promise and this connector keeps (PC-02).
CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


def server_properties(product: str, version: str, platform: str, **more: str) -> Table:
    """Make the server-properties of connection.start; ``version`` as a.b.c, which clients parse."""
    capabilities = dict.fromkeys(CAPABILITIES, True)
    return table_from_python(
        {"capabilities": capabilities, "product": product, "version": version, "platform": platform, **more}
    )


@dataclass(slots=True)
class HandshakePolicy:
    """What the server offers and whom it lets in.

    ``authenticate(user, password, mechanism)`` answers whether the login is good, for this client's address;
    ``check_vhost(vhost, user)`` answers "" or the reason of a refusal (``vhost x not found``).  Limits: the number of
    channels, the bytes of a frame, the seconds between heartbeats; 0 is no limit, and no heartbeats.
    """

    server_properties: Table
    authenticate: Callable[[str, bytes, str], bool]
    check_vhost: Callable[[str, str], str]
    channel_max: int = 2047
    frame_max: int = 131072
    heartbeat_s: int = 60
    mechanisms: tuple[str, ...] = field(default=("PLAIN", "AMQPLAIN"))


class HeaderVerdict(Enum):
    """What to do after the first bytes of a connection."""

    MORE = auto()
    ACCEPTED = auto()
    REFUSED = auto()


class State(Enum):
    """Where the handshake stands; the value is RabbitMQ's name of the connection's state."""

    HEADER = "pre_init"
    STARTING = "starting"
    TUNING = "tuning"
    OPENING = "opening"
    OPEN = "running"
    CLOSED = "closed"


class AuthenticationRefused(AmqpError):
    """A login that failed; ``is_silent`` when the client did not say that it understands a close at this point."""

    def __init__(self, mechanism: str, is_silent: bool) -> None:
        reason = f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
        super().__init__(ReplyCode.ACCESS_REFUSED, reason)
        self.is_silent = is_silent


_Handler: TypeAlias = Callable[["Handshake", base.Frame], list[base.Frame]]


class Handshake:
    """One client's handshake.

    Attributes, set as they become known: ``mechanism``, ``user`` (also of a refused login), ``client_properties`` (a
    wire Table), ``capabilities`` (names of those that are true), ``channel_max``, ``frame_max``, ``heartbeat_s`` (the
    client's choice, as negotiated), ``vhost`` (as the client wrote it).
    """

    def __init__(self, policy: HandshakePolicy) -> None:
        self.state = State.HEADER
        self.mechanism = ""
        self.user = ""
        self.vhost = ""
        self.client_properties: Table = {}
        self.capabilities: frozenset[str] = frozenset()
        self.channel_max = policy.channel_max
        self.frame_max = policy.frame_max
        self.heartbeat_s = policy.heartbeat_s
        self._policy = policy
        self._header = b""

    @property
    def is_open(self) -> bool:
        """True once connection.open was accepted."""
        return self.state is State.OPEN

    @property
    def is_done(self) -> bool:
        """True when ``on_method`` has nothing more to say: open, or closed by the client."""
        return self.state in {State.OPEN, State.CLOSED}

    # -------------------------------------------------------------------------------------------- protocol header
    def feed_protocol_header(self, data: bytes) -> tuple[HeaderVerdict, bytes]:
        """Take the connection's first bytes, in any pieces.

        Returns (verdict, what follows the header when it is ACCEPTED).
        """
        self._header += data
        header = self._header[: len(PROTOCOL_HEADER)]
        if not _MAGIC.startswith(header[: len(_MAGIC)]):
            return HeaderVerdict.REFUSED, b""
        if len(header) < len(PROTOCOL_HEADER):
            return HeaderVerdict.MORE, b""
        if header not in _ACCEPTED_HEADERS:
            return HeaderVerdict.REFUSED, b""
        rest = self._header[len(PROTOCOL_HEADER) :]
        self._header = b""
        self.state = State.STARTING
        return HeaderVerdict.ACCEPTED, rest

    def start(self) -> base.Frame:
        """The connection.start to send after an accepted header."""
        return methods.build(
            Connection.Start,
            version_major=0,
            version_minor=9,
            server_properties=self._policy.server_properties,
            mechanisms=" ".join(self._policy.mechanisms),
            locales=LOCALES,
        )

    # ---------------------------------------------------------------------------------------------------- methods
    def on_method(self, method: base.Frame) -> list[base.Frame]:
        """Take the client's next method on channel 0; returns the methods to send.

        Raises AmqpError: CHANNEL_ERROR for a method out of turn, COMMAND_INVALID for an unknown mechanism,
        SYNTAX_ERROR for a malformed response, NOT_ALLOWED for limits and vhosts, AuthenticationRefused.
        """
        step = self._STEPS.get((self.state, method.index))
        if step is None:
            raise _error(ReplyCode.CHANNEL_ERROR, f"unexpected method in connection state {self.state.value}", method)
        handle, then = step
        replies = handle(self, method)
        self.state = then
        return replies

    def _on_start_ok(self, method: base.Frame) -> list[base.Frame]:
        start_ok = cast("Connection.StartOk", method)
        self.client_properties = cast("Table", start_ok.client_properties)
        self.capabilities = _true_names(self.client_properties.get("capabilities"))
        self.mechanism = start_ok.mechanism
        if self.mechanism not in self._policy.mechanisms:
            reason = f"unknown authentication mechanism '{self.mechanism}'"
            raise _error(ReplyCode.COMMAND_INVALID, reason, method)
        login = _RESPONSES[self.mechanism](cast("bytes", start_ok.response))
        if login is None:
            raise _error(ReplyCode.SYNTAX_ERROR, f"{self.mechanism} authentication response is malformed", method)
        user, password = login
        self.user = user.decode("utf-8", "replace")
        if not self._policy.authenticate(self.user, password, self.mechanism):
            raise AuthenticationRefused(self.mechanism, "authentication_failure_close" not in self.capabilities)
        policy = self._policy
        return [
            methods.build(
                Connection.Tune,
                channel_max=policy.channel_max,
                frame_max=policy.frame_max,
                heartbeat=policy.heartbeat_s,
            )
        ]

    def _on_tune_ok(self, method: base.Frame) -> list[base.Frame]:
        tune_ok = cast("Connection.TuneOk", method)
        self._check_limit("frame_max", FRAME_MIN_BYTES, self._policy.frame_max, tune_ok.frame_max, method)
        self._check_limit("channel_max", 1, self._policy.channel_max, tune_ok.channel_max, method)
        self.frame_max = tune_ok.frame_max
        self.channel_max = tune_ok.channel_max
        self.heartbeat_s = tune_ok.heartbeat
        return []

    def _check_limit(self, name: str, minimum: int, ours: int, theirs: int, method: base.Frame) -> None:
        """Refuse a limit below the minimum, or above ours (0 being the highest); the texts are RabbitMQ's."""
        if theirs and theirs < minimum:
            side, allowed, bound = "lower", "minimum", minimum
        elif ours and (not theirs or theirs > ours):
            side, allowed, bound = "higher", "maximum", ours
        else:
            return
        value = theirs or "0 (no limit)"
        reason = f"negotiated {name} = {value} is {side} than the {allowed} allowed value ({bound})"
        raise _error(ReplyCode.NOT_ALLOWED, reason, method)

    def _on_open(self, method: base.Frame) -> list[base.Frame]:
        self.vhost = cast("Connection.Open", method).virtual_host
        refusal = self._policy.check_vhost(self.vhost, self.user)
        if refusal:
            raise _error(ReplyCode.NOT_ALLOWED, refusal, method)
        return [methods.build(Connection.OpenOk)]

    def _on_close(self, _method: base.Frame) -> list[base.Frame]:
        return [methods.build(Connection.CloseOk)]

    #: (state, method) -> (handler, next state); no mechanism here needs a connection.secure
    _STEPS: ClassVar[dict[tuple[State, int], tuple[_Handler, State]]] = {
        (State.STARTING, Connection.StartOk.index): (_on_start_ok, State.TUNING),
        (State.TUNING, Connection.TuneOk.index): (_on_tune_ok, State.OPENING),
        (State.OPENING, Connection.Open.index): (_on_open, State.OPEN),
        # a client that gives up: RabbitMQ drops the socket, an answer is kinder
        (State.STARTING, Connection.Close.index): (_on_close, State.CLOSED),
        (State.TUNING, Connection.Close.index): (_on_close, State.CLOSED),
        (State.OPENING, Connection.Close.index): (_on_close, State.CLOSED),
    }


def _error(code: ReplyCode, reason: str, method: base.Frame) -> AmqpError:
    return AmqpError(code, reason, method.index >> 16, method.index & 0xFFFF)


def _true_names(capabilities: Field | None) -> frozenset[str]:
    if capabilities is None or capabilities[0] != "F":
        return frozenset()
    return frozenset(name for name, value in cast("Table", capabilities[1]).items() if value == ("t", True))


def _read_plain(response: bytes) -> tuple[bytes, bytes] | None:
    """Read ``NUL user NUL password``; an authorization identity in front is refused, as RabbitMQ does."""
    parts = response.split(b"\x00")
    return (parts[1], parts[2]) if len(parts) == 3 and not parts[0] else None


def _read_amqplain(response: bytes) -> tuple[bytes, bytes] | None:
    """Read a table without its length, with the long strings LOGIN and PASSWORD."""
    try:
        table, _ = read_table(len(response).to_bytes(4, "big") + response, 0)
    except AmqpError:
        return None
    login, password = table.get("LOGIN"), table.get("PASSWORD")
    if login is None or password is None or login[0] != "S" or password[0] != "S":
        return None
    return cast("bytes", login[1]), cast("bytes", password[1])


_RESPONSES: dict[str, Callable[[bytes], tuple[bytes, bytes] | None]] = {
    "PLAIN": _read_plain,
    "AMQPLAIN": _read_amqplain,
}

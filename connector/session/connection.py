"""One client's connection: from its bytes to its channels, and back into one output buffer.

Owns the connection's life (PC-01 to PC-09, PC-21), blocked (PC-19), which channel a frame belongs
to, and the one place where whatever went wrong becomes a close (style.md, Errors 2).  Channels do the rest.  Must not
know sockets, tasks or how messages are routed; it is called from outside and answers through ``ports.Runtime``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from pamqp import commands

from connector.amqp.encoders import HEARTBEAT
from connector.amqp.errors import AmqpError
from connector.amqp.frames import FrameReader, PublishHeld, encode_method
from connector.amqp.handshake import (
    PROTOCOL_HEADER,
    AuthenticationRefused,
    Handshake,
    HandshakePolicy,
    HeaderVerdict,
)
from connector.amqp.methods import build
from connector.amqp.reply_codes import ReplyCode
from connector.session.arriving import Part
from connector.session.channel import Channel
from connector.session.consume import cancel_consumers, on_basic_ack, on_basic_get, on_basic_nack, on_basic_reject
from connector.session.heartbeat import Heartbeat, Verdict
from connector.session.info import ConnectionInfo
from connector.session.marks import Mark, Pause, Reading
from connector.session.output import Output
from connector.session.publish import on_basic_publish, on_content_too_large
from connector.session.reply_map import is_bug, to_amqp_error

if TYPE_CHECKING:
    from pamqp.base import Frame

    from connector.broker.counters import Counters
    from connector.broker.ports import Clock
    from connector.session.arriving import Arriving
    from connector.session.policy import SessionPolicy
    from connector.session.ports import Broker, Runtime, VirtualHost

_PUBLISH, _GET, _ACK, _REJECT, _NACK = ((60, method) for method in (40, 70, 80, 90, 120))
_SETTLEMENTS = (_ACK, _REJECT, _NACK)


class Phase(Enum):
    """A connection's life."""

    HEADER = "waiting for the protocol header"
    HANDSHAKE = "up to connection.open"
    OPEN = "in use"
    CLIENT_CLOSING = "the client closed it; its publishes are still being stored"
    CLOSING = "we closed it and wait for close-ok"
    CLOSED = "over"


class Connection:
    """Implements ``amqp.frames.FrameHandler``.

    The runtime calls ``feed``, ``flush``, ``on_tick`` (twice a second or so), ``on_write_blocked`` and
    ``on_write_resumed``, ``block`` and ``unblock``, ``close``, and ``lost`` when the socket is gone.  After ``feed``
    and after ``flush`` queues may be waiting for ``broker.dispatch``.
    """

    tx_bytes = 0  #: published in transactions that are not committed yet, on all channels

    def __init__(
        self,
        broker: Broker,
        policy: SessionPolicy,
        runtime: Runtime,
        clock: Clock,
        counters: Counters,
        info: ConnectionInfo,
        arriving: Arriving,
    ) -> None:
        self.policy = policy
        self.counters = counters
        self.info = info
        self.frame_max = policy.frame_max_bytes
        self.method_ids = (0, 0)  # class and method being handled
        self.is_draining = False
        self.reading = Reading(runtime.pause_reading, runtime.resume_reading)
        self.output = Output(runtime, self.reading, policy.output_high_bytes, policy.unread_high_bytes)
        self.in_flight = Mark(policy.in_flight_high_bytes, self.reading, Pause.IN_FLIGHT)
        self.queued = Mark(policy.queued_high_bytes, self.reading, Pause.QUEUED)
        self.reader = self._new_reader()
        self._part = Part(arriving, self.reading, self._on_stalled)
        self._broker = broker
        self._runtime = runtime
        self._clock = clock
        self._vhost: VirtualHost | None = None
        self._phase = Phase.HEADER
        self._handshake = Handshake(self._handshake_policy())
        self._channels: dict[int, Channel] = {}
        self._closed_numbers: set[int] = set()  # channels that were open once
        self._current: Channel | None = None  # whose frame is being handled
        self._with_confirms: list[Channel] = []
        self._unfinished = 0  # channels that the client's connection.close waits for
        self._alarms: dict[str, bool] = {}  # reasons not to take publishes, in their order; True: strict, see ``block``
        self.is_blocked = False
        self._was_opened = False
        self._is_lost = False
        self._was_read = False
        self._heartbeat = Heartbeat(clock())
        self._close_at: float | None = clock() + policy.handshake_timeout_s

    def _new_reader(self) -> FrameReader:
        policy = self.policy
        bodies_bytes = policy.client_bodies_bytes
        return FrameReader(self, max_body_bytes=policy.max_body_bytes, max_bodies_bytes=bodies_bytes, opened=False)

    @property
    def phase(self) -> Phase:
        """Where the connection stands."""
        return self._phase

    @property
    def is_over(self) -> bool:
        """True when nothing of it is left but the last words on the socket."""
        return self._phase in {Phase.CLOSING, Phase.CLOSED}

    @property
    def channel_count(self) -> int:
        """Open channels."""
        return len(self._channels)

    @property
    def publishing_count(self) -> int:
        """Publishes that have no result yet."""
        return sum(channel.publishing_count for channel in self._channels.values())

    @property
    def unfinished_count(self) -> int:
        """Deliveries that the client has not decided about, and what its open transactions keep."""
        return sum(channel.unfinished_count for channel in self._channels.values())

    # ------------------------------------------------------------------ from the runtime

    def feed(self, data: bytes) -> None:
        """Take what came from the socket."""
        self._was_read = True
        came = len(data)
        if self._phase is Phase.HEADER:
            data = self._read_protocol_header(data)
        self._read(data)
        if self._alarms and self.reader.has_begun:
            self._announce_block()
        self._part.note(self.reader.buffered_bytes, came)

    def _read(self, data: bytes) -> None:
        while self._phase is not Phase.CLOSED:
            try:
                self.reader.feed(data)
            except PublishHeld:
                break
            except Exception as error:  # noqa: BLE001 # the boundary (style.md, Errors 2)
                self.on_failure(error, self._current)
                data = b""
            else:
                break

    def read_on(self) -> None:
        """Handle what was read and kept (``Runtime.wants_read``)."""
        if not self.is_over and Pause.ENDING not in self.reading.reasons:
            self.feed(b"")
            if not (self.reader.holds_publishes and self.reader.has_begun):
                self.reading.resume(Pause.KEPT)

    def flush(self) -> None:
        """Write what this turn has gathered, confirms coalesced."""
        self._write_confirms()
        if self._phase is Phase.CLOSED:
            self.output.discard()
            return
        if self.output.flush():
            self._offer_credit()
        self.output.go_on()

    def on_write_blocked(self) -> None:
        """The transport's buffer is full: no deliveries until it has room (PC-17)."""
        self.output.block()

    def on_write_resumed(self) -> None:
        """The transport's buffer has room again."""
        if self.output.unblock():
            self._offer_credit()
        self.output.go_on()

    def on_tick(self, now: float, *, is_cut_off: bool = False) -> None:
        """Look at the time: deadlines and heartbeats (PC-06, PC-21); KubeMQ may be away."""
        if self._close_at is not None and now >= self._close_at:
            self._abort()
        if self._phase is Phase.CLOSED:
            return
        verdict = self._heartbeat.look(
            now,
            was_read=self._was_read or bool(self.reading.reasons),  # what we do not read is no silence
            was_written=self.output.was_written,
        )
        self._was_read = self.output.was_written = False
        if verdict is Verdict.SEND:
            self.output.put(HEARTBEAT)
        elif verdict is Verdict.DEAD:
            self._abort()
        for channel in list(self._channels.values()):
            channel.check_wait(now, is_cut_off=is_cut_off)
            channel.check_acks(now)

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock()

    def block(self, reason: str, *, is_strict: bool = False) -> None:
        """KubeMQ cannot take more: where its next publish begins the connection is blocked and no longer read (PC-19).

        What has been read by then is still taken, unless ``is_strict``: that waits for ``read_on``.
        """
        self._alarms[reason] = is_strict
        self.reader.holds_publishes = any(self._alarms.values())
        if self.reader.has_begun:
            self._announce_block()

    def unblock(self, reason: str) -> None:
        """One reason is gone; with the last one the connection goes on."""
        self._alarms.pop(reason, None)
        self.reader.holds_publishes = any(self._alarms.values())
        if self.is_blocked and not self._alarms:
            self.is_blocked = False
            self.reading.resume(Pause.BLOCKED)
            if self.info.blocked_notify and not self.is_over:
                self._send(commands.Connection.Unblocked())

    def drain(self) -> None:
        """Take no more from stored queues, now or later; settling, publishing and replies go on (HA-08).

        A client that is not in yet is closed: it has nothing to finish.
        """
        self.is_draining = True
        if self._phase in {Phase.HEADER, Phase.HANDSHAKE}:
            self._end()
        for channel in self._channels.values():
            cancel_consumers(channel)

    def hold(self) -> None:
        """Read no more: what was published gets its confirms, then ``close`` follows."""
        if not self.is_over:
            self.reading.pause(Pause.ENDING)

    def close(self, reason: str) -> None:
        """Close from our side: 320 (drain, operator)."""
        if self._phase in {Phase.HEADER, Phase.HANDSHAKE}:
            self._end()
        else:
            self.method_ids = (0, 0)
            self._close_with(AmqpError(ReplyCode.CONNECTION_FORCED, reason))

    def lost(self) -> None:
        """The socket is gone: what was delivered goes back, once; what was published stays (PU-07, CO-17)."""
        if self._is_lost:
            return
        self._is_lost = True
        if self._was_opened:
            self.counters.connections_closed += 1
        elif self._phase is not Phase.HEADER:  # not a mere look at the port (PC-01)
            self.counters.connections_refused += 1
        self._phase = Phase.CLOSED
        self._close_at = None
        self.reading.detach()
        self.output.stop_deliveries()
        self._drop_channels()
        self.output.discard()

    # ------------------------------------------------------------------ what went wrong

    def on_failure(self, error: Exception, channel: Channel | None) -> None:
        """Close what has to be closed for an exception: the channel, or the connection."""
        amqp_error = to_amqp_error(error, *self.method_ids)
        if is_bug(error):
            self.counters.internal_errors += 1
        elif self.is_over:
            return
        if channel is not None and not amqp_error.is_hard:
            self._runtime.on_error(self, channel.number, amqp_error, error)
            channel.fail(amqp_error)
            return
        self._runtime.on_error(self, 0, amqp_error, error)
        if isinstance(error, AuthenticationRefused):
            self._refuse(error)
        else:
            self._close_with(amqp_error)

    def _on_stalled(self) -> None:
        """Its messages in part take up memory that others need, and it does not go on with them."""
        self._current = None
        self.method_ids = _PUBLISH
        reason = "messages were begun and not finished while other clients wait for the memory"
        self.on_failure(AmqpError(ReplyCode.RESOURCE_ERROR, reason), None)

    def _refuse(self, error: AuthenticationRefused) -> None:
        """A login that failed: said only to a client that understands it, and not at once (SE-01)."""
        self.counters.auth_failures += 1
        self.info.read(self._handshake)
        if error.is_silent:
            self._phase = Phase.CLOSING
            self.reader.discard_all()
            self._close_at = self._clock() + self.policy.refusal_delay_s
        else:
            self._close_with(error)

    def _close_with(self, error: AmqpError) -> None:
        """Send connection.close; from then on only close and close-ok count (PC-08)."""
        if self.is_over:
            return
        self._phase = Phase.CLOSING
        self._close_at = self._clock() + self.policy.closing_timeout_s
        self.reader.discard_all()
        self.reading.release()
        self.output.stop_deliveries()
        self._write_confirms()
        self._drop_channels()
        self._send(
            build(
                commands.Connection.Close,
                reply_code=int(error.code),
                reply_text=error.reply_text,
                class_id=error.class_id,
                method_id=error.method_id,
            )
        )

    def _end(self) -> None:
        """Write what there is and close the socket; a client that does not take it has a while."""
        self.output.flush()
        self._phase = Phase.CLOSED
        self._close_at = self._clock() + self.policy.closing_timeout_s
        self.output.stop_deliveries()
        self._drop_channels()
        self._runtime.close()

    def _abort(self) -> None:
        """Close the socket without waiting for anything."""
        self._phase = Phase.CLOSED
        self._close_at = None
        self.output.stop_deliveries()
        self._drop_channels()
        self._runtime.abort()

    def _drop_channels(self) -> None:
        self.reader.discard_all()
        self._part.leave()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.abandon()
        self.counters.channels_closed += len(channels)
        if self._vhost is not None:
            self._vhost.on_owner_gone(self)
            self._vhost = None

    # ------------------------------------------------------------------ handshake

    def _read_protocol_header(self, data: bytes) -> bytes:
        """Return what follows the header once it is whole and good; anything else gets ours and is closed (PC-01)."""
        verdict, rest = self._handshake.feed_protocol_header(data)
        if verdict is HeaderVerdict.ACCEPTED:
            self._phase = Phase.HANDSHAKE
            self._send(self._handshake.start())
        elif verdict is HeaderVerdict.REFUSED:
            self.output.put(PROTOCOL_HEADER)
            self._end()
        return rest

    def _handshake_policy(self) -> HandshakePolicy:
        policy = self.policy
        return HandshakePolicy(
            server_properties=policy.server_properties,
            authenticate=self._authenticate,
            check_vhost=self._find_vhost,
            channel_max=policy.channel_max,
            frame_max=policy.frame_max_bytes,
            heartbeat_s=policy.heartbeat_s,
        )

    def _authenticate(self, user: str, password: bytes, _mechanism: str) -> bool:
        return self.policy.authenticate(user, password, self.info.peer_host)

    def _find_vhost(self, name: str, _user: str) -> str:
        """Raise NotFound for an unknown virtual host (530 by ``reply_map``)."""
        self._vhost = self._broker.virtual_host(name)
        return ""

    def _on_handshake_method(self, method: Frame) -> None:
        handshake = self._handshake
        for reply in handshake.on_method(method):
            self._send(reply)
        if isinstance(method, commands.Connection.TuneOk):
            self.reader.frame_max = self.frame_max = handshake.frame_max
            self._heartbeat.interval_s = handshake.heartbeat_s
        if handshake.is_open:
            self._phase = Phase.OPEN
            self._close_at = None
            self._was_opened = True
            self.info.read(handshake)
            self.counters.connections_opened += 1
            self._runtime.on_opened(self)
        elif handshake.is_done:
            self._end()

    # ------------------------------------------------------------------ frames: the hot ones

    def on_publish(
        self, channel_no: int, exchange: str, routing_key: str, bits: int, header: bytes, body: bytes
    ) -> None:
        """basic.publish with its content."""
        channel = self._channels.get(channel_no)
        if channel is None:
            raise self._not_open(_PUBLISH)
        self._current = channel
        self.method_ids = _PUBLISH
        if self._alarms:
            self._announce_block()
        if channel.is_ready:
            on_basic_publish(channel, exchange, routing_key, bits, header, body)
        else:
            arguments = (exchange, routing_key, bits, header, body)
            channel.postpone(on_basic_publish, arguments, len(header) + len(body))

    def on_ack(self, channel_no: int, delivery_tag: int, multiple: bool) -> None:
        """basic.ack."""
        channel = self._channels.get(channel_no)
        if channel is None:
            if channel_no in self._closed_numbers:
                return  # late, see _on_channel
            raise self._not_open(_ACK)
        self._current = channel
        self.method_ids = _ACK
        if channel.is_ready:
            on_basic_ack(channel, delivery_tag, multiple)
        else:
            channel.postpone(on_basic_ack, (delivery_tag, multiple), 0)

    def on_nack(self, channel_no: int, delivery_tag: int, multiple: bool, requeue: bool) -> None:
        """basic.nack."""
        self._on_channel(channel_no, _NACK, on_basic_nack, delivery_tag, multiple, requeue)

    def on_reject(self, channel_no: int, delivery_tag: int, requeue: bool) -> None:
        """basic.reject."""
        self._on_channel(channel_no, _REJECT, on_basic_reject, delivery_tag, requeue)

    def on_get(self, channel_no: int, queue: str, no_ack: bool) -> None:
        """basic.get."""
        self._on_channel(channel_no, _GET, on_basic_get, queue, no_ack)

    def on_content_too_large(self, channel_no: int, size: int) -> None:
        """A publish whose header announces more than is allowed."""
        self._on_channel(channel_no, _PUBLISH, on_content_too_large, size)

    def on_heartbeat(self) -> None:
        """Nothing to do: any byte counts as a sign of life."""

    def _on_channel(
        self, channel_no: int, method_ids: tuple[int, int], handler: Callable[..., None], *arguments: Any
    ) -> None:
        channel = self._channels.get(channel_no)
        if channel is None:
            if method_ids in _SETTLEMENTS and channel_no in self._closed_numbers:
                return  # a late settlement on a channel that was open is harmless (PC-09)
            raise self._not_open(method_ids)
        self._current = channel
        self.method_ids = method_ids
        if channel.is_ready:
            handler(channel, *arguments)
        else:
            channel.postpone(handler, arguments, 0)

    def _not_open(self, method_ids: tuple[int, int]) -> AmqpError:
        """The error for a method on a channel that is not open: 504 for the connection (PC-09)."""
        self._current = None
        self.method_ids = method_ids
        return AmqpError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")

    # ------------------------------------------------------------------ frames: all other methods

    def on_method(self, channel_no: int, method: Frame, size: int) -> None:
        """Any method of the rest."""
        self.method_ids = ids = (method.index >> 16, method.index & 0xFFFF)
        if not channel_no:
            self._current = None
            self._on_connection_method(method)
            return
        self._current = channel = self._channels.get(channel_no)
        if channel is not None:
            channel.on_method(method, size)
        elif isinstance(method, commands.Channel.Open):
            self._open_channel(channel_no)
        else:
            raise self._not_open(ids)

    def _open_channel(self, number: int) -> None:
        """Open a channel; the number is free, their count is limited (PC-09)."""
        vhost = cast("VirtualHost", self._vhost)  # there is one before any channel
        most = self._handshake.channel_max
        if most and len(self._channels) >= most:
            reason = f"number of channels opened ({most}) has reached the negotiated channel_max ({most})"
            raise AmqpError(ReplyCode.NOT_ALLOWED, reason)
        self.reader.reset_channel(number)
        self._closed_numbers.discard(number)
        self._channels[number] = channel = Channel(self, number, vhost)
        self.counters.channels_opened += 1
        channel.reply(build(commands.Channel.OpenOk))

    def forget(self, channel: Channel) -> None:
        """A channel is closed on both sides: its number may be used again."""
        number = channel.number
        del self._channels[number]
        self._closed_numbers.add(number)
        self.reader.reset_channel(number)
        self.counters.channels_closed += 1

    def _on_connection_method(self, method: Frame) -> None:
        phase = self._phase
        if phase is Phase.HANDSHAKE:
            self._on_handshake_method(method)
        elif phase is Phase.OPEN:
            handler = _HANDLERS.get(type(method))
            if handler is None:
                raise AmqpError(ReplyCode.CHANNEL_ERROR, "unexpected method in connection state running")
            handler(self, method)
        elif phase is Phase.CLOSING:
            if isinstance(method, commands.Connection.Close):  # the client's crossed ours
                self._send(commands.Connection.CloseOk())
            else:
                self._end()

    def on_close(self, _method: Frame) -> None:
        """connection.close: end every channel after what it has sent, then answer (PU-07)."""
        self._phase = Phase.CLIENT_CLOSING
        self.reader.discard_all()
        self.output.stop_deliveries()
        channels = list(self._channels.values())
        self._unfinished = 1 + len(channels)
        for channel in channels:
            channel.finish_events(self._on_channel_finished)
        self._on_channel_finished()

    def _on_channel_finished(self) -> None:
        self._unfinished -= 1
        if not self._unfinished and self._phase is Phase.CLIENT_CLOSING:
            self._write_confirms()
            self._send(commands.Connection.CloseOk())
            self._end()

    def on_update_secret(self, method: Frame) -> None:
        """Log in again with a new secret, as the same user (PC-20)."""
        secret = cast("bytes", cast("commands.Connection.UpdateSecret", method).new_secret)
        if not self.policy.authenticate(self.info.user, secret, self.info.peer_host):
            raise AmqpError(ReplyCode.NOT_ALLOWED, "New secret was refused by one of the backends")
        self._send(commands.Connection.UpdateSecretOk())

    # ------------------------------------------------------------------ output

    def _send(self, method: Frame) -> None:
        self.output.put(encode_method(0, method))

    def on_confirms_ready(self, channel: Channel) -> None:
        """A channel has confirms to write with the next flush."""
        self._with_confirms.append(channel)
        self.output.ask_flush()

    def _write_confirms(self) -> None:
        channels, self._with_confirms = self._with_confirms, []
        for channel in channels:
            channel.write_confirms()

    def _offer_credit(self) -> None:
        """Deliveries may go on: the queues of all consumers look again."""
        for channel in self._channels.values():
            channel.offer_credit()

    def _announce_block(self) -> None:
        """The client publishes although KubeMQ cannot take more: say so, and read no more (PC-19)."""
        if self.reader.holds_publishes:
            self.reading.pause(Pause.KEPT)
            self._runtime.wants_read()
        if not self.is_blocked:
            self.is_blocked = True
            self.reading.pause(Pause.BLOCKED)
            if self.info.blocked_notify:
                self._send(build(commands.Connection.Blocked, reason=next(iter(self._alarms))))


_HANDLERS: dict[type[Frame], Callable[[Connection, Frame], None]] = {
    commands.Connection.Close: Connection.on_close,
    commands.Connection.UpdateSecret: Connection.on_update_secret,
}

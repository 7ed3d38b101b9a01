"""Raw-frame dialogues with the session on the real broker, without sockets, tasks or KubeMQ.

``Dialogue`` is one client of a ``World``: it sends frames, and expects the server's, decoded by pamqp.
"""

from __future__ import annotations

import struct
from typing import Any, TypeVar

import pytest
from pamqp import base, commands
from pamqp import body as pamqp_body
from pamqp import header as pamqp_header
from pamqp import heartbeat as pamqp_heartbeat

from connector.amqp import header as content_header
from connector.amqp.errors import AmqpError
from connector.amqp.handshake import PROTOCOL_HEADER
from connector.amqp.methods import METHODS
from connector.amqp.wire import table_from_python
from connector.session.connection import Connection
from connector.session.info import ConnectionInfo
from tests.support.frame_factory import FrameFactory, read_frames, split_frames
from tests.support.world import World, policy

#: The sentence of the specification that a protocol test proves.
spec = pytest.mark.spec

FrameT = TypeVar("FrameT", bound=base.Frame)

CAPABILITIES = (
    "publisher_confirms",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "authentication_failure_close",
)


class Socket:
    """Implements ``session.ports.Runtime`` for one connection."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.connection: Connection
        self.sent = bytearray()
        self.writes: list[int] = []
        self._is_reading = True
        self._is_closed = False
        self._is_aborted = False
        self.blocks_at: int | None = None  # the transport's high mark: bytes nobody has read

    def is_reading(self) -> bool:
        return self._is_reading

    def is_closed(self) -> bool:
        return self._is_closed

    def is_aborted(self) -> bool:
        return self._is_aborted

    def write(self, data: bytes) -> None:
        assert not self._is_closed, "written after close"
        self.sent += data
        self.writes.append(len(data))
        if self.blocks_at is not None and len(self.sent) >= self.blocks_at:
            self.connection.on_write_blocked()

    def wants_flush(self) -> None:
        self._world.wants_flush(self.connection)

    def wants_read(self) -> None:
        self._world.wants_read(self.connection)

    def pause_reading(self) -> None:
        assert self._is_reading
        self._is_reading = False

    def resume_reading(self) -> None:
        assert not self._is_reading
        self._is_reading = True

    def close(self) -> None:
        self._is_closed = True

    def abort(self) -> None:
        self._is_closed = self._is_aborted = True

    def on_opened(self, connection: Connection) -> None:
        self._world.opened.append(connection)

    def on_error(self, connection: Connection, channel_no: int, error: AmqpError, cause: BaseException) -> None:
        self._world.errors.append((channel_no, error, cause))


class Content:
    """A method with its content: basic.deliver, get-ok, return."""

    def __init__(self, method: Any, header: bytes, size: int) -> None:
        self.method = method
        self.header = header
        self.size = size
        self.body = b""
        self.frame_count = 0

    def __repr__(self) -> str:
        return f"<{self.method.name} {dict(self.method)} {self.body[:40]!r}>"


#: (channel, what came): a method, a method with content, a heartbeat
Item = tuple[int, Any]


class Dialogue:
    """One client, speaking frames."""

    def __init__(self, world: World, peer_host: str = "127.0.0.1", **policy_changes: Any) -> None:
        self.world = world
        self.socket = Socket(world)
        used = policy(**policy_changes) if policy_changes else world.policy
        info = ConnectionInfo(peer=f"{peer_host}:40000", peer_host=peer_host)
        self.connection = Connection(world.broker, used, self.socket, world.clock, world.counters, info, world.arriving)
        self.socket.connection = self.connection
        self.frame_max = 131072
        self._items: list[Item] = []

    # ------------------------------------------------------------------ sending

    def feed(self, data: bytes) -> Dialogue:
        """Send bytes as one batch."""
        self.connection.feed(data)
        self.world.settle()
        return self

    def frames(self, channel_no: int = 1) -> FrameFactory:
        """Frames of a channel."""
        return FrameFactory(channel_no, self.frame_max or 131072)

    def send(self, channel_no: int, kind: type[base.Frame], **fields: object) -> Dialogue:
        """Send a method; ``arguments`` may be a plain dict."""
        return self.feed(self.encode(channel_no, kind, **fields))

    def encode(self, channel_no: int, kind: type[base.Frame], **fields: object) -> bytes:
        """A method's frame."""
        for name, value in fields.items():
            if isinstance(value, dict):
                fields[name] = table_from_python(value)
        return self.frames(channel_no).method(kind, **fields)

    def publish(
        self,
        channel_no: int,
        routing_key: str,
        body: bytes = b"x",
        *,
        exchange: str = "",
        mandatory: bool = False,
        headers: dict[str, object] | None = None,
        **properties: object,
    ) -> Dialogue:
        """Send a message."""
        table = None if headers is None else table_from_python(headers)
        header = content_header.build(properties, table)
        publish = self.frames(channel_no).publish(routing_key, body, exchange, header, mandatory)
        return self.feed(publish)

    def lose(self) -> Dialogue:
        """The TCP connection breaks."""
        self.socket.close()
        self.connection.lost()
        self.world.settle()
        return self

    # ------------------------------------------------------------------ receiving

    def received(self) -> list[Item]:
        """Everything the server has sent and the test has not taken yet, content assembled; takes it."""
        data = bytes(self.socket.sent)
        self.socket.sent.clear()
        items, self._items = self._items, []
        partial: dict[int, Content] = {}
        raw_headers = [payload[12:] for kind, _, payload in split_frames(data) if kind == 2]
        for channel_no, frame in read_frames(data):
            if isinstance(frame, commands.Basic.Deliver | commands.Basic.GetOk | commands.Basic.Return):
                assert channel_no not in partial
                partial[channel_no] = Content(frame, b"", 0)
                continue
            if isinstance(frame, pamqp_header.ContentHeader):
                content = partial[channel_no]
                content.header, content.size = raw_headers.pop(0), frame.body_size
            elif isinstance(frame, pamqp_body.ContentBody):
                content = partial[channel_no]
                content.body += frame.value or b""
                content.frame_count += 1
            else:
                assert channel_no not in partial, "a method in the middle of content"
                items.append((channel_no, frame))
                continue
            if len(content.body) == content.size:
                items.append((channel_no, partial.pop(channel_no)))
        assert not partial, "content is not complete"
        return items

    def expect(self, channel_no: int, kind: type[FrameT], **fields: object) -> Any:
        """The next thing on this channel is this method (or its content), with these fields."""
        items = self.received()
        at = next((index for index, item in enumerate(items) if item[0] == channel_no), None)
        assert at is not None, f"nothing on channel {channel_no}, wanted {kind.name}; got {items}"
        found = items.pop(at)[1]
        self._items = items
        method = found.method if isinstance(found, Content) else found
        assert isinstance(method, kind), f"wanted {kind.name}, got {found} {dict(found) if found is method else ''}"
        got = {name: getattr(method, name) for name in fields}
        assert got == fields, f"{kind.name}: wanted {fields}, got {got}"
        return found

    def expect_nothing(self) -> Dialogue:
        """Nothing more has come."""
        items = self.received()
        assert not items, f"got {items}"
        return self

    def expect_close(self, code: int, text: str, ids: tuple[int, int], channel_no: int = 1) -> Dialogue:
        """channel.close with exactly this; answered."""
        close = self.expect(channel_no, commands.Channel.Close)
        assert (close.reply_code, close.reply_text, (close.class_id, close.method_id)) == (code, text, ids)
        return self.send(channel_no, commands.Channel.CloseOk)

    def expect_connection_close(self, code: int, text: str, ids: tuple[int, int]) -> Dialogue:
        """connection.close with exactly this, and nothing behind it; answered, whereupon the socket is closed."""
        close = self.expect(0, commands.Connection.Close)
        assert (close.reply_code, close.reply_text, (close.class_id, close.method_id)) == (code, text, ids)
        self.expect_nothing()
        assert not self.socket.is_closed()
        self.send(0, commands.Connection.CloseOk)
        assert self.socket.is_closed()
        return self

    def call(self, channel_no: int, kind: type[base.Frame], **fields: object) -> Any:
        """Send a method and expect its answer."""
        index = kind.index + 1 if kind is not commands.Exchange.Unbind else commands.Exchange.UnbindOk.index
        answer = METHODS[index]
        self.send(channel_no, kind, **fields)
        return self.expect(channel_no, answer)

    # ------------------------------------------------------------------ the usual beginnings

    def shake_hands(
        self,
        *,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        channel_max: int = 2047,
        frame_max: int = 131072,
        heartbeat_s: int = 0,
        capabilities: tuple[str, ...] = CAPABILITIES,
        channels: tuple[int, ...] = (1,),
    ) -> Dialogue:
        """Open the connection, and channels on it."""
        self.feed(PROTOCOL_HEADER)
        self.expect(0, commands.Connection.Start)
        self.start_ok(user, password, capabilities)
        self.expect(0, commands.Connection.Tune)
        self.frame_max = frame_max
        tune = self.encode(
            0, commands.Connection.TuneOk, channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat_s
        )
        self.feed(tune + self.encode(0, commands.Connection.Open, virtual_host=vhost))
        self.expect(0, commands.Connection.OpenOk)
        for number in channels:
            self.call(number, commands.Channel.Open)
        return self

    def start_ok(
        self,
        user: str,
        password: str,
        capabilities: tuple[str, ...] = CAPABILITIES,
        *,
        mechanism: str = "PLAIN",
        response: bytes | None = None,
    ) -> Dialogue:
        """Send connection.start-ok, with PLAIN or with any response."""
        properties: dict[str, object] = {
            "product": "dialogue",
            "version": "0.1",
            "connection_name": "the test",
            "capabilities": dict.fromkeys(capabilities, True),
        }
        return self.send(
            0,
            commands.Connection.StartOk,
            client_properties=properties,
            mechanism=mechanism,
            response=f"\0{user}\0{password}".encode() if response is None else response,
            locale="en_US",
        )

    def declare(self, queue: str = "", channel_no: int = 1, **fields: object) -> str:
        """Declare an exclusive queue (in memory), or what the fields say; returns its name."""
        fields = {"exclusive": True} | fields
        answer = self.call(channel_no, commands.Queue.Declare, queue=queue, **fields)
        name: str = answer.queue
        return name

    def get(self, queue: str, channel_no: int = 1, *, no_ack: bool = False) -> Any:
        """basic.get: the Content, or None when the queue is empty."""
        self.send(channel_no, commands.Basic.Get, queue=queue, no_ack=no_ack)
        items = self.received()
        assert len(items) == 1, items
        found = items[0][1]
        return None if isinstance(found, commands.Basic.GetEmpty) else found

    def consume(self, queue: str, tag: str = "t", channel_no: int = 1, **fields: object) -> str:
        """basic.consume; returns the tag."""
        self.send(channel_no, commands.Basic.Consume, queue=queue, consumer_tag=tag, **fields)
        answer: str = self.expect(channel_no, commands.Basic.ConsumeOk).consumer_tag
        return answer

    def deliveries(self, channel_no: int = 1) -> list[Content]:
        """All deliveries that have come on a channel; nothing else may have come on it."""
        items = self.received()
        found = [item for number, item in items if number == channel_no]
        self._items = [item for item in items if item[0] != channel_no]
        for item in found:
            assert isinstance(item, Content), f"got {item}"
            assert isinstance(item.method, commands.Basic.Deliver)
        return found

    def heartbeat_count(self) -> int:
        """Heartbeats that have come; nothing else may have come."""
        items = self.received()
        assert all(isinstance(item, pamqp_heartbeat.Heartbeat) for _, item in items), items
        return len(items)


def connect(world: World, **options: Any) -> Dialogue:
    """A client that has opened its connection, and channel 1 if the options say nothing else."""
    return Dialogue(world).shake_hands(**options)


def raw_frame(kind: int, channel_no: int, payload: bytes, end: int = 0xCE) -> bytes:
    """Any frame, also a broken one."""
    return struct.pack(">BHI", kind, channel_no, len(payload)) + payload + bytes((end,))

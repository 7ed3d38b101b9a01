"""A second frame reader, as plain as can be: what ``FrameReader`` must do, written without regard for speed.

Follows RabbitMQ 3.10 (its reader takes a frame, its command assembler takes a channel's frames to methods with
content).  Decodes one whole byte string and stops at the first error.
"""

from __future__ import annotations

import struct

from pamqp import commands

from connector.amqp import methods
from connector.amqp.errors import AmqpError
from tests.support.frame_factory import Call, fields_of

_SERVER_ONLY = {commands.Basic.Deliver.index, commands.Basic.Return.index, commands.Basic.GetOk.index}


class ReferenceReader:
    """Reads a stream; ``calls`` and ``code`` (0: no error) are the result."""

    def __init__(self, frame_max: int, max_body_bytes: int) -> None:
        self.frame_max = frame_max
        self.max_body_bytes = max_body_bytes
        self.calls: list[Call] = []
        self.code = 0
        #: channel -> [publish, header or None, body size, body so far]
        self.contents: dict[int, list[object]] = {}

    def read(self, data: bytes) -> ReferenceReader:
        """Read all complete frames, up to the first error."""
        while len(data) >= 7 and not self.code:
            kind, channel_no, size = struct.unpack(">BHI", data[:7])
            if size > self.frame_max:
                self.code = 501
            elif len(data) < size + 8:
                return self
            elif data[size + 7] != 0xCE:
                self.code = 501
            else:
                self.code = self._frame(kind, channel_no, data[7 : size + 7])
                data = data[size + 8 :]
        return self

    def _frame(self, kind: int, channel_no: int, payload: bytes) -> int:
        minimum = {1: 4, 2: 12, 3: 0, 8: 0}
        if kind not in minimum or len(payload) < minimum[kind] or (kind == 8 and payload):
            return 501
        if kind == 8:
            if channel_no:
                return 505
            self.calls.append(("heartbeat",))
            return 0
        if kind == 1:
            return 505 if channel_no in self.contents else self._method(channel_no, payload)
        return self._content(kind, channel_no, payload)

    def _method(self, channel_no: int, payload: bytes) -> int:
        index = struct.unpack(">I", payload[:4])[0]
        known = index in methods.METHODS
        if not channel_no and known and index >> 16 != 10:
            return 504
        if channel_no and (index >> 16 == 10 or index in _SERVER_ONLY):
            return 503
        if index == commands.Basic.Publish.index:
            return self._publish(channel_no, payload[4:])
        try:
            method = methods.decode(payload)
        except AmqpError as error:
            return int(error.code)
        name, fields = fields_of(method)
        hot = {
            "Basic.Ack": ("delivery_tag", "multiple"),
            "Basic.Nack": ("delivery_tag", "multiple", "requeue"),
            "Basic.Reject": ("delivery_tag", "requeue"),
            "Basic.Get": ("queue", "no_ack"),
        }
        if name in hot:
            self.calls.append((name[6:].lower(), channel_no, *(fields[key] for key in hot[name])))
        else:
            self.calls.append(("method", channel_no, name, fields))
        return 0

    def _publish(self, channel_no: int, arguments: bytes) -> int:
        rest = arguments[2:]
        names = []
        for _ in range(2):
            if not rest or len(rest) < rest[0] + 1:
                return 501
            names.append(rest[1 : rest[0] + 1].decode("utf-8", "surrogateescape"))
            rest = rest[rest[0] + 1 :]
        if len(rest) != 1:
            return 501
        self.contents[channel_no] = [(*names, rest[0] & 3), None, 0, b""]
        return 0

    def _content(self, kind: int, channel_no: int, payload: bytes) -> int:
        content = self.contents.get(channel_no)
        if content is None or (content[1] is None) != (kind == 2):
            return 505
        if kind == 2:
            class_id, weight, size = struct.unpack(">HHQ", payload[:12])
            if (class_id, weight) != (60, 0):
                return 505
            content[1:3] = [payload[12:], size]
            if size > self.max_body_bytes:
                self.calls.append(("content_too_large", channel_no, size))
        else:
            content[3] += payload  # type: ignore[operator]
        address, header, size, body = content
        assert isinstance(size, int)
        assert isinstance(body, bytes)
        assert isinstance(address, tuple)
        if len(body) > size:
            return 505
        if len(body) == size:
            del self.contents[channel_no]
            if size <= self.max_body_bytes:
                self.calls.append(("publish", channel_no, *address, header, body))
        return 0

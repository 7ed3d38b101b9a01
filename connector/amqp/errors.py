"""The one exception that carries a reply code.

Raised by the wire layer itself, and by the session after ``session/reply_map.py`` has translated a broker exception.
Must not know what is done with it (channel.close, connection.close, closing the socket).
"""

from __future__ import annotations

from connector.amqp.reply_codes import ReplyCode

#: A reply text is a short string.
_REPLY_TEXT_MAX_BYTES = 255
_CUT_MARK = b"..."


class AmqpError(Exception):
    """A protocol error: reply code, reason, and the class and method that failed (0 when there is none)."""

    def __init__(self, code: ReplyCode, reason: str = "", class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(code, reason, class_id, method_id)
        self.code = code
        self.reason = reason
        self.class_id = class_id
        self.method_id = method_id

    def __str__(self) -> str:
        return self.reply_text

    @property
    def is_hard(self) -> bool:
        """True when the connection must be closed, not just the channel."""
        return self.code.is_hard

    @property
    def reply_text(self) -> str:
        """``NAME - reason``, at most 255 bytes of valid UTF-8; a longer text ends in "..." as RabbitMQ's does.

        Names that are not UTF-8 arrive here with surrogates (see ``wire.read_shortstr``); they are shown with
        replacement characters, as many clients fail on a reply text that they cannot decode.
        """
        text = f"{self.code.name} - {self.reason}" if self.reason else self.code.name
        raw = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode("utf-8")
        if len(raw) <= _REPLY_TEXT_MAX_BYTES:
            return raw.decode("utf-8")
        kept = raw[: _REPLY_TEXT_MAX_BYTES - len(_CUT_MARK)].decode("utf-8", "ignore")
        return kept + _CUT_MARK.decode()

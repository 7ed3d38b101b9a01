"""A link to one other connector: messages arrive once and in order, or the other one is dead.

Owns numbering, acknowledgement, repetition and what is under way; KubeMQ's Events carry the frames and may lose, double
or swap them.  Both ends begin with the first message when both are members, and a connector that comes back is another
member, so there is no handshake.  Pure: ``runtime/peers.py`` sends the frames.

A frame is a line of JSON (``from``, ``to``, the highest number received in order ``ack``, the number of the first
message ``first`` and the messages' lengths ``sizes``), then the messages.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: One frame carries at most so many bytes of messages (but always one message).
FRAME_BYTES = 1_000_000
#: What is sent and not acknowledged stays within this.
WINDOW_BYTES = 8_000_000
#: What is not acknowledged after this is sent again; longer each time.
FIRST_PATIENCE_S = 0.25
LONGEST_PATIENCE_S = 1.0


class PeerLink:
    """``me`` and ``peer`` are members; ``receive`` gets each message once, in order; ``wake``: there is a frame."""

    def __init__(self, me: str, peer: str, receive: Callable[[bytes], None], wake: Callable[[], None]) -> None:
        self.peer = peer
        self._me = me
        self._receive = receive
        self._wake = wake
        self._waiting: deque[bytes] = deque()  # not sent yet
        self._sent: deque[bytes] = deque()  # sent, not acknowledged
        self._first = 1  # number of the first of these
        self._sent_bytes = 0
        self._received = 0
        self._early: dict[int, bytes] = {}
        self._owes_ack = False
        self._patience_s = FIRST_PATIENCE_S
        self._repeat_at = 0.0

    @property
    def unacked_count(self) -> int:
        """Messages that the peer may not have yet."""
        return len(self._waiting) + len(self._sent)

    def send(self, message: bytes) -> None:
        """Accept a message."""
        self._waiting.append(message)
        self._wake()

    def next_frame(self, now: float) -> bytes | None:
        """What is to be sent now; None when there is nothing."""
        if self._sent and now >= self._repeat_at:
            self._patience_s = min(LONGEST_PATIENCE_S, self._patience_s * 2)
            self._repeat_at = now + self._patience_s
            return self._frame(self._first, _batch(self._sent))
        fresh: list[bytes] = []
        if self._sent_bytes < WINDOW_BYTES:
            fresh = _batch(self._waiting)
        if not fresh and not self._owes_ack:
            return None
        number = self._first + len(self._sent)
        if fresh and not self._sent:
            self._repeat_at = now + self._patience_s
        for message in fresh:
            self._waiting.popleft()
            self._sent.append(message)
            self._sent_bytes += len(message)
        return self._frame(number, fresh)

    def due_at(self) -> float | None:
        """When something is to be repeated; None when nothing is under way."""
        return self._repeat_at if self._sent else None

    def _frame(self, number: int, messages: list[bytes]) -> bytes:
        self._owes_ack = False
        head = {
            "from": self._me,
            "to": self.peer,
            "ack": self._received,
            "first": number,
            "sizes": [len(m) for m in messages],
        }
        return b"\n".join((json.dumps(head, separators=(",", ":")).encode("ascii"), b"".join(messages)))

    def on_frame(self, head: dict[str, Any], rest: memoryview, now: float) -> None:
        """A frame of the peer."""
        self._on_ack(head["ack"], now)
        number, at = head["first"], 0
        for size in head["sizes"]:
            if number > self._received:
                self._early[number] = bytes(rest[at : at + size])
            at += size
            number += 1
        if head["sizes"]:
            self._owes_ack = True
            while (message := self._early.pop(self._received + 1, None)) is not None:
                self._received += 1
                self._receive(message)
        if self._owes_ack or self._waiting:
            self._wake()

    def _on_ack(self, upto: int, now: float) -> None:
        if upto < self._first:
            return
        self._patience_s = FIRST_PATIENCE_S
        while self._sent and self._first <= upto:
            self._sent_bytes -= len(self._sent.popleft())
            self._first += 1
        self._repeat_at = now + self._patience_s


def _batch(messages: deque[bytes]) -> list[bytes]:
    """The first of these that fit into one frame."""
    batch: list[bytes] = []
    size = 0
    for message in messages:
        size += len(message)
        if batch and size > FRAME_BYTES:
            break
        batch.append(message)
    return batch


def read_frame(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """The head of a frame and its messages; raises ValueError for what is none."""
    line, _, rest = data.partition(b"\n")
    head = json.loads(line)
    if not isinstance(head, dict) or not {"from", "to", "ack", "first", "sizes"} <= head.keys():
        raise ValueError("not a frame of a peer")
    return head, memoryview(rest)


def write_message(facts: dict[str, Any], *blobs: bytes) -> bytes:
    """A message: JSON, and what is not text."""
    head = json.dumps({**facts, "sizes": [len(blob) for blob in blobs]} if blobs else facts, separators=(",", ":"))
    return b"\n".join((head.encode("ascii"), b"".join(blobs)))


def read_message(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The reverse of ``write_message``."""
    line, _, rest = data.partition(b"\n")
    facts: dict[str, Any] = json.loads(line)
    blobs, at = [], 0
    for size in facts.pop("sizes", ()):
        blobs.append(rest[at : at + size])
        at += size
    return facts, blobs

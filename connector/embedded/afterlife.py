"""What a killed KubeMQ keeps of its dead self (``--afterlife``): subscriptions that were open live on after a restart.

Owns their record on disk and who is dead.  Rule (measured on KubeMQ 2.4.0): after SIGKILL the server restores the
subscriptions of its own dead inner clients as living members of the queue's group, with what was pending in them and
with room up to their limit; what they hold counts as waiting and reaches nobody.  An Events Store subscription under
the dead client's ID makes the server drop it, and its messages are back.  An orderly stop leaves nothing.
"""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path

from connector.embedded.engine import Engine, Member, QueueChannel

log = logging.getLogger("kubemq.embedded")


class Afterlife:
    """``note`` is called whenever a queue's members change."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self._path = folder / "subscriptions"
        self._engine = engine
        self._open: dict[str, list[int]] = {}
        self._dead: dict[str, Member] = {}
        self._restore()
        engine.on_members = self.note

    def note(self, channel: QueueChannel) -> None:
        """These are open at this moment: limits only, what is pending is the database's to know."""
        limits = [member.max_items for member in channel.members]
        if limits:
            self._open[channel.name] = limits
        else:
            self._open.pop(channel.name, None)
        self._path.write_text(json.dumps(self._open), encoding="utf-8")

    def drop(self, client_id: str) -> None:
        """Whoever comes under a dead client's ID ends it."""
        member = self._dead.pop(client_id, None)
        if member is not None:
            self._engine.leave(member)

    def close(self) -> None:
        """An orderly end."""
        self._path.unlink(missing_ok=True)

    def _restore(self) -> None:
        if not self._path.exists():
            return
        for name, limits in json.loads(self._path.read_text(encoding="utf-8")).items():
            channel = self._engine.channels.get(name)
            if channel is None:
                continue
            for max_items in limits:
                client_id = f"dead-{uuid.uuid4().hex}"
                member = self._dead[client_id] = self._engine.resurrect(channel, max_items)
                log.warning("subscription %s withholds %d messages of %r", client_id, len(member.pending), name)
            self._open[name] = limits

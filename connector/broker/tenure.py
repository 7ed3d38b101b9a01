"""Whether this member may go on reading, and which others are dead: by monotonic time and the beats that arrive.

Owns what was heard and when.  A member sends a beat every so often and hears its own come back through KubeMQ, which
proves that the others could hear it too.  It stops reading when its last beat that came back was sent longer ago than
``fence_s``; the others bury it when they have heard nothing for ``timeout_s``, which is longer.  While our own beats do
not come back nobody is dead: the link is; when they do again, the silence of the others counts from then on.  Pure.
Rules: docs/adr/0007-replicas.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NEVER = float("-inf")
#: In beats: as long as the last own one that came back is younger than this, the link is good.
GOOD_BEATS = 3
#: A member stops reading after this part of the time after which the others bury it.
FENCE = 2 / 3
BEATS = 12


class Tenure:
    """One life of one member."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.fence_s = timeout_s * FENCE
        self.beat_s = timeout_s / BEATS
        self._sent: dict[int, float] = {}
        self._last = 0
        self._confirmed_at = NEVER
        self._heard: dict[str, float] = {}
        self.has_lapsed = False  #: was out of touch; reads again after ``resume``

    def beat(self, now: float) -> int:
        """A beat is sent now; returns its number."""
        self._last += 1
        self._sent[self._last] = now
        return self._last

    def on_own(self, number: int, now: float) -> None:
        """One of our own has come back."""
        sent_at = self._sent.get(number)
        if sent_at is None:
            return
        for earlier in [n for n in self._sent if n <= number]:
            del self._sent[earlier]
        if sent_at - self._confirmed_at > GOOD_BEATS * self.beat_s:
            self._heard = dict.fromkeys(self._heard, now)
        if self._confirmed_at > NEVER and now - self._confirmed_at > self.fence_s:
            self.has_lapsed = True
        self._confirmed_at = sent_at

    def on_other(self, member_id: str, now: float) -> None:
        """A beat of another one."""
        self._heard[member_id] = now

    def watch(self, members: Iterable[str], now: float) -> None:
        """These are the others; who is new counts as heard now."""
        self._heard = {member: self._heard.get(member, now) for member in members}

    def resume(self) -> None:
        """What happened while we were out of touch is known now."""
        self.has_lapsed = False

    def may_read(self, now: float) -> bool:
        """Whether the others still take us for alive, for sure."""
        return not self.has_lapsed and now - self._confirmed_at <= self.fence_s

    def silent_for(self, member_id: str, now: float) -> float:
        """Seconds since it was heard; 0 while nothing can be heard."""
        if now - self._confirmed_at > GOOD_BEATS * self.beat_s:
            return 0.0
        return now - self._heard.get(member_id, now)

    def dead(self, now: float) -> list[str]:
        """Who has been silent for too long."""
        return [member for member in self._heard if self.silent_for(member, now) > self.timeout_s]

"""Whether somebody else reads a channel: a native consumer, a second owner, a half-open link, a dead server's self.

Owns the verdict, from what QueuesInfo's Subscribers says while a transaction of ours is open: it counts open
transactions, so 2 or more means that somebody else has one (1 proves nothing where ours is not open).  What is given
back on such a channel goes to them.  Knows no transaction: the lease says when ours was open.  Rule: design.md section
3, point 11.
"""

from __future__ import annotations

#: Without any sign of somebody else for so long, nobody is there (who polls has nothing open between two polls).
FORGET_S = 10.0
#: Stands for the open transaction while that of a lost stream of ours may be open too: it would be taken for another's.
LOST = "lost"


class Sharing:
    """``is_on``: nothing that is held may be given back; ``is_certain``: not just until the next count."""

    __slots__ = ("_seen_at", "is_certain", "is_on")

    def __init__(self) -> None:
        self.is_on = self.is_certain = False
        self._seen_at = 0.0

    def on_count(self, subscribers: int, began_with: str, ended_with: str, now: float) -> bool:
        """QueuesInfo has counted; the transactions that were open when the call began and ended ("": none).

        Two may be a moment's overlap of ours where it was not the same one all the time: it is only suspected then.
        Returns whether the verdict has changed.
        """
        if LOST in (began_with, ended_with):
            return False
        before = (self.is_on, self.is_certain)
        is_same = began_with == ended_with
        if subscribers > 1:
            self.is_on = True
            self.is_certain = self.is_certain or is_same
            self._seen_at = now
        elif now - self._seen_at >= FORGET_S or (began_with and is_same and not self.is_certain):
            self.is_on = self.is_certain = False
        return (self.is_on, self.is_certain) != before

"""The known backlog of one KubeMQ channel: how much is stored there and not read yet, and the purge of it.

Owns the counters of what this connector has stored, read and acknowledged, their correction by QueuesInfo, and how
much of the backlog a purge still takes.  Knows no transaction: the lease says what is in its hands.  Rules: design.md
section 3, points 2 and 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mapping.message_ids import is_ours

if TYPE_CHECKING:
    from collections.abc import Iterable

NEVER = float("-inf")
#: No limit: a purge without a known last Sequence takes by count alone.
UNBOUNDED = 1 << 62
#: What a purge has to take and cannot get for so long is left where it is: others hold it.
PURGE_PATIENCE_S = 3.0
#: Where nothing was counted for so long, KubeMQ was away: that was no time to wait for messages.
AWAY_S = 2 * PURGE_PATIENCE_S
#: Another connector tells what it has stored within so many seconds; what a count has more than was told may be that.
AHEAD_S = 0.5
#: How many counts may lower the known backlog though messages move: each may have what was just acknowledged in it.
SUSPICION = 5
#: How many MessageIDs are remembered that may be stored although they were refused.
UNKNOWN_CAPACITY = 16_384


class Snapshot(NamedTuple):
    """Where the counters stood when a QueuesInfo call began; ``highest`` is the highest Sequence read so far.

    ``transaction_id`` is that of the open transaction, "" when there was none; ``began_at`` is the moment in seconds.
    """

    stored: int
    read: int
    confirmed: int
    quiet: bool
    highest: int
    transaction_id: str = ""
    began_at: float = NEVER


class Backlog:
    """Counts are in messages; ``known_at`` is the second of the last QueuesInfo answer, ``counted_from`` of its call.

    The count is exact for what we store ourselves; ``pending_count`` is what is on its way to KubeMQ.  What was read
    before it was reported stored makes the net negative until then.
    """

    __slots__ = (
        "_ahead_count",
        "_ahead_from",
        "_clear_upto",
        "_in_vain",
        "_last_stored",
        "_net",
        "_presumed_count",
        "_raised_count",
        "_raised_upto",
        "_spared",
        "_unknown",
        "coming_count",
        "confirmed_count",
        "counted_from",
        "found_more",
        "highest_read",
        "is_empty",
        "is_refused",
        "is_unclear",
        "known_at",
        "last_sequence",
        "pending_count",
        "purge_left",
        "purge_upto",
        "read_count",
        "stored_count",
        "suspicion",
        "uncounted_count",
        "unpurged_count",
        "withheld",
    )

    def __init__(self) -> None:
        self._net = self.pending_count = 0
        self.known_at = self.counted_from = NEVER
        self.suspicion = 0  #: a Get had to wait for what is known to be there: so many counts may lower that
        self.coming_count = 0  #: of what is on its way: KubeMQ is storing it at this moment
        self.is_refused = False  #: the last one was not stored: what is on its way may not be either
        self.stored_count = self.read_count = self.confirmed_count = 0
        self.highest_read = 0
        self.is_empty = False  #: nothing at all was stored when last counted
        self.is_unclear = False  #: whether the last count had acknowledged messages in it, or unread ones, nobody knows
        self.found_more = False  #: the last count had messages that nobody has told us of: a native producer's, likely
        self.purge_left = self.purge_upto = 0
        self._in_vain = (NEVER, 0)  # since when so many cannot be had
        self.unpurged_count = 0  #: what the last purge could not have: others hold it
        self._spared: set[int] = set()
        self.withheld = 0  #: stored, but nobody can read them: a crashed server's own subscription has them
        self.last_sequence: int | None = None
        self._last_stored = 0
        self._raised_count = self._raised_upto = 0
        self._ahead_count = self._ahead_from = self._presumed_count = self._clear_upto = 0
        self.uncounted_count = 0  #: whether so many are stored, or second copies of them, nobody knows
        self._unknown: set[str] = set()

    @property
    def count(self) -> int:
        """Messages known to be unread."""
        return self._net if self._net > 0 else 0

    @property
    def soon_count(self) -> int:
        """What a Get begun now finds when KubeMQ comes to it: of what is being stored, the part not read yet."""
        return max(0, self._net + self.coming_count)

    def on_stored(self) -> None:
        """One that was on its way is stored."""
        self.pending_count -= 1
        self.stored_count += 1
        self._net += 1
        self.is_refused = False

    def on_announced(self, count: int, now: float) -> None:
        """Another connector has stored so many; the last count may have had some of them already."""
        self.stored_count += count
        if self._ahead_count and now - self.known_at < AHEAD_S:
            known_count = min(count, self._ahead_count)
            self._ahead_count -= known_count
            self._presumed_count += known_count
            count -= known_count
        self._net += count

    def on_refused(self) -> None:
        """One that was on its way is not stored."""
        self.is_refused = True
        self.pending_count -= 1
        self._net = max(self._net, -self.pending_count)

    def on_read(self, count: int, highest: int) -> None:
        """So many unread messages were read, up to the Sequence ``highest``."""
        self.read_count += count
        self._net = max(self._net - count, -self.pending_count)
        if self._net <= 0:
            self._raised_count = 0
        if highest > self.highest_read:
            self.highest_read = highest

    def note_unknown(self, message_ids: Iterable[str]) -> None:
        """These may be stored, although they were refused."""
        self.uncounted_count += len(self._unknown.union(message_ids)) - len(self._unknown)
        if len(self._unknown) < UNKNOWN_CAPACITY:
            self._unknown.update(message_ids)

    def is_told(self, sequence: int, message_id: str) -> bool:
        """Whether a message that is read is one of those that we were told of when they were stored."""
        if sequence <= self.highest_read or not is_ours(message_id):
            return False
        if message_id in self._unknown:
            self._unknown.discard(message_id)
            return False
        return True

    def has_again(self, sequence: int) -> bool:
        """Whether one that we have not counted is among those known to be unread: KubeMQ has counted more than we.

        That is one of a native producer, one that was read before and comes again, as an acknowledgement may be too
        late for the Get that follows it, and one whose store was not answered, or its second copy.  What KubeMQ stored
        after that count is not among them; and what is among them is not what another connector was about to tell: if
        so much was presumed to be, one too few is known.
        """
        if self._raised_count <= 0 or sequence > self._raised_upto:
            return False
        self._raised_count -= 1
        if sequence <= self._ahead_from:
            return True
        if self._ahead_count > 0:
            self._ahead_count -= 1
        elif self._presumed_count > 0:
            self._presumed_count -= 1
            return False
        return True

    @property
    def may_have_uncounted(self) -> bool:
        """Whether some may be there uncounted, and nothing is on its way: a count would show them."""
        return self.uncounted_count > 0 and self.pending_count == 0

    def take_uncounted(self) -> int:
        """It was counted: so many are unread that may all be second copies of others; 0 where not all can be."""
        if not self.may_have_uncounted:
            return 0
        most, self.uncounted_count = self.uncounted_count, 0
        return self.count if self.count <= most else 0

    def suspect(self) -> None:
        """A Get had to wait for what is known to be there: perhaps it is not."""
        self.suspicion = SUSPICION

    def on_given_back(self, count: int) -> None:
        """So many that were read are unread again."""
        self._net += count

    def on_short(self) -> None:
        """KubeMQ has no more at the moment."""
        self._net = min(self._net, 0)

    def begin_snapshot(self, is_quiet: bool, transaction_id: str = "", now: float = NEVER) -> Snapshot:
        """Note the counters: a QueuesInfo call begins, or has answered."""
        return Snapshot(
            self.stored_count, self.read_count, self.confirmed_count, is_quiet, self.highest_read, transaction_id, now
        )

    def correct(
        self,
        waiting: int,
        last_sequence: int | None,
        mine_count: int,
        began: Snapshot,
        is_quiet: bool,
        acked_count: int = 0,
    ) -> None:
        """QueuesInfo says ``waiting`` messages are stored and unacknowledged; ``mine_count`` of them are in hand.

        ``acked_count`` more are acknowledged, as far as we know: they may be among them or not.  What is certainly
        neither in hand nor still to be reported stored may always raise the count; it lowers it only when nothing moved
        during the call.  ``last_sequence`` is None where several channels are reported under one name.
        """
        self.withheld = max(0, min(self.withheld, waiting))
        in_hand = mine_count + acked_count + self.confirmed_count - began.confirmed
        unread = waiting - self.withheld - in_hand - self.pending_count
        is_exact = began.quiet and began == self.begin_snapshot(is_quiet, began.transaction_id, began.began_at)
        self._ahead_count = max(0, unread - self.count) if self.known_at > NEVER else 0
        self.found_more = self._ahead_count > 0
        self._ahead_from = self._clear_upto
        self._presumed_count = 0
        last = UNBOUNDED if last_sequence is None else last_sequence
        self.is_unclear = waiting - self.withheld - mine_count - self.pending_count > max(0, unread, self.count)
        if not self.is_unclear:
            self._clear_upto = last
        if is_exact or unread > self.count:
            # Before the first count somebody else may have read what we were told of.
            told_count = self.count - self._raised_count if self.known_at > NEVER else 0
            self._raised_count = max(0, unread - told_count)
            self._raised_upto = last
            self._net = max(0, unread)
        if self.suspicion:
            self._lower(waiting - self.withheld, mine_count, began)
            self.suspicion = self.suspicion - 1 if acked_count else 0  # else it is as low as it can be
        self.is_empty = waiting == 0 and self.pending_count == 0
        self.last_sequence = last_sequence
        self._last_stored = began.stored
        if is_exact:
            self.limit_purge()

    def _lower(self, waiting: int, mine_count: int, began: Snapshot) -> None:
        """Not above what can be there at most, though messages move: what a native client took was counted once."""
        held_count = max(0, mine_count - (self.read_count - began.read))  # all the time: it is among what waits
        most = waiting - held_count + self.stored_count - began.stored
        self._net = min(self._net, max(most, -self.pending_count))

    def on_counted(self, now: float, began: Snapshot) -> None:
        """QueuesInfo has answered."""
        if now - self.known_at > AWAY_S:
            self.renew_patience()
        self.known_at = now
        self.counted_from = began.began_at

    # ------------------------------------------------------------------ purge

    def start_purge(self, spared: Iterable[int] = ()) -> None:
        """Everything that is unread now is to go, nothing that is stored later, and not ``spared``: clients hold it.

        Sequences are dense, so what KubeMQ said last and what we have stored since bound it: an overcount takes
        nothing that came after.
        """
        self.purge_left = self.count
        self.unpurged_count = 0
        self.renew_patience()
        self._spared = set(spared)
        known = self.last_sequence
        self.purge_upto = UNBOUNDED if known is None else known + self.stored_count - self._last_stored

    def takes(self, sequence: int) -> bool:
        """Whether the purge takes the next unread message; what is read counts, whatever becomes of it."""
        if self.purge_left <= 0 or sequence in self._spared:
            return False
        if sequence > self.purge_upto:
            self.purge_left = 0
            return False
        self.purge_left -= 1
        return True

    def gives_up_purge(self, left: int, now: float) -> bool:
        """Nothing can be had now, and so much is left: True when that has lasted, and the purge ends without it."""
        since, before = self._in_vain
        if not left or left != before:
            self._in_vain = (now, left)
        elif now - since >= PURGE_PATIENCE_S:
            self.unpurged_count = left
            self.purge_left = 0
            return True
        return False

    def renew_patience(self) -> None:
        """Nothing could be had as KubeMQ was away: only what is asked of it from now on is in vain."""
        self._in_vain = (NEVER, 0)

    def limit_purge(self) -> None:
        """There is no more to purge than there is; what others took of it was not had: patience goes on."""
        taken = self.purge_left - self.count
        if taken > 0:
            self.purge_left = self.count
            since, left = self._in_vain
            self._in_vain = (since, left - taken)

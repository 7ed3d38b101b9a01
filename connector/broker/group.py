"""This connector as one of several on the same KubeMQ: its life as a member, and which queues it reads.

Owns joining, coming back after it was buried, burying others, and the switch of queues between read here and read
elsewhere, always as the topology log says.  Who is dead by time is ``tenure.py``'s; messages between members are
``peers.py``, ``peer_desk.py`` and ``away.py``.  Pure.  Rules: docs/adr/0007-replicas.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from connector.broker.away import Away
from connector.broker.figures import Survey
from connector.broker.members import Member, member_checked, member_joined, member_left, queue_given
from connector.broker.peer_desk import PeerDesk
from connector.broker.peers import Peers
from connector.broker.queue import StoredQueue
from connector.broker.tenure import Tenure

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.broker.exchanges.binding import BindingKey
    from connector.broker.figures import Around as SurveyAround
    from connector.broker.peer_desk import Around as DeskAround
    from connector.broker.peers import Facts
    from connector.broker.ports import Done
    from connector.broker.queue import Queue
    from connector.broker.topology import QueueRecord

    class Around(DeskAround, SurveyAround, Protocol):
        """What the group needs of the broker."""

        replica: str
        memory_bytes: int
        memory_limit_bytes: int
        leftover_count: int

        def append(self, event: dict[str, Any], done: Done) -> None:
            """Write to the topology log."""

        def on_bug(self, error: Exception) -> None:
            """An exception that nobody expected."""

        def report(self, what: str, **facts: object) -> None:
            """Tell an operator."""

        def all_stored(self) -> list[StoredQueue]:
            """Every queue with a KubeMQ channel that is not deleted."""

        def start_reading(self, queue: StoredQueue, seen: dict[str, int] | None) -> None:
            """Begin anew with this queue, whose reader we are or are not any more."""

        def look_for_drains(self) -> None:
            """Deleted queues may be ours to empty now."""

        def drop_leftovers(self, before: int) -> None:
            """Delete what is not durable and was declared before this event: all who used it are gone."""


#: What could not be logged is tried again after this.
RETRY_S = 0.5
#: A silent member on our host that does not run any more is buried after this.
LOOK_S = 1.0
#: The oldest member buries; the others wait this much longer, should it be dead too.
DEPUTY_S = 1.0
#: A count waits at most so long for what others have stored.
TELL_S = 0.1


class Identity(Protocol):
    """How processes on one host know each other."""

    host: str
    process: str
    name: str  #: of the replica, the same in all its lives; "" when it has none

    def has_ended(self, member: Member) -> bool:
        """Whether that member's process is known not to run any more; False when nobody here can tell."""


class Group:
    """``is_alone_at_start``: the KubeMQ server came up with us, so whoever was a member before is gone."""

    def __init__(
        self,
        around: Around,
        wake: Callable[[], None],
        identity: Identity,
        timeout_s: float,
        *,
        is_alone_at_start: bool = False,
    ) -> None:
        self.me = ""
        self.tenure = Tenure(timeout_s)
        self.peers = Peers(around.clock, wake)
        self.away = Away(around, self.peers)
        self.desk = PeerDesk(around, self.peers, self.away)
        self.survey = Survey(around, self.peers, self.away, self.desk.own_key)
        self.peers.on_ready = self.on_ready
        self.peers.on_bug = around.on_bug
        self.peers.handlers["tell"] = self._on_tell
        self.peers.before_frames = self._gather
        self.is_ready = False
        self._around = around
        self._identity = identity
        self._is_alone = is_alone_at_start
        self._lives = 0
        self._is_member = False
        self._is_leaving = False
        self._is_checking = False
        self._has_met = False  # somebody who was there before us lived
        self._burying: set[str] = set()
        self._giving: set[StoredQueue] = set()  # handed over, and the log has not said so yet
        self._unread: set[StoredQueue] = set()

    # ------------------------------------------------------------------ being a member

    def join(self) -> None:
        """Become a member; again, under another name, after others have buried us."""
        around, identity = self._around, self._identity
        self._lives += 1
        self.me = f"{around.replica}-{self._lives}"
        me = self.me

        def answer(result: object) -> None:
            if isinstance(result, Exception) and me == self.me and not self._is_member:
                around.call_later(RETRY_S, retry)

        def retry() -> None:
            if not self._is_member and not self._is_leaving:
                around.append(member_joined(me, identity.host, identity.process, identity.name), answer)

        retry()

    def leave(self, done: Callable[[], None]) -> None:
        """Stop: others need not wait until they miss us."""
        self._is_leaving = True
        if self._is_member:
            self._around.append(member_left(self.me), lambda _result: done())
        else:
            done()

    def on_members_changed(self) -> None:
        """The log says that somebody came or went."""
        around = self._around
        members = around.topology.members
        was_member, self._is_member = self._is_member, self.me in members.living
        others = [member for member in members.living if member != self.me] if self._is_member else []
        mine = members.living[self.me].joined if self._is_member else 0
        before = [member for member in others if members.living[member].joined < mine]
        fresh, gone = self.peers.update(self.me, others, waits_for=() if was_member else before)
        self.tenure.watch(others, around.clock())
        for member in gone:
            self._burying.discard(member)
            self.away.on_gone(member)
            self.desk.on_gone(member)
            self.survey.on_gone(member)
            if member not in members.living:
                around.report("connector is gone", member=member, members=len(members.living))
        for member in fresh:
            self.desk.greet(member)
            if self.is_ready and not around.leftover_count:
                self.peers.tell(member, {"t": "ready"})
            around.report("connector has joined", member=member, members=len(others) + 1)
        if self._is_member and not was_member:
            self._follow_namesake(before)
        self._update_all()
        around.look_for_drains()
        if was_member and not self._is_member and not self._is_leaving:
            around.report("other connectors took us for dead: what clients hold is delivered again", member=self.me)
            self.join()
        self._check_start()

    def _follow_namesake(self, before: list[str]) -> None:
        """Whoever had our name is our predecessor, and gone.

        But not when we come back: then it is another connector with our name, and two would bury each other for ever.
        """
        name, living = self._identity.name, self._around.topology.members.living
        for member in [member for member in before if name and living[member].name == name]:
            if self._lives == 1:
                self._bury(member)
            else:
                self._around.report("another connector has the same member_name", member=member, name=name)

    def _check_start(self) -> None:
        """Serve once everybody who was there before has told all it has, or is buried."""
        if self.is_ready or not self._is_member:
            return
        if self._is_alone:
            self._is_alone = False
            for member in list(self.peers.unready):
                self._bury(member)
        if not self.peers.unready:
            self.is_ready = True
            if not self._has_met:
                members = self._around.topology.members
                self._around.drop_leftovers(members.living[self.me].joined)
            else:
                self.tell_ready()

    def tell_ready(self) -> None:
        """What was left over from an earlier life of the group is gone; who started after us goes on."""
        self.peers.tell_all({"t": "ready"})

    def on_heard(self, member: str) -> None:
        """A beat of another one."""
        self.tenure.on_other(member, self._around.clock())

    def on_ready(self) -> None:
        """Somebody who was there before us has told all."""
        self._has_met = True
        self._check_start()

    def tick(self) -> None:
        """Every quarter second: who is dead, who waits too long, are we in touch."""
        now = self._around.clock()
        self.away.tick(now)
        self._check_start()
        if not self._is_member:
            return
        living = self._around.topology.members.living
        is_deputy = next((m for m in living if m == self.me or not self._is_dead(m, now)), self.me) != self.me
        for member in self.peers:
            silent_s = self.tenure.silent_for(member, now)
            is_late = silent_s > self.tenure.timeout_s + (DEPUTY_S if is_deputy else 0.0)
            if is_late or (silent_s > LOOK_S and self._identity.has_ended(living[member])):
                self._bury(member)
        for member in self.peers.unready:
            if self._identity.has_ended(living[member]):
                self._bury(member)
        if self.tenure.has_lapsed and not self._is_checking:
            self._check_standing()

    def _is_dead(self, member: str, now: float) -> bool:
        return self.tenure.silent_for(member, now) > self.tenure.timeout_s

    def _bury(self, member: str) -> None:
        if member in self._burying:
            return
        self._burying.add(member)

        def answer(result: object) -> None:
            if isinstance(result, Exception):
                self._burying.discard(member)

        self._around.report("connector is taken for dead", member=member)
        self._around.append(member_left(member), answer)

    def _check_standing(self) -> None:
        """We were out of touch: when this event is back we know whether the others have buried us."""
        self._is_checking = True

        def answer(result: object) -> None:
            self._is_checking = False
            if not isinstance(result, Exception):
                self.tenure.resume()

        self._around.append(member_checked(self.me), answer)

    def may_read(self) -> bool:
        """Whether messages may be fetched and acknowledged: the others do not think us dead yet, for sure.

        Where there are none, an outage of KubeMQ is no reason to wait for anything but its end.
        """
        return self._is_member and (not len(self.peers) or self.tenure.may_read(self._around.clock()))

    def when_told(self, done: Callable[[], None]) -> None:
        """Call ``done`` when the others have told what they had stored until now, or after a short while."""
        if not len(self.peers):
            done()
            return
        waiting: list[Callable[[], None]] = [done]

        def answer(*_answers: object) -> None:
            if waiting:
                waiting.pop()()

        self.peers.call_all({"t": "tell"}, answer)
        self._around.call_later(TELL_S, answer)

    def _on_tell(self, member: str, facts: Facts, _blobs: list[bytes]) -> None:
        self.away.tell_grown()
        self.peers.answer(member, facts)

    def _gather(self) -> None:
        """Frames are about to be made: what was counted since the last ones goes with them."""
        self.away.tell_grown()
        self.desk.flush()

    # ------------------------------------------------------------------ vhost.Others

    def announce(self, queue: Queue, done: Callable[[], None]) -> None:
        """See ``vhost.Others``."""
        self.desk.announce(queue, done)

    def withdraw(self, queue: Queue, done: Callable[[], None]) -> None:
        """See ``vhost.Others``."""
        self.desk.withdraw(queue, done)

    def announce_binding(self, queue: Queue, key: BindingKey, is_bound: bool, done: Callable[[], None]) -> None:
        """See ``vhost.Others``."""
        self.desk.announce_binding(queue, key, is_bound, done)

    def bind(self, queue: Queue, key: BindingKey, is_bound: bool, done: Done) -> None:
        """See ``vhost.Others``."""
        self.away.bind(queue, key, is_bound, done)

    def delete(self, queue: Queue, if_unused: bool, if_empty: bool, done: Done, again: Callable[[], None]) -> None:
        """See ``vhost.Others``."""
        self.away.delete(queue, if_unused, if_empty, done, again)

    # ------------------------------------------------------------------ who reads what

    def is_mine(self, record: QueueRecord) -> bool:
        """Whether this connector reads the queue."""
        return self._is_member and self._around.topology.members.owner_of(record) == self.me

    def _update_all(self) -> None:
        for queue in self._around.all_stored():
            self.update(queue)

    def update(self, queue: StoredQueue, seen: dict[str, int] | None = None) -> None:
        """The log may have given the queue to us, or to somebody else."""
        if queue in self._giving:
            return
        is_mine = self.is_mine(queue.record)
        if self._is_member and not self._around.topology.members.owner_of(queue.record):
            self._unread.add(queue)
        else:
            self._unread.discard(queue)
        if is_mine is not queue.is_owned:
            queue.is_owned = is_mine
            self._around.start_reading(queue, seen)
        if is_mine:
            self.away.on_owned(queue)
        elif queue.consumers:
            self.away.want(queue)

    def give(self, queue: StoredQueue, taker: str) -> None:
        """Nobody uses it here: stop reading it, then say so in the log."""
        seen = {
            str(source.generation): max(source.lease.highest_delivered, source.lease.redelivered_upto)
            for source in queue.sources
        }
        queue.is_owned = False
        self._giving.add(queue)
        self._around.start_reading(queue, None)

        def answer(_result: object) -> None:
            self._giving.discard(queue)
            if not queue.is_deleted:
                self.update(queue)

        self._around.append(queue_given(queue.record, self.me, taker, seen), answer)

    def unread_queues(self) -> list[StoredQueue]:
        """Those that no member reads, as their last reader is gone: the oldest member counts them for all."""
        if not self._unread or self._around.topology.members.oldest != self.me:
            return []
        self._unread = {queue for queue in self._unread if not queue.is_deleted}
        return list(self._unread)

    def waiting_consumer_count(self) -> int:
        """Consumers here of queues that another connector reads."""
        hosts = self._around.hosts()
        return sum(q.waiting_count for host in hosts for q in host.queues.values())


def is_elsewhere(queue: Queue) -> bool:
    """Whether another connector reads the queue, or keeps it."""
    return not queue.is_owned

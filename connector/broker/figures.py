"""How much there is in every queue, whoever reads it, for those who look at this connector (OP-11).

Owns what other members have said of the queues that they read or keep: one call for all of a member's, which tells only
of those that are not empty.  Who does not answer in time is shown as it was last; what is not known of it, and what
nobody reads, as KubeMQ counts it.  Rules: docs/adr/0007-replicas.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from connector.broker.away import key_of
from connector.broker.queue import StoredQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connector.broker.away import Away
    from connector.broker.peers import Facts, Peers
    from connector.broker.ports import Clock
    from connector.broker.queue import Queue
    from connector.broker.sources import Source
    from connector.broker.vhost import VirtualHost

#: Whoever looks waits so long for a member's answer.
PATIENCE_S = 1.0


class ChannelFigures(NamedTuple):
    """One of a queue's channels: messages, the age of the oldest in seconds, and whether somebody else reads it."""

    generation: int
    ready: int
    unacked: int = 0
    withheld: int = 0
    oldest_s: float | None = None
    is_shared: bool = False


class Figures(NamedTuple):
    """A queue: messages, consumers that get nothing where they are, and whether it is in doubt."""

    ready: int = 0
    unacked: int = 0
    waiting: int = 0
    is_held: bool = False
    channels: tuple[ChannelFigures, ...] = ()

    @property
    def is_worth_telling(self) -> bool:
        """Whether it differs from those of a queue that is empty and at rest."""
        return any(self[:4]) or any(any(channel[1:]) for channel in self.channels)


NOTHING = Figures()


def figures_of(queue: Queue, now: float) -> Figures:
    """Of a queue that is read, or lives, here."""
    waiting = queue.consumer_count - len(queue.consumers)
    if not isinstance(queue, StoredQueue):
        return Figures(queue.ready_count, queue.unacked_count, waiting if queue.consumers.is_single_active else 0)
    channels = tuple([_channel(source, now) for source in queue.sources])
    ready = sum([channel.ready for channel in channels])
    return Figures(ready, sum([channel.unacked for channel in channels]), waiting, queue.is_held, channels)


def _channel(source: Source, now: float) -> ChannelFigures:
    lease = source.lease
    ready, since = lease.ready_count, lease.oldest_since
    return ChannelFigures(
        source.generation,
        ready,
        len(lease.held) + len(lease.adopted.held),
        lease.unreadable_count,
        None if since is None or not (ready or lease.mine_count) else round(now - since, 1),
        lease.sharing.is_on,
    )


class Around(Protocol):
    """What is needed of the broker."""

    clock: Clock

    def hosts(self) -> list[VirtualHost]:
        """All virtual hosts."""

    def waiting_in(self, source: Source) -> int | None:
        """What KubeMQ counted in a channel last; None where it cannot be told from another one."""

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run ``action`` later."""


class Survey:
    """``own_key`` names ours to the others; a scope is [], [virtual host] or [virtual host, queue]."""

    def __init__(self, around: Around, peers: Peers, away: Away, own_key: Callable[[Queue], list[Any]]) -> None:
        self._around = around
        self._peers = peers
        self._away = away
        self._own_key = own_key
        self._known: dict[str, dict[tuple[Any, ...], Figures]] = {}
        self._scopes: dict[str, set[tuple[str, ...]]] = {}  # what they have told of: all else is not known
        peers.handlers["figures"] = self._on_question

    # ------------------------------------------------------------------ asking

    def look(self, scope: list[str], done: Callable[[], None]) -> None:
        """Call ``done`` when all who read or keep such queues have told, or have had their time."""
        members = self._members(scope)
        left = set(members)
        waiting = [done]

        def end() -> None:
            if waiting:
                waiting.pop()()

        def answer(member: str, facts: Facts | None) -> None:
            if facts is not None:
                self._keep(member, scope, facts["rows"])
            left.discard(member)
            if not left:
                end()

        self._away.tell_grown()
        for member in members:
            self._peers.call(member, {"t": "figures", "of": scope}, lambda facts, member=member: answer(member, facts))  # type: ignore[misc]
        if left:
            self._around.call_later(PATIENCE_S, end)
        else:
            end()

    def _members(self, scope: list[str]) -> list[str]:
        if len(scope) < 2:
            return list(self._peers)
        owners = [self._away.owner_of(queue) for queue in self._queues(scope) if not queue.is_owned]
        return [owner for owner in owners if owner in self._peers]

    def _queues(self, scope: list[str]) -> Iterator[Queue]:
        for host in self._around.hosts():
            if not scope or host.name == scope[0]:
                if len(scope) < 2:
                    yield from host.queues.values()
                elif scope[1] in host.queues:
                    yield host.queues[scope[1]]

    def _keep(self, member: str, scope: list[str], rows: list[list[Any]]) -> None:
        """What was known before of the same queues is out of date, those left out too."""
        known = self._known.get(member, {})
        size = len(scope)
        known = {key: figures for key, figures in known.items() if list(key[:size]) != scope} if size else {}
        for *key, ready, unacked, waiting, is_held, channels in rows:
            told = tuple([ChannelFigures(*channel) for channel in channels])
            known[tuple(key)] = Figures(ready, unacked, waiting, is_held, told)
        self._known[member] = known
        self._scopes.setdefault(member, set()).add(tuple(scope))

    def on_gone(self, member: str) -> None:
        """What it said is true no more."""
        self._known.pop(member, None)
        self._scopes.pop(member, None)

    # ------------------------------------------------------------------ what is known

    def is_known(self, queue: Queue) -> bool:
        """Whether it is read here, or its owner has told of it."""
        if queue.is_owned:
            return True
        scopes = self._scopes.get(self._away.owner_of(queue), set())
        vhost = queue.record.vhost
        return not scopes.isdisjoint({(), (vhost,), (vhost, queue.name)})

    def figures(self, queue: Queue) -> Figures:
        """As far as is known now."""
        if queue.is_owned:
            return figures_of(queue, self._around.clock())
        if self.is_known(queue):
            return self._known[self._away.owner_of(queue)].get(tuple(key_of(queue)), NOTHING)
        return self._counted(queue) if isinstance(queue, StoredQueue) else NOTHING

    def _counted(self, queue: StoredQueue) -> Figures:
        """By KubeMQ: nobody here knows what of it clients have in hand."""
        channels = []
        for source in queue.sources:
            count = self._around.waiting_in(source)
            channels.append(ChannelFigures(source.generation, source.lease.ready_count if count is None else count))
        ready = sum([channel.ready for channel in channels])
        return Figures(ready, 0, queue.consumer_count, queue.is_held, tuple(channels))

    # ------------------------------------------------------------------ answering

    def _on_question(self, member: str, facts: Facts, _blobs: list[bytes]) -> None:
        now = self._around.clock()
        rows = []
        for queue in self._queues(facts["of"]):
            figures = figures_of(queue, now) if queue.is_owned else NOTHING
            if figures.is_worth_telling:
                rows.append([*self._own_key(queue), *figures])
        self._peers.answer(member, facts, rows=rows)

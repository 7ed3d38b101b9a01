"""``kubemq-amqp rescue``: frees messages that a crashed KubeMQ server withholds, and tells the connectors.

Owns the order of things and what the operator reads; how it is done is ``backend/kubemq/rescue.py``'s.  Wires, like
``app.py``, and like it may know every class.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from typing import TYPE_CHECKING

from connector.backend.kubemq.client import KubeMQClient
from connector.backend.kubemq.rescue import Outcome, Rescuer
from connector.backend.kubemq.store import KubeMQStore
from connector.backend.kubemq.topology_log import KubeMQTopologyLog
from connector.broker.generations import queue_rescued
from connector.broker.ports import StoreError
from connector.broker.snapshots import replay
from connector.broker.topology import VERSION, Observer, Topology, decode_event, encode_event
from mapping import names

if TYPE_CHECKING:
    from typing import Any

    from connector.backend.kubemq.rescue import Subscription
    from connector.config import Config

_OF_DEAD = "of a dead server"
_OF_OTHERS = "of another process"
_OF_LIVING = "of the running server"


def run(config: Config, monitor: str, *, is_dry: bool) -> int:
    """Rescue everything on one server; returns the exit code: 1 when something is left or could not be done."""
    try:
        return asyncio.run(_rescue(config, monitor, is_dry=is_dry))
    except StoreError as error:
        sys.stderr.write(f"kubemq-amqp: {error}\n")
        return 1


async def _rescue(config: Config, monitor: str, *, is_dry: bool) -> int:
    client = KubeMQClient(
        config.kubemq_address, f"kubemq-amqp-rescue-{secrets.token_hex(6)}", auth_token=config.kubemq_auth_token
    )
    store = KubeMQStore(client)
    await store.start()
    log = KubeMQTopologyLog(client)
    try:
        rescuer = Rescuer(store, monitor)
        found = await rescuer.find()
        _tell(found.dead, _OF_DEAD, "would be freed" if is_dry else "to be freed")
        _tell(found.changing, _OF_OTHERS, "left alone: just come, or acknowledging; look again")
        _tell([row for row in found.living if row.pending_count], _OF_LIVING, "left alone")
        if not found.dead:
            _say("no subscription of a dead server on any queue")
        if is_dry:
            return 0
        outcome = await _free(rescuer, found.dead)
        not_free = {row.kubemq_channel for row in (*outcome.left, *found.changing)}
        for vhost, name in await _to_be_told(log, {row.kubemq_channel for row in outcome.freed}, not_free):
            event = {"v": VERSION, "id": secrets.token_hex(8), "member": "rescue", **queue_rescued(vhost, name)}
            await log.append(encode_event(event))
            _say(f"connectors were told: queue {name!r} in vhost {vhost!r}")
        return 1 if outcome.left else 0
    finally:
        await log.close()
        await store.close()


async def _free(rescuer: Rescuer, dead: list[Subscription]) -> Outcome:
    """Have them dropped, and tell what has become of each."""
    outcome = await rescuer.free(dead) if dead else Outcome([], [], [])
    _tell(outcome.freed, _OF_DEAD, "freed")
    _tell(outcome.answering, _OF_OTHERS, "left alone: its client answers the server, so it lives")
    _tell(outcome.left, _OF_DEAD, "STILL WITHHELD")
    for row in outcome.left:
        _say(f"{row.kubemq_channel}: the server said: {rescuer.said.get(row.client_id, 'nothing')}")
    return outcome


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _tell(rows: list[Subscription], whose: str, what: str) -> None:
    """One line for each channel."""
    channels: dict[str, list[int]] = {}
    for row in rows:
        channels.setdefault(row.kubemq_channel, []).append(row.pending_count)
    for channel, pending in sorted(channels.items()):
        subscriptions = _count(len(pending), "subscription")
        _say(f"{channel}: {_count(sum(pending), 'message')} in {subscriptions} {whose}: {what}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


async def _to_be_told(log: KubeMQTopologyLog, freed: set[str], not_free: set[str]) -> list[tuple[str, str]]:
    """The (vhost, name) of the queues that are withheld from as far as connectors know, or will do by a move under way.

    Not of those with a channel in ``not_free``; a move matters when something was ``freed`` meanwhile.
    """
    events: list[tuple[int, dict[str, Any]]] = []
    async with contextlib.aclosing(log.follow()) as following:
        async for sequence, data in following:
            if not sequence:
                break
            event = decode_event(data)
            if event is not None:
                events.append((sequence, event))
    topology = Topology(Observer())
    snapshot, later = replay(events)
    if snapshot is not None:
        topology.load_snapshot(snapshot)
    for sequence, event in later:
        topology.apply(sequence, event)
    told = []
    of_queues = {key: record.generations for key, record in topology.queues.items()}
    for key, generations in {**topology.left, **of_queues}.items():
        channels = {names.kubemq_channel(*key, number) for number in generations.order}
        is_known = any(each.withheld for each in generations.left.values())
        if (is_known or (generations.moving and channels & freed)) and not channels & not_free:
            told.append(key)
    return told

"""``kubemq-amqp rescue``: frees messages that a crashed KubeMQ server withholds, and tells the connectors.

Owns the order of things and what the operator reads; how it is done is ``backend/kubemq/rescue.py``'s.  Wires, like
``app.py``, and like it may know every class.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections import Counter
from typing import TYPE_CHECKING

from connector.backend.kubemq.client import KubeMQClient
from connector.backend.kubemq.rescue import Rescuer
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
        dead = await rescuer.dead()
        _tell(dead, "would be freed" if is_dry else "to be freed")
        if is_dry:
            return 0
        left = await rescuer.free(dead) if dead else []
        _tell(left, "STILL WITHHELD")
        for row in left:
            sys.stdout.write(f"{row.kubemq_channel}: the server said: {rescuer.said.get(row.client_id, 'nothing')}\n")
        for vhost, name in await _to_be_told(log, {row.kubemq_channel for row in left}):
            event = {"v": VERSION, "id": secrets.token_hex(8), "member": "rescue", **queue_rescued(vhost, name)}
            await log.append(encode_event(event))
            sys.stdout.write(f"connectors were told: queue {name!r} in vhost {vhost!r}\n")
        return 1 if left else 0
    finally:
        await log.close()
        await store.close()


def _tell(rows: list[Subscription], what: str) -> None:
    """One line for each channel, or that there is none."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.kubemq_channel] += row.pending_count
    for channel in sorted(counts):
        sys.stdout.write(f"{channel}: {counts[channel]} messages {what}\n")
    if not counts and what.startswith(("would", "to")):
        sys.stdout.write("no subscription of a dead server on any queue\n")


async def _to_be_told(log: KubeMQTopologyLog, left: set[str]) -> list[tuple[str, str]]:
    """The (vhost, name) of the queues that are known to be withheld from, but for those with a channel in ``left``."""
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
    return [
        key
        for key, record in topology.queues.items()
        if any(each.withheld for each in record.generations.left.values())
        and not left & {names.kubemq_channel(*key, number) for number in record.generations.order}
    ]

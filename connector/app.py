"""The whole process, wired: settings to objects, start, readiness, and an orderly end.

The only file that may know every class.  Start: embedded server (or a KubeMQ address), topology log folded, counts
taken, then the AMQP port.  End (SIGTERM, SIGINT): stop accepting, drain (``runtime/drain.py``), then leave; a second
signal leaves at once.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from connector.amqp.wire import table_from_python
from connector.backend.kubemq.client import KubeMQClient
from connector.backend.kubemq.peer_bus import KubeMQPeerBus
from connector.backend.kubemq.store import KubeMQStore
from connector.backend.kubemq.topology_log import KubeMQTopologyLog
from connector.broker.counters import Counters
from connector.broker.definitions import DefinitionsError
from connector.broker.errors import NotFound
from connector.broker.outbox import watch_repeated
from connector.broker.ports import StoreError
from connector.broker.queue import StoredQueue
from connector.ops.api import Api
from connector.ops.health import OpsServer, start_ops
from connector.ops.logs import set_up_logs
from connector.ops.metrics import BrokerCollector, Gauges, make_registry
from connector.runtime.child import ChildFailed, EmbeddedServer
from connector.runtime.definitions import DefinitionsDesk, read_file
from connector.runtime.drain import drain
from connector.runtime.hub import Hub
from connector.runtime.link import PING_S, Link
from connector.runtime.queue_view import BrokerQueues
from connector.runtime.tasks import Tasks
from connector.runtime.transport import ClientProtocol, ConnectionLimit
from connector.session.arriving import Arriving
from connector.session.policy import SessionPolicy
from connector.session.users import Users
from connector.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from connector.config import Config

CAPABILITIES = (
    "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify", "connection.blocked",
    "consumer_priorities", "authentication_failure_close", "per_consumer_qos", "direct_reply_to",
)  # fmt: skip
#: Settings shown as metrics beside what they bound.
MARKS = (
    "outbox_high_bytes",
    "outbox_high_count",
    "in_flight_high_bytes",
    "output_high_bytes",
    "memory_queues_high_bytes",
    "held_high_bytes",
    "partial_high_bytes",
    "client_bodies_size",
    "unread_high_bytes",
    "queued_high_bytes",
    "tx_max_size",
)
#: Two signals so close together are one request to stop.
SAME_SIGNAL_S = 1.0
LISTEN_BACKLOG = 1024
#: Exit codes: something failed; a setting cannot be used here (as for settings that cannot be read).
FAILED, BAD_SETTING = 1, 2
#: Fewer generation-0 collections: per-message objects rarely form cycles.
GC_THRESHOLD = 50_000

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class BrokerSettings:
    """What of the configuration the broker needs (``broker.Settings``)."""

    lanes: int
    get_batch: int
    requeues_in_place: bool
    delivers_early: bool
    memory_limit_bytes: int
    vhosts: list[str]


def run(config: Config) -> int:
    """Serve until a signal; returns the exit code."""
    set_up_logs(config.log_level, config.log_format)
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(App(config).serve())
    gc.freeze()  # the interpreter's own end would look for cycles among all queues, more than once
    return code


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class App:
    """One connector process."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._counters = Counters()
        self._stopping = asyncio.Event()
        self._stopping_since = 0.0
        self._child: EmbeddedServer | None = None
        self._hub: Hub | None = None
        self._server: asyncio.Server | None = None
        self._limit = ConnectionLimit(config.max_connections)
        self._link: Link | None = None
        self._ops: OpsServer | None = None

    async def serve(self) -> int:
        """Everything from start to end."""
        self._catch_signals()
        started = time.monotonic()
        code = 0
        try:
            async with asyncio.TaskGroup() as group:
                tasks = Tasks(group, self._counters)
                serving = group.create_task(self._serve(tasks, started), name="serve")
                await self._stopping.wait()
                await self._drain()
                if self._hub is not None:
                    self._hub.stop()
                serving.cancel()
                raise _Stopped  # noqa: TRY301
        except* _Stopped:
            pass
        except* (ChildFailed, CannotListen, DefinitionsError, OSError) as failed:
            for error in failed.exceptions:
                log.error("cannot serve", error=str(error))  # noqa: TRY400 # the user's to mend, not a bug
                code = max(code, BAD_SETTING if isinstance(error, ChildFailed | CannotListen) else FAILED)
        finally:
            await self._release()
        log.info("stopped")
        return code

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, signal.Signals(number).name)

    def _on_signal(self, name: str) -> None:
        now = time.monotonic()
        if self._stopping.is_set():
            if now - self._stopping_since < SAME_SIGNAL_S:  # a supervisor that signals the group and the child
                return
            log.warning("second signal: leaving at once", signal=name)
            sys.stderr.flush()
            os._exit(1)  # the child ends with our end of its pipe
        log.info("stopping", signal=name)
        self._stopping_since = now
        self._stopping.set()

    # ------------------------------------------------------------------ start

    async def _serve(self, tasks: Tasks, started: float) -> None:
        config = self._config
        definitions = read_file(config.definitions_file) if config.definitions_file else None
        server = self._server = await self._bind()
        api = Api(Users(config.users, config.loopback_users), unknown=NotFound, invalid=DefinitionsError)
        registry = make_registry(BrokerCollector(lambda: self._counters, self._gauges, self._marks()))
        self._ops = await start_ops(config.ops_host, config.ops_port, self._checks, registry, api)
        addresses = config.kubemq_address or (await self._start_embedded(tasks),)
        client = KubeMQClient(addresses, f"kubemq-amqp-{secrets.token_hex(6)}", auth_token=config.kubemq_auth_token)
        # the embedded server never loses an answer, so there a late one is only slow
        store = KubeMQStore(client, on_repeat=None if self._child else watch_repeated)
        link = self._link = Link(store)
        kubemq = await link.connect()
        hub = self._hub = self._make_hub(store, client, tasks)
        is_alone = self._child is not None
        hub.enter(KubeMQPeerBus(client), config.member_timeout_s, config.member_name, is_alone=is_alone)
        hub.on_server(kubemq)  # known before the topology is: what follows from a restart meanwhile is due then
        tasks.keep("ping", lambda: link.run(hub))
        hub.start()
        await hub.sync.loaded.wait()
        await self._count(hub)
        desk = api.desk = DefinitionsDesk(hub)
        api.queues = BrokerQueues(hub.broker, hub.counts.count)
        if definitions is not None:
            await desk.apply_at_start(definitions, config.definitions_file)
        await server.start_serving()
        if hub.broker.member_count > 1:
            log.warning(
                "other connectors are on this KubeMQ: the consumers of one queue are served by one of them at a time",
                connectors=hub.broker.member_count,
            )
        log.info(
            "listening",
            amqp=f"amqp://{config.host}:{server.sockets[0].getsockname()[1]}",
            ops=f"http://{config.ops_host}:{self._ops.port}",
            kubemq=client.address,
            connectors=hub.broker.member_count,
            queues=len(hub.broker.topology.queues),
            seconds=round(time.monotonic() - started, 2),
        )

    async def _bind(self) -> asyncio.Server:
        """Take the address for clients, before anything else is started; nobody is served yet.  Raises CannotListen."""
        host, port, policy = self._config.host, self._config.port, self._policy()

        def protocol() -> ClientProtocol:
            assert self._hub is not None  # noqa: S101 # there is one before clients are served
            return ClientProtocol(self._hub, policy, self._limit)

        try:
            return await asyncio.get_running_loop().create_server(
                protocol, host, port, backlog=LISTEN_BACKLOG, start_serving=False
            )
        except OSError as error:
            raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}") from error

    async def _start_embedded(self, tasks: Tasks) -> str:
        """Start the embedded server as a child; returns its address."""
        child = self._child = EmbeddedServer(self._config.data_dir)
        await child.start()
        tasks.keep("embedded server", child.watch)
        return child.address

    def _make_hub(self, store: KubeMQStore, client: KubeMQClient, tasks: Tasks) -> Hub:
        config = self._config
        return Hub(
            BrokerSettings(
                config.writer_lanes,
                config.get_batch_size,
                config.requeue == "original",
                config.deliver_when == "stored",
                config.memory_queues_high_bytes * 3 // 2,
                list(config.vhosts),
            ),
            store,
            KubeMQTopologyLog(client),
            tasks,
            self._counters,
            publish_deadline_s=config.publish_deadline_s,
            declare_deadline_s=config.declare_deadline_s,
            outbox_high_bytes=config.outbox_high_bytes,
            outbox_high_count=config.outbox_high_count,
            memory_high_bytes=config.memory_queues_high_bytes,
            held_high_bytes=config.held_high_bytes,
            arriving=Arriving(config.partial_high_bytes, config.client_bodies_size),
            store_retention_s=self._retention_s(),
        )

    def _retention_s(self) -> float:
        """The server's retention; the embedded one has none."""
        retention_s = self._config.store_retention_s if self._config.kubemq_address else 0.0
        if retention_s:
            log.warning("KubeMQ deletes old messages: queues are renewed before", store_retention_seconds=retention_s)
        return retention_s

    async def _count(self, hub: Hub) -> None:
        """The first look at every queue: its backlog, and what an earlier life had handed out."""
        while True:
            try:
                await hub.counts.count()
            except StoreError as error:
                log.warning("no counts yet", error=str(error))
                await asyncio.sleep(PING_S)
            else:
                return

    def _policy(self) -> SessionPolicy:
        config = self._config
        properties = {
            "product": config.advertise_product,
            "version": config.advertise_version,
            "platform": f"Python {sys.version_info.major}.{sys.version_info.minor}",
            "copyright": "Apache-2.0",
            "information": f"KubeMQ AMQP connector {VERSION}",
            "capabilities": dict.fromkeys(CAPABILITIES, True),
        }
        return SessionPolicy(
            authenticate=Users(config.users, config.loopback_users),
            server_properties=table_from_python(properties),
            channel_max=config.channel_max,
            frame_max_bytes=config.frame_max_bytes,
            heartbeat_s=config.heartbeat_s,
            max_body_bytes=config.max_body_bytes,
            handshake_timeout_s=config.handshake_timeout_s,
            wait_deadline_s=config.declare_deadline_s + PING_S,
            consumer_timeout_s=config.consumer_timeout_s,
            output_high_bytes=config.output_high_bytes,
            in_flight_high_bytes=config.in_flight_high_bytes,
            client_bodies_bytes=config.client_bodies_size,
            unread_high_bytes=config.unread_high_bytes,
            queued_high_bytes=config.queued_high_bytes,
            tx_max_bytes=config.tx_max_size,
        )

    # ------------------------------------------------------------------ health

    def _checks(self) -> Mapping[str, tuple[bool, str]]:
        return {
            "listener": (self._server is not None and self._server.is_serving(), ""),
            "kubemq": self._link.state() if self._link is not None else (False, "no answer yet"),
            "topology": (self._hub is not None and self._hub.sync.is_following, ""),
            "not stopping": (not self._stopping.is_set(), ""),
        }

    def _marks(self) -> Mapping[str, int]:
        return {name: getattr(self._config, name) for name in MARKS}

    def _gauges(self) -> Gauges:
        hub = self._hub
        vhosts = hub.broker.vhosts.values() if hub else ()
        queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
        outboxes = hub.broker.outboxes if hub else ()
        sources = list(hub.broker.sources()) if hub else []
        return Gauges(
            connections=len(hub.connections) if hub else 0,
            channels=self._counters.channels_opened - self._counters.channels_closed,
            consumers=sum(len(queue.consumers) for queue in queues),
            queues=len(queues),
            messages_ready=sum(q.ready_count for q in queues if q.is_owned) + (hub.broker.unread_count() if hub else 0),
            messages_unacked=sum(queue.unacked_count for queue in queues),
            outbox_count=sum(len(outbox) + outbox.aside_count for outbox in outboxes),
            outbox_bytes=sum(outbox.size_bytes for outbox in outboxes),
            memory_queues_bytes=hub.broker.memory_bytes if hub else 0,
            is_kubemq_connected=self._link is not None and self._link.state()[0],
            kubemq_moves=self._link.move_count if self._link is not None else 0,
            queues_shared=sum(source.lease.sharing.is_on for source in sources),
            oldest_message_s=hub.renewal.oldest_age_s() if hub else 0.0,
            messages_withheld=sum(source.lease.unreadable_count for source in sources),
            members=hub.broker.member_count if hub else 0,
            consumers_waiting=sum(queue.waiting_count for queue in queues),
            queues_in_doubt=sum(queue.is_held for queue in queues if isinstance(queue, StoredQueue)),
            tasks=len(asyncio.all_tasks()),
            partial_bytes=hub.arriving.size if hub else 0,
            held_bytes=hub.held_bytes if hub else 0,
            **self._client_bytes(),
        )

    def _client_bytes(self) -> dict[str, int]:
        """What all clients together have in the buffers that a mark bounds for each of them."""
        connections = list(self._hub.connections) if self._hub else []
        return {
            "in_flight_bytes": sum(connection.in_flight.size for connection in connections),
            "tx_bytes": sum(connection.tx_bytes for connection in connections),
            "queued_bytes": sum(connection.queued.size for connection in connections),
            "output_bytes": sum(client.output_bytes for client in self._limit.clients),
            "paused_connections": sum(bool(connection.reading.reasons) for connection in connections),
        }

    # ------------------------------------------------------------------ end

    async def _drain(self) -> None:
        """Take nothing new, let clients finish, and leave nothing behind that can be brought home."""
        if self._server is not None:
            self._server.close()
        if self._hub is not None:
            config = self._config
            await drain(self._hub, ack_s=config.drain_ack_s, deadline_s=config.drain_deadline_s)
            await self._hub.leave()

    async def _release(self) -> None:
        if self._ops is not None:
            await self._ops.stop()
        if self._child is not None:
            await self._child.stop()


class CannotListen(Exception):
    """The address for clients cannot be had; the text says why."""


class _Stopped(Exception):
    """Ends the task group in order."""

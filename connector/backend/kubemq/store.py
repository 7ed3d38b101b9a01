"""KubeMQ's queues as the broker's ``QueueStore``.

Owns the start (wait for the server, probe what it can do) and how streams and lanes are made; the requests are in
``upstream.py`` and ``downstream.py``.  Probes (KI-07): QueuesInfo must exist; the largest MaxReceiveCount is found by
sending messages that are refused in any case, the largest request as ``request_limit.py`` says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from connector.backend.kubemq.client import BODY_LIMIT_BYTES, KubeMQClient
from connector.backend.kubemq.downstream import KubeMQQueueStream
from connector.backend.kubemq.request_limit import RequestLimit
from connector.backend.kubemq.stubs import kubemq_pb2 as pb
from connector.backend.kubemq.topology_log import KubeMQTopologyLog
from connector.backend.kubemq.upstream import KubeMQStoreLane, Repeat
from connector.broker.ports import ChannelInfo, Outgoing, ReadEvent, ServerInfo
from mapping.policy import MAX_RECEIVE_COUNT

#: KubeMQ's text for a MaxReceiveCount above its setting Queue.MaxReceiveCount starts with this.
_INVALID_MAX_RECEIVE_COUNT = "Error 134"


_OTHER_DATA = "its data are not those of the address in use: it is no node of the same cluster"


class KubeMQStore:
    """``ports.QueueStore`` on a KubeMQ server; call ``start`` first, ``close`` at the end.

    ``get_timeout_s`` is the deadline of every request of a reading stream (above 1 s, which a short Get takes),
    ``send_timeout_s`` that of a batch.  ``limit_bytes`` is the server's Grpc.BodyLimit or above: it is tried.
    ``on_repeat`` hears of every batch that is sent a second time, after ``repeat_after_s`` seconds without an answer:
    its messages may then be stored twice, with the same MessageIDs.  Without it nothing is sent twice.
    """

    def __init__(
        self,
        client: KubeMQClient,
        *,
        get_timeout_s: float = 5.0,
        send_timeout_s: float = 10.0,
        limit_bytes: int = BODY_LIMIT_BYTES,
        on_repeat: Callable[[Sequence[Outgoing]], None] | None = None,
        repeat_after_s: float = 0.5,
    ) -> None:
        self.client = client
        self.max_receive_count = MAX_RECEIVE_COUNT
        self.repeated_count = 0
        self._get_timeout_s = get_timeout_s
        self._send_timeout_s = send_timeout_s
        self._limit = RequestLimit(client.takes, limit_bytes)
        self._on_repeat = on_repeat
        self._repeat = Repeat(repeat_after_s, self._tell_repeat) if on_repeat else None

    async def start(self, deadline_s: float = 30.0) -> ServerInfo:
        """Wait until a server answers, then probe it.

        Raises Unavailable (nobody answered), TimedOut, or Rejected with a clear text when the server cannot serve.
        """
        info = await self.client.connect(deadline_s)
        self.max_receive_count = await self._largest_receive_count()
        self._limit.forget()
        await self._limit.prove()
        return info

    async def close(self) -> None:
        """Close the connections; whoever waits for an answer gets Unavailable."""
        await self.client.close()

    def open_stream(self) -> KubeMQQueueStream:
        """Return a new reading stream; it connects with its first request."""
        client = self.client
        return KubeMQQueueStream(client.open_downstream, client.client_id, self._get_timeout_s, client.health)

    def open_lane(self) -> KubeMQStoreLane:
        """Return a new writing stream; it connects with its first batch."""
        return KubeMQStoreLane(
            self.client.open_upstream,
            self.client.client_id,
            pb.QueueMessagePolicy(MaxReceiveCount=self.max_receive_count),
            self._send_timeout_s,
            self._limit,
            self._repeat,
            self.client.health,
        )

    async def snapshot(self) -> list[ChannelInfo]:
        """QueuesInfo of all channels in one call; raises Unavailable or TimedOut."""
        return await self.client.queues_info()

    async def ping(self) -> ServerInfo:
        """Ping; raises Unavailable or TimedOut."""
        return await self.client.ping()

    @property
    def address(self) -> str:
        """The address in use."""
        return self.client.address

    def trouble(self) -> str:
        """Return what the server refuses although it answers Pings; empty when nothing."""
        return self.client.health.trouble()

    async def move(self, is_ours: Callable[[ReadEvent], Awaitable[bool]]) -> dict[str, str]:
        """Use another address that is healthy and whose topology log is ours; per address passed over, why."""

        async def check(other: KubeMQClient) -> str:
            return "" if await is_ours(KubeMQTopologyLog(other).read) else _OTHER_DATA

        before = self.client.address
        refused = await self.client.move(check)
        if self.client.address != before:
            self._limit.forget()
        return refused

    def _tell_repeat(self, batch: Sequence[Outgoing]) -> None:
        self.repeated_count += 1
        if self._on_repeat is not None:
            self._on_repeat(batch)

    async def _largest_receive_count(self) -> int:
        """Return our MaxReceiveCount, halved until the server takes it.

        Every message of the probe has a negative delay, which is refused after the count was checked: nothing is
        stored.  A server that answers in other words is taken to allow ours.
        """
        counts = [MAX_RECEIVE_COUNT >> shift for shift in range(MAX_RECEIVE_COUNT.bit_length())]
        probe = [
            pb.QueueMessage(
                MessageID="~probe",
                ClientID=self.client.client_id,
                Channel="amqp.~probe",
                Metadata="probe",
                Policy=pb.QueueMessagePolicy(MaxReceiveCount=count, DelaySeconds=-1),
            )
            for count in counts
        ]
        errors = await self.client.send_batch(probe)
        allowed = (
            count
            for count, error in zip(counts, errors, strict=False)
            if not error.startswith(_INVALID_MAX_RECEIVE_COUNT)
        )
        return next(allowed, 1)

"""SendRequest: commands and queries, of which this server answers only those to the cluster's own channel.

Owns what KubeMQ's SDK asks there: list, create and delete channels.  Nobody can subscribe to requests here, so every
other one times out as it does on a KubeMQ without a responder; so do the cluster's with the quirk ``silent_cluster``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import grpc
from kubemq.grpc import kubemq_pb2 as pb

from connector.embedded import rules
from connector.embedded.core import Core
from connector.embedded.event_log import EventLog

RequestContext = grpc.aio.ServicerContext[pb.Request, pb.Response]

CLUSTER_CHANNEL = "kubemq.cluster.internal.requests"


class RequestCalls:
    """Serves SendRequest."""

    def __init__(self, core: Core, log: EventLog) -> None:
        self._core = core
        self._log = log

    async def send(self, request: pb.Request, context: RequestContext) -> pb.Response:
        """Answer, or let the request's time pass and say so."""
        problem = _problem(request)
        if problem:
            await context.abort(grpc.StatusCode.INTERNAL, problem)
        if request.Channel != CLUSTER_CHANNEL or self._core.quirks.silent_cluster:
            await asyncio.sleep(request.Timeout / 1000)
            await context.abort(grpc.StatusCode.INTERNAL, rules.REQUEST_TIMED_OUT)
        response = pb.Response(ClientID=request.ClientID, RequestID=request.RequestID)
        kind, name = request.Tags["channel_type"], request.Tags["channel"]
        match request.Metadata:
            case "list-channels":
                response.Body = json.dumps(self._list(kind, request.Tags["channel_search"])).encode()
            case "create-channel":
                response.Error = await self._create(kind, name)
            case "delete-channel":
                response.Error = self._delete(kind, name)
            case _:
                response.Error = f"unknown request {request.Metadata!r}"
        response.Executed = not response.Error
        return response

    def _list(self, kind: str, search: str) -> list[dict[str, Any]]:
        """The rows the SDK decodes; ``search`` is a part of the name."""
        if kind == "events_store":
            return list(_rows(kind, (name for name in self._log.names() if search in name)))
        if kind != "queues":
            return []
        rows: list[dict[str, Any]] = []
        for name, queue in self._core.engine.channels.items():
            if search in name:
                stats = {"messages": queue.last_sequence, "volume": queue.stored_bytes, "waiting": queue.waiting()}
                empty = {"expired": 0, "delayed": 0}
                rows += _rows(kind, [name], stats | empty, is_active=bool(queue.members))
        return rows

    async def _create(self, kind: str, name: str) -> str:
        problem = rules.queue_name_problem(name) or rules.stored_name_problem(name)
        if problem or kind not in ("queues", "events_store"):
            return problem or f"channels of type {kind!r} need no creating here"
        if kind == "events_store":
            return await self._log.create(name)
        intake = self._core.publisher.intake()
        intake.add_channel(name)
        await intake.save()
        return intake.error

    def _delete(self, kind: str, name: str) -> str:
        if kind != "queues":
            return f"channels of type {kind!r} cannot be deleted here"
        queue = self._core.engine.channels.get(name)
        if queue is None:
            return "no such channel"
        if queue.members:
            return "the channel is in use"
        self._core.catalog.remove_queue(name)
        return ""


def _rows(
    kind: str, names: Iterable[str], stats: dict[str, int] | None = None, *, is_active: bool = False
) -> Iterable[dict[str, Any]]:
    numbers = stats or {"messages": 0, "volume": 0}
    for name in names:
        yield {
            "name": name,
            "type": kind,
            "lastActivity": 0,
            "isActive": is_active,
            "incoming": numbers,
            "outgoing": numbers,
        }


def _problem(request: pb.Request) -> str:
    if request.RequestTypeData not in (pb.Request.Command, pb.Request.Query):
        return rules.BAD_REQUEST_TYPE
    problem = rules.event_channel_problem(request.ClientID, request.Channel)
    if not problem and request.Timeout <= 0:
        problem = rules.NO_TIMEOUT
    if not problem and not request.Metadata and not request.Body:
        problem = rules.EMPTY_REQUEST
    return problem

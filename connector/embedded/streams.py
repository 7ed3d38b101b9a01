"""Reading requests off a gRPC stream.

Owns the difference between a client that is gone (the call is cancelled) and one that has only finished sending.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import grpc

RequestT = TypeVar("RequestT")


async def read_or_none(context: grpc.aio.ServicerContext[RequestT, Any]) -> RequestT | None:
    """The next request, or None when the client has finished sending."""
    message: Any = await context.read()
    return None if message is grpc.aio.EOF else message


async def next_request(context: grpc.aio.ServicerContext[RequestT, Any]) -> RequestT:
    """The next request; after the last one it waits for the end of the call: KubeMQ's half-closed streams live on."""
    request = await read_or_none(context)
    if request is None:
        await asyncio.get_running_loop().create_future()
        raise AssertionError
    return request

"""From gRPC's errors to the port's: nothing of gRPC leaves this package.

Owns the one translation.  RESOURCE_EXHAUSTED is what a server answers when a message, or the answer to a Get, is
larger than its Grpc.BodyLimit (measured).  Whatever else breaks a call leaves its result unknown.
"""

from __future__ import annotations

import grpc
import grpc.aio

from connector.broker.ports import StoreError, TimedOut, TooMuch, Unavailable

_KINDS: dict[grpc.StatusCode, type[StoreError]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: TooMuch,
    grpc.StatusCode.DEADLINE_EXCEEDED: TimedOut,
}


def error_kind(code: grpc.StatusCode) -> type[StoreError]:
    """Return the class of the port's exception for a status."""
    return _KINDS.get(code, Unavailable)


def error_text(error: grpc.aio.AioRpcError) -> str:
    """Return one line for logs: the status and what the server or gRPC says to it."""
    return f"KubeMQ: {error.code().name} {error.details() or ''}".rstrip()


def store_error(error: grpc.aio.AioRpcError) -> StoreError:
    """Return the port's exception for what a gRPC call raised."""
    return error_kind(error.code())(error_text(error))

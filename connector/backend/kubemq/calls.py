"""gRPC calls, streaming ones with deadlines, raising the port's exceptions.

Owns the life of a call: opened at its first use, gone at the first failure (the result of what is under way is then
unknown, and so is the stream's state), dropped on request.  Knows no requests.  A deadline is a timer that cancels the
call: no task and no ``asyncio.timeout`` per request, and mostly no timer of its own, as an earlier request's goes
on.  Whatever ends a call, a move to another address among it, ends who waits for it: gRPC alone does not see to that.
A call that is over is let go at once, used or not: as long as one is kept, gRPC goes on connecting its channel, closed
or not (measured: docs/adr/0003).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar, cast

import grpc.aio

from connector.backend.kubemq.errors import error_kind, error_text
from connector.broker.ports import NotSent, Rejected, StoreError, TimedOut, Unavailable

Request = TypeVar("Request")
Response = TypeVar("Response")
AnyCall: TypeAlias = "grpc.aio.UnaryStreamCall[Any, Response] | grpc.aio.StreamStreamCall[Any, Response]"

_ENDED = "KubeMQ ended the stream"
_CANCELLED = "the request was cancelled"
#: No deadline runs.
_NEVER = float("inf")


async def answer(call: grpc.aio.UnaryUnaryCall[Any, Response]) -> Response:
    """Return the answer to a call of one request.  Raises AioRpcError; Unavailable when its channel was closed."""
    try:
        return await call
    except asyncio.CancelledError:
        if _is_task_cancelled():
            raise
        raise Unavailable(_CANCELLED) from None


def _is_task_cancelled() -> bool:
    """Whether the task is to end: gRPC raises CancelledError for a cancelled call as well."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Inbound(Generic[Response]):
    """A call whose responses are a stream; ``open_call`` starts it.  One task reads; after a failure all raises it."""

    __slots__ = ("_call", "_deadline_s", "_due_at", "_failure", "_open_call", "_timer")

    def __init__(self, open_call: Callable[[], AnyCall[Response]]) -> None:
        self._open_call = open_call
        self._call: AnyCall[Response] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = self._deadline_s = _NEVER
        self._failure: tuple[type[StoreError], str] | None = None

    @property
    def is_gone(self) -> bool:
        """True after a failure or ``drop``, and when KubeMQ or the link has ended the call meanwhile."""
        return self._failure is not None or (self._call is not None and self._call.done())

    def start_deadline(self, seconds: float) -> None:
        """Let the call fail with TimedOut in so many seconds unless ``stop_deadline`` comes first."""
        loop = asyncio.get_running_loop()
        self._deadline_s = seconds
        self._due_at = due_at = loop.time() + seconds
        timer = self._timer
        if timer is not None:
            if timer.when() <= due_at:
                return
            timer.cancel()
        self._timer = loop.call_later(seconds, self._on_timer)

    def stop_deadline(self) -> None:
        """The exchange is over."""
        self._due_at = _NEVER

    def drop(self, reason: str = "the stream was dropped") -> None:
        """Cancel the call; whoever waits for it gets Unavailable."""
        self._fail(Unavailable, reason)

    async def read(self) -> Response:
        """Return the next response.  Raises Unavailable, TimedOut or TooMuch."""
        call = self._opened()
        try:
            response = await call.read()
        except (Exception, asyncio.CancelledError) as error:
            raise self._translated(error) from error
        if response is grpc.aio.EOF:
            self._fail(Unavailable, _ENDED)
            raise self._error()
        return cast("Response", response)

    def _opened(self) -> AnyCall[Response]:
        if self._failure is not None:
            raise self._error()
        if self._call is None:
            self._call = self._open_call()
        return self._call

    def _on_timer(self) -> None:
        """The deadline may have been stopped, or started anew, since the timer was set."""
        self._timer = None
        if self._due_at == _NEVER:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._due_at:
            self._timer = loop.call_at(self._due_at, self._on_timer)
        else:
            self._fail(TimedOut, f"KubeMQ did not answer within {self._deadline_s:g} s")

    def _fail(self, kind: type[StoreError], text: str) -> None:
        """Note the first failure and end the call."""
        self._due_at = _NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._failure is None:
            self._failure = (kind, text)
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _error(self) -> StoreError:
        kind, text = self._failure or (Unavailable, _ENDED)
        return kind(text)

    def _translated(self, error: BaseException) -> BaseException:
        """Return what to raise for an error of the call."""
        if isinstance(error, asyncio.CancelledError):
            self._fail(Unavailable, _CANCELLED)
            if _is_task_cancelled():
                return error
        elif isinstance(error, grpc.aio.AioRpcError):
            self._fail(error_kind(error.code()), error_text(error))
        else:
            self._fail(Unavailable, f"{type(error).__name__}: {error}")
        return self._error()


class Duplex(Inbound[Response], Generic[Request, Response]):
    """A call with streams both ways; one task writes and one reads (it may be the same)."""

    __slots__ = ("_ending", "_is_connected", "_is_over", "_waiting_count")

    def __init__(self, open_call: Callable[[], grpc.aio.StreamStreamCall[Request, Response]]) -> None:
        super().__init__(open_call)
        self._ending: asyncio.Task[None] | None = None
        self._is_connected = self._is_over = False
        self._waiting_count = 0  # reads and writes under way: those tell why the call ended

    async def read(self) -> Response:
        """Return the next response.  Raises Unavailable, TimedOut or TooMuch."""
        self._waiting_count += 1
        try:
            return await super().read()
        finally:
            self._waiting_count -= 1
            if self._is_over:
                self._let_go()

    async def write(self, request: Request) -> None:
        """Send one request; returns when gRPC has taken it.  Raises Unavailable, NotSent, TimedOut or TooMuch."""
        self._waiting_count += 1
        try:
            await self._write(request)
        finally:
            self._waiting_count -= 1
            if self._is_over:
                self._let_go()

    async def _write(self, request: Request) -> None:
        if not self._is_connected:
            await self._connect()
        call = self._duplex()
        try:
            await call.write(request)
        except asyncio.InvalidStateError:  # the call was over before: its status says why
            await self._note_end(call)
            raise self._unsent() from None
        except (Exception, asyncio.CancelledError) as error:
            raise self._translated(error) from error

    def _duplex(self) -> grpc.aio.StreamStreamCall[Request, Response]:
        return cast("grpc.aio.StreamStreamCall[Request, Response]", self._opened())

    async def _connect(self) -> None:
        """Reach KubeMQ: what fails before that has sent nothing.

        gRPC's own wait goes on for ever when the call is cancelled meanwhile: by its deadline, ``drop`` or the closing
        of its channel.
        """
        try:
            call = self._duplex()
            waiting = asyncio.ensure_future(call.wait_for_connection())

            def stop(_: object) -> None:
                waiting.cancel()

            call.add_done_callback(stop)
            await asyncio.gather(waiting, return_exceptions=True)
            if call.done():
                await self.read()  # raises why
        except (Exception, asyncio.CancelledError) as error:
            translated = self._translated(error)
            raise (self._unsent() if isinstance(translated, StoreError) else translated) from error
        self._is_connected = True
        call.add_done_callback(self._on_end)

    def _on_end(self, _: object) -> None:
        self._is_over = True
        self._let_go()

    def _let_go(self) -> None:
        """The call is over: whoever uses it finds out; otherwise nobody may ever use it again."""
        if self._call is not None and not self._waiting_count:
            self._ending = asyncio.create_task(self._end_unused(self._duplex()), name="kubemq end of a stream")

    async def _end_unused(self, call: grpc.aio.StreamStreamCall[Request, Response]) -> None:
        if not self._waiting_count:  # else the reader goes on with what had come before the end
            await self._note_end(call)

    async def _note_end(self, call: grpc.aio.StreamStreamCall[Request, Response]) -> None:
        code, details = await call.code(), await call.details()
        self._fail(error_kind(code), f"{_ENDED}: {code.name} {details or ''}".rstrip())

    def _unsent(self) -> StoreError:
        """What to raise when the request was not sent; a refusal stays one."""
        error = self._error()
        return error if isinstance(error, Rejected) else NotSent(str(error))

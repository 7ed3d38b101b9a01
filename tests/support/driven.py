"""Coroutines driven by hand: each stops at every pause of the fake KubeMQ and goes on when the test says so.

Owns the stopping; knows nothing of what is driven but the reader's waiting, which becomes a pause like the others.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

from connector.broker.steps import Step
from connector.runtime.queue_reader import QueueReader


class Pause:
    """Where a hand-driven coroutine stops; ``point`` says before or after which request."""

    def __init__(self, point: str) -> None:
        self.point = point

    def __await__(self) -> Generator[Pause, None, None]:
        yield self


async def pause(point: str) -> None:
    """The fake's pause for hand-driven coroutines."""
    await Pause(point)


class Driven:
    """A coroutine that goes on only by ``resume``; ``point`` is where it stands, None at the end."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self.result: Any = None
        self.point: str | None = ""
        self.resume()

    def resume(self) -> str | None:
        """Go on to the next pause; an exception of the coroutine passes through."""
        try:
            stop = self._coroutine.send(None)
        except StopIteration as end:
            self.point, self.result = None, end.value
        except BaseException:
            self.point = None
            raise
        else:
            self.point = stop.point
        return self.point

    def close(self) -> None:
        """Cancel it."""
        self._coroutine.close()
        self.point = None


class DrivenReader(QueueReader):
    """The reader with its waiting replaced by a pause: any wake-up may come at any time."""

    step: Step | None = None

    async def _wait(self, step: Step) -> bool:
        self.step = step
        await Pause("wait")
        self.step = None
        return True

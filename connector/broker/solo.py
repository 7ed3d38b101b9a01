"""A connector that is alone: it reads every queue, and nobody is to be told anything.

Implements ``vhost.Others`` and ``ports.QueueOwner`` for a broker without a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_NOBODY = "there is no other connector"


class Solo:
    """Everything is done at once; queues that are elsewhere do not exist."""

    def announce(self, queue: Any, done: Callable[[], None]) -> None:
        """See ``vhost.Others``."""
        del queue
        done()

    def withdraw(self, queue: Any, done: Callable[[], None]) -> None:
        """See ``vhost.Others``."""
        del queue
        done()

    def announce_binding(self, queue: Any, key: Any, is_bound: bool, done: Callable[[], None]) -> None:
        """See ``vhost.Others``."""
        del queue, key, is_bound
        done()

    def bind(self, *_arguments: Any) -> NoReturn:
        """See ``vhost.Others``."""
        raise AssertionError(_NOBODY)

    publish = count = purge = delete = acquire = want = on_grown = when_sure = watch_repeated = owner_of = bind
    admit = tell_room = tell_settled = look_for = note_unknown = bind

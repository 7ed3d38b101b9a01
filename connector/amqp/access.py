"""The class access, which AMQP 0-9-1 has dropped and old clients still use: the one request and its answer.

Owns what pamqp leaves out, in pamqp's form, so that ``methods.py`` reads and writes it like all others.  Source: AMQP
0-9, class 30; RabbitMQ answers every request with ticket 1 and never looks at a ticket (PC-22).
"""

from __future__ import annotations

from typing import ClassVar

from pamqp import base

#: The ticket that everybody gets.
TICKET = 1


class Request(base.Frame):
    """access.request: whether one may use a realm, and how."""

    __slots__: ClassVar[list[str]] = [  # noqa: RUF023 # the order on the wire
        "realm", "exclusive", "passive", "active", "write", "read",
    ]  # fmt: skip

    frame_id: ClassVar[int] = 10
    index: ClassVar[int] = 0x001E000A
    name: ClassVar[str] = "Access.Request"
    synchronous: ClassVar[bool] = True
    valid_responses: ClassVar[list[str]] = ["Access.RequestOk"]

    _realm = "shortstr"
    _exclusive = "bit"
    _passive = "bit"
    _active = "bit"
    _write = "bit"
    _read = "bit"


class RequestOk(base.Frame):
    """access.request-ok: with this ticket."""

    __slots__: ClassVar[list[str]] = ["ticket"]

    frame_id: ClassVar[int] = 11
    index: ClassVar[int] = 0x001E000B
    name: ClassVar[str] = "Access.RequestOk"

    _ticket = "short"

"""Log set-up: readable lines on a terminal, one JSON object per line otherwise, UTC, no secrets (OP-18, SE-05).

Owns the format, for our events and for those of the libraries that log through the standard library.  Must not know
what is logged or by whom: boundaries bind connection, vhost, user and client product as context themselves.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

#: Keys whose value never reaches a log, whoever passes it: credentials and what belongs to users.
SECRET_KEYS = frozenset(
    {"auth_token", "authorization", "body", "header", "headers", "kubemq_auth_token", "password", "response", "secret"}
    | {"token", "users"}
)
MASK = "********"


def set_up_logs(level: str = "info", style: str = "auto", stream: TextIO | None = None) -> None:
    """Direct all logging of the process to ``stream`` (standard error by default).

    ``level`` is debug, info, warning or error; ``style`` is text, json or auto (text on a terminal).  Calling it again
    replaces the earlier set-up.
    """
    out = sys.stderr if stream is None else stream
    if hasattr(out, "reconfigure"):  # names may hold bytes that are not UTF-8
        out.reconfigure(errors="backslashreplace")
    number = logging.getLevelNamesMapping()[level.upper()]
    is_text = style == "text" or (style == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        mask_secrets,
    ]
    structlog.configure(
        processors=[*shared, *_renderers(is_text=is_text, colours=is_text and out.isatty())],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(is_text=is_text, colours=is_text and out.isatty()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if number <= logging.DEBUG else max(number, logging.WARNING))
    logging.captureWarnings(capture=True)


def mask_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace the values of keys that carry secrets or message content."""
    for key in SECRET_KEYS & event.keys():
        event[key] = MASK
    return event


def _renderers(*, is_text: bool, colours: bool) -> Sequence[Processor]:
    # Tracebacks stay plain text: the richer forms print local variables, and with them passwords and bodies.
    if is_text:
        return [
            structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback),
        ]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(default=repr),
    ]

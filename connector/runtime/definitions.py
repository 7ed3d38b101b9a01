"""Definitions at run time: exported, imported, and applied from a file at start.

Owns the wait for the broker's answers and what is logged; the format is ``broker/definitions.py``.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from connector.broker.broker import DEFAULT_VHOST
from connector.broker.definitions import Definitions, DefinitionsError, Import, Report, export, read

if TYPE_CHECKING:
    from connector.runtime.hub import Hub

RETRY_PAUSE_S = 1.0
#: Lines of a report that go into the log.
LOGGED_NOTES = 100

log = structlog.get_logger(__name__)


def read_file(file_name: str) -> Definitions:
    """Read a definitions file; raises OSError, and DefinitionsError for what is not one."""
    try:
        return read(json.loads(Path(file_name).expanduser().read_text(encoding="utf-8")))
    except ValueError as error:  # not UTF-8, or not JSON
        raise DefinitionsError(f"{file_name}: not JSON: {error}") from None
    except RecursionError:
        raise DefinitionsError(f"{file_name}: nested too deep") from None
    except DefinitionsError as error:
        raise DefinitionsError(f"{file_name}: {error}") from None


class DefinitionsDesk:
    """Implements ``ops.definitions.Desk`` over one replica's broker."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def export(self, vhost: str | None) -> dict[str, Any]:
        """All definitions, or those of one virtual host; raises NotFound."""
        return export(self._hub.broker, vhost)

    async def apply(self, document: object, vhost: str | None) -> dict[str, Any]:
        """Apply a document and return the report; raises DefinitionsError, and NotFound for the virtual host."""
        self._hub.broker.virtual_host(vhost or DEFAULT_VHOST)
        report = await self._import(read(document, vhost))
        self._log(report, "api")
        return {
            "created": dict(report.created),
            "unchanged": dict(report.unchanged),
            "notes": [*report.notes, *report.refused],
            "failed": bool(report.refused),
            "retry": report.may_retry,
        }

    async def apply_at_start(self, definitions: Definitions, file_name: str) -> None:
        """Apply, again and again until the log takes it; a second application changes nothing.

        What is refused is told as an error, and does not keep anybody from starting.
        """
        while True:
            report = await self._import(definitions)
            self._log(report, file_name)
            if not report.may_retry:
                return
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _import(self, definitions: Definitions) -> Report:
        finished: asyncio.Future[Report] = asyncio.get_running_loop().create_future()

        def done(report: Report) -> None:
            if not finished.done():
                finished.set_result(report)

        Import(self._hub.broker, definitions, done).start()
        self._hub.settle()
        return await finished

    def _log(self, report: Report, source: str) -> None:
        for note in report.notes[:LOGGED_NOTES]:
            log.warning("definitions", source=source, note=note)
        for line in report.refused[:LOGGED_NOTES]:
            log.error("definitions: not applied", source=source, note=line)
        (log.error if report.refused else log.info)(
            "definitions applied",
            source=source,
            created=dict(report.created),
            unchanged=dict(report.unchanged),
            notes=len(report.notes),
            refused=len(report.refused),
        )

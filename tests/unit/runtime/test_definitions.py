"""Definitions at run time: what an import answers, and that nothing in a file keeps a connector from starting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from connector.broker.definitions import DefinitionsError
from connector.broker.ports import Unavailable
from connector.runtime.definitions import DefinitionsDesk, read_file
from connector.runtime.hub import Hub
from tests.support.broker_model import BrokerModel


class SettlingHub:
    """A hub whose broker is driven by hand."""

    def __init__(self) -> None:
        self.model = BrokerModel()
        self.broker = self.model.broker

    def settle(self) -> None:
        """The end of a batch, in which KubeMQ takes all or, with ``hold_log``, nothing."""
        if self.model.hold_log:
            self.model.refuse_log(Unavailable("gone"))
        self.model.settle()


@pytest.fixture
def hub() -> SettlingHub:
    return SettlingHub()


@pytest.fixture
def desk(hub: SettlingHub) -> DefinitionsDesk:
    return DefinitionsDesk(cast("Hub", hub))


ROWS: dict[str, Any] = {
    "queues": [
        {"name": "good"},
        {"name": "sur\ud800"},
        {"name": "old", "arguments": {"x-message-ttl": 5}},
        {"name": "far", "vhost": "elsewhere"},
    ],
    "bindings": [{"source": "nope", "destination": "good"}],
    "users": [{}],
}


async def test_an_import_says_that_not_all_was_applied(desk: DefinitionsDesk) -> None:
    report = await desk.apply(ROWS, None)
    assert (report["created"], report["failed"], report["retry"]) == ({"queues": 1}, True, False)
    assert len(report["notes"]) == 5
    again = await desk.apply({"queues": [{"name": "good"}], "users": [{}]}, None)
    assert again == {
        "created": {},
        "unchanged": {"queues": 1},
        "notes": ["users ignored: 1"],
        "failed": False,
        "retry": False,
    }


async def test_an_import_that_kubemq_did_not_take_may_be_tried_again(desk: DefinitionsDesk, hub: SettlingHub) -> None:
    hub.model.hold_log = True
    report = await desk.apply({"queues": [{"name": "q"}]}, None)
    assert (report["notes"], report["failed"], report["retry"]) == (["queue 'q' in vhost '/': gone"], True, True)


async def test_what_is_refused_at_start_is_loud_and_stops_nothing(
    desk: DefinitionsDesk, hub: SettlingHub, tmp_path: Path
) -> None:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(ROWS), encoding="utf-8")
    with capture_logs() as told:
        await desk.apply_at_start(read_file(str(path)), str(path))
    assert list(hub.model.vhost.queues) == ["good"]
    errors = [entry for entry in told if entry["log_level"] == "error"]
    assert [entry["event"] for entry in errors] == ["definitions: not applied"] * 4 + ["definitions applied"]
    assert errors[-1]["refused"] == 4


def test_a_file_that_is_nested_too_deep_is_none(tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    path.write_text('{"queues":' + "[" * 30_000 + "]" * 30_000 + "}", encoding="utf-8")
    with pytest.raises(DefinitionsError, match="nested too deep"):
        read_file(str(path))

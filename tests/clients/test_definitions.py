"""Definitions through the command line of a running connector, and from a file at its start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connector.cli import main
from tests.support.server import ConnectorProcess, NotReady

DOCUMENT = {
    "rabbit_version": "3.10.8",
    "users": [{"name": "guest"}],
    "queues": [{"name": "orders", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
    "exchanges": [
        {"name": "events", "vhost": "/", "type": "topic", "durable": True, "auto_delete": False, "internal": False,
         "arguments": {}}
    ],
    "bindings": [
        {"source": "events", "vhost": "/", "destination": "orders", "destination_type": "queue",
         "routing_key": "order.#", "arguments": {}}
    ],
}  # fmt: skip


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run(connector: ConnectorProcess, *arguments: object) -> int:
        monkeypatch.setenv("KUBEMQ_AMQP_OPS_URL", connector.ops_url.replace("//", "//guest:guest@"))
        return main(["definitions", *map(str, arguments)])

    return run


@pytest.fixture
def started(tmp_path: Path, document: Path) -> Iterator[ConnectorProcess]:
    with ConnectorProcess(tmp_path / "own", flags=["--definitions-file", str(document)]) as connector:
        yield connector


def test_a_file_at_start_and_the_commands(
    started: ConnectorProcess,
    document: Path,
    tmp_path: Path,
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (applied,) = started.entries("definitions applied")
    assert applied["created"] == {"exchanges": 1, "queues": 1, "bindings": 1}
    assert [entry["note"] for entry in started.entries("definitions")] == ["users ignored: 1"]
    assert run(started, "diff", document) == 0

    exported = tmp_path / "exported.json"
    assert run(started, "export", exported) == 0
    told = json.loads(exported.read_text(encoding="utf-8"))
    assert {name: told[name] for name in ("queues", "exchanges", "bindings")} == {
        name: DOCUMENT[name] for name in ("queues", "exchanges", "bindings")
    }
    capsys.readouterr()

    document.write_text(json.dumps({**DOCUMENT, "queues": [{"name": "more"}]}), encoding="utf-8")
    assert run(started, "diff", document) == 1
    assert capsys.readouterr().out.splitlines() == [
        "users ignored: 1",
        "only in the file: queue 'more' in vhost '/'",
        "only here: queue 'orders' in vhost '/'",
    ]
    assert run(started, "import", document) == 0
    assert capsys.readouterr().out.splitlines() == [
        "users ignored: 1",
        "created: queues: 1",
        "unchanged: exchanges: 1, bindings: 1",
    ]
    started.restart()
    (applied,) = started.entries("definitions applied")
    assert applied["created"] == {}


@pytest.mark.parametrize(("content", "reason"), [("{", "not JSON"), ('{"queues": [{}]}', "queues[0] has no name")])
def test_an_unreadable_file_ends_the_start(tmp_path: Path, document: Path, content: str, reason: str) -> None:
    document.write_text(content, encoding="utf-8")
    connector = ConnectorProcess(tmp_path / "own", flags=["--definitions-file", str(document)])
    with pytest.raises(NotReady, match="ended with 1"):
        connector.__enter__()
    assert reason in connector.log()
    assert str(document) in connector.log()


def test_a_command_that_cannot_says_why(
    connector: ConnectorProcess, document: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(connector, "export", "--vhost", "nope") == 2
    assert "404 vhost nope not found" in capsys.readouterr().err
    assert (
        run(connector, "export", "--url", "http://guest:wrong@127.0.0.1:" + connector.ops_url.rpartition(":")[2]) == 2
    )
    assert "401 Login failed" in capsys.readouterr().err
    assert run(connector, "import", "--url", "ftp://somewhere", document) == 2
    assert "http://USER:PASSWORD@HOST:PORT" in capsys.readouterr().err
    for content, reason in (("{", "not JSON"), ('{"queues":' + "[" * 30_000 + "]" * 30_000 + "}", "nested too deep")):
        document.write_text(content, encoding="utf-8")
        for command in ("diff", "import"):
            assert run(connector, command, document) == 2
            assert reason in capsys.readouterr().err


def test_what_is_not_applied_makes_the_import_fail(
    connector: ConnectorProcess, document: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """And what is wrong with one row stops no other, nor the connector."""
    deep: dict[str, object] = {}
    for _ in range(300):
        deep = {"a": deep}
    rows = [
        {"name": "sur\ud800"},
        {"name": "deep", "arguments": deep},
        {"name": "q" * 256},
        {"name": "throw-away", "durable": False, "auto_delete": True},
        {"name": "not-applied"},
    ]
    bindings = [{"source": "amq.topic", "destination": "throw-away"}]
    document.write_text(json.dumps({"queues": rows, "bindings": bindings}), encoding="utf-8")
    left_out = "left out, as clients declare their own queues that are auto-delete and not durable"
    refused = [
        "queue 'sur\\ud800' in vhost '/': name is not UTF-8",
        "queue 'deep' in vhost '/': arguments are nested deeper than 64",
        f"queue '{'q' * 255}' in vhost '/': name has 256 bytes, which are more than 255",
    ]
    for counts in (["created: queues: 1", "unchanged: nothing"], ["created: nothing", "unchanged: queues: 1"]):
        assert run(connector, "import", document) == 1
        assert capsys.readouterr().out.splitlines() == [f"{left_out}: queues: 1, bindings: 1", *refused, *counts]
    assert run(connector, "diff", document) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{left_out}: queues: 1, bindings: 1"
    assert lines[1:4] == [f"not to be declared: {line}" for line in refused]
    assert not [line for line in lines[4:] if not line.startswith("only here")]

    document.write_text(json.dumps({"queues": rows[3:], "bindings": bindings}), encoding="utf-8")
    assert run(connector, "import", document) == 0
    assert connector.entries("task failed") == []

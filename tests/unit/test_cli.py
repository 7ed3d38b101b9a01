"""The command line: words, exit codes, and that it starts fast."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from connector import cli
from connector.config import SETTINGS, Config
from connector.version import VERSION


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """What ``serve`` was started with; the real app is not."""
    started: list[Config] = []
    app = types.ModuleType("connector.app")

    def run(config: Config) -> int:
        started.append(config)
        return 0

    vars(app)["run"] = run
    monkeypatch.setitem(sys.modules, "connector.app", app)
    return started


def test_serve_hands_the_settings_to_the_app(served: list[Config]) -> None:
    flags = ["--host", "0.0.0.0", "--port", "7", "--ops-port", "8", "--kubemq-address", "k:1", "--data-dir", "/d"]
    assert cli.main(["serve", *flags]) == 0
    (config,) = served
    assert (config.host, config.port, config.ops_port, config.kubemq_address) == ("0.0.0.0", 7, 8, ("k:1",))
    assert config.data_dir == Path("/d")


def test_serve_reads_the_environment(served: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTORS_AMQP_PORT", "7")
    assert cli.main(["serve"]) == 0
    assert served[0].port == 7


def test_serve_serves_nothing_when_switched_off(
    served: list[Config], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONNECTORS_AMQP_ENABLE", "false")
    assert cli.main(["serve"]) == 0
    assert not served
    assert "switched off" in capsys.readouterr().err


def test_mistakes_end_with_2_and_are_all_told(served: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--port", "x", "--log-level", "loud"]) == 2
    assert not served
    assert capsys.readouterr().err.splitlines() == [
        "kubemq-amqp: --port: 'x' is not a whole number",
        "kubemq-amqp: --log-level: 'loud' is none of debug, info, warning, error",
    ]


@pytest.mark.parametrize(
    "text", ["127.0.0.1:8222", "http://127.0.0.1:8222", "http://127.0.0.1:8222/streaming/channelsz"]
)
def test_rescue_takes_an_address_or_the_url_of_the_page(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monitors = []

    def run(_config: Config, monitor: str, *, is_dry: bool) -> int:
        monitors.append((monitor, is_dry))
        return 0

    monkeypatch.setattr("connector.rescue.run", run)
    assert cli.main(["rescue", "--kubemq-address", "k:1", "--monitor", text, "--dry-run"]) == 0
    assert monitors == [("127.0.0.1:8222", True)]


@pytest.mark.parametrize("text", ["127.0.0.1", ":8222", "127.0.0.1:http", "https://k:1", ""])
def test_rescue_refuses_what_is_no_address(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["rescue", "--kubemq-address", "k:1", "--monitor", text])
    assert caught.value.code == 2
    assert "is not HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["config"], ["serve", "--no-such"], ["serve", "--por", "1"], ["nothing"]])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: kubemq-amqp" in capsys.readouterr().err


def test_config_show_takes_the_same_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "--port", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "port = 7  # flag" in lines
    assert len(lines) == len(SETTINGS)


def test_help_names_every_flag_and_secrets_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    out = capsys.readouterr().out
    for row in SETTINGS:
        assert bool(row.flag) != row.secret
        if row.flag:
            assert row.flag in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"kubemq-amqp {VERSION}\n"


def test_python_dash_m_connector_is_the_command_and_imports_nothing_heavy() -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['kubemq-amqp', 'config', 'show']\n"
        "try: runpy.run_module('connector', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'asyncio', 'grpc', 'aiohttp', 'structlog', 'pamqp', 'google'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "port = 5672" in done.stdout

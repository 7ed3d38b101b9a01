"""The settings: sources, order, mistakes, contradictions, and what is shown."""

from __future__ import annotations

import ast
import dataclasses
import tomllib
from pathlib import Path

import pytest

from connector.config import SETTINGS, Config
from connector.config_sources import FOREIGN_NAMES, ConfigError, load, show

ROOT = Path(__file__).resolve().parents[2]


def problems(
    flags: dict[str, str] | None = None, environ: dict[str, str] | None = None, config_file: str = ""
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(flags or {}, environ or {}, config_file)
    return caught.value.problems


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return tmp_path / "a {odd} name.toml"


def test_nothing_set_gives_the_defaults() -> None:
    loaded = load({}, {})
    assert loaded.config == Config()
    assert (loaded.config.host, loaded.config.port, loaded.config.ops_port) == ("127.0.0.1", 5672, 15672)
    assert (loaded.config.heartbeat_s, loaded.config.frame_max_bytes, loaded.config.channel_max) == (60, 131072, 2047)
    assert loaded.config.users == {"guest": "guest"}
    assert set(loaded.sources.values()) == {"default"}


def test_every_field_is_a_setting_and_every_default_is_a_value_it_takes() -> None:
    assert [row.field for row in SETTINGS] == [row.name for row in dataclasses.fields(Config)]
    assert len({row.name for row in SETTINGS}) == len(SETTINGS)
    for row in SETTINGS:
        assert row.help.endswith("."), row.name
        if row.default_text and not row.shown_default.startswith("$"):
            assert row.read(row.default_text) == getattr(Config(), row.field), row.name


def test_every_setting_is_used() -> None:
    """A setting that changes nothing would be a lie."""
    sources = [ROOT / "connector" / name for name in ("app.py", "cli.py")]
    used = {
        node.attr
        for source in sources
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert {row.field for row in SETTINGS} <= used


def test_a_flag_wins_over_environment_over_file_over_default(config_file: Path) -> None:
    config_file.write_text('port = 1\nops_port = 2\nheartbeat_seconds = 3\nhost = "::1"\n')
    environ = {"CONNECTORS_AMQP_PORT": "11", "CONNECTORS_AMQP_OPS_PORT": "12"}
    loaded = load({"port": "21"}, environ, str(config_file))
    config = loaded.config
    assert (config.port, config.ops_port, config.heartbeat_s, config.channel_max) == (21, 12, 3, 2047)
    assert [loaded.sources[name] for name in ("port", "ops_port", "heartbeat_s", "channel_max")] == [
        "flag",
        "environment",
        "file",
        "default",
    ]


def test_the_file_may_be_named_by_the_environment_and_a_flag_names_another(config_file: Path, tmp_path: Path) -> None:
    config_file.write_text("port = 1\n")
    other = tmp_path / "other.toml"
    other.write_text("port = 2\n")
    environ = {"CONNECTORS_AMQP_CONFIG": str(config_file)}
    assert load({}, environ).config.port == 1
    assert load({}, environ, str(other)).config.port == 2


def test_all_mistakes_are_reported_at_once(config_file: Path) -> None:
    config_file.write_text('port = true\nporrt = 1\nusers = "no colon"\n')
    found = problems(
        {"frame_max": "4095", "requeue": "head"},
        {"CONNECTORS_AMQP_MAX_BODY_SIZE": "100MiB", "CONNECTORS_AMQP_TYPO": "x"},
        str(config_file),
    )
    assert found == [
        f"{config_file}: port: True is not a whole number",
        f"{config_file}: porrt: no such setting",
        f"{config_file}: users: the value is not a list of user:password, separated by commas",
        "CONNECTORS_AMQP_MAX_BODY_SIZE: '100MiB' is above 99MiB",
        "CONNECTORS_AMQP_TYPO: no such setting",
        "--frame-max: '4095' is below 4KiB",
        "--requeue: 'head' is none of tail, original",
    ]


def test_a_mistake_counts_even_where_a_stronger_source_is_right() -> None:
    assert problems({"port": "1"}, {"CONNECTORS_AMQP_PORT": "x"}) == ["CONNECTORS_AMQP_PORT: 'x' is not a whole number"]


@pytest.mark.parametrize("name", sorted(FOREIGN_NAMES))
def test_a_setting_of_kubemqs_own_connector_without_a_use_here_is_refused_with_the_reason(name: str) -> None:
    assert problems({}, {"CONNECTORS_AMQP_" + name.upper(): "1"}) == [
        f"CONNECTORS_AMQP_{name.upper()}: {FOREIGN_NAMES[name]}"
    ]


def test_a_missing_or_broken_file_is_a_mistake(config_file: Path) -> None:
    assert problems(config_file=str(config_file)) == [f"{config_file}: No such file or directory"]
    config_file.write_text("port = \n")
    (problem,) = problems(config_file=str(config_file))
    assert problem.startswith(f"{config_file}: not a TOML file: ")
    config_file.write_bytes(b"\xff")
    (problem,) = problems(config_file=str(config_file))
    assert problem.startswith(f"{config_file}: not a TOML file: ")


def test_no_secret_stands_in_a_mistake() -> None:
    (problem,) = problems({}, {"CONNECTORS_AMQP_USERS": "hush-hush"})
    assert "hush" not in problem


def test_contradictions_are_mistakes() -> None:
    assert problems({}, {"CONNECTORS_AMQP_KUBEMQ_AUTH_TOKEN": "t", "CONNECTORS_AMQP_OPS_PORT": "5672"}) == [
        "kubemq_auth_token: needs kubemq_address; the embedded server has no authentication",
        "ops_port: 5672 is the AMQP port already",
    ]


def test_two_free_ports_and_two_addresses_are_no_contradiction() -> None:
    assert load({"port": "0", "ops_port": "0"}, {}).config.port == 0
    assert load({"ops_port": "5672", "ops_host": "::1"}, {}).config.ops_port == 5672


def test_users_come_as_a_table_or_as_text(config_file: Path) -> None:
    config_file.write_text('[users]\napp = "a:b,c%"\n')
    assert load({}, {}, str(config_file)).config.users == {"app": "a:b,c%"}
    assert load({}, {"CONNECTORS_AMQP_USERS": "app:a:b%2Cc%25, x:"}).config.users == {"app": "a:b,c%", "x": ""}


def test_what_is_shown_is_a_settings_file_without_secrets(config_file: Path) -> None:
    environ = {
        "CONNECTORS_AMQP_USERS": "a%2Cb:hush,c:hush",
        "CONNECTORS_AMQP_KUBEMQ_ADDRESS": "h:1",
        "CONNECTORS_AMQP_KUBEMQ_AUTH_TOKEN": "hush",
        "CONNECTORS_AMQP_ADVERTISE_PRODUCT": 'a "b" \\ ü',
    }
    loaded = load({"port": "7"}, environ)
    text = "\n".join(show(loaded))
    assert "hush" not in text
    assert "port = 7  # flag\n" in text
    config_file.write_text(text, encoding="utf-8")
    again = load({}, {}, str(config_file)).config
    users = {"a,b": "********", "c": "********"}
    assert again == dataclasses.replace(loaded.config, users=users, kubemq_auth_token="********")
    assert tomllib.loads(text)["max_body_size"] == 16 * 1024 * 1024


def test_the_data_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Config().data_dir == tmp_path / "kubemq-amqp"
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Config().data_dir == tmp_path / ".local/share/kubemq-amqp"
    assert load({"data_dir": "~/x"}, {}).config.data_dir == tmp_path / "x"


def test_without_a_home_the_data_folder_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.chdir(tmp_path)
    assert Config().data_dir == tmp_path / "kubemq-amqp-data"

"""Where settings come from: flags, environment, file; and how they are shown.

Owns the order (flag, then environment, then file, then default), the TOML file, and that every mistake is reported at
once (OP-19): a name nobody knows is a mistake too, nothing is ignored.  Must not know what a setting means.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from connector.config import PREFIX, SETTINGS, Config

CONFIG_VARIABLE = PREFIX + "CONFIG"
HIDDEN = "********"

#: Names of KubeMQ's own connector that have no use here, and why.
FOREIGN_NAMES = {
    "dead_letter_max_hops": "dead-lettering is not built yet",
    "default_vhost": "the default virtual host is always called default",
    "max_receive_count": "KubeMQ's receive limit is not used: it would drop messages",
    "tls_port": "TLS is not built yet",
}

_BY_NAME = {setting.name: setting for setting in SETTINGS}


class ConfigError(Exception):
    """Every mistake found in the settings; ``problems`` has one line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings in force and, by field, where each came from: flag, environment, file or default."""

    config: Config
    sources: Mapping[str, str]


def load(flags: Mapping[str, str], environ: Mapping[str, str], config_file: str = "") -> Loaded:
    """Read all sources; raises ConfigError with every mistake in any of them, or every contradiction between them.

    ``flags`` has the texts of those that were given, by setting name; ``config_file`` is the one that a flag names,
    and wins over CONNECTORS_AMQP_CONFIG.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    sources = {setting.field: "default" for setting in SETTINGS}
    file_name = config_file or environ.get(CONFIG_VARIABLE, "").strip()
    for source, given in (
        ("file", _read_file(file_name, problems) if file_name else {}),
        ("environment", _from_environment(environ)),
        ("flag", flags),
    ):
        for name, raw in given.items():
            setting = _BY_NAME.get(name)
            place = f"{file_name}: {name}" if source == "file" else _name_in(source, name)
            if setting is None:
                problems.append(f"{place}: {FOREIGN_NAMES.get(name, 'no such setting')}")
                continue
            sources[setting.field] = source
            try:
                values[setting.field] = setting.read(raw)
            except ValueError as error:
                problems.append(f"{place}: {'the value' if setting.secret else repr(raw)} {error}")
    config = Config(**values)
    problems = problems or _contradictions(config)
    if problems:
        raise ConfigError(problems)
    return Loaded(config, sources)


def show(loaded: Loaded) -> Iterator[str]:
    """Yield the settings in force as lines of a TOML file, secrets masked, each with where it came from."""
    for setting in SETTINGS:
        value = getattr(loaded.config, setting.field)
        shown = HIDDEN if setting.secret and value else value
        if isinstance(value, dict) and setting.secret:
            shown = ",".join(f"{quote(name, safe='')}:{HIDDEN}" for name in value)
        yield f"{setting.name} = {_toml(shown)}  # {loaded.sources[setting.field]}"


def _toml(value: object) -> str:
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, tuple):
        return json.dumps(list(value), ensure_ascii=False)
    return json.dumps(str(value), ensure_ascii=False)


def _name_in(source: str, name: str) -> str:
    return PREFIX + name.upper() if source == "environment" else "--" + name.replace("_", "-")


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        variable.removeprefix(PREFIX).lower(): text
        for variable, text in sorted(environ.items())
        if variable.startswith(PREFIX) and variable != CONFIG_VARIABLE
    }


def _read_file(file_name: str, problems: list[str]) -> dict[str, object]:
    try:
        return tomllib.loads(Path(file_name).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{file_name}: {error.strerror}")
    except ValueError as error:  # not UTF-8, or not TOML
        problems.append(f"{file_name}: not a TOML file: {error}")
    return {}


def _contradictions(config: Config) -> list[str]:
    found = []
    if config.kubemq_auth_token and not config.kubemq_address:
        found.append("kubemq_auth_token: needs kubemq_address; the embedded server has no authentication")
    if config.port and config.port == config.ops_port and config.host == config.ops_host:
        found.append(f"ops_port: {config.ops_port} is the AMQP port already")
    return found

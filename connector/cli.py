"""The command line: ``kubemq-amqp serve``, ``rescue``, ``config show``, ``definitions export | import | diff``.

Owns words and exit codes: 0 done, 1 failed, 2 wrong usage or settings.  Must not know how serving works; everything
heavy is imported only when it is needed, so that help and mistakes answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from connector.cli_definitions import add_commands as add_definitions_commands
from connector.config import SETTINGS
from connector.config_sources import CONFIG_VARIABLE, ConfigError, Loaded, load, show
from connector.version import VERSION

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; ``arguments`` defaults to those of the process."""
    options = _parser().parse_args(arguments)
    if (plain := getattr(options, "plain_command", None)) is not None:  # one that needs no settings
        code: int = plain(options)
        return code
    flags = {row.name: value for row in SETTINGS if (value := getattr(options, row.field, None)) is not None}
    try:
        loaded = load(flags, os.environ, options.config)
    except ConfigError as error:
        for problem in error.problems:
            sys.stderr.write(f"kubemq-amqp: {problem}\n")
        return USAGE_ERROR
    command: int = options.command(loaded, options)
    return command


def _serve(loaded: Loaded, _options: argparse.Namespace) -> int:
    if not loaded.config.enable:
        sys.stderr.write("kubemq-amqp: switched off (enable is false)\n")
        return 0
    from connector.app import run

    return run(loaded.config)


def _rescue(loaded: Loaded, options: argparse.Namespace) -> int:
    if not loaded.config.kubemq_address:
        sys.stderr.write("kubemq-amqp: rescue needs --kubemq-address\n")
        return USAGE_ERROR
    from connector.rescue import run

    return run(loaded.config, options.monitor, is_dry=options.dry_run)


def _show(loaded: Loaded, _options: argparse.Namespace) -> int:
    for line in show(loaded):
        sys.stdout.write(line + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubemq-amqp", description="An AMQP 0-9-1 front door on KubeMQ.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"kubemq-amqp {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True)
    serve = commands.add_parser("serve", help="serve AMQP clients", allow_abbrev=False)
    serve.set_defaults(command=_serve)
    _add_settings(serve)
    rescue = commands.add_parser(
        "rescue", help="free messages that a crashed KubeMQ server withholds", allow_abbrev=False
    )
    rescue.add_argument(
        "--monitor", metavar="HOST:PORT", type=_monitor, required=True, help="the server's monitoring address"
    )
    rescue.add_argument("--dry-run", action="store_true", help="only say what would be freed")
    rescue.set_defaults(command=_rescue)
    _add_settings(rescue)
    config = commands.add_parser("config", help="look at the settings")
    showing = config.add_subparsers(title="commands", required=True).add_parser(
        "show", help="print the settings in force, secrets masked, as a settings file", allow_abbrev=False
    )
    showing.set_defaults(command=_show)
    _add_settings(showing)
    add_definitions_commands(commands)
    return parser


def _monitor(text: str) -> str:
    """HOST:PORT, also out of the page's URL."""
    address = text.removeprefix("http://").partition("/")[0]
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return address


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", default="", help=f"settings file in TOML [{CONFIG_VARIABLE}]")
    group = parser.add_argument_group(
        "settings", "Each also by environment variable or file; a flag wins. Secrets have no flag."
    )
    for setting in SETTINGS:
        if not setting.flag:
            continue
        group.add_argument(
            setting.flag,
            dest=setting.field,
            metavar="VALUE",
            help=f"{setting.help} [{setting.variable}, default: {setting.default_text or 'empty'}]".replace("%", "%%"),
        )

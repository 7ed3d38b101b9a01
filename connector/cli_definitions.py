"""The commands ``kubemq-amqp definitions export | import | diff``: they ask a running connector at its ops port.

Owns files, the HTTP client and exit codes: 0 done (diff: no difference), 1 differences, or something could not be
applied, 2 wrong usage, nobody answers, or a file that is no definitions.  Must not know what a definition means beyond
``broker.definitions``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_URL = "http://guest:guest@127.0.0.1:15672"
URL_VARIABLE = "KUBEMQ_AMQP_OPS_URL"
DIFFERENT = 1
FAILED = 2
_TIMEOUT_S = 300.0
_TOO_DEEP = "nested too deep"


class CommandError(Exception):
    """Why a command failed; the text is for the user."""


def add_commands(commands: Any) -> None:
    """Add ``definitions`` and its commands to the command line's."""
    definitions = commands.add_parser("definitions", help="exchanges, queues and bindings in RabbitMQ's JSON format")
    parsers = definitions.add_subparsers(title="commands", required=True)
    for name, run, text in (
        ("export", _export, "write what is declared to FILE, or to the terminal"),
        ("import", _import, "declare what FILE has and is missing; nothing is changed or deleted"),
        ("diff", _diff, "say how FILE and what is declared differ"),
    ):
        parser = parsers.add_parser(name, help=text, description=text, allow_abbrev=False)
        parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="default: -, the terminal")
        parser.add_argument("--vhost", default=None, help="one virtual host only; its file names none")
        parser.add_argument(
            "--url", default=None, help=f"ops port of the connector [{URL_VARIABLE}, default: {DEFAULT_URL}]"
        )
        parser.set_defaults(plain_command=_caught(run))


def _caught(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    def caught(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except CommandError as error:
            sys.stderr.write(f"kubemq-amqp: {error}\n")
            return FAILED

    return caught


def _export(options: argparse.Namespace) -> int:
    text = json.dumps(_call(options), indent=2, sort_keys=True) + "\n"
    if options.file == "-":
        sys.stdout.write(text)
        return 0
    try:
        Path(options.file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{options.file}: {error.strerror}") from None
    return 0


def _import(options: argparse.Namespace) -> int:
    report = _call(options, _load(options.file))
    for note in report["notes"]:
        sys.stdout.write(f"{note}\n")
    for word in ("created", "unchanged"):
        counts = ", ".join(f"{section}: {count}" for section, count in report[word].items()) or "nothing"
        sys.stdout.write(f"{word}: {counts}\n")
    return DIFFERENT if report["failed"] else 0


def _diff(options: argparse.Namespace) -> int:
    from connector.broker.definitions import DefinitionsError, differences, identities, read, without_throw_away

    try:
        wanted = read(_load(options.file), options.vhost)
    except DefinitionsError as error:
        raise CommandError(f"{options.file}: {error}") from None
    here = read(_call(options), options.vhost)
    wanted = without_throw_away(wanted, identities(here))
    lines = [f"not to be declared: {line}" for line in wanted.refused]
    lines += differences(here, wanted)
    lines += [f"only here, and not to be declared again: {line}" for line in here.refused]
    sys.stdout.write("".join(f"{line}\n" for line in (*wanted.notes, *lines)))
    return DIFFERENT if lines else 0


def _load(file_name: str) -> Any:
    try:
        text = sys.stdin.read() if file_name == "-" else Path(file_name).read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        raise CommandError(f"{file_name}: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not JSON
        raise CommandError(f"{file_name}: not JSON: {error}") from None
    except RecursionError:
        raise CommandError(f"{file_name}: {_TOO_DEEP}") from None


def _call(options: argparse.Namespace, document: object = None) -> Any:
    """GET, or POST where there is a document; returns the answer."""
    url = options.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    try:
        parts = urlsplit(url)
        address = f"{parts.hostname}:{parts.port or 15672}"
    except ValueError as error:
        raise CommandError(f"{url}: {error}") from None
    if parts.scheme != "http" or not parts.hostname:
        raise CommandError("the URL must be http://USER:PASSWORD@HOST:PORT")
    if ":" in parts.hostname:
        address = f"[{parts.hostname}]:{parts.port or 15672}"
    path = "/api/definitions" + (
        "" if options.vhost is None else "/" + quote(options.vhost, safe="", errors="surrogateescape")
    )
    login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}".encode()
    try:
        body = None if document is None else json.dumps(document).encode()
    except RecursionError:
        raise CommandError(f"{options.file}: {_TOO_DEEP}") from None
    request = urllib.request.Request(  # http only, checked above
        f"http://{address}{path}",
        data=body,
        headers={"Authorization": "Basic " + b64encode(login).decode(), "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return _refused(error, address)
    except OSError as error:
        raise CommandError(f"{address}: {getattr(error, 'reason', error)}") from None


def _refused(error: urllib.error.HTTPError, address: str) -> Any:
    """Return a report of what failed; raises CommandError with the reason of anything else."""
    try:
        answer = json.load(error)
    except ValueError:
        answer = {}
    if isinstance(answer, dict) and "failed" in answer:
        return answer
    reason = answer.get("reason", error.reason) if isinstance(answer, dict) else error.reason
    raise CommandError(f"{address}: {error.code} {reason}")

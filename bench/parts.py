"""The command line of a bench of single figures: two parts, some targets, and what is beyond its limit.

Must not know what is measured: ``measure`` does one target.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable

from bench import targets
from bench.findings import Failed, Findings
from bench.targets import Skipped, Target
from tests.support.server import NotReady
from tools.fault.client import Gone

FAILED, UNUSABLE = 1, 2
BOTH = "both"


def parser(name: str, description: str, parts: tuple[str, str]) -> argparse.ArgumentParser:
    """What every such bench can be told."""
    made = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
    made.add_argument("--part", choices=(*parts, BOTH), default=BOTH, help="default: both")
    made.add_argument("--targets", default="embedded", metavar="NAME,...", help="embedded, kubemq, rabbitmq")
    add_flags(made)
    made.add_argument("--check", action="store_true", help="fail when a limit is exceeded")
    return made


def add_flags(to: argparse.ArgumentParser) -> None:
    """Other settings for the connector than its own."""
    to.add_argument(
        "--flags", default="", metavar='"--FLAG VALUE ..."', help="for the connector (`kubemq-amqp serve --help`)"
    )


def run(name: str, options: argparse.Namespace, measure: Callable[[Target, Findings], None]) -> int:
    """Measure at the targets, show and keep what was found; returns the exit code."""
    targets.end_in_order()
    findings = Findings()
    try:
        wanted = targets.available(
            [target for target in options.targets.split(",") if target], shlex.split(options.flags)
        )
    except Skipped as error:
        sys.stderr.write(f"{name}: {error}\n")
        return UNUSABLE
    for target in wanted:
        try:
            measure(target, findings)
        except* (Gone, NotReady, Skipped, Failed, OSError, TimeoutError, ValueError) as errors:
            findings.bad += [f"{target.name}: {error!r}" for error in errors.exceptions]
    findings.write(name)
    return FAILED if findings.bad and (options.check or not findings.figures) else 0

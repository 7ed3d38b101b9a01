"""Logs: form, time, level, foreign loggers, and that secrets and odd bytes do no harm."""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from connector.ops.logs import SECRET_KEYS, set_up_logs


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def records(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_elsewhere_than_on_a_terminal_each_event_is_one_json_object_in_utc() -> None:
    stream = io.StringIO()
    set_up_logs(stream=stream)
    structlog.get_logger().bind(connection=3, vhost="default").info("connection opened", user="guest")
    (record,) = records(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", record.pop("timestamp"))
    assert record == {
        "message": "connection opened",
        "level": "info",
        "connection": 3,
        "vhost": "default",
        "user": "guest",
    }


def test_on_a_terminal_events_are_readable_lines() -> None:
    stream = Terminal()
    set_up_logs(stream=stream)
    structlog.get_logger().warning("link lost", attempt=2)
    assert re.search(r"warning.*link lost.*attempt.*=.*2", stream.getvalue())


def test_text_to_a_file_has_no_colours() -> None:
    stream = io.StringIO()
    set_up_logs(style="text", stream=stream)
    structlog.get_logger().error("link lost", attempt=2)
    assert "link lost" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_json_may_be_asked_for_on_a_terminal() -> None:
    stream = Terminal()
    set_up_logs(style="json", stream=stream)
    structlog.get_logger().error("link lost")
    assert records(stream)[0]["message"] == "link lost"


def test_what_is_below_the_level_is_not_written() -> None:
    stream = io.StringIO()
    set_up_logs("warning", stream=stream)
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    assert [record["message"] for record in records(stream)] == ["loud"]


def test_libraries_are_heard_from_warning_on_and_from_info_on_when_debugging() -> None:
    stream = io.StringIO()
    set_up_logs("info", stream=stream)
    logging.getLogger("aiohttp").info("quiet")
    logging.getLogger("aiohttp").warning("count %d", 3)
    set_up_logs("debug", stream=stream)
    logging.getLogger("aiohttp").debug("quiet")
    logging.getLogger("aiohttp").info("now heard")
    assert [(record["logger"], record["level"], record["message"]) for record in records(stream)] == [
        ("aiohttp", "warning", "count 3"),
        ("aiohttp", "info", "now heard"),
    ]


def test_python_warnings_are_logged() -> None:
    stream = io.StringIO()
    set_up_logs(stream=stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert "old" in records(stream)[0]["message"]


@pytest.mark.parametrize("style", ["text", "json"])
def test_secrets_and_content_are_masked_for_us_and_for_libraries(style: str) -> None:
    stream = io.StringIO()
    set_up_logs(style=style, stream=stream)
    for key in sorted(SECRET_KEYS):
        structlog.get_logger().error("ours", **{key: "hush"})
    logging.getLogger("library").error("theirs", extra={"password": "hush"})
    assert "ours" in stream.getvalue()
    assert "theirs" in stream.getvalue()
    assert "hush" not in stream.getvalue()


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_traceback_shows_no_local_variables(style: str) -> None:
    stream = io.StringIO()
    set_up_logs(style=style, stream=stream)
    password = "hu" + "sh"
    try:
        raise ValueError(f"{len(password)} letters")
    except ValueError:
        structlog.get_logger().exception("bug")
        logging.getLogger("library").exception("their bug")
    written = stream.getvalue()
    assert written.count("4 letters") == 2
    assert written.count("test_logs.py") == 2
    assert "hush" not in written


@pytest.mark.parametrize("style", ["text", "json"])
def test_names_that_are_not_utf_8_are_written_escaped(style: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8")
    set_up_logs(style=style, stream=stream)
    structlog.get_logger().error("declared", queue=b"q\xff".decode(errors="surrogateescape"), raw=b"\xff")
    stream.flush()
    assert b"udcff" in raw.getvalue()

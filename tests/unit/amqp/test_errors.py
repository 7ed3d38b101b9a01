from __future__ import annotations

import pytest

from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode

SOFT = {200, 311, 312, 313, 403, 404, 405, 406}
HARD = {320, 402, 501, 502, 503, 504, 505, 506, 530, 540, 541}


def test_the_codes_are_exactly_the_specifications_with_their_scope() -> None:
    assert {int(code) for code in ReplyCode} == SOFT | HARD
    assert {int(code) for code in ReplyCode if code.is_hard} == HARD


def test_an_error_carries_code_reason_and_the_method_that_failed() -> None:
    error = AmqpError(ReplyCode.NOT_FOUND, "no queue 'q' in vhost '/'", 60, 70)
    assert (error.code, error.reason, error.class_id, error.method_id) == (404, "no queue 'q' in vhost '/'", 60, 70)
    assert error.reply_text == str(error) == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert not error.is_hard
    assert AmqpError(ReplyCode.FRAME_ERROR).is_hard


def test_without_a_reason_the_text_is_the_name() -> None:
    error = AmqpError(ReplyCode.INTERNAL_ERROR)
    assert (error.reply_text, error.class_id, error.method_id) == ("INTERNAL_ERROR", 0, 0)


@pytest.mark.parametrize("letter", ["x", "ü", "€", "😀"])
def test_a_long_text_is_cut_to_255_bytes_of_valid_utf8(letter: str) -> None:
    text = AmqpError(ReplyCode.NOT_FOUND, letter * 300).reply_text
    assert 249 <= len(text.encode()) <= 255
    assert text.startswith("NOT_FOUND - " + letter)
    assert text.endswith(letter + "...")


def test_a_text_of_just_255_bytes_is_not_cut() -> None:
    reason = "x" * (255 - len("NOT_FOUND - "))
    assert AmqpError(ReplyCode.NOT_FOUND, reason).reply_text == "NOT_FOUND - " + reason


def test_a_name_that_is_not_utf8_is_shown_with_replacement_characters() -> None:
    name = b"q\xff\xfe".decode("utf-8", "surrogateescape")
    assert AmqpError(ReplyCode.NOT_FOUND, name).reply_text == "NOT_FOUND - q\ufffd\ufffd"

"""Every exception has its reply code, and only there."""

from __future__ import annotations

import pytest

from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode
from connector.broker import errors, ports
from connector.session.reply_map import CODES, is_bug, to_amqp_error


def every(base: type[Exception]) -> set[type[Exception]]:
    return {kind for direct in base.__subclasses__() for kind in (direct, *every(direct))}


def test_every_exception_of_the_broker_has_a_code() -> None:
    assert every(errors.BrokerError) == set(CODES)


@pytest.mark.parametrize(
    ("error", "text", "is_hard"),
    [
        (errors.NotFound("no queue 'q' in vhost '/'"), "NOT_FOUND - no queue 'q' in vhost '/'", False),
        (errors.AccessRefused("no"), "ACCESS_REFUSED - no", False),
        (errors.Locked("no"), "RESOURCE_LOCKED - no", False),
        (errors.Inequivalent("no"), "PRECONDITION_FAILED - no", False),
        (errors.NotAllowed("no"), "NOT_ALLOWED - no", True),
        (errors.NotImplementedHere("no"), "NOT_IMPLEMENTED - no", True),
        (errors.ResourceExhausted("no"), "RESOURCE_ERROR - no", True),
        (ports.TimedOut("no answer"), "INTERNAL_ERROR - KubeMQ: no answer", True),
        (ports.Unavailable("gone"), "INTERNAL_ERROR - KubeMQ: gone", True),
        (ports.Rejected("no"), "INTERNAL_ERROR - KubeMQ: no", True),
        (ValueError("secret"), "INTERNAL_ERROR", True),
        (KeyboardInterrupt(), "INTERNAL_ERROR", True),
    ],
)
def test_codes(error: BaseException, text: str, is_hard: bool) -> None:
    amqp_error = to_amqp_error(error, 50, 10)
    assert amqp_error.reply_text == text
    assert amqp_error.is_hard is is_hard
    assert (amqp_error.class_id, amqp_error.method_id) == (50, 10)


@pytest.mark.parametrize("error", [errors.NotFound("vhost x not found"), errors.AccessRefused("vhost x not found")])
def test_a_virtual_host_that_cannot_be_opened_is_530(error: Exception) -> None:
    amqp_error = to_amqp_error(error, 10, 40)
    assert amqp_error.code is ReplyCode.NOT_ALLOWED


def test_an_amqp_error_keeps_what_it_knows() -> None:
    known = AmqpError(ReplyCode.SYNTAX_ERROR, "bad", 60, 40)
    assert to_amqp_error(known, 50, 10) is known
    filled = to_amqp_error(AmqpError(ReplyCode.NOT_FOUND, "no"), 50, 10)
    assert (filled.code, filled.reason, filled.class_id, filled.method_id) == (ReplyCode.NOT_FOUND, "no", 50, 10)


@pytest.mark.parametrize("code", [ReplyCode.FRAME_ERROR, ReplyCode.UNEXPECTED_FRAME])
def test_a_broken_frame_is_no_methods_fault(code: ReplyCode) -> None:
    assert to_amqp_error(AmqpError(code, "bad"), 50, 10).class_id == 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AmqpError(ReplyCode.INTERNAL_ERROR), False),
        (errors.NotFound(), False),
        (ports.TimedOut(), False),
        (KeyError(), True),
        (errors.BrokerError(), True),
    ],
)
def test_bugs(error: BaseException, expected: bool) -> None:
    assert is_bug(error) is expected

"""Any exception to AmqpError: the only mapping in the product (style.md, Errors 2).

Owns which reply code an exception of the broker means.  Scope (channel or connection) follows from the code.
"""

from __future__ import annotations

from connector.amqp.errors import AmqpError
from connector.amqp.reply_codes import ReplyCode
from connector.broker.errors import (
    AccessRefused,
    Inequivalent,
    Locked,
    NotAllowed,
    NotFound,
    NotImplementedHere,
    ResourceExhausted,
)
from connector.broker.ports import StoreError

CODES: dict[type[Exception], ReplyCode] = {
    NotFound: ReplyCode.NOT_FOUND,
    AccessRefused: ReplyCode.ACCESS_REFUSED,
    Locked: ReplyCode.RESOURCE_LOCKED,
    Inequivalent: ReplyCode.PRECONDITION_FAILED,
    NotAllowed: ReplyCode.NOT_ALLOWED,
    NotImplementedHere: ReplyCode.NOT_IMPLEMENTED,
    ResourceExhausted: ReplyCode.RESOURCE_ERROR,
}

_CONNECTION_OPEN = (10, 40)

#: What is wrong with a frame is no method's fault.
_WITHOUT_METHOD = (ReplyCode.FRAME_ERROR, ReplyCode.UNEXPECTED_FRAME)


def to_amqp_error(error: BaseException, class_id: int, method_id: int) -> AmqpError:
    """Translate; class and method name the failing method unless the error already does.

    What is not known is a bug: 541 without details.  A backend that failed or did not answer in time is 541 with its
    text (Errors 3).  A virtual host that is not there or not for this user is 530 (PC-07).
    """
    if isinstance(error, AmqpError):
        if error.class_id or error.code in _WITHOUT_METHOD:
            return error
        return AmqpError(error.code, error.reason, class_id, method_id)
    code = CODES.get(type(error))  # type: ignore[arg-type] # a BaseException that is no Exception is not in the table
    if code is None:
        reason = f"KubeMQ: {error}" if isinstance(error, StoreError) else ""
        return AmqpError(ReplyCode.INTERNAL_ERROR, reason, class_id, method_id)
    if (class_id, method_id) == _CONNECTION_OPEN:
        code = ReplyCode.NOT_ALLOWED
    return AmqpError(code, str(error), class_id, method_id)


def is_bug(error: BaseException) -> bool:
    """True for what nobody had expected: to be logged with its traceback and counted."""
    return not isinstance(error, AmqpError | StoreError) and type(error) not in CODES

"""What is known of a client (PC-24)."""

from __future__ import annotations

from connector.amqp.handshake import Handshake, HandshakePolicy
from connector.amqp.wire import table_from_python
from connector.session.info import ConnectionInfo


def known(**properties: object) -> ConnectionInfo:
    handshake = Handshake(HandshakePolicy({}, lambda *_: True, lambda *_: ""))
    handshake.client_properties = table_from_python(properties)
    info = ConnectionInfo("10.0.0.1:5", "10.0.0.1")
    info.read(handshake)
    return info


def test_text_in_any_form() -> None:
    info = known(product=b"\xffodd", version=4, platform={"os": "x"}, connection_name=None)
    assert (info.product, info.version, info.platform, info.connection_name) == ("\ufffdodd", "4", "", "")


def test_nothing_is_known_of_a_client_that_says_nothing() -> None:
    assert known().context() == {"connection": "10.0.0.1:5"}

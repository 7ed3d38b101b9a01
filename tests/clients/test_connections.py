"""Connecting through client libraries: vhosts, logins, channels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clients.driver import Client, Connection, LoginRefused
from tests.support.server import ConnectorProcess

Connect = Callable[..., Connection]


def test_every_spelling_of_the_default_vhost_is_the_same(
    connect: Connect, connector: ConnectorProcess, queue: str
) -> None:
    base = connector.url.rpartition("/")[0]
    connections = [connect(base + path) for path in ("", "/", "/%2F", "/%2f", "/default")]
    connections.append(connect(vhost=""))
    for number, connection in enumerate(connections):
        connection.channel().publish("", queue, b"%d" % number, mandatory=True, delivery_mode=2)
    channel = connections[0].channel()
    assert channel.declare_queue(queue, passive=True).message_count == len(connections)
    channel.purge_queue(queue)


@pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("nobody", "guest")])
def test_a_wrong_login_is_refused_without_telling_what_was_wrong(
    client: Client, connector: ConnectorProcess, user: str, password: str
) -> None:
    with pytest.raises(LoginRefused, match="ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN"):
        client.connect(connector.url_of("/", user, password))


def test_many_channels_each_with_their_own_tags(connect: Connect) -> None:
    connection = connect()
    channels = [connection.channel() for _ in range(50)]
    queue = channels[0].declare_queue(exclusive=True).name
    for number, channel in enumerate(channels):
        channel.publish("", queue, b"%d" % number)
    tags = []
    for channel in channels:
        got = channel.get(queue)
        assert got is not None
        tags.append(got.tag)
        channel.ack(got.tag)
    assert tags == [1] * 50
    for channel in channels[1:]:
        channel.close()
    assert channels[0].declare_queue(queue, passive=True).message_count == 0

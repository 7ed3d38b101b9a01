"""Who may log in, and from where (SE-01, SE-08)."""

from __future__ import annotations

import pytest

from connector.session.users import Users, is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("2001:db8::1", False),
        ("localhost", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("user", "password", "host", "expected"),
    [
        ("guest", b"guest", "127.0.0.1", True),
        ("guest", b"guest", "192.0.2.1", False),
        ("guest", b"Guest", "127.0.0.1", False),
        ("app", b"s\xc3\xa9cret", "192.0.2.1", True),
        ("app", b"", "192.0.2.1", False),
        ("nobody", b"", "127.0.0.1", False),
        ("", b"", "127.0.0.1", False),
    ],
)
def test_logins(user: str, password: bytes, host: str, expected: bool) -> None:
    users = Users({"guest": "guest", "app": "sécret"})
    assert users(user, password, host) is expected


def test_loopback_users_are_a_setting() -> None:
    assert Users({"guest": "guest"}, ())("guest", b"guest", "192.0.2.1")
    assert not Users({"app": "x"}, ["app"])("app", b"x", "192.0.2.1")

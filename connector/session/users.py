"""Who may log in: names, passwords, and the users that may come from this machine only (SE-08)."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from ipaddress import ip_address


class Users:
    """An ``Authenticator`` over a fixed list.

    ``peer_host`` is an IP address, or "" for a Unix socket, which is local.  It never says which part was wrong, and
    takes as long for an unknown user as for a wrong password.
    """

    def __init__(self, passwords: Mapping[str, str], loopback_users: Iterable[str] = ("guest",)) -> None:
        self._passwords = {user: password.encode() for user, password in passwords.items()}
        self._loopback_users = frozenset(loopback_users)

    def __call__(self, user: str, password: bytes, peer_host: str) -> bool:
        """True when the user may log in with this password from this address."""
        expected = self._passwords.get(user)
        matches = hmac.compare_digest(password, expected if expected is not None else b"")
        if expected is None or not matches:
            return False
        return user not in self._loopback_users or is_loopback(peer_host)


def is_loopback(host: str) -> bool:
    """True for an address of this machine: 127.0.0.0/8, ::1, the same mapped into IPv6, and a Unix socket ("")."""
    if not host:
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback

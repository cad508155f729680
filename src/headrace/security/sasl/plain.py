"""PLAIN (RFC 4616): the password itself, in one token.

Users and passwords come from the broker's settings, in the form Kafka has for them:
`listener.name.sasl_plaintext.plain.sasl.jaas.config = ... required user_alice="secret" user_bob="s3cret";`
"""

import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Final

from .exchange import AuthenticationFailed, Done, Mechanism, user_principal

PLAIN: Final = "PLAIN"
_USER: Final = re.compile(r'\buser_([^\s=]+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_FAILED: Final = "Authentication failed: Invalid username or password"


def users_of(jaas_config: str) -> dict[str, str]:
    """The users and passwords in a JAAS configuration of Kafka's PlainLoginModule."""
    return {name: _ESCAPED.sub(r"\1", password) for name, password in _USER.findall(jaas_config)}


class PlainUsers:
    """Users and what their passwords come to under a key of this process: all of one length, so that comparing tells
    nothing, and none of them in memory as it is."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._key = secrets.token_bytes(32)
        self._users = {user: self._digest(password.encode()) for user, password in users.items()}
        self._nobodys = secrets.token_bytes(32)

    def __len__(self) -> int:
        return len(self._users)

    def authenticate(self, token: bytes) -> str:
        """The user whom a PLAIN token proves; raises `AuthenticationFailed`."""
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise AuthenticationFailed("Authentication failed: a PLAIN token has three parts")
        authorization_id, name, password = parts
        try:
            user = name.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed(_FAILED) from None
        matches = hmac.compare_digest(self._digest(password), self._users.get(user, self._nobodys))
        if not matches or not user or authorization_id not in (b"", name):
            raise AuthenticationFailed(_FAILED, user)
        return user

    def _digest(self, password: bytes) -> bytes:
        return hmac.digest(self._key, password, "sha256")


class _PlainServer:
    def __init__(self, users: PlainUsers) -> None:
        self._users = users

    def step(self, token: bytes) -> Done:
        return Done(principal=user_principal(self._users.authenticate(token)))


def plain(users: PlainUsers) -> Mechanism:
    """PLAIN for these users."""
    return lambda: _PlainServer(users)

"""SASL on the broker's side: mechanisms as pure exchanges of tokens.

PLAIN: users and passwords come from the broker's settings, in the form Kafka has for them:
`listener.name.sasl_plaintext.plain.sasl.jaas.config = ... required user_alice="secret" user_bob="s3cret";`
"""

import hmac
import re
from collections.abc import Mapping
from typing import Final

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN,)
_USER: Final = re.compile(r'\buser_([^\s=]+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_FAILED: Final = "Authentication failed: Invalid username or password"


class AuthenticationFailed(Exception):
    """The client is not who it says. The message is the same whatever was wrong; `user` is who it said it was."""

    def __init__(self, message: str, user: str = "") -> None:
        super().__init__(message)
        self.user = user


def users_of(jaas_config: str) -> dict[str, str]:
    """The users and passwords in a JAAS configuration of Kafka's PlainLoginModule."""
    return {name: _ESCAPED.sub(r"\1", password) for name, password in _USER.findall(jaas_config)}


def authenticate_plain(token: bytes, users: Mapping[str, str]) -> str:
    """The user whom a PLAIN token proves (RFC 4616); raises `AuthenticationFailed`."""
    parts = token.split(b"\0")
    if len(parts) != 3:
        raise AuthenticationFailed("Authentication failed: a PLAIN token has three parts")
    try:
        authorization_id, user, password = (part.decode("utf-8") for part in parts)
    except UnicodeDecodeError:
        raise AuthenticationFailed(_FAILED) from None
    expected = users.get(user)
    matches = hmac.compare_digest(password.encode(), (expected if expected is not None else password + "x").encode())
    if expected is None or not matches or not user or authorization_id not in ("", user):
        raise AuthenticationFailed(_FAILED, user)
    return user

"""The first users of a cluster, written as Kafka's `kafka-storage format --add-scram` takes them:

SCRAM-SHA-256=[name=admin,password=admin-secret]
SCRAM-SHA-512=[name="a,b",iterations=8192,salt="bWUK",saltedpassword="..."]
"""

import re
import secrets
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.config.setting import ConfigError
from headrace.protocol.scram import (
    LEAST_ITERATIONS,
    MOST_STORED_ITERATIONS,
    SCRAM_MECHANISMS,
    ScramMechanism,
    decoded,
    salt_password,
)

from .credentials import SALT_BYTES

ITERATIONS: Final = 8192
"""Where it is not said."""
_VALUE: Final = r'(?:"(?:[^"\\]|\\.)*"|[^",\]\\]*)'
_FIELD: Final = re.compile(rf"\s*(?P<name>[a-z]+)\s*=\s*(?P<value>{_VALUE})\s*")
_ENTRY: Final = re.compile(
    rf"\s*(?P<mechanism>[A-Za-z0-9-]+)\s*=\s*\[(?P<fields>\s*[a-z]+\s*={_VALUE}(?:,\s*[a-z]+\s*={_VALUE})*)\]\s*"
)
_KNOWN: Final = frozenset({"name", "password", "salt", "iterations", "saltedpassword"})
_FORM: Final = "SCRAM-SHA-512=[name=admin,password=...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstUser:
    """A user to be made."""

    name: str
    mechanism: ScramMechanism
    iterations: int
    salt: bytes = field(repr=False)
    secret: str | bytes = field(repr=False)
    """The password, or what it is salted."""

    def upsertion(self) -> dict[str, Any]:
        """As AlterUserScramCredentials has it; milliseconds of work."""
        secret = self.secret
        if isinstance(secret, str):
            secret = salt_password(self.mechanism, secret, self.salt, self.iterations)
        return {
            "name": self.name,
            "mechanism": self.mechanism,
            "iterations": self.iterations,
            "salt": self.salt,
            "salted_password": secret,
        }


def parse_first_users(text: str) -> list[FirstUser]:
    """The users that a text names, several with a semicolon between them; `ConfigError` where it is written wrong.

    No message shows what was written: it holds passwords.
    """
    users: list[FirstUser] = []
    position = 0
    while position < len(text.rstrip("; \t\n")):
        match = _ENTRY.match(text, position)
        if match is None or (text[match.end() :] and text[match.end()] != ";"):
            raise ConfigError(f"user {len(users) + 1} to add is not written like {_FORM}")
        users.append(_user(match["mechanism"], match["fields"], len(users) + 1))
        position = match.end() + 1
    named = {(user.name, user.mechanism) for user in users}
    if len(named) < len(users):
        raise ConfigError("a user to add stands there twice with the same mechanism")
    return users


def _user(mechanism_name: str, text: str, number: int) -> FirstUser:
    mechanism = SCRAM_MECHANISMS.get(mechanism_name)
    if mechanism is None:
        raise ConfigError(f"user {number} to add has no mechanism out of {', '.join(SCRAM_MECHANISMS)}")
    fields = {match["name"]: _unquoted(match["value"]) for match in _FIELD.finditer(text)}
    if unknown := fields.keys() - _KNOWN:
        raise ConfigError(f"user {number} to add has fields that are unknown: {', '.join(sorted(unknown))}")
    name = fields.get("name", "")
    if not name:
        raise ConfigError(f"user {number} to add has no name: write {_FORM}")
    iterations = _iterations(fields.get("iterations", str(ITERATIONS)), number)
    salt = decoded(fields["salt"]) if "salt" in fields else secrets.token_bytes(SALT_BYTES)
    if not salt:
        raise ConfigError(f"user {number} to add has a salt that is not base64")
    return FirstUser(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, secret=_secret(mechanism, fields, number)
    )


def _iterations(text: str, number: int) -> int:
    count = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if not LEAST_ITERATIONS <= count <= MOST_STORED_ITERATIONS:
        least, most = LEAST_ITERATIONS, MOST_STORED_ITERATIONS
        raise ConfigError(f"user {number} to add must have from {least} to {most} iterations")
    return count


def _secret(mechanism: ScramMechanism, fields: dict[str, str], number: int) -> str | bytes:
    if ("password" in fields) == ("saltedpassword" in fields):
        raise ConfigError(f"user {number} to add needs a password, or a saltedpassword, not both")
    if "password" in fields:
        if not fields["password"]:
            raise ConfigError(f"user {number} to add has an empty password")
        return fields["password"]
    salted = decoded(fields["saltedpassword"])
    if salted is None or len(salted) != mechanism.size or "salt" not in fields:
        size = mechanism.size
        raise ConfigError(f"user {number} to add needs a salt, and a saltedpassword of {size} bytes in base64")
    return salted


def _unquoted(value: str) -> str:
    if value.startswith('"'):
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    return value.strip()

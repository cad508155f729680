"""SCRAM (RFC 5802, RFC 7677) as Kafka speaks it: what a client and a server compute alike. Values, no state.

salted password = PBKDF2(password, salt, iterations)        done by who knows the password
stored key      = H(HMAC(salted password, "Client Key"))    what a server keeps to check a proof
server key      = HMAC(salted password, "Server Key")       and to prove that it knows the user
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

LEAST_ITERATIONS: Final = 4096
MOST_STORED_ITERATIONS: Final = 16_384
"""That a server takes a credential with. More would only keep its clients busy."""
GS2_HEADER: Final = b"n,,"
"""No channel binding, and nobody else's name to act in."""
TOKEN_EXTENSION: Final = "tokenauth"
"""`tokenauth=true` after the nonce: the user name is the id of a delegation token."""


class ScramMechanism(IntEnum):
    """Kafka's two, numbered as in AlterUserScramCredentials."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def title(self) -> str:
        """As in SaslHandshake: `SCRAM-SHA-256`."""
        return f"SCRAM-SHA-{self.digest[3:]}"

    @property
    def digest(self) -> str:
        """The hash, by hashlib's name."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def size(self) -> int:
        """Bytes of a key, a salted password, a proof."""
        return 32 if self is ScramMechanism.SHA_256 else 64


SCRAM_MECHANISMS: Final = {mechanism.title: mechanism for mechanism in ScramMechanism}


class Keys(NamedTuple):
    """What a salted password becomes for a server."""

    stored: bytes
    server: bytes


def salt_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password: milliseconds of work, which is its purpose."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def client_key(mechanism: ScramMechanism, salted_password: bytes) -> bytes:
    return sign(mechanism, salted_password, b"Client Key")


def stored_key(mechanism: ScramMechanism, key: bytes) -> bytes:
    """Of a client key."""
    return hashlib.new(mechanism.digest, key).digest()


def keys_of(mechanism: ScramMechanism, salted_password: bytes) -> Keys:
    stored = stored_key(mechanism, client_key(mechanism, salted_password))
    return Keys(stored, sign(mechanism, salted_password, b"Server Key"))


def sign(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.digest)


def xor(one: bytes, other: bytes) -> bytes:
    """Of two strings of equal length."""
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big")


def escaped(user: str) -> str:
    """A user's name as it stands in a message."""
    return user.replace("=", "=3D").replace(",", "=2C")


def unescaped(name: str) -> str | None:
    """The user of such a name; None where it is not written as it must be."""
    if name.count("=") != name.count("=2C") + name.count("=3D"):
        return None
    return name.replace("=2C", ",").replace("=3D", "=")


def pairs(message: str) -> Iterator[tuple[str, str]]:
    """The attributes of a message, in order."""
    for part in message.split(","):
        name, _, value = part.partition("=")
        yield name, value


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decoded(text: str) -> bytes | None:
    """Bytes out of base64; None where it is none."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None

"""SASL on the client's side: mechanisms as pure exchanges of tokens.

PLAIN (RFC 4616), SCRAM-SHA-256 and -512 (RFC 5802), OAUTHBEARER (RFC 7628) with a token that the user brings.
"""

import hmac
import secrets
from collections.abc import Callable
from typing import Final, Protocol

from headrace.protocol.scram import (
    GS2_HEADER,
    LEAST_ITERATIONS,
    SCRAM_MECHANISMS,
    client_key,
    decoded,
    encoded,
    escaped,
    keys_of,
    pairs,
    salt_password,
    sign,
    xor,
)

from .errors import AuthenticationRefused

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)

MOST_ITERATIONS: Final = 1_000_000
"""A server that asks for more would only keep this client busy."""


class SaslClient(Protocol):
    """One authentication: the first token, then an answer to each of the server's; empty once there is none."""

    def first(self) -> bytes: ...
    def answer(self, challenge: bytes) -> bytes: ...
    @property
    def is_done(self) -> bool: ...


class Plain:
    """The password itself, in one token."""

    def __init__(self, username: str, password: str) -> None:
        self._token = f"\0{username}\0{password}".encode()
        self.is_done = False

    def first(self) -> bytes:
        self.is_done = True
        return self._token

    def answer(self, challenge: bytes) -> bytes:
        raise AuthenticationRefused(f"the broker asks again after PLAIN: {challenge!r}")


class OAuthBearerClient:
    """A bearer token; the server's only answer to it is what is wrong with it."""

    def __init__(self, token: str) -> None:
        self._token = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        self.is_done = False

    def first(self) -> bytes:
        self.is_done = True
        return self._token

    def answer(self, challenge: bytes) -> bytes:
        raise AuthenticationRefused(f"the broker does not take the token: {challenge.decode(errors='replace')}")


class ScramClient:
    """Proof of a password that neither side sends; the server proves in its turn that it knows it."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str | None = None) -> None:
        self._mechanism = SCRAM_MECHANISMS[mechanism]
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._first_bare = f"n={escaped(username)},r={self._nonce}"
        self._expected_signature: bytes | None = None
        self.is_done = False

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def answer(self, challenge: bytes) -> bytes:
        if self._expected_signature is None:
            return self._prove(challenge)
        self._check_server(challenge)
        self.is_done = True
        return b""

    def _prove(self, challenge: bytes) -> bytes:
        fields = _fields(challenge)
        nonce, salt, iterations = fields.get("r", ""), _decoded(fields.get("s", "")), _iterations(fields.get("i", ""))
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationRefused("the broker's nonce does not extend ours: somebody may stand in between")
        without_proof = f"c={encoded(GS2_HEADER)},r={nonce}"
        message = f"{self._first_bare},{challenge.decode()},{without_proof}".encode()
        mechanism = self._mechanism
        salted = salt_password(mechanism, self._password, salt, iterations)
        key, keys = client_key(mechanism, salted), keys_of(mechanism, salted)
        proof = xor(key, sign(mechanism, keys.stored, message))
        self._expected_signature = sign(mechanism, keys.server, message)
        return f"{without_proof},p={encoded(proof)}".encode()

    def _check_server(self, final: bytes) -> None:
        fields = _fields(final)
        if "e" in fields:
            raise AuthenticationRefused(f"the broker refused the password: {fields['e']}")
        assert self._expected_signature is not None
        if not hmac.compare_digest(_decoded(fields.get("v", "")), self._expected_signature):
            raise AuthenticationRefused("the broker does not know the password either: its signature is wrong")


def credentials(
    mechanism: str, username: str | None, password: str | None, token: str | None
) -> Callable[[], SaslClient]:
    """What starts a new exchange for each connection; ValueError says which of the four is missing or unknown."""
    if mechanism not in MECHANISMS:
        raise ValueError(f"sasl.mechanism must be one of {', '.join(MECHANISMS)}, not '{mechanism}'")
    if mechanism == OAUTHBEARER:
        if not token:
            raise ValueError("OAUTHBEARER needs sasl.oauthbearer.token")
        return lambda: OAuthBearerClient(token)
    if not username or password is None:
        raise ValueError(f"{mechanism} needs sasl.username and sasl.password, or both in sasl.jaas.config")
    if mechanism == PLAIN:
        return lambda: Plain(username, password)
    return lambda: ScramClient(mechanism, username, password)


def _fields(message: bytes) -> dict[str, str]:
    try:
        return dict(pairs(message.decode()))
    except UnicodeDecodeError:
        raise AuthenticationRefused("the broker's SCRAM message is not text") from None


def _decoded(text: str) -> bytes:
    found = decoded(text)
    if not found:
        raise AuthenticationRefused("the broker's SCRAM message is malformed")
    return found


def _iterations(text: str) -> int:
    count = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not LEAST_ITERATIONS <= count <= MOST_ITERATIONS:
        raise AuthenticationRefused(
            f"the broker asks for '{text[:20]}' rounds of hashing; "
            f"from {LEAST_ITERATIONS} to {MOST_ITERATIONS} are let through"
        )
    return count

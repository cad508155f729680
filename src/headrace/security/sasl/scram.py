"""SCRAM on the server's side (RFC 5802), as Kafka does it.

    client first     n,,n=<user>,r=<client's nonce>[,tokenauth=true]
    server first     r=<both nonces>,s=<salt>,i=<iterations>
    client final     c=biws,r=<both nonces>,p=<proof>
    server final     v=<signature>

Only without channel binding (`n`), and only in one's own name: an authorization id must be the user. An unknown user
goes the same way to the end, with a salt and keys made up, and is then told the same as who has a wrong password.
With `tokenauth=true` the user is the id of a delegation token, and who comes in is its owner.
"""

import hmac
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.protocol.scram import (
    LEAST_ITERATIONS,
    TOKEN_EXTENSION,
    ScramMechanism,
    decoded,
    encoded,
    pairs,
    sign,
    stored_key,
    unescaped,
    xor,
)

from .credentials import FoundCredential
from .exchange import AuthenticationFailed, Challenge, Done, Mechanism, refused, user_principal

LONGEST_MESSAGE: Final = 16 * 1024
_NONCE_BYTES: Final = 24
_PRINTABLE: Final = range(0x21, 0x7F)


class FoundUser(NamedTuple):
    """Whom a name stands for, and what proves it."""

    credential: FoundCredential
    principal: str
    expires_at_ms: int | None = None


FindUser = Callable[[ScramMechanism, str], FoundCredential]
FindToken = Callable[[ScramMechanism, str], FoundUser]


class _ClientFirst(NamedTuple):
    gs2_header: str
    bare: str
    user: str
    nonce: str
    is_token: bool


class ScramServer:
    """The server's side of one exchange."""

    def __init__(
        self, mechanism: ScramMechanism, find_user: FindUser, find_token: FindToken, nonce: Callable[[], str]
    ) -> None:
        self._mechanism = mechanism
        self._find_user = find_user
        self._find_token = find_token
        self._own_nonce = nonce
        self._first: _ClientFirst | None = None
        self._user: FoundUser
        self._nonce = ""
        self._server_first = ""

    def step(self, token: bytes) -> Challenge | Done:
        message = self._text(token)
        return self._challenge(message) if self._first is None else self._verdict(self._first, message)

    def _text(self, token: bytes) -> str:
        if len(token) > LONGEST_MESSAGE:
            raise self._refused(f"a message of {len(token)} bytes")
        try:
            return token.decode()
        except UnicodeDecodeError:
            raise self._refused("a message that is not text") from None

    def _challenge(self, message: str) -> Challenge:
        first = self._first = self._parse_first(message)
        if first.is_token:
            self._user = self._find_token(self._mechanism, first.user)
        else:
            self._user = FoundUser(self._find_user(self._mechanism, first.user), user_principal(first.user))
        credential = self._user.credential.credential
        self._nonce = first.nonce + self._own_nonce()
        self._server_first = f"r={self._nonce},s={encoded(credential.salt)},i={credential.iterations}"
        return Challenge(self._server_first.encode())

    def _parse_first(self, message: str) -> _ClientFirst:
        flag, _, rest = message.partition(",")
        if flag != "n":
            raise self._refused("channel binding, which is not there")
        authorization_id, comma, bare = rest.partition(",")
        if not comma or not (authorization_id == "" or authorization_id.startswith("a=")):
            raise self._refused("a first message that is not whole")
        attributes = list(pairs(bare))
        if len(attributes) < 2 or attributes[0][0] != "n" or attributes[1][0] != "r":
            raise self._refused("a first message without a user and a nonce")
        name, nonce = attributes[0][1], attributes[1][1]
        user = unescaped(name)
        if not user or "\0" in user:
            raise self._refused("a user's name that is not written as it must be")
        if authorization_id and authorization_id[2:] != name:
            raise self._refused("somebody else's authorization id", user)
        if not nonce or not all(ord(character) in _PRINTABLE for character in nonce):
            raise self._refused("a nonce that cannot be printed", user)
        is_token = (TOKEN_EXTENSION, "true") in attributes[2:]
        return _ClientFirst(f"n,{authorization_id},", bare, user, nonce, is_token)

    def _verdict(self, first: _ClientFirst, message: str) -> Done:
        without_proof, comma, proof_text = message.rpartition(",p=")
        attributes = list(pairs(without_proof))
        if not comma or len(attributes) < 2 or attributes[0][0] != "c" or attributes[1][0] != "r":
            raise self._refused("a final message that is not whole", first.user)
        if decoded(attributes[0][1]) != first.gs2_header.encode():
            raise self._refused("a final message of another exchange", first.user)
        if not hmac.compare_digest(attributes[1][1].encode(), self._nonce.encode()):
            raise self._refused("another nonce", first.user)
        proof = decoded(proof_text)
        if proof is None or len(proof) != self._mechanism.size:
            raise self._refused("a proof that is none", first.user)
        return self._check(first, f"{first.bare},{self._server_first},{without_proof}".encode(), proof)

    def _check(self, first: _ClientFirst, message: bytes, proof: bytes) -> Done:
        """Every check is made whatever came of those before it."""
        mechanism, user = self._mechanism, self._user
        credential = user.credential.credential
        signature = sign(mechanism, credential.stored_key, message)
        matches = hmac.compare_digest(stored_key(mechanism, xor(proof, signature)), credential.stored_key)
        answer = sign(mechanism, credential.server_key, message)
        is_strong = credential.iterations >= LEAST_ITERATIONS
        if not (matches and user.credential.is_real and is_strong):
            raise self._refused("a wrong password, or nobody of that name", first.user)
        return Done(
            principal=user.principal,
            token=f"v={encoded(answer)}".encode(),
            expires_at_ms=user.expires_at_ms,
            by_token=first.is_token,
        )

    def _refused(self, reason: str, user: str = "") -> AuthenticationFailed:
        return refused(self._mechanism.title, user, reason)


def _random_nonce() -> str:
    return secrets.token_urlsafe(_NONCE_BYTES)


def scram(
    mechanism: ScramMechanism, find_user: FindUser, find_token: FindToken, nonce: Callable[[], str] = _random_nonce
) -> Mechanism:
    """SCRAM for these users and tokens."""
    return lambda: ScramServer(mechanism, find_user, find_token, nonce)

"""OAUTHBEARER (RFC 7628): a token that somebody else has signed. JWTs, checked by the keys of who signs them.

Never open: without keys, without a token, without an expiry, with an algorithm that is not asymmetric, nobody comes
in. A token that names an audience is refused unless one is expected, as in Kafka: it was made for somebody else.

Who fails is told so at once, in the answer to the token; that it could not be checked yet, because its key is unknown,
is a `Wait` for the keys, once.
"""

import base64
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headrace.net.clock import Clock

from .exchange import AuthenticationFailed, Done, Mechanism, Wait, user_principal

OAUTHBEARER: Final = "OAUTHBEARER"
ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519", "Ed448"}
)
"""That only the holder of a private key can sign with."""
LONGEST_TOKEN: Final = 64 * 1024
_FIELD: Final = "\x01"
_BEARER: Final = re.compile(r"auth=(?P<scheme>\w+) +(?P<token>[-_.A-Za-z0-9]+)")
_LONGEST_USER: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must say, besides being signed by a known key."""

    issuer: str | None = None
    audiences: Sequence[str] = ()
    """One of which it must be for."""
    skew_seconds: int = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"


class SigningKey(Protocol):
    """A public key, and what it may check."""

    def verified(self, token: str, algorithm: str) -> Mapping[str, Any] | None:
        """The claims of a token that this key has signed by this algorithm; None where it has not."""
        ...


class SigningKeys(Protocol):
    """The keys of who signs tokens: `keys.KeyBook`."""

    def find(self, key_id: str | None, algorithm: str) -> SigningKey | None:
        """The one key that can have signed; None where it is unknown, or not clear which."""
        ...

    def look_again(self) -> Callable[[], Awaitable[object]] | None:
        """Has the keys fetched anew; None where that was done a moment ago."""
        ...


class OAuthBearerServer:
    """The server's side of one exchange."""

    def __init__(self, keys: SigningKeys, rules: TokenRules, clock: Clock) -> None:
        self._keys = keys
        self._rules = rules
        self._clock = clock
        self._has_waited = False

    def step(self, token: bytes) -> Done | Wait:
        authorization_id, bearer = _parse(token)
        header = _header(bearer)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise _invalid(f"algorithm {str(algorithm)[:20]!r}")
        if "crit" in header or "b64" in header or not (key_id is None or isinstance(key_id, str)):
            raise _invalid("a header that is not understood")
        key = self._keys.find(key_id, algorithm)
        if key is None:
            return self._wait_for_key()
        claims = key.verified(bearer, algorithm)
        if claims is None:
            raise _invalid("a signature that is wrong")
        return self._done(claims, authorization_id)

    def _wait_for_key(self) -> Wait:
        fetching = None if self._has_waited else self._keys.look_again()
        if fetching is None:
            raise _invalid("no key that could have signed it")
        self._has_waited = True
        return Wait(fetching)

    def _done(self, claims: Mapping[str, Any], authorization_id: str) -> Done:
        rules, now = self._rules, self._clock.now_ms() / 1000
        expires_at = check_claims(claims, rules, now)
        user = claims[rules.subject_claim]
        if authorization_id not in ("", user):
            raise _invalid("somebody else's authorization id", user)
        if expires_at <= now:
            expires_at += rules.skew_seconds
        return Done(principal=user_principal(user), expires_at_ms=int(expires_at * 1000))


def check_claims(claims: Mapping[str, Any], rules: TokenRules, now: float) -> float:
    """When a token with these claims ends, in seconds since 1970; raises `AuthenticationFailed` where it is not to be
    taken."""
    user = claims.get(rules.subject_claim)
    if not isinstance(user, str) or not user.strip() or len(user) > _LONGEST_USER or "\0" in user:
        raise _invalid(f"no name in claim {rules.subject_claim}")
    expires_at = _time(claims, "exp", user)
    issued_at = _time(claims, "iat", user)
    if expires_at is None or issued_at is None:
        raise _invalid("no time of issue or of expiry", user)
    if now >= expires_at + rules.skew_seconds:
        raise _invalid("expired", user)
    begins_at = _time(claims, "nbf", user)
    if max(issued_at, begins_at or 0.0) > now + rules.skew_seconds:
        raise _invalid("not valid yet", user)
    if expires_at < issued_at:
        raise _invalid("expired before it was issued", user)
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise _invalid("issued by somebody else", user)
    if not _is_for(claims.get("aud"), rules.audiences):
        raise _invalid("made for somebody else", user)
    if not _is_scope(claims.get(rules.scope_claim, "")):
        raise _invalid(f"a claim {rules.scope_claim} that is no scope", user)
    return expires_at


def _time(claims: Mapping[str, Any], name: str, user: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise _invalid(f"a claim {name} that is no time", user)
    return float(value)


def _is_for(audience: Any, expected: Sequence[str]) -> bool:
    named = [audience] if isinstance(audience, str) else audience
    if named is None:
        return not expected
    return isinstance(named, list) and any(each in expected for each in named if isinstance(each, str))


def _is_scope(scope: Any) -> bool:
    return isinstance(scope, str) or (isinstance(scope, list) and all(isinstance(each, str) for each in scope))


def _parse(message: bytes) -> tuple[str, str]:
    """The authorization id, which may be empty, and the token."""
    if len(message) > LONGEST_TOKEN:
        raise _invalid(f"a message of {len(message)} bytes")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise _invalid("a message that is not text") from None
    header, *fields = text.split(_FIELD)
    parts = header.split(",")
    if len(parts) != 3 or parts[0] != "n" or parts[2] or not (parts[1] == "" or parts[1].startswith("a=")):
        raise _invalid("a message that is none of OAUTHBEARER")
    if len(fields) < 3 or fields[-2:] != ["", ""]:
        raise _invalid("a message that is not whole")
    bearers = [match for field in fields[:-2] if (match := _BEARER.fullmatch(field)) is not None]
    if len(bearers) != 1 or bearers[0]["scheme"].lower() != "bearer":
        raise _invalid("no bearer token, or several")
    return parts[1][2:].replace("=2C", ",").replace("=3D", "="), bearers[0]["token"]


def _header(token: str) -> Mapping[str, Any]:
    """What a JWT says of itself, of which nothing is proved."""
    head, *rest = token.split(".")
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, RecursionError):
        header = None
    if len(rest) != 2 or not isinstance(header, dict):
        raise _invalid("a token that is no JWT")
    return header


def _invalid(reason: str, user: str = "") -> AuthenticationFailed:
    """The same words to the client whatever was wrong, as Kafka's."""
    return AuthenticationFailed(json.dumps({"status": "invalid_token"}), user, reason)


def oauthbearer(keys: SigningKeys, rules: TokenRules, clock: Clock) -> Mechanism:
    """OAUTHBEARER with these keys."""
    return lambda: OAuthBearerServer(keys, rules, clock)

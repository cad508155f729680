"""The keys that sign OAuth tokens: a JWKS (RFC 7517) out of a file or from a server, fetched again and again.

A key that is unknown has the set fetched at once, but not more often than every `LOOK_AGAIN_SECONDS`, whoever asks.
Where fetching fails the keys of before stay; where it never worked, there are none, and nobody comes in.
"""

import asyncio
import json
import ssl
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import structlog
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey
from joserfc.jws import JWSRegistry, deserialize_compact

from headrace.config.names import shown
from headrace.net.clock import Clock

FETCH_SECONDS: Final = 10.0
LOOK_AGAIN_SECONDS: Final = 10.0
MOST_BYTES: Final = 1 << 20
MOST_KEYS: Final = 1_000
_LEAST_RSA_BITS: Final = 2048
_LARGEST_TOKEN: Final = 1 << 20
_NONE_OTHER: Final = "-"
"""A registry without algorithms would allow all that are recommended."""
_KINDS: Final = ("RSA", "EC", "OKP")
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}

log = structlog.get_logger(__name__)

Fetch = Callable[[str], bytes]
Run = Callable[[Callable[[], "KeySet"]], Awaitable["KeySet"]]
"""Does work off the loop."""
Key = RSAKey | ECKey | OKPKey


class KeysUnavailable(Exception):
    """The keys cannot be had; the message says why."""


class VerifyingKey:
    """A public key of the set."""

    def __init__(self, key: Key) -> None:
        self._key = key
        key_id = key.get("kid")
        self.id = key_id if isinstance(key_id, str) else None
        self.algorithms = _usable(key)
        self._registry = JWSRegistry(algorithms=[*self.algorithms, _NONE_OTHER], strict_check_header=False)
        self._registry.max_header_length = self._registry.max_payload_length = _LARGEST_TOKEN
        self._registry.max_signature_length = _LARGEST_TOKEN

    def verified(self, token: str, algorithm: str) -> Mapping[str, Any] | None:
        """The claims of a token that this key has signed by this algorithm; None where it has not."""
        if algorithm not in self.algorithms:
            return None
        try:
            payload = deserialize_compact(token, self._key, registry=self._registry).payload
            claims = json.loads(payload or b"")
        except (JoseError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return claims if isinstance(claims, dict) else None


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of one fetch."""

    keys: Sequence[VerifyingKey] = ()

    def find(self, key_id: str | None, algorithm: str) -> VerifyingKey | None:
        """The one key that can have signed: of that id, or the only one there is for the algorithm."""
        usable = [key for key in self.keys if algorithm in key.algorithms and key_id in (None, key.id)]
        return usable[0] if len(usable) == 1 else None


def parse_keys(data: bytes) -> KeySet:
    """The public keys of a JWKS that can check signatures; `KeysUnavailable` where there are none."""
    try:
        document = json.loads(data)
        listed = document["keys"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise KeysUnavailable('it is no JWKS: JSON like {"keys": [...]}') from None
    found = [_imported(each) for each in listed[:MOST_KEYS]] if isinstance(listed, list) else []
    keys = [VerifyingKey(key) for key in found if key is not None]
    if not any(key.algorithms for key in keys):
        raise KeysUnavailable("none of its keys can check a signature: RSA of 2048 bits, EC or OKP keys are needed")
    return KeySet(keys)


class KeyBook:
    """The keys as they were fetched last."""

    def __init__(
        self, url: str, *, fetch: Fetch, run: Run, clock: Clock, refresh_ms: int, backoff_ms: tuple[int, int]
    ) -> None:
        self._url = url
        self._fetch = fetch
        self._run = run
        self._clock = clock
        self._refresh_seconds = refresh_ms / 1000
        self._first_pause, self._longest_pause = (each / 1000 for each in backoff_ms)
        self._keys = KeySet()
        self._looked_at = float("-inf")
        self._fetching: asyncio.Task[bool] | None = None

    def find(self, key_id: str | None, algorithm: str) -> VerifyingKey | None:
        return self._keys.find(key_id, algorithm)

    def look_again(self) -> Callable[[], Awaitable[object]] | None:
        """Has the keys fetched anew; None where that was done a moment ago."""
        if self._fetching is None and self._clock.monotonic() - self._looked_at < LOOK_AGAIN_SECONDS:
            return None
        return self.refresh

    async def follow(self) -> None:
        """Fetch the keys for as long as the broker runs."""
        pause = self._first_pause
        while True:
            if await self.refresh():
                pause = self._first_pause
                await asyncio.sleep(self._refresh_seconds)
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._longest_pause)

    async def refresh(self) -> bool:
        """Fetch them once; whoever asks meanwhile waits for the same. Whether that worked."""
        if self._fetching is None:
            self._looked_at = self._clock.monotonic()
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_keys(), name="fetch keys")
            self._fetching.add_done_callback(self._fetched)
        return await asyncio.shield(self._fetching)

    def _fetched(self, _: object) -> None:
        self._fetching = None

    async def _fetch_keys(self) -> bool:
        url, fetch = self._url, self._fetch
        try:
            self._keys = await self._run(lambda: parse_keys(fetch(url)))
        except KeysUnavailable as error:
            log.warning(
                "keys of OAuth tokens could not be fetched",
                url=shown(url),
                reason=str(error),
                kept=len(self._keys.keys),
            )
            return False
        log.debug("keys of OAuth tokens fetched", url=shown(url), keys=len(self._keys.keys))
        return True


def fetch_keys(url: str) -> bytes:
    """What a file:, http: or https: address leads to; no redirects. `KeysUnavailable` says what went wrong."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "file":
            with Path(unquote(parts.path)).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        else:
            data = _download(url)
    except (OSError, ValueError, HTTPException) as error:
        raise KeysUnavailable(str(error) or type(error).__name__) from None
    if len(data) > MOST_BYTES:
        raise KeysUnavailable(f"it is larger than {MOST_BYTES} bytes")
    return data


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _download(url: str) -> bytes:
    context = ssl.create_default_context()
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _NoRedirects
    )
    with opener.open(url, timeout=FETCH_SECONDS) as answer:
        data = answer.read(MOST_BYTES + 1)
    return bytes(data)


def _imported(data: object) -> Key | None:
    if not isinstance(data, dict) or data.get("kty") not in _KINDS:
        return None
    if data["kty"] == "RSA" and len(str(data.get("n", ""))) * 6 < _LEAST_RSA_BITS:
        return None
    try:
        key = JWKRegistry.import_key(data)
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return key if isinstance(key, RSAKey | ECKey | OKPKey) else None


def _usable(key: Key) -> frozenset[str]:
    """The algorithms that a key may check: of its type, and as far as it says what it is for."""
    operations = key.get("key_ops")
    if key.get("use", "sig") != "sig" or (operations is not None and "verify" not in operations):
        return frozenset()
    algorithms = _algorithms(key)
    named = key.get("alg")
    return algorithms if named is None else algorithms & {named}


def _algorithms(key: Key) -> frozenset[str]:
    if isinstance(key, RSAKey):
        sizes = ("256", "384", "512") if key.public_key.key_size >= _LEAST_RSA_BITS else ()
        return frozenset(f"{family}{size}" for family in ("RS", "PS") for size in sizes)
    if isinstance(key, ECKey):
        return frozenset(name for name, curve in _CURVES.items() if key.get("crv") == curve)
    return frozenset({"EdDSA", str(key.get("crv"))}) & {"EdDSA", "Ed25519", "Ed448"}

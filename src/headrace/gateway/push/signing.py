"""Signatures as Standard Webhooks has them (https://www.standardwebhooks.com), for which every language has a library.

`webhook-signature: v1,<base64 of HMAC-SHA256 over "id.timestamp.body">`. The id of a delivery stays the same when it is
repeated, so that a receiver can recognize what it has seen.
"""

import base64
import hmac
import secrets
from typing import Final

PREFIX: Final = "whsec_"


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """The key in a secret; ValueError when it is none."""
    if not secret.startswith(PREFIX):
        raise ValueError(f"a secret is {PREFIX} and base64")
    key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    if not 16 <= len(key) <= 64:
        raise ValueError("a secret has 16 to 64 bytes")
    return key


def sign(secret: str, delivery: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that prove where a body comes from and when it was sent."""
    message = b".".join((delivery.encode(), str(timestamp).encode(), body))
    digest = base64.b64encode(hmac.digest(key_of(secret), message, "sha256")).decode()
    return {"webhook-id": delivery, "webhook-timestamp": str(timestamp), "webhook-signature": f"v1,{digest}"}

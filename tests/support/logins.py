"""A broker where one can log in by every mechanism, and what clients need for it."""

import json
import time
from pathlib import Path
from typing import Any, Final

from joserfc import jwt
from joserfc.jwk import RSAKey

from headrace.config import PLAIN_USERS

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ALICE, PASSWORD = "alice", "s3cret, and=more"
AUDIENCE, ISSUER = "headrace", "https://id.example"


class Issuer:
    """Who signs OAuth tokens: its public key lies in a file."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "jwks.json"
        self.rotate("one")

    def rotate(self, key_id: str) -> None:
        """Another key from now on; the old one is no longer published."""
        self._key = RSAKey.generate_key(2048, {"kid": key_id, "use": "sig"})
        self.file.write_text(json.dumps({"keys": [self._key.as_dict(private=False)]}))

    def token(self, user: str = ALICE, seconds: float = 600, **claims: Any) -> str:
        now = int(time.time())
        every = {"sub": user, "iat": now - 3600, "exp": now + seconds, "aud": AUDIENCE, "iss": ISSUER, **claims}
        return jwt.encode({"alg": "RS256", "kid": str(self._key.kid)}, every, self._key, ["RS256"])


def login_settings(issuer: Issuer, **more: str) -> dict[str, str]:
    """Of a broker that knows alice by every mechanism; settings with `_` for `.` in their names."""
    password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        PLAIN_USERS: f'PlainLoginModule required user_{ALICE}="{password}";',
        "headrace.add.scram": ";".join(
            f'{each}=[name={ALICE},password="{password}",iterations=4096]' for each in SCRAM
        ),
        "sasl.oauthbearer.jwks.endpoint.url": issuer.file.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "delegation.token.secret.key": "the key of all tokens",
        "group.initial.rebalance.delay.ms": "0",
        **{name.replace("_", "."): value for name, value in more.items()},
    }

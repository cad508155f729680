"""Delegation tokens: a user's right to come in, handed on, for a time. What is kept of them, and who may do what.

A token has an id, which anybody may know, and a password: the HMAC of the id under `delegation.token.secret.key`. The
password is not kept: brokers work it out where it is asked for, and check logins by SCRAM credentials made of it.
"""

import hmac
import json
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from headrace.cluster.entries import EntryKind, EntryValues
from headrace.cluster.image import ClusterImage
from headrace.net.clock import Clock
from headrace.protocol.scram import LEAST_ITERATIONS, ScramMechanism, encoded

from .credentials import FoundCredential, ScramCredential, ScramUsers
from .scram import FoundUser

_ID_BYTES: Final = 16
NO_END: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInformation:
    """The facts of a token; times in milliseconds since 1970."""

    id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    ends_at_ms: int
    """Beyond which it cannot be renewed."""

    @classmethod
    def parse(cls, token_id: str, values: EntryValues) -> "TokenInformation | None":
        """The token of an entry; None where it is none."""
        try:
            return cls(
                id=token_id,
                owner=values["owner"],
                requester=values["requester"],
                renewers=tuple(json.loads(values["renewers"])),
                issued_at_ms=int(values["issued"]),
                expires_at_ms=int(values["expires"]),
                ends_at_ms=int(values["ends"]),
            )
        except (KeyError, ValueError, TypeError):
            return None

    def to_values(self, credentials: Mapping[str, str]) -> dict[str, str]:
        """The token as an entry, with the credentials that logins are checked by."""
        return {
            **credentials,
            "owner": self.owner,
            "requester": self.requester,
            "renewers": json.dumps(self.renewers),
            "issued": str(self.issued_at_ms),
            "expires": str(self.expires_at_ms),
            "ends": str(self.ends_at_ms),
        }

    def is_over(self, now_ms: int) -> bool:
        return self.expires_at_ms < now_ms or self.ends_at_ms < now_ms

    def is_renewed_by(self, principal: str) -> bool:
        return principal == self.owner or principal in self.renewers

    def belongs_to(self, principal: str) -> bool:
        """Whether somebody has to do with it, and may see it."""
        return principal == self.requester or self.is_renewed_by(principal)

    def until(self, expires_at_ms: int) -> "TokenInformation":
        """The same with another expiry, which is never beyond its end."""
        return replace(self, expires_at_ms=min(expires_at_ms, self.ends_at_ms))


def new_token_id() -> str:
    return urlsafe_b64encode(secrets.token_bytes(_ID_BYTES)).rstrip(b"=").decode()


@lru_cache(maxsize=16_384)
def password_of(token_id: str, secret_key: str) -> bytes:
    """What proves that one holds the token; clients send it in base64. Kept, as a token is looked for by it."""
    return hmac.digest(secret_key.encode(), token_id.encode(), "sha512")


def credentials_of(token_id: str, secret_key: str) -> dict[str, str]:
    """What logins with the token are checked by: milliseconds of work."""
    password = encoded(password_of(token_id, secret_key))
    return {
        mechanism.title: ScramCredential.of_password(mechanism, password, LEAST_ITERATIONS).to_text()
        for mechanism in ScramMechanism
    }


def credentials_in(values: EntryValues) -> dict[str, str]:
    return {mechanism.title: values.get(mechanism.title, "") for mechanism in ScramMechanism}


class DelegationTokens:
    """The tokens of the cluster, as this broker knows them."""

    def __init__(self, image: ClusterImage, clock: Clock, users: ScramUsers, secret_key: str | None) -> None:
        self._image = image
        self._clock = clock
        self._users = users
        self._secret_key = secret_key

    def find(self, mechanism: ScramMechanism, token_id: str) -> FoundUser:
        """Whom a token lets in; what is checked in vain where there is no such token, or it is over."""
        made_up = self._users.find_nobody(mechanism, token_id)
        nobody = FoundUser(FoundCredential(made_up, False), "")
        values = self._image.entries[EntryKind.TOKEN].get(token_id)
        if values is None or self._secret_key is None:
            return nobody
        token = TokenInformation.parse(token_id, values)
        credential = ScramCredential.parse(values.get(mechanism.title, ""))
        if token is None or credential is None or token.is_over(self._clock.now_ms()):
            return nobody
        return FoundUser(FoundCredential(credential, True), token.owner, token.expires_at_ms)

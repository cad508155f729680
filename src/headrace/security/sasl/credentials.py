"""What is kept of SCRAM users: for each mechanism a salt, two keys and a number of iterations, never a password.

As text, in Kafka's own form: `salt=...,stored_key=...,server_key=...,iterations=8192`. In the cluster's entries a user
is a set of such texts by mechanism.
"""

import hmac
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from headrace.cluster.entries import EntryKind, EntryValues
from headrace.cluster.image import ClusterImage
from headrace.protocol.scram import (
    LEAST_ITERATIONS,
    ScramMechanism,
    decoded,
    encoded,
    keys_of,
    pairs,
    salt_password,
)

SALT_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """What a server checks a user's proof by."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @classmethod
    def of_salted(
        cls, mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
    ) -> "ScramCredential":
        keys = keys_of(mechanism, salted_password)
        return cls(salt=salt, stored_key=keys.stored, server_key=keys.server, iterations=iterations)

    @classmethod
    def of_password(
        cls, mechanism: ScramMechanism, password: str, iterations: int = LEAST_ITERATIONS, salt: bytes | None = None
    ) -> "ScramCredential":
        """Milliseconds of work."""
        salt = salt or secrets.token_bytes(SALT_BYTES)
        return cls.of_salted(mechanism, salt_password(mechanism, password, salt, iterations), salt, iterations)

    @classmethod
    def parse(cls, text: str) -> "ScramCredential | None":
        """What a text stands for; None where it is no credential."""
        values = dict(pairs(text))
        salt, stored, server = (decoded(values.get(name, "")) for name in ("salt", "stored_key", "server_key"))
        iterations = values.get("iterations", "")
        if not salt or not stored or not server or not (iterations.isascii() and iterations.isdigit()):
            return None
        return cls(salt=salt, stored_key=stored, server_key=server, iterations=int(iterations))

    def to_text(self) -> str:
        return (
            f"salt={encoded(self.salt)},stored_key={encoded(self.stored_key)},"
            f"server_key={encoded(self.server_key)},iterations={self.iterations}"
        )


@dataclass(frozen=True, slots=True)
class FoundCredential:
    """What a login is checked by: of a user who does not exist it is made up, and no proof fits."""

    credential: ScramCredential
    is_real: bool


class ScramUsers:
    """The SCRAM users of the cluster, as this broker knows them.

    Who is unknown gets a salt all the same, always the same one, which follows from the name and a secret: nobody can
    tell from it, or from the time it takes, who exists. It has the iterations and the length that most users' have.
    """

    def __init__(self, image: ClusterImage, secret: bytes) -> None:
        self._image = image
        self._secret = hmac.digest(secret, b"salts of unknown users", "sha256")
        self._parsed: dict[tuple[ScramMechanism, str], tuple[str, ScramCredential | None]] = {}
        self._usual: dict[ScramMechanism, tuple[int, tuple[int, int]]] = {}

    def find(self, mechanism: ScramMechanism, user: str) -> FoundCredential:
        """The user's credential, or one like it."""
        made_up = self.find_nobody(mechanism, user)
        text = self._image.entries[EntryKind.USER].get(user, _NOBODY).get(mechanism.title, "")
        real = self._parse(mechanism, user, text)
        return FoundCredential(made_up, False) if real is None else FoundCredential(real, True)

    def _parse(self, mechanism: ScramMechanism, user: str, text: str) -> ScramCredential | None:
        if not text:
            return None
        known = self._parsed.get((mechanism, user))
        if known is not None and known[0] == text:
            return known[1]
        if len(self._parsed) >= _MOST_PARSED:
            self._parsed.clear()
        credential = ScramCredential.parse(text)
        self._parsed[(mechanism, user)] = (text, credential)
        return credential

    def find_nobody(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """What somebody of that name might have who does not exist."""
        iterations, size = self._shape(mechanism)
        salt, counter = b"", 0
        while len(salt) < size:
            salt += hmac.digest(self._secret, f"{mechanism.title} {counter} {user}".encode(), "sha256")
            counter += 1
        nothing = bytes(mechanism.size)
        return ScramCredential(salt=salt[:size], stored_key=nothing, server_key=self._secret, iterations=iterations)

    def _shape(self, mechanism: ScramMechanism) -> tuple[int, int]:
        """The iterations and the bytes of salt that most users have."""
        version = self._image.entries_version[EntryKind.USER]
        known = self._usual.get(mechanism)
        if known is not None and known[0] == version:
            return known[1]
        shape = _usual(mechanism, self._image.entries[EntryKind.USER])
        self._usual[mechanism] = (version, shape)
        return shape


_NOBODY: Final[EntryValues] = {}
_MOST_PARSED: Final = 100_000
_ASKED: Final = 200
"""Users who stand for all where their usual shape is looked for."""


def _usual(mechanism: ScramMechanism, users: Mapping[str, EntryValues]) -> tuple[int, int]:
    shapes: Counter[tuple[int, int]] = Counter()
    for values in islice(users.values(), _ASKED):
        credential = ScramCredential.parse(values.get(mechanism.title, ""))
        if credential is not None:
            shapes[(credential.iterations, len(credential.salt))] += 1
    return min(shapes, key=lambda shape: (-shapes[shape], shape), default=(LEAST_ITERATIONS, SALT_BYTES))

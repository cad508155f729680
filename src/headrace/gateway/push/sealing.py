"""Subscriptions as they are kept: encrypted and signed with a key that gateways alone have.

So a subscription's secret is read by nobody who may read the topic, and nobody who may write there can make one up.
Without a key they are kept as they are.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

_PLAIN: Final = b"{"


class SealError(ValueError):
    """A record that none of the keys opens."""


class Seal:
    """The first key seals, any of them opens: a new one is put before the old one, which goes later."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys]) if keys else None

    def close(self, data: bytes) -> bytes:
        """A record as it is written."""
        return data if self._fernet is None else self._fernet.encrypt(data)

    def open(self, data: bytes) -> bytes:
        """What was sealed; what was not is as it is."""
        if data.startswith(_PLAIN):
            return data
        if self._fernet is None:
            raise SealError("it is sealed with a key: start this gateway with the --push-keys of the others")
        try:
            return self._fernet.decrypt(data)
        except InvalidToken:
            raise SealError("none of the keys in --push-keys opens it") from None

    def is_proof(self, data: bytes) -> bool:
        """Whether a gateway has written this; without keys everything counts."""
        return self._fernet is None or not data.startswith(_PLAIN)


def read_keys(lines: Iterable[str]) -> tuple[bytes, ...]:
    """Keys, one a line: 32 bytes in base64. ValueError for what is none."""
    keys = []
    for number, line in enumerate(lines, 1):
        text = line.strip().replace("+", "-").replace("/", "_")
        if text and not text.startswith("#"):
            try:
                Fernet(text)
            except ValueError:
                raise ValueError(f"line {number} is not 32 bytes in base64") from None
            keys.append(text.encode())
    return tuple(keys)

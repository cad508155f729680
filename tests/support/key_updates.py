"""Key updates of a TLS 1.3 client (RFC 8446 4.6.3), as many as a test wants: OpenSSL sends none unless it must."""

import hmac
from pathlib import Path
from struct import pack

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_HASH = "sha384"
_HANDSHAKE, _APPLICATION_DATA = 22, 23


def _expand(secret: bytes, label: bytes, length: int) -> bytes:
    """HKDF-Expand-Label, of lengths up to that of the hash."""
    label = b"tls13 " + label
    info = pack(">HB", length, len(label)) + label + b"\0"
    return hmac.digest(secret, info + b"\1", _HASH)[:length]


class KeyUpdates:
    """Continues a client's connection by TLS_AES_256_GCM_SHA384 in its place; it has sent `sent` records before."""

    def __init__(self, key_log: Path, sent: int = 0) -> None:
        (line,) = [line for line in key_log.read_text().split("\n") if line.startswith("CLIENT_TRAFFIC_SECRET_0 ")]
        self._secret = bytes.fromhex(line.split(" ")[2])
        self._sent = sent

    def one(self, *, asks: bool) -> bytes:
        """A record that changes this side's keys, and asks the other side to do so."""
        record = self._record(bytes([24, 0, 0, 1, asks]), _HANDSHAKE)
        self._secret, self._sent = _expand(self._secret, b"traffic upd", 48), 0
        return record

    def data(self, content: bytes) -> bytes:
        """A record of data."""
        return self._record(content, _APPLICATION_DATA)

    def _record(self, content: bytes, kind: int) -> bytes:
        key, mask = _expand(self._secret, b"key", 32), _expand(self._secret, b"iv", 12)
        nonce = bytes(a ^ b for a, b in zip(self._sent.to_bytes(12, "big"), mask, strict=True))
        head = pack(">BHH", _APPLICATION_DATA, 0x0303, len(content) + 1 + 16)
        self._sent += 1
        return head + AESGCM(key).encrypt(nonce, content + bytes([kind]), head)

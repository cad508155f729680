"""Certificates and keys as files and settings have them: PEM, and PKCS12 where a Java keystore is one.

Whatever the form, it becomes PEM in memory: a chain with the broker's own certificate first, its key, authorities.
Every `ValueError` names the setting, the file, and what to do.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_CERTIFICATES: Final = ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")
_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER: Final = b"\x30"
_WIDTH: Final = 64


class Certificate(NamedTuple):
    """What operators want to know of a certificate."""

    subject: str
    expires: datetime
    """Of the chain, the first that does."""
    begins: datetime


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A keystore or truststore, as it was read: PEM."""

    certificates: tuple[str, ...]
    key: str | None = field(repr=False)


def read_pem(setting: str, text: str) -> OpenedStore:
    """What PEM has, also where it stands in one line as properties files have it."""
    certificates: list[str] = []
    key = None
    for label, body in _BLOCK.findall(text):
        block = _block(label, body)
        if label in _CERTIFICATES:
            certificates.append(block)
        elif label.endswith("PRIVATE KEY"):
            key = block
    if not certificates and key is None:
        raise ValueError(f"{setting} has no certificate and no key in PEM (-----BEGIN CERTIFICATE-----)")
    return OpenedStore(tuple(certificates), key)


def read_store(setting: str, location: str, kind: str | None, password: str | None) -> OpenedStore:
    """A keystore or truststore file; its form is seen by what is in it, `kind` only says what is expected."""
    content = _read(setting, location)
    if content.startswith(_JKS):
        raise ValueError(
            f"{setting} '{location}' is a Java keystore (JKS), which is not read; turn it into PKCS12 with "
            f"`keytool -importkeystore -srckeystore {location} -destkeystore {location}.p12 -deststoretype PKCS12`, or "
            "into PEM from there with `openssl pkcs12 -nodes`"
        )
    if content.startswith(_DER):
        if kind == "PEM":
            raise ValueError(f"{setting} '{location}' is not PEM; say type PKCS12 where it is that")
        return _read_pkcs12(setting, location, content, password)
    try:
        return read_pem(f"{setting} '{location}'", content.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{setting} '{location}' is neither PEM nor PKCS12") from None


def describe(chain: str) -> Certificate:
    """The certificate that a chain begins with; `ValueError` where it is garbled."""
    found = x509.load_pem_x509_certificates(chain.encode())
    own = found[0]
    return Certificate(
        own.subject.rfc4514_string(), min(each.not_valid_after_utc for each in found), own.not_valid_before_utc
    )


def opened_key(what: str, key: str, password: str | None) -> str:
    """The key without a password, PEM."""
    given = password.encode() if password and "ENCRYPTED" in key else None
    try:
        private_key = load_pem_private_key(key.encode(), given)
    except TypeError:
        raise ValueError(f"The key of {what} is encrypted: set ssl.key.password") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        hint = "is ssl.key.password right?" if given else "PKCS8 in PEM is read"
        raise ValueError(f"The key of {what} cannot be read: {str(error).partition('(')[0].strip()}; {hint}") from None
    return private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def join(blocks: Sequence[str]) -> str:
    return "".join(blocks)


def _read(setting: str, location: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise ValueError(f"{setting} '{location}' cannot be read: {(error.strerror or str(error)).lower()}") from None


def _read_pkcs12(setting: str, location: str, content: bytes, password: str | None) -> OpenedStore:
    try:
        store = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except ValueError as error:
        raise ValueError(
            f"{setting} '{location}' cannot be opened as PKCS12: {error}; is its password right?"
        ) from None
    own = () if store.cert is None else (store.cert,)
    certificates = [each.certificate.public_bytes(Encoding.PEM).decode() for each in (*own, *store.additional_certs)]
    key = store.key and store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return OpenedStore(tuple(certificates), key or None)


def _block(label: str, body: str) -> str:
    """A block as OpenSSL reads it: Kafka's files may have all of it in one line."""
    if ":" not in body:
        letters = "".join(body.split())
        body = "\n" + "\n".join(letters[at : at + _WIDTH] for at in range(0, len(letters), _WIDTH)) + "\n"
    return f"-----BEGIN {label}-----{body}-----END {label}-----\n"

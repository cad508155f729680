"""A small certificate authority, for clusters whose owners have none: keys on P-256, certificates for TLS 1.2 and 1.3.

Everything is PEM: a certificate (`NAME.pem`, with the authority's behind it), its key (`NAME.key`), and both in one
file as Kafka takes them (`NAME.keystore.pem`). Files with a key are for their owner alone, and are put in place whole.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .console import Failure, bad_input

CA_NAME: Final = "ca"
CA_DAYS: Final = 3650
DAYS: Final = 365
_CLOCKS_DIFFER: Final = timedelta(hours=1)
_LONGEST_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class Authority:
    """Who signs."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


@dataclass(frozen=True, slots=True)
class Issued:
    """Where a certificate was written."""

    certificate: Path
    key: Path
    keystore: Path
    ends: datetime


def make_authority(directory: Path, name: str, days: int = CA_DAYS) -> Authority:
    """A new authority, written to `ca.pem` and `ca.key`; `Failure` where there is one already."""
    if authority_path(directory).exists() or _key_path(directory).exists():
        raise Failure(f"{authority_path(directory)} is there already; what it signed would be trusted no more")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = _begin(subject, subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
    )
    authority = Authority(builder.sign(key, hashes.SHA256()), key)
    make_private_directory(directory)
    write_secret(_key_path(directory), _key_pem(key))
    write_public(authority_path(directory), authority.pem)
    return authority


def load_authority(directory: Path) -> Authority:
    """The authority in a directory."""
    try:
        certificate = x509.load_pem_x509_certificate(authority_path(directory).read_bytes())
        key = load_pem_private_key(_key_path(directory).read_bytes(), None)
    except OSError as error:
        raise Failure(
            f"{error.filename} cannot be read ({error.strerror or error}); `headrace cert ca` makes an authority"
        ) from error
    except (ValueError, TypeError) as error:
        raise Failure(f"{directory}: ca.pem and ca.key are no authority that can sign: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise Failure(f"{directory}: ca.key is not the key of ca.pem")
    return Authority(certificate, key)


def issue(
    directory: Path,
    name: str,
    authority: Authority,
    *,
    hosts: Sequence[str] = (),
    is_client: bool = False,
    days: int = DAYS,
) -> Issued:
    """A certificate with a new key, in place of one of that name that is there: for a broker at these hosts, or for a
    client."""
    check_file_name(name)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _begin(_subject(name), authority.certificate.subject, key.public_key(), days)
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if not is_client:
        usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)  # a broker is also a client, of other brokers
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage("digital_signature"), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([alternative_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    certificate = builder.sign(authority.key, hashes.SHA256())
    ends = certificate.not_valid_after_utc
    if ends > authority.certificate.not_valid_after_utc:
        raise bad_input(
            f"the authority ends on {authority.certificate.not_valid_after_utc:%Y-%m-%d}; give fewer --days"
        )
    issued = Issued(directory / f"{name}.pem", directory / f"{name}.key", directory / f"{name}.keystore.pem", ends)
    make_private_directory(directory)
    chain = certificate.public_bytes(Encoding.PEM) + authority.pem
    # The one that a broker looks at comes first: it never sees a certificate with another one's key.
    write_secret(issued.keystore, _key_pem(key) + chain)
    write_secret(issued.key, _key_pem(key))
    write_public(issued.certificate, chain)
    return issued


def is_fresh(path: Path, authority: Authority, hosts: Sequence[str], days_left: int) -> bool:
    """Whether a certificate is there, signed by the authority, for these hosts, and lasts for so many days."""
    try:
        certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
        certificate.verify_directly_issued_by(authority.certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = None
    except (OSError, ValueError, TypeError, IndexError, InvalidSignature):
        return False
    has_hosts = all(names is not None and alternative_name(host) in names for host in hosts)
    return has_hosts and certificate.not_valid_after_utc - datetime.now(UTC) > timedelta(days=days_left)


def authority_path(directory: Path) -> Path:
    """Where the certificate of an authority is, for those who are to trust it."""
    return directory / f"{CA_NAME}.pem"


def _key_path(directory: Path) -> Path:
    return directory / f"{CA_NAME}.key"


def alternative_name(host: str) -> x509.GeneralName:
    """An address or a name of a host, as a certificate has it."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    labels = host.removeprefix("*.").split(".")
    if not host.isascii() or not all(label and label.replace("-", "").isalnum() for label in labels):
        raise bad_input(f"'{host}' is neither an address nor a name of a host; write 10.0.0.1 or broker-1.example.com")
    return x509.DNSName(host)


def check_file_name(name: str) -> None:
    """Refuse a name that would not become a file of its own in the directory."""
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or not name.isascii():
        raise bad_input(f"name '{name}': it becomes a file, so it has letters, digits, dots, - and _")
    if name.startswith((".", "-")) or name == CA_NAME:
        raise bad_input(f"name '{name}' is not free; choose another one")


def _subject(name: str) -> x509.Name:
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise bad_input(f"name {name[:100]!r}: a certificate's has 1 to {_LONGEST_NAME} visible characters")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begin(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*granted: str) -> x509.KeyUsage:
    every = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: name in granted for name in every})


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


# Files


def make_private_directory(directory: Path) -> None:
    """A directory that only its owner can look into; one that is there stays as it is."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_secret(path: Path, data: bytes) -> None:
    """A file for its owner alone, whole or not at all."""
    _write(path, data, 0o600)


def write_public(path: Path, data: bytes) -> None:
    """A file that everybody may read, whole or not at all."""
    _write(path, data, 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)

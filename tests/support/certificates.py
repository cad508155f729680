"""Certificates for tests, made in this process: an authority, what it signs, and how that is written into files."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def name(common: str, *, unit: str = "", organization: str = "") -> x509.Name:
    """`O=..., OU=..., CN=...`, in the order in which certificates have them."""
    parts = ((NameOID.ORGANIZATION_NAME, organization), (NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
    return x509.Name([x509.NameAttribute(kind, text) for kind, text in (*parts, (NameOID.COMMON_NAME, common)) if text])


class Signed(NamedTuple):
    """A certificate with its key, and who signed it."""

    certificate: x509.Certificate
    key: Key
    authority: x509.Certificate

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def chain_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str = "") -> str:
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    def write(self, path: Path, password: str = "") -> str:
        """The key and the chain in one file, as Kafka has its PEM keystores; where it is."""
        path.write_text(self.key_pem(password) + self.chain_pem)
        return str(path)

    def write_pkcs12(self, path: Path, password: str) -> str:
        encryption = BestAvailableEncryption(password.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(b"broker", self.key, self.certificate, [self.authority], encryption)
        )
        return str(path)


class Authority:
    """An authority that signs for everybody. Times are in days from now."""

    def __init__(self, common: str = "Test CA") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = name(common)
        self.certificate = self._built(self.name, self.key.public_key(), -1, 3650, is_authority=True, hosts=())

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def write(self, path: Path) -> str:
        """Its certificate, for those who are to trust it; where it is."""
        path.write_text(self.pem)
        return str(path)

    def sign(
        self,
        subject: x509.Name | str = "localhost",
        *,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "::1"),
        begins: float = -1,
        ends: float = 365,
        bits: int = 0,
        usages: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    ) -> Signed:
        """A certificate for a host or a client, with a key on P-256, or of RSA with so many bits."""
        key: Key = rsa.generate_private_key(65537, bits) if bits else ec.generate_private_key(ec.SECP256R1())
        subject = name(subject) if isinstance(subject, str) else subject
        found = self._built(subject, key.public_key(), begins, ends, is_authority=False, hosts=hosts, usages=usages)
        return Signed(found, key, self.certificate)

    def _built(
        self,
        subject: x509.Name,
        public: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
        begins: float,
        ends: float,
        *,
        is_authority: bool,
        hosts: tuple[str, ...],
        usages: tuple[x509.ObjectIdentifier, ...] = (),
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=begins))
            .not_valid_after(now + timedelta(days=ends))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if is_authority:
            usage = {f"{each}": each in ("key_cert_sign", "crl_sign") for each in _USAGES}
            builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_host(each) for each in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256())


_USAGES = (
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


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)

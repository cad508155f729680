"""What TLS connections are made with: on the client's side, and on a broker's, where it is renewed while they go on."""

import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from .keystore import Certificate, OpenedStore

_PEM: Final = "-----BEGIN "
_REASONS: Final = {
    "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
    "BAD_DECRYPT": "the password of the key (ssl.key.password) is wrong",
    "BAD_PASSWORD_READ": "the key needs a password (ssl.key.password)",
    "EE_KEY_TOO_SMALL": "the key is too small; RSA needs 2048 bits",
    "CA_KEY_TOO_SMALL": "the key of an authority is too small; RSA needs 2048 bits",
    "CA_MD_TOO_WEAK": "the signature of an authority is too weak (SHA-1 or MD5)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Whom to trust and who we are; PEM throughout."""

    ca_location: str | None = None
    """A file or a directory; the machine's own authorities where there is none."""
    ca_pem: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: str | None = None
    checks_host_name: bool = True
    verifies: bool = True


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of every connection; ValueError names the setting that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.checks_host_name and settings.verifies
    context.verify_mode = ssl.CERT_REQUIRED if settings.verifies else ssl.CERT_NONE
    _load_authorities(context, settings)
    _load_certificate(context, settings)
    return context


def _load_authorities(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.ca_pem is not None:
        _load("ssl.truststore.certificates", lambda: context.load_verify_locations(cadata=settings.ca_pem))
    elif settings.ca_location is not None:
        _load_location(context, settings.ca_location)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)


def _load_location(context: ssl.SSLContext, location: str) -> None:
    if Path(location).is_dir():
        _load(f"ssl.ca.location '{location}'", lambda: context.load_verify_locations(capath=location))
        return
    _require_pem("ssl.ca.location", location)
    _load(f"ssl.ca.location '{location}'", lambda: context.load_verify_locations(cafile=location))


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    location = settings.certificate_location
    if location is None:
        if settings.key_location is not None:
            raise ValueError("ssl.key.location is of no use without ssl.certificate.location")
        return
    _require_pem("ssl.certificate.location", location)
    # OpenSSL asks on the terminal for a password that it is not given.
    password = settings.key_password or ""
    _load(
        f"the certificate '{location}' with its key",
        lambda: context.load_cert_chain(location, settings.key_location, lambda: password),
    )


def _require_pem(name: str, location: str) -> None:
    try:
        head = Path(location).read_bytes()
    except OSError as error:
        raise ValueError(f"{name} '{location}' cannot be read: {(error.strerror or str(error)).lower()}") from None
    if _PEM.encode() not in head:
        raise ValueError(
            f"{name} '{location}' is not PEM; turn a Java keystore into PEM with "
            "`keytool -importkeystore -deststoretype PKCS12` and `openssl pkcs12`"
        )


def _load(what: str, load: Callable[[], object]) -> None:
    try:
        load()
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        words = _REASONS.get(reason) or str(reason).lower().replace("_", " ")
        raise ValueError(f"{what} cannot be used: {words}") from None


SUITES: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""Of TLS 1.2, those with forward secrecy and authenticated encryption: by Kafka's names, and by OpenSSL's."""
SUITES_13: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTlsSettings:
    """Kafka's `ssl.*` settings of one listener. What form a store has is seen by its content."""

    keystore_type: str | None = None
    keystore_location: str | None = None
    keystore_password: str | None = field(default=None, repr=False)
    certificate_chain: str | None = None
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore_type: str | None = None
    truststore_location: str | None = None
    truststore_password: str | None = field(default=None, repr=False)
    truststore_certificates: str | None = None
    client_auth: str = "none"
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    endpoint_identification: str = "https"

    @property
    def files(self) -> tuple[str, ...]:
        """What has to be read again when it changes."""
        return tuple(place for place in (self.keystore_location, self.truststore_location) if place)


class _Loaded(NamedTuple):
    settings: ServerTlsSettings
    seen: tuple[object, ...]
    """The files as they were just before they were read."""
    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: "Certificate"


class ServerTls:
    """What the TLS connections of one listener are made with; `renew` replaces it for those that come later.

    Making and renewing read files and take some milliseconds: off the loop, where one runs.
    """

    def __init__(self, settings: ServerTlsSettings) -> None:
        """ValueError names the setting that cannot be used."""
        self._loaded = _loaded(settings)

    @property
    def settings(self) -> ServerTlsSettings:
        return self._loaded.settings

    @property
    def context(self) -> ssl.SSLContext:
        """Of the side that is connected to."""
        return self._loaded.server

    @property
    def client_context(self) -> ssl.SSLContext:
        """Of the side that connects, as the same one and trusting the same: brokers among themselves."""
        return self._loaded.client

    @property
    def certificate(self) -> "Certificate":
        """What is shown to those who connect."""
        return self._loaded.certificate

    @staticmethod
    def seen(settings: ServerTlsSettings) -> tuple[object, ...]:
        """The files that they name, as they are now: the same again while nobody writes them."""
        return tuple(_stamp(place) for place in settings.files)

    def is_stale(self, settings: ServerTlsSettings) -> bool:
        """Whether the settings, or a file that they name, are others than those in use."""
        return settings != self._loaded.settings or self.seen(settings) != self._loaded.seen

    def renew(self, settings: ServerTlsSettings, now: datetime) -> None:
        """Read all of it again; ValueError where it cannot be used: then what was in use stays so."""
        loaded = _loaded(settings)
        if loaded.certificate.expires <= now < self.certificate.expires:
            raise ValueError(
                f"The certificate of {_keystore(settings)} has expired at {loaded.certificate.expires.isoformat()}"
            )
        self._loaded = loaded


def _loaded(settings: ServerTlsSettings) -> _Loaded:
    from .keystore import describe, join, opened_key  # a broker without TLS does without `cryptography`

    seen = ServerTls.seen(settings)
    store, trusted = _identity(settings), _trusted(settings)
    chain = join(store.certificates)
    key = opened_key(_keystore(settings), store.key or "", settings.key_password)
    try:
        certificate = describe(chain)
    except ValueError as error:
        raise ValueError(f"The certificate of {_keystore(settings)} cannot be read: {error}") from None
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        _limit(context, settings)
        with _memory_file(key + chain) as path:
            _load(
                f"The certificate of {_keystore(settings)} with its key",
                lambda: context.load_cert_chain(path, password=""),  # noqa: B023
            )
        if trusted is not None:
            _load("The truststore", lambda: context.load_verify_locations(cadata=join(trusted.certificates)))  # noqa: B023
    if trusted is None:
        client.load_default_certs(ssl.Purpose.SERVER_AUTH)
    server.verify_mode = CLIENT_AUTH[settings.client_auth]
    server.num_tickets = (
        0  # each connection shows its certificate anew; and who only writes is not reset when it closes
    )
    client.check_hostname = bool(settings.endpoint_identification)
    return _Loaded(settings, seen, server, client, certificate)


def _limit(context: ssl.SSLContext, settings: ServerTlsSettings) -> None:
    versions = {PROTOCOLS[name] for name in settings.protocols}
    suites = settings.cipher_suites
    unknown = [name for name in suites if name not in SUITES and name not in SUITES_13]
    if unknown:
        raise ValueError(
            f"ssl.cipher.suites has {', '.join(unknown)}, which is not served; "
            f"there are {', '.join((*SUITES_13, *SUITES))}"
        )
    if suites:
        newer = [name for name in suites if name in SUITES_13]
        if newer and set(newer) != set(SUITES_13) and ssl.TLSVersion.TLSv1_3 in versions:
            raise ValueError(
                f"ssl.cipher.suites has {', '.join(newer)}: the suites of TLS 1.3 cannot be chosen one by one here; "
                f"name all of them ({', '.join(SUITES_13)}), or none and no TLSv1.3"
            )
        older = [name for name in suites if name in SUITES]
        versions -= set() if newer else {ssl.TLSVersion.TLSv1_3}
        versions -= set() if older else {ssl.TLSVersion.TLSv1_2}
        if not versions:
            raise ValueError(
                "ssl.cipher.suites and ssl.enabled.protocols leave nothing: name suites of an enabled protocol"
            )
    else:
        older = list(SUITES)
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if older:
        context.set_ciphers(":".join(SUITES[name] for name in older))
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE


def _identity(settings: ServerTlsSettings) -> "OpenedStore":
    from .keystore import OpenedStore, read_pem, read_store

    location = settings.keystore_location
    if location is not None:
        if settings.certificate_chain or settings.key:
            raise ValueError("ssl.keystore.location is given, and a certificate beside it; keep one of them")
        store = read_store("ssl.keystore.location", location, settings.keystore_type, settings.keystore_password)
    elif settings.certificate_chain and settings.key:
        chain = read_pem("ssl.keystore.certificate.chain", settings.certificate_chain)
        store = OpenedStore(chain.certificates, read_pem("ssl.keystore.key", settings.key).key)
    else:
        raise ValueError(
            "TLS needs a certificate and its key: set ssl.keystore.location (a PEM file with both, or PKCS12), or "
            "ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    lacking = "no certificate" if not store.certificates else "no private key" if store.key is None else ""
    if lacking:
        raise ValueError(f"{_keystore(settings)} has {lacking}; it needs the certificate (with its chain) and its key")
    return store


def _trusted(settings: ServerTlsSettings) -> "OpenedStore | None":
    from .keystore import read_pem, read_store

    location = settings.truststore_location
    if location is not None and settings.truststore_certificates:
        raise ValueError("ssl.truststore.location and ssl.truststore.certificates are both given; keep one of them")
    if location is not None:
        store = read_store("ssl.truststore.location", location, settings.truststore_type, settings.truststore_password)
    elif settings.truststore_certificates:
        store = read_pem("ssl.truststore.certificates", settings.truststore_certificates)
    elif settings.client_auth != "none":
        raise ValueError(
            f"ssl.client.auth={settings.client_auth} needs to know whose certificates count: set "
            "ssl.truststore.location or ssl.truststore.certificates to your authority's certificate"
        )
    else:
        return None
    if not store.certificates:
        raise ValueError("The truststore has no certificate")
    return store


def _keystore(settings: ServerTlsSettings) -> str:
    place = settings.keystore_location
    return "ssl.keystore.certificate.chain" if place is None else f"ssl.keystore.location '{place}'"


def _stamp(place: str) -> object:
    try:
        found = os.stat(place)
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def _memory_file(text: str) -> Iterator[str]:
    """A path under which OpenSSL, which reads nothing but files, finds a key that is on no disk."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("key")
    try:
        with open(descriptor, "w", closefd=False) as file:
            file.write(text)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)

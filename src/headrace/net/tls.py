"""TLS on the client's side."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PEM: Final = "-----BEGIN "


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
        raise ValueError(f"{what} cannot be used: {str(reason).lower().replace('_', ' ')}") from None

"""A connection from nothing to ready: TCP, TLS, the versions both sides speak, SASL."""

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headrace import __version__
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode, ProtocolViolation

from .address import Address
from .channel import Answer, Channel
from .errors import AuthenticationRefused, ConnectionLost, VersionNotServed
from .sasl import Exchange

_SOFTWARE: Final = {"client_software_name": "headrace", "client_software_version": __version__}
_FIRST_TRIED: Final = 3
_REAUTHENTICATION_SHARE: Final = 0.85
"""Of a session's lifetime after which a new connection is made rather than this one used."""
_MOST_STEPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How connections are made: by whom, how safely, and how patiently."""

    client_id: str
    connect_timeout: float
    request_timeout: float
    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    exchange: Callable[[], Exchange] | None = None


def open_channel(address: Address, manner: Manner) -> Channel:
    """A channel that is ready for requests.

    `ConnectionLost` when the broker cannot be reached or does not speak Kafka's protocol, `AuthenticationRefused`
    when either side does not trust the other.
    """
    sock = _connected(address, manner)
    channel = Channel(sock, address, client_id=manner.client_id, timeout=manner.request_timeout)
    try:
        channel.served = _served_versions(channel)
        if manner.exchange is not None:
            _authenticate(channel, manner, manner.exchange())
    except BaseException:
        channel.close()
        raise
    return channel


def _connected(address: Address, manner: Manner) -> socket.socket:
    try:
        sock = socket.create_connection(address, timeout=manner.connect_timeout)
    except OSError as error:
        raise ConnectionLost(f"{address}: {_reason(error)}") from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if manner.tls is None else manner.tls.wrap_socket(sock, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        sock.close()
        raise AuthenticationRefused(
            f"{address}: the broker's certificate is refused: {error.verify_message}"
        ) from error
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"{address}: no TLS connection: {_reason(error)}") from error


def _served_versions(channel: Channel) -> dict[int, tuple[int, int]]:
    answer = _ask_versions(channel, _FIRST_TRIED)
    if answer.error_code is ErrorCode.unsupported_version:
        answer = _ask_versions(channel, 0)
    if answer.error_code is not ErrorCode.none:
        raise channel.lose(f"the broker does not say what it serves: {answer.error_code.name}")
    return {int(api.api_key): (api.min_version, api.max_version) for api in answer.api_keys}


def _ask_versions(channel: Channel, version: int) -> Any:
    channel.send(ApiKey.API_VERSIONS, version, [encode_request(ApiKey.API_VERSIONS, version, _SOFTWARE)])
    received = channel.receive()
    try:
        return _readable(received).entity()
    except ProtocolViolation as error:
        raise channel.lose(str(error)) from error


def _readable(answer: Answer) -> Answer:
    """A broker that does not know the version answers in version 0, whatever was asked."""
    refusal = ErrorCode.unsupported_version.value.to_bytes(2, "big")
    return answer._replace(version=0) if bytes(answer.body[:2]) == refusal else answer


def _authenticate(channel: Channel, manner: Manner, exchange: Exchange) -> None:
    assert manner.mechanism is not None
    try:
        _shake_hands(channel, manner.mechanism)
        lifetime = _exchange_tokens(channel, exchange)
    except VersionNotServed as error:
        raise AuthenticationRefused(f"{channel.address}: {error}; does its listener have SASL?") from error
    except AuthenticationRefused as error:
        raise AuthenticationRefused(f"{channel.address}: {error}") from error
    except ConnectionLost as error:
        # A listener that wants another protocol, or that refuses without a word, closes here.
        raise ConnectionLost(f"{error}, while authenticating with {manner.mechanism}") from error
    if lifetime:
        channel.expires_at = time.monotonic() + lifetime * _REAUTHENTICATION_SHARE


def _shake_hands(channel: Channel, mechanism: str) -> None:
    answer = channel.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism})
    if answer.error_code is ErrorCode.none:
        return
    if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
        raise AuthenticationRefused(f"the broker has {', '.join(answer.mechanisms) or 'no mechanism'}, not {mechanism}")
    raise AuthenticationRefused(f"the broker refuses SASL: {answer.error_code.name.upper()}")


def _exchange_tokens(channel: Channel, exchange: Exchange) -> float:
    """Tokens to and fro until both sides are content; returns how long, in seconds, or 0 for as long as it lasts."""
    token = exchange.first()
    for _ in range(_MOST_STEPS):
        said_all = exchange.is_done
        answer = channel.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token})
        if answer.error_code is not ErrorCode.none:
            raise AuthenticationRefused(answer.error_message or answer.error_code.name.upper())
        if answer.auth_bytes or not said_all:
            token = exchange.answer(answer.auth_bytes)
        if exchange.is_done:
            lifetime = getattr(answer, "session_lifetime", None)
            return float(lifetime.total_seconds()) if lifetime is not None else 0.0
    raise AuthenticationRefused("the broker never came to an end")


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (getattr(error, "reason", None) or error.strerror or str(error)).lower()

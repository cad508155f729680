"""From a connected socket to a connection that is ready for requests: the versions both sides speak, then SASL.

A generator, driven by `advanced`: it yields requests, is sent the body of each answer, or thrown the `ConnectionLost`
that came instead, and returns a `ConnectionSession`. `AuthenticationRefused` and `ProtocolViolation` are for the driver
to complete with the broker's address.
"""

import ssl
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from headrace import __version__
from headrace.protocol.api import ApiKey
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode, ProtocolViolation

from .errors import AuthenticationRefused, ConnectionLost, VersionNotServed
from .sasl import SaslClient
from .versions import Ranges, agreed

_SOFTWARE: Final = {"client_software_name": "headrace", "client_software_version": __version__}
_FIRST_TRIED: Final = 3
_REAUTHENTICATION_SHARE: Final = 0.85
"""Of a session's lifetime after which a new connection is made rather than this one used."""
_MOST_STEPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How connections are made: client id, timeouts in seconds, TLS, SASL."""

    client_id: str
    connect_timeout: float
    request_timeout: float
    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    exchange: Callable[[], SaslClient] | None = None


class HandshakeRequest(NamedTuple):
    """A request to send, encoded."""

    api_key: int
    version: int
    body: bytes | bytearray


class ConnectionSession(NamedTuple):
    """What was agreed on."""

    served: Ranges
    """The versions that the broker serves."""
    lifetime: float | None
    """Seconds from now for which the connection may be used; None for as long as it lasts."""


Steps: TypeAlias = Generator[HandshakeRequest, memoryview, ConnectionSession]


def advanced(steps: Steps, answer: memoryview | ConnectionLost | None) -> HandshakeRequest | ConnectionSession:
    """The request to send next, or the session once the handshake is over; `answer` is None at the start."""
    try:
        if isinstance(answer, ConnectionLost):
            return steps.throw(answer)
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration as done:
        session: ConnectionSession = done.value
        return session


def handshake(settings: ConnectionSettings) -> Steps:
    """The requests that make a connection ready, one after the other."""
    served = yield from _served_versions()
    lifetime = 0.0
    if settings.exchange is not None:
        assert settings.mechanism is not None
        lifetime = yield from _authenticate(served, settings.mechanism, settings.exchange())
    return ConnectionSession(served, lifetime * _REAUTHENTICATION_SHARE if lifetime else None)


def _served_versions() -> Generator[HandshakeRequest, memoryview, Ranges]:
    answer = yield from _ask_versions(_FIRST_TRIED)
    if answer.error_code is ErrorCode.unsupported_version:
        answer = yield from _ask_versions(0)
    if answer.error_code is not ErrorCode.none:
        raise ProtocolViolation(f"the broker does not say what it serves: {answer.error_code.name}")
    return {int(api.api_key): (api.min_version, api.max_version) for api in answer.api_keys}


def _ask_versions(version: int) -> Generator[HandshakeRequest, memoryview, Any]:
    """A broker that does not know the version answers in version 0, whatever was asked."""
    key = ApiKey.API_VERSIONS
    body = yield HandshakeRequest(key, version, encode_request(key, version, _SOFTWARE))
    refusal = ErrorCode.unsupported_version.value.to_bytes(2, "big")
    return decode_response(key, 0 if bytes(body[:2]) == refusal else version, body)


def _authenticate(
    served: Ranges, mechanism: str, exchange: SaslClient
) -> Generator[HandshakeRequest, memoryview, float]:
    try:
        yield from _choose_mechanism(served, mechanism)
        return (yield from _exchange_tokens(served, exchange))
    except VersionNotServed as error:
        raise AuthenticationRefused(f"{error}; does its listener have SASL?") from error
    except ConnectionLost as error:
        # A listener that wants another protocol, or that refuses without a word, closes here.
        raise ConnectionLost(f"{error}, while authenticating with {mechanism}") from error


def _choose_mechanism(served: Ranges, mechanism: str) -> Generator[HandshakeRequest, memoryview, None]:
    answer = yield from _ask(served, ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism})
    if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
        raise AuthenticationRefused(f"the broker has {', '.join(answer.mechanisms) or 'no mechanism'}, not {mechanism}")
    if answer.error_code is not ErrorCode.none:
        raise AuthenticationRefused(f"the broker refuses SASL: {answer.error_code.name.upper()}")


def _exchange_tokens(served: Ranges, exchange: SaslClient) -> Generator[HandshakeRequest, memoryview, float]:
    """Tokens to and fro until both sides are content; returns for how many seconds, or 0 for as long as it lasts."""
    token = exchange.first()
    for _ in range(_MOST_STEPS):
        said_all = exchange.is_done
        answer = yield from _ask(served, ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token})
        if answer.error_code is not ErrorCode.none:
            raise AuthenticationRefused(answer.error_message or answer.error_code.name.upper())
        if answer.auth_bytes or not said_all:
            token = exchange.answer(answer.auth_bytes)
        if exchange.is_done:
            lifetime = getattr(answer, "session_lifetime", None)
            return float(lifetime.total_seconds()) if lifetime is not None else 0.0
    raise AuthenticationRefused("the broker never came to an end")


def _ask(served: Ranges, key: ApiKey, values: dict[str, Any]) -> Generator[HandshakeRequest, memoryview, Any]:
    version = agreed(key, served)
    return decode_response(key, version, (yield HandshakeRequest(key, version, encode_request(key, version, values))))

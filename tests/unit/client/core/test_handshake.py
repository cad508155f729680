from collections.abc import Mapping
from typing import Any

import pytest

from headrace.client.core.errors import AuthenticationRefused, ConnectionLost
from headrace.client.core.handshake import ConnectionSession, ConnectionSettings, HandshakeRequest, Steps, handshake
from headrace.client.core.sasl import PLAIN, credentials
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_response
from headrace.protocol.errors import ErrorCode, ProtocolViolation

SERVED = {ApiKey.API_VERSIONS: (0, 4), ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
VERSIONS = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in SERVED.items()]


def settings(**more: Any) -> ConnectionSettings:
    return ConnectionSettings(client_id="test", connect_timeout=1.0, request_timeout=1.0, **more)


def with_password() -> ConnectionSettings:
    return settings(mechanism=PLAIN, exchange=credentials(PLAIN, "alice", "secret", None))


def answer(api_key: int, version: int, values: Mapping[str, Any]) -> memoryview:
    return memoryview(bytes(encode_response(api_key, version, values)))


def versions(version: int = 3, code: ErrorCode = ErrorCode.none) -> memoryview:
    return answer(ApiKey.API_VERSIONS, version, {"error_code": code, "api_keys": VERSIONS, "throttle_time": 0})


def ended(steps: Steps, body: memoryview) -> ConnectionSession:
    with pytest.raises(StopIteration) as done:
        steps.send(body)
    session: ConnectionSession = done.value.value
    return session


def test_a_broker_without_sasl_is_ready_once_it_has_told_its_versions() -> None:
    steps = handshake(settings())
    assert next(steps)[:2] == (ApiKey.API_VERSIONS, 3)
    session = ended(steps, versions())
    assert session.served[ApiKey.SASL_AUTHENTICATE] == (0, 2)
    assert session.lifetime is None


def test_an_older_broker_is_asked_again_in_the_version_that_all_have() -> None:
    steps = handshake(settings())
    next(steps)
    refusal = answer(
        ApiKey.API_VERSIONS, 0, {"error_code": ErrorCode.unsupported_version, "api_keys": [], "throttle_time": 0}
    )
    assert steps.send(refusal)[:2] == (ApiKey.API_VERSIONS, 0)
    assert ended(steps, versions(0)).served[ApiKey.API_VERSIONS] == (0, 4)


def test_a_session_is_used_for_less_than_its_lifetime() -> None:
    steps = authenticating()
    lifetime = {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": b"", "session_lifetime": 1000}
    assert ended(steps, answer(ApiKey.SASL_AUTHENTICATE, 2, lifetime)).lifetime == pytest.approx(0.85)


def authenticating() -> Steps:
    """A handshake whose password is on its way."""
    steps = handshake(with_password())
    next(steps)
    assert steps.send(versions())[:2] == (ApiKey.SASL_HANDSHAKE, 1)
    chosen = {"error_code": ErrorCode.none, "mechanisms": [PLAIN]}
    request: HandshakeRequest = steps.send(answer(ApiKey.SASL_HANDSHAKE, 1, chosen))
    assert b"\0alice\0secret" in bytes(request.body)
    return steps


def test_a_refused_password_ends_it_in_the_brokers_words() -> None:
    refusal = {"error_code": ErrorCode.sasl_authentication_failed, "error_message": "no such user", "auth_bytes": b""}
    with pytest.raises(AuthenticationRefused, match="no such user"):
        authenticating().send(answer(ApiKey.SASL_AUTHENTICATE, 2, refusal))


def test_a_mechanism_that_the_broker_lacks_is_told_with_those_it_has() -> None:
    steps = handshake(with_password())
    next(steps)
    steps.send(versions())
    other = {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ["SCRAM-SHA-256"]}
    with pytest.raises(AuthenticationRefused, match="the broker has SCRAM-SHA-256, not PLAIN"):
        steps.send(answer(ApiKey.SASL_HANDSHAKE, 1, other))


def test_a_connection_lost_while_authenticating_says_so() -> None:
    with pytest.raises(ConnectionLost, match="closed, while authenticating with PLAIN"):
        authenticating().throw(ConnectionLost("closed"))


def test_bytes_that_are_no_answer_are_a_violation() -> None:
    steps = handshake(settings())
    next(steps)
    with pytest.raises(ProtocolViolation):
        steps.send(memoryview(b"HTTP/1.1 400 Bad Request"))

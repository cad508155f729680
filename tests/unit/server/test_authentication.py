"""Before a client has authenticated it can ask for nothing but to authenticate."""

from collections.abc import Iterator
from struct import pack
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from headrace.config import PLAIN_USERS
from headrace.protocol.errors import ErrorCode
from headrace.security.sasl import AuthenticationFailed, PlainUsers, users_of
from headrace.server.authentication import MOST_ASKED
from headrace.testing import Broker
from tests.support.wire import Wire, request

USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="s3cret" user_bob="a\\"b";'


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with (
        pytest.MonkeyPatch.context() as patch,
        Broker({"listeners": "SASL_PLAINTEXT://127.0.0.1:0", PLAIN_USERS: USERS}) as running,
    ):
        patch.setattr("headrace.security.failed_logins.LONGEST_DELAY", 0.05)
        yield running


def handshake(wire: Wire, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return wire.ask(17, version, request(17, version, mechanism=mechanism))


def authenticate(wire: Wire, token: bytes) -> Any:
    return wire.ask(36, 2, request(36, 2, auth_bytes=token))


def test_a_known_user_is_served(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        assert wire.ask(18, 0, request(18, 0)).error_code is ErrorCode.none
        assert handshake(wire).error_code is ErrorCode.none
        assert authenticate(wire, b"\0alice\0s3cret").error_code is ErrorCode.none
        assert wire.ask(60, 0, request(60, 0, include_cluster_authorized_operations=False)).error_code is ErrorCode.none


def test_tokens_without_headers_are_understood_after_the_old_handshake(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        assert handshake(wire, version=0).error_code is ErrorCode.none
        wire.send_frame(b'\0bob\0a"b')
        assert wire.receive_frame() == b""
        assert wire.ask(18, 0, request(18, 0)).error_code is ErrorCode.none


@pytest.mark.parametrize(
    "token",
    [b"\0alice\0wrong", b"\0mallory\0s3cret", b"bob\0alice\0s3cret", b"alice", b"\0\0", b"\0\xff\0\xff", b""],
    ids=["password", "user", "authzid", "parts", "empty user", "not text", "nothing"],
)
def test_a_wrong_token_is_told_so_and_the_connection_closed(broker: Broker, token: bytes) -> None:
    with Wire(broker.bootstrap) as wire:
        handshake(wire)
        answer = authenticate(wire, token)
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert wire.is_closed()


def test_a_failed_login_is_logged_with_user_and_address(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", PLAIN_USERS: USERS}
    with Broker(settings) as fresh, Wire(fresh.bootstrap) as wire:
        handshake(wire)
        authenticate(wire, b"\0mallory\0guess")
    (line,) = [r.getMessage() for r in caplog.records if "authentication failed" in r.getMessage()]
    assert "user=mallory" in line
    assert "peer=127.0.0.1" in line
    assert "guess" not in line


def test_guesses_that_were_sent_behind_a_wrong_one_are_not_tried(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        handshake(wire)
        for token in (b"\0alice\0wrong", b"\0alice\0s3cret"):
            wire.send(36, 2, request(36, 2, auth_bytes=token))
        assert wire.receive(36, 2).error_code is ErrorCode.sasl_authentication_failed
        assert wire.is_closed()


def test_a_wrong_token_without_a_header_closes_the_connection(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        handshake(wire, version=0)
        wire.send_frame(b"\0alice\0wrong")
        assert wire.is_closed()


@pytest.mark.parametrize(("key", "version"), [(3, 1), (0, 9), (1, 12), (19, 7), (36, 2), (999, 0)])
def test_no_other_api_is_served_before_authentication(broker: Broker, key: int, version: int) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send_body(key, version, b"\0\0\0\0")
        assert wire.is_closed()


def test_who_only_asks_and_does_not_log_in_is_not_answered_for_ever(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        for _ in range(MOST_ASKED):
            assert handshake(wire, "UNKNOWN").error_code is ErrorCode.unsupported_sasl_mechanism
        wire.send(18, 0, request(18, 0))
        assert wire.is_closed()


def test_a_mechanism_is_chosen_once(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        handshake(wire)
        wire.send(17, 1, request(17, 1, mechanism="PLAIN"))
        assert wire.is_closed()


def test_an_unknown_mechanism_is_answered_with_those_there_are(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        answer = handshake(wire, "GSSAPI")
        assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
        assert answer.mechanisms == ("PLAIN",)
        assert handshake(wire).error_code is ErrorCode.none


def test_a_handshake_after_authentication_closes_the_connection(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        handshake(wire)
        authenticate(wire, b"\0alice\0s3cret")
        wire.send(17, 1, request(17, 1, mechanism="PLAIN"))
        assert wire.is_closed()


def test_a_large_request_before_authentication_closes_the_connection(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send_bytes(pack(">i", 512 * 1024 + 1))
        assert wire.is_closed()


@pytest.mark.slow
def test_a_real_client_authenticates(broker: Broker) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    good = Producer({**settings, "sasl.username": "alice", "sasl.password": "s3cret", "log_level": 0})
    good.produce("letters", b"hello")
    assert good.flush(60) == 0
    bad = Producer({**settings, "sasl.username": "alice", "sasl.password": "no", "log_level": 0})
    with pytest.raises(KafkaException):
        bad.list_topics(timeout=2)


def test_sasl_is_not_spoken_on_a_plain_listener(headrace_broker: Broker) -> None:
    with Wire(headrace_broker.bootstrap) as wire:
        assert handshake(wire).error_code is ErrorCode.illegal_sasl_state


def test_users_are_read_from_a_jaas_configuration() -> None:
    assert users_of(USERS) == {"alice": "s3cret", "bob": 'a"b'}
    users = PlainUsers(users_of(USERS))
    assert users.authenticate(b"alice\0alice\0s3cret") == "alice"
    with pytest.raises(AuthenticationFailed):
        users.authenticate(b"\0carol\0")

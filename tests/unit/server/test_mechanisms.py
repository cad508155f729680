"""Other people's clients log in by every mechanism, and not with what is wrong, expired or was taken back."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokens
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokens

from headrace.testing import Broker
from tests.support.logins import ALICE, MECHANISMS, PASSWORD, SCRAM, Issuer, login_settings

pytestmark = pytest.mark.slow
EVERY: Final = pytest.mark.parametrize("mechanism", MECHANISMS)
Login = Callable[..., bool]
"""Whether a client gets in: bootstrap, mechanism, user, password or token; and for how many seconds it is to try."""
SOON: Final = 0.6


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def broker(issuer: Issuer) -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.security.failed_logins.FIRST_DELAY", 0.001)
        patch.setattr("headrace.security.failed_logins.LONGEST_DELAY", 0.01)
        with Broker(login_settings(issuer)) as running:
            yield running


def librdkafka(bootstrap: str, mechanism: str, user: str, secret: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "log_level": 0,
    }
    if mechanism == "OAUTHBEARER":
        return {**settings, "oauth_cb": lambda _: (secret, time.time() + 600)}
    return {**settings, "sasl.username": user, "sasl.password": secret}


def by_confluent(bootstrap: str, mechanism: str, user: str, secret: str, patience: float = 20) -> bool:
    try:
        AdminClient(librdkafka(bootstrap, mechanism, user, secret)).list_topics(timeout=patience)
    except KafkaException:
        return False
    return True


class PythonToken(PythonTokens):  # type: ignore[misc]  # it has no types
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


def by_kafka_python(bootstrap: str, mechanism: str, user: str, secret: str, patience: float = 20) -> bool:
    settings: dict[str, Any] = {"sasl_plain_username": user, "sasl_plain_password": secret}
    if mechanism == "OAUTHBEARER":
        settings = {"sasl_oauth_token_provider": PythonToken(secret)}
    try:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            max_block_ms=int(patience * 1000),
            bootstrap_timeout_ms=int(patience * 1000),
            **settings,
        )
    except KafkaError:
        return False
    try:
        producer.send("letters", b"hello").get(timeout=patience)
    except KafkaError:
        return False
    finally:
        producer.close(timeout=1)
    return True


class AioToken(AioTokens):  # type: ignore[misc]  # it has no types
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def by_aiokafka(bootstrap: str, mechanism: str, user: str, secret: str, patience: float = 20) -> bool:
    async def main() -> bool:
        settings: dict[str, Any] = {"sasl_plain_username": user, "sasl_plain_password": secret}
        if mechanism == "OAUTHBEARER":
            settings = {"sasl_oauth_token_provider": AioToken(secret)}
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            request_timeout_ms=int(patience * 1000),
            **settings,
        )
        try:
            await producer.start()
            await producer.send_and_wait("letters", b"hello")
        except Exception:  # it has many
            return False
        finally:
            await producer.stop()
        return True

    return asyncio.run(main())


CLIENTS: Final = pytest.mark.parametrize("login", [by_confluent, by_kafka_python, by_aiokafka])


def secret(issuer: Issuer, mechanism: str) -> str:
    return issuer.token() if mechanism == "OAUTHBEARER" else PASSWORD


@CLIENTS
@EVERY
def test_a_client_logs_in_by_every_mechanism(broker: Broker, issuer: Issuer, login: Login, mechanism: str) -> None:
    assert login(broker.bootstrap, mechanism, ALICE, secret(issuer, mechanism))


@CLIENTS
@EVERY
def test_a_client_with_something_wrong_does_not(broker: Broker, issuer: Issuer, login: Login, mechanism: str) -> None:
    wrong = issuer.token(seconds=-60) if mechanism == "OAUTHBEARER" else "wrong"
    assert not login(broker.bootstrap, mechanism, ALICE, wrong, SOON)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_passwords_are_changed_while_clients_are_there(broker: Broker, mechanism: str) -> None:
    admin = AdminClient(librdkafka(broker.bootstrap, mechanism, ALICE, PASSWORD))
    kind = ScramMechanism.SCRAM_SHA_256 if mechanism.endswith("256") else ScramMechanism.SCRAM_SHA_512

    def alter(change: Any) -> None:
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(20)

    for password in ("first", "second"):
        alter(UserScramCredentialUpsertion("bob", ScramCredentialInfo(kind, 4096), password.encode()))
        assert by_confluent(broker.bootstrap, mechanism, "bob", password)
    assert not by_confluent(broker.bootstrap, mechanism, "bob", "first", SOON)
    described = admin.describe_user_scram_credentials(["bob"])["bob"].result(20)
    assert [(info.mechanism, info.iterations) for info in described.scram_credential_infos] == [(kind, 4096)]
    alter(UserScramCredentialDeletion("bob", kind))
    assert not by_confluent(broker.bootstrap, mechanism, "bob", "second", SOON)


def test_a_password_of_one_mechanism_is_none_of_another(broker: Broker) -> None:
    admin = AdminClient(librdkafka(broker.bootstrap, "PLAIN", ALICE, PASSWORD))
    change = UserScramCredentialUpsertion("carol", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"pw")
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result(20)
    assert by_confluent(broker.bootstrap, "SCRAM-SHA-256", "carol", "pw")
    assert not by_confluent(broker.bootstrap, "SCRAM-SHA-512", "carol", "pw", SOON)


def test_keys_of_an_issuer_are_rotated(broker: Broker, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.security.sasl.keys.LOOK_AGAIN_SECONDS", 0.0)
    before = issuer.token()
    assert by_aiokafka(broker.bootstrap, "OAUTHBEARER", ALICE, before)
    issuer.rotate("two")
    assert by_aiokafka(broker.bootstrap, "OAUTHBEARER", ALICE, issuer.token())
    assert not by_aiokafka(broker.bootstrap, "OAUTHBEARER", ALICE, before, SOON)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_clients_authenticate_again_and_lose_nothing(issuer: Issuer, mechanism: str) -> None:
    """Sessions of a second and a half: a client that could not would be closed."""
    settings = login_settings(issuer, connections_max_reauth_ms="1500")
    with Broker(settings) as short:
        client = librdkafka(short.bootstrap, mechanism, ALICE, secret(issuer, mechanism))
        lost: list[object] = []
        producer = Producer({**client, "error_cb": lost.append, "acks": "all"})
        reports: list[object] = []
        until = time.monotonic() + 3
        while time.monotonic() < until:
            producer.produce("letters", b"x", on_delivery=lambda error, _: reports.append(error))
            producer.flush(10)
        assert set(reports) == {None}
        assert not lost
        consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["letters"])
        seen, until = 0, time.monotonic() + 60
        while seen < len(reports) and time.monotonic() < until:
            seen += len(consumer.consume(1000, 0.5))
        consumer.close()
        assert seen == len(reports)


def test_a_wrong_password_is_said_to_be_one(broker: Broker) -> None:
    said: list[str] = []
    settings = librdkafka(broker.bootstrap, "SCRAM-SHA-256", ALICE, "wrong")
    admin = AdminClient({**settings, "error_cb": lambda error: said.append(error.str())})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=SOON)
    admin.poll(0)
    assert "invalid credentials with SASL mechanism SCRAM-SHA-256" in " ".join(said)

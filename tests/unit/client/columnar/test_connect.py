"""A connection from nothing to ready, against a sound broker and against others."""

import base64
import hashlib
import hmac
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest

from headrace.client.columnar.channel import Channel
from headrace.client.columnar.connect import open_channel
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost
from headrace.client.core.handshake import ConnectionSettings
from headrace.client.core.sasl import credentials
from headrace.net.address import Address
from headrace.net.tls import TlsSettings, client_context
from headrace.protocol.api import ApiKey
from headrace.testing import Broker
from tests.support.process import free_port
from tests.support.scripted import Asked, Reply, ScriptedBroker

USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="se,c\'ret";'
SASL_SERVED: dict[int, tuple[int, int]] = {
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.METADATA: (0, 12),
}
PASSWORD = b"pencil"
SALT = b"some salt"


def connecting(**more: object) -> ConnectionSettings:
    return ConnectionSettings(client_id="test", connect_timeout=60.0, request_timeout=60.0, **more)  # type: ignore[arg-type]


def with_sasl(mechanism: str, user: str = "alice", password: str = "se,c'ret") -> ConnectionSettings:
    return connecting(mechanism=mechanism, exchange=credentials(mechanism, user, password, "token"))


def address(bootstrap: str) -> Address:
    host, _, port = bootstrap.rpartition(":")
    return Address(host, int(port))


def is_answered(channel: Channel) -> bool:
    answer = channel.ask(
        ApiKey.METADATA,
        {
            "topics": (),
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        },
    )
    return len(answer.brokers) == 1


@pytest.fixture(scope="module")
def sasl_broker() -> Iterator[Broker]:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    }
    with Broker(settings) as broker:
        yield broker


def test_plain_lets_the_right_password_in(sasl_broker: Broker) -> None:
    channel = open_channel(address(sasl_broker.bootstrap), with_sasl("PLAIN"))
    try:
        assert is_answered(channel)
    finally:
        channel.close()


def test_plain_refuses_the_wrong_password_for_good(sasl_broker: Broker) -> None:
    with pytest.raises(AuthenticationRefused, match="Invalid username or password"):
        open_channel(address(sasl_broker.bootstrap), with_sasl("PLAIN", password="guess"))


def test_a_mechanism_that_the_broker_does_not_have_is_named_with_those_it_has(sasl_broker: Broker) -> None:
    with pytest.raises(AuthenticationRefused, match="the broker has PLAIN, not SCRAM-SHA-512"):
        open_channel(address(sasl_broker.bootstrap), with_sasl("SCRAM-SHA-512"))


def test_a_broker_that_knows_only_the_first_version_of_api_versions_is_understood() -> None:
    def reply(asked: Asked) -> Reply:
        if asked.version:
            return pack(">hi", 35, 0)
        return {"error_code": 0, "api_keys": [{"api_key": 3, "min_version": 0, "max_version": 5}]}

    with ScriptedBroker(reply, answers_versions=True) as broker:
        channel = open_channel(address(broker.bootstrap), connecting())
        assert channel.version_of(ApiKey.METADATA) == 5
        channel.close()
        assert [asked.version for asked in broker.asked] == [3, 0]


def test_what_does_not_speak_kafka_is_said_to_be_no_broker() -> None:
    with ScriptedBroker(lambda _: b"\x7f\xff\xff\xff", answers_versions=True) as broker, pytest.raises(ConnectionLost):
        open_channel(address(broker.bootstrap), connecting())
    with pytest.raises(ConnectionLost, match="refused"):
        open_channel(Address("127.0.0.1", free_port()), connecting())


class ScramServer:
    """The broker's side of SCRAM-SHA-256."""

    def __init__(self, *, knows_password: bool = True) -> None:
        self._password = PASSWORD if knows_password else b"another"
        self._messages: list[str] = []

    def __call__(self, asked: Asked) -> Reply:
        if asked.api_key == ApiKey.SASL_HANDSHAKE:
            return {"error_code": 0, "mechanisms": ["SCRAM-SHA-256"]}
        token = asked.entity.auth_bytes.decode()
        reply = self._final(token) if self._messages else self._challenge(token)
        return {"error_code": 0, "error_message": None, "auth_bytes": reply, "session_lifetime": 60_000}

    def _challenge(self, first: str) -> bytes:
        nonce = first.rpartition("r=")[2]
        challenge = f"r={nonce}server,s={base64.b64encode(SALT).decode()},i=4096"
        self._messages = [first[3:], challenge]
        return challenge.encode()

    def _final(self, last: str) -> bytes:
        message = ",".join([*self._messages, last.rpartition(",p=")[0]]).encode()
        salted = hashlib.pbkdf2_hmac("sha256", self._password, SALT, 4096)
        signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
        return b"v=" + base64.b64encode(signature)


def test_scram_goes_through_and_a_session_that_ends_is_not_used_to_its_end() -> None:
    with ScriptedBroker(ScramServer(), SASL_SERVED) as broker:
        channel = open_channel(address(broker.bootstrap), with_sasl("SCRAM-SHA-256", password=PASSWORD.decode()))
        assert channel.expires_at is not None
        assert channel.is_reusable(channel.expires_at - 1)
        assert not channel.is_reusable(channel.expires_at)
        channel.close()


def test_a_broker_that_cannot_prove_that_it_knows_the_password_is_refused() -> None:
    with (
        ScriptedBroker(ScramServer(knows_password=False), SASL_SERVED) as broker,
        pytest.raises(AuthenticationRefused, match="signature is wrong"),
    ):
        open_channel(address(broker.bootstrap), with_sasl("SCRAM-SHA-256", password=PASSWORD.decode()))


def test_sasl_at_a_listener_without_it_says_so() -> None:
    with Broker() as broker, pytest.raises(AuthenticationRefused, match="ILLEGAL_SASL_STATE"):
        open_channel(address(broker.bootstrap), with_sasl("PLAIN"))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for `localhost` that is its own authority, with its key, and the key under a password."""
    directory = tmp_path_factory.mktemp("certificates")
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    _openssl(*made, *names, "-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem"))
    locked = ["rsa", "-aes256", "-passout", "pass:secret"]
    _openssl(*locked, "-in", str(directory / "key.pem"), "-out", str(directory / "locked.pem"))
    return directory


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def tls_broker(certificates: Path, *, wants_certificate: bool = False) -> ScriptedBroker:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    if wants_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "cert.pem")

    def wrap(sock: socket.socket) -> socket.socket:
        return context.wrap_socket(sock, server_side=True)

    def reply(_: Asked) -> Reply:
        broker = {"node_id": 1, "host": "localhost", "port": 1}
        return {"throttle_time": 0, "brokers": [broker], "topics": ()}

    return ScriptedBroker(reply, {ApiKey.METADATA: (4, 12)}, wrap=wrap)


def test_tls_works_where_the_authority_is_trusted_and_the_name_is_right(certificates: Path) -> None:
    trusting = client_context(TlsSettings(ca_location=str(certificates / "cert.pem")))
    with tls_broker(certificates) as broker:
        channel = open_channel(Address("localhost", broker.port), connecting(tls=trusting))
        assert is_answered(channel)
        assert channel.is_reusable(0.0)
        channel.close()
        with pytest.raises(AuthenticationRefused, match="IP address mismatch"):
            open_channel(Address("127.0.0.1", broker.port), connecting(tls=trusting))
        pem = (certificates / "cert.pem").read_text()
        nameless = client_context(TlsSettings(ca_pem=pem, checks_host_name=False))
        channel = open_channel(Address("127.0.0.1", broker.port), connecting(tls=nameless))
        assert is_answered(channel)
        channel.close()


def test_a_certificate_of_an_unknown_authority_is_refused(certificates: Path) -> None:
    with tls_broker(certificates) as broker, pytest.raises(AuthenticationRefused, match="self-signed"):
        open_channel(Address("localhost", broker.port), connecting(tls=client_context(TlsSettings())))


def test_a_client_shows_its_certificate_with_a_locked_key(certificates: Path) -> None:
    settings = TlsSettings(
        ca_location=str(certificates / "cert.pem"),
        certificate_location=str(certificates / "cert.pem"),
        key_location=str(certificates / "locked.pem"),
        key_password="secret",
    )
    with tls_broker(certificates, wants_certificate=True) as broker:
        channel = open_channel(Address("localhost", broker.port), connecting(tls=client_context(settings)))
        assert is_answered(channel)
        channel.close()


def test_tls_to_a_plain_listener_is_no_connection(certificates: Path) -> None:
    trusting = client_context(TlsSettings(ca_location=str(certificates / "cert.pem")))
    with Broker() as broker, pytest.raises(ConnectionLost, match="no TLS connection"):
        open_channel(address(broker.bootstrap), connecting(tls=trusting))


def test_files_that_cannot_be_used_are_named(certificates: Path, tmp_path: Path) -> None:
    keystore = tmp_path / "client.jks"
    keystore.write_bytes(b"\xfe\xed\xfe\xed")
    cert = str(certificates / "cert.pem")
    for settings, words in (
        (TlsSettings(ca_location="/nowhere.pem"), "ssl.ca.location '/nowhere.pem' cannot be read: no such file"),
        (TlsSettings(ca_location=str(keystore)), "is not PEM; turn a Java keystore into PEM"),
        (TlsSettings(certificate_location=cert), "cert.pem' with its key cannot be used"),
        (TlsSettings(key_location=cert), "ssl.key.location is of no use without"),
        (
            TlsSettings(certificate_location=cert, key_location=str(certificates / "locked.pem"), key_password="no"),
            "cannot be used",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            client_context(settings)

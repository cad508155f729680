"""Settings by Kafka's names; a wrong one is refused with what to do."""

from pathlib import Path

import pytest

from headrace.client.columnar.settings import ClientSettings
from headrace.client.errors import ClientError
from headrace.net.address import Address

SERVERS = {"bootstrap.servers": "a:1,[::1]:2"}


def test_defaults_are_in_force_where_nothing_is_set() -> None:
    settings = ClientSettings(SERVERS)
    assert settings.bootstrap == [Address("a", 1), Address("::1", 2)]
    assert settings["request.timeout.ms"] == 30_000
    assert settings.seconds("retry.backoff.ms") == 0.1
    assert settings["transactional.id"] is None
    assert settings.connection.tls is None
    assert settings.connection.exchange is None


def test_names_of_librdkafka_count_and_tuning_of_other_clients_has_no_effect() -> None:
    settings = ClientSettings({**SERVERS, "sasl.mechanisms": "SCRAM-SHA-256", "linger.ms": "5", "check.crc": "false"})
    assert settings["sasl.mechanism"] == "SCRAM-SHA-256"
    assert settings["check.crcs"] is False
    assert "linger.ms" not in settings.given


def test_a_file_that_a_service_hands_out_for_all_clients_is_taken() -> None:
    shared = {"client.dns.lookup": "use_all_dns_ips", "session.timeout.ms": "45000", "acks": "all", "client.id": "c"}
    assert ClientSettings({**SERVERS, **shared}).given == {**SERVERS, "acks": "all", "client.id": "c"}


def test_a_jaas_configuration_gives_user_and_password() -> None:
    jaas = 'org.apache...ScramLoginModule required username="al\\"ice" password=\'s,c;t\';'
    given = {**SERVERS, "security.protocol": "sasl_plaintext", "sasl.jaas.config": jaas}
    exchange = ClientSettings(given).connection.exchange
    assert exchange is not None
    assert exchange().first() == b'\0al"ice\0s,c;t'


def test_tls_takes_the_names_of_java_and_of_librdkafka(tmp_path: Path) -> None:
    for name in ("ssl.ca.location", "ssl.truststore.location"):
        with pytest.raises(ClientError, match="cannot be read: no such file"):
            ClientSettings({**SERVERS, "security.protocol": "SSL", name: str(tmp_path / "none.pem")})
    context = ClientSettings({**SERVERS, "security.protocol": "SSL"}).connection.tls
    assert context is not None
    assert context.check_hostname
    off = {"ssl.endpoint.identification.algorithm": ""}
    context = ClientSettings({**SERVERS, "security.protocol": "SSL", **off}).connection.tls
    assert context is not None
    assert not context.check_hostname


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "bootstrap.servers is not set"),
        ({"bootstrap.server": "a:1"}, "Unknown client setting bootstrap.server; did you mean bootstrap.servers"),
        ({"bootstrap.servers": "a"}, "'a' is not HOST:PORT"),
        ({**SERVERS, "group.id": "g"}, "Unknown client setting group.id"),
        ({**SERVERS, "request.timeout.ms": "soon"}, "request.timeout.ms: must be a whole number"),
        ({**SERVERS, "max.in.flight": "6"}, "max.in.flight.requests.per.connection: must be between 1 and 5"),
        ({**SERVERS, "compression.type": "rar"}, "must be one of none, gzip, snappy, lz4, zstd"),
        ({**SERVERS, "security.protocol": "SASL_SSL"}, "PLAIN needs sasl.username and sasl.password"),
        ({**SERVERS, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}, "must be one of PLAIN"),
        (
            {**SERVERS, "security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": "none"},
            "sasl.jaas.config has no username",
        ),
        ({**SERVERS, "ssl.truststore.type": "JKS"}, "ssl.truststore.type: must be one of PEM"),
    ],
)
def test_what_cannot_be_is_refused_in_words(given: dict[str, str], words: str) -> None:
    with pytest.raises(ClientError) as refusal:
        ClientSettings(given)
    assert words in str(refusal.value)
    assert refusal.value.code == "INVALID_CONFIG"


def test_a_password_is_never_in_a_message() -> None:
    given = {**SERVERS, "security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": "username=bob password", "x": "y"}
    with pytest.raises(ClientError) as refusal:
        ClientSettings(given)
    assert "bob" not in str(refusal.value)
